"""A model of your own: the same 64 images per step on one worker and on two.

python examples/own_model.py

From the command line, in this folder:

cifar-ray train --dataset digits --model own_model:build --model-options.width 32
cifar-ray sweep --name widths --dataset digits --model own_model:build --grid model_options.width=8,16,32
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from cifar_ray import TrainConfig, train


def build(image_size: int, channels: int, classes: int, width: int = 16) -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (image_size // 4) ** 2, classes),
    )


def main() -> None:
    """Train twice and compare."""
    one = TrainConfig(dataset="digits", epochs=5, global_batch_size=64)
    for topology in ("1x1", "1x2"):
        result = train(replace(one, topology=topology), model=build)
        print(f"{topology}: accuracy {result.metrics['test/accuracy']:.2%}, MLflow run {result.run_id}")


if __name__ == "__main__":  # Ray's workers import this file
    main()
