"""A run's curves in Weights & Biases, while it trains.

pip install wandb && wandb login
python examples/to_weights_and_biases.py
"""

import wandb

from cifar_ray import Callback, TrainConfig, train


class WeightsAndBiases(Callback):
    """Sends every epoch's figures, and the losses of its steps, under their names in MLflow."""

    def __init__(self, config):
        self._config = config

    def started(self, event):
        """Again after a restart of the workers, in the same run."""
        if wandb.run is None:
            wandb.init(project="cifar_ray", config={**vars(self._config), **vars(event.decided)})

    def iteration(self, row):
        """Steps are those of the optimizer; epochs go beside them, as W&B has one axis."""
        wandb.log({**row.metrics, row.kind: row.step})

    def epoch(self, record):
        """The test figures."""
        self.iteration(record.row)

    def end(self, status):
        """Whatever the end was."""
        wandb.finish(0 if status == "FINISHED" else 1)


if __name__ == "__main__":  # Ray's workers import this file
    asked = TrainConfig(dataset="digits", model="simple_cnn", epochs=5)
    train(asked, callbacks=[WeightsAndBiases(asked)])
