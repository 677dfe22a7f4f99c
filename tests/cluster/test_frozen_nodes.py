"""Fine-tuning on two emulated nodes: killed while a part is frozen and after it, it ends with one worker's bits."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from cifar_ray import data, models
from cifar_ray.config import flags, runfile
from cifar_ray.config.train import TrainConfig
from cifar_ray.training import initial_weights, recipe
from tests.support.helpers import train_here
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.extended]

STEPS, UNFROZEN = 22, 9
"""Steps in an epoch, and the epoch from which on all learns."""

TUNED = ["train", "--dataset", "digits", "--model", "resnet"]
TUNED += ["--model-options.blocks", "1,1", "--model-options.width", "8"]
TUNED += ["--precision", "fp32", "--strategy", "reproducible", "--global-batch-size", "64", "--cpus-per-worker", "1"]
TUNED += ["--epochs", "16", "--freeze", "[0-3]", "--unfreeze-epoch", str(UNFROZEN), "--ema", "0.9"]
TUNED += ["--weights", "start.pt", "--checkpoint-every", "7", "--log-every", "5", "--log-models", "none"]
TWO_NODES = ["--topology", "2x2", "--local-nodes", "2", "--run-name", "victim"]


def undisturbed(home: Path) -> str:
    """SHA-256 of the weights of one worker whom nothing happens to, without Ray; writes the file that all start from."""
    asked = runfile.load(None, flags.parse(TrainConfig, TUNED[1:], "cifar-ray train"))
    config = recipe.resolve(asked)
    torch.manual_seed(5)
    dataset = data.read(config)
    state = models.build(config, dataset.spec).state_dict()
    torch.save(state, home / "start.pt")
    content, _ = initial_weights.pack(state)
    return train_here(config, dataset, home / "calm", initial=content).weights_sha256


@pytest.mark.parametrize("kills", [("worker", "driver"), ("driver", "worker")])
def test_killed_while_frozen_and_afterwards_it_comes_to_the_same_bits(kills: tuple[str, str], person: Person) -> None:
    """The workers start again on their own; after the driver's end the run is resumed on one node of two workers."""
    expected, shown = undisturbed(person.home), ""
    plan = list(zip(kills, ("epoch 1/16", "epoch 11/16")))
    words = [*TUNED, *TWO_NODES]
    while words:
        with person.starts(*words) as run:
            words = []
            while plan and not words:
                what, moment = plan.pop(0)
                run.until(moment)
                if what == "worker":
                    os.kill(person.placement("victim")[1]["pid"], signal.SIGKILL)
                else:
                    run.kill(signal.SIGKILL)
                    words = ["resume", "victim", "--topology", "1x2"]
            status = run.end()
            shown += run.output
    assert status == 0, shown
    before, after = map(int, re.findall(r"continuing after step (\d+)", shown))
    assert before < STEPS * (UNFROZEN - 1) < after
    assert person.run_named("victim").data.tags["cifar_ray.weights_sha256"] == expected
