"""Masks, texts and tables on two nodes with a killed worker, and under torchrun: the same weights."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.regression import make_table
from examples.segmentation import make_masks
from examples.text import make_texts
from tests.support.person import Person

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.extended]

MASKS = ["--dataset", "masks:made", "--model", "unet", "--model-options.width", "4", "--augment", "crop", "--stream"]
MASKS += ["--class-weights", "balanced"]
TEXTS = ["--dataset", "text:made", "--model", "text_transformer", "--model-options.dim", "32"]
TEXTS += ["--text.vocabulary", "400", "--text.max-length", "40"]
TABLE = ["--dataset", "table:made", "--target", make_table.TARGET, "--model-options.norm", "batch"]
USUAL = ["--global-batch-size", "16", "--strategy", "reproducible", "--val-share", "0.2", "--precision", "fp32"]
USUAL += ["--cpus-per-worker", "1"]


@pytest.mark.parametrize(
    ("make", "words", "epochs", "topology"),
    [
        pytest.param(lambda folder: make_masks.make(folder, 100), MASKS, 30, "2x2", id="masks"),
        pytest.param(lambda folder: make_texts.make(folder, 240), TEXTS, 30, "2x1", id="texts"),
        pytest.param(make_table.make, TABLE, 100, "2x1", id="table"),
    ],
)
def test_weights_are_those_of_one_node_though_a_worker_of_two_is_killed(
    make: Callable[[Path], None], words: list[str], epochs: int, topology: str, person: Person
) -> None:
    make(person.home / "made")
    words = [*words, *USUAL, "--epochs", str(epochs)]
    *_, (step, weights) = person.torchrun(*words, "--device", "cpu")

    nodes = ["--topology", topology, "--local-nodes", "2", "--device", "cpu", "--log-models", "none"]
    with person.starts("train", *words, *nodes, "--run-name", "two") as run:
        run.until(f"epoch 1/{epochs}")
        os.kill(
            next(pid for pid, line in person.processes().items() if line.startswith("ray::RayTrainWorker")),
            signal.SIGKILL,
        )
        assert run.end() == 0, run.output
    two = person.run_named("two")
    assert len({worker["node_id"] for worker in person.placement("two")}) == 2
    assert two.data.tags["cifar_ray.worker_failures"] == "1"
    recorded = json.loads(person.artifact("two", "checkpoints.json").read_text())["checkpoints"]
    assert recorded[-1]["step"] == step
    assert two.data.tags["cifar_ray.weights_sha256"] == weights
