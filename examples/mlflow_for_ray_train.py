"""A Ray Train script of your own, recorded in one MLflow run however often its workers or the script start again.

python examples/mlflow_for_ray_train.py
cifar-ray ui
"""

import tempfile
from pathlib import Path

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn

from cifar_ray import MLflowRun

CONFIG = {"epochs": 20, "optimizer": {"name": "sgd", "lr": 0.05}, "hidden": [64]}


def loop(config):
    """Train on one half of the digits and test on the other, with a checkpoint after every epoch."""
    images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
    images, first, share = images.float() / 16, 0, ray.train.get_context().get_world_size()
    model = nn.Sequential(nn.Linear(64, config["hidden"][0]), nn.ReLU(), nn.Linear(config["hidden"][0], 10))
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        first = state["epoch"]
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["optimizer"]["lr"])
    mine = slice(ray.train.get_context().get_world_rank(), 900, share)
    for epoch in range(first + 1, config["epochs"] + 1):
        for batch, label in zip(images[mine].split(16), labels[mine].split(16)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), label)
            loss.backward()
            optimizer.step()
        accuracy = (model(images[900:]).argmax(1) == labels[900:]).float().mean()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if ray.train.get_context().get_world_rank() == 0:
                state = {"model": getattr(model, "module", model).state_dict(), "epoch": epoch}
                torch.save(state, Path(folder) / "state.pt")
                saved = Checkpoint.from_directory(folder)
            figures = {"epoch": epoch, "loss": loss.item(), "test": {"accuracy": accuracy.item()}}
            ray.train.report(figures, checkpoint=saved)


if __name__ == "__main__":
    with MLflowRun("digits", params=CONFIG) as run:
        TorchTrainer(
            loop,
            train_loop_config=CONFIG,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="digits", failure_config=FailureConfig(max_failures=3), callbacks=[run.callback]),
        ).fit()
    print(f"recorded as {run.run_id}")
