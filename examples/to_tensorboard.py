"""A run's curves in TensorBoard, while it trains.

pip install tensorboard
python examples/to_tensorboard.py
tensorboard --logdir tensorboard
"""

from torch.utils.tensorboard import SummaryWriter

from cifar_ray import Callback, TrainConfig, train


class TensorBoard(Callback):
    """Writes every figure under its name in MLflow."""

    def __init__(self, folder):
        self.writer = SummaryWriter(folder)

    def iteration(self, row):
        """The losses, by optimizer step."""
        for name, value in row.metrics.items():
            self.writer.add_scalar(name, value, row.step)

    def epoch(self, record):
        """The test figures, by epoch."""
        self.iteration(record.row)

    def end(self, status):
        """Nothing is written any more."""
        self.writer.close()


if __name__ == "__main__":  # Ray's workers import this file
    train(TrainConfig(dataset="digits", model="simple_cnn", epochs=5), callbacks=[TensorBoard("tensorboard")])
