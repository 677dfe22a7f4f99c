"""Networks of texts and of tables through Ray and torchrun: killed and resumed, and fine-tuned."""

from __future__ import annotations

import signal

import pytest

from cifar_ray.training import checkpoint
from examples.regression import make_table
from examples.text import make_texts
from tests.support.person import Person

pytestmark = [pytest.mark.slow, pytest.mark.extended]

USUAL = ["--global-batch-size", "16", "--device", "cpu", "--cpus-per-worker", "1"]
DATA = ["--dataset", "text:reviews", *USUAL, "--text.vocabulary", "400", "--text.max-length", "40"]
SMALL = ["--model", "lstm", "--model-options.dim", "16", "--model-options.hidden", "16"]


@pytest.mark.fault
def test_a_run_that_is_killed_and_resumed_has_the_weights_of_torchrun(person: Person) -> None:
    make_texts.make(person.home / "reviews", 240)
    words = [*DATA, *SMALL, "--strategy", "reproducible", "--precision", "bf16", "--epochs", "20", "--val-share", "0.2"]
    *_, (_, weights) = person.torchrun(*words)
    with person.starts("train", *words, "--topology", "1x2", "--run-name", "killed") as run:
        run.until("epoch 3/20")
        run.kill(signal.SIGKILL)
        run.end()
    person.succeeds("resume", "killed")
    assert person.run_named("killed").data.tags["cifar_ray.weights_sha256"] == weights


@pytest.mark.parametrize(
    ("words", "frozen", "learned"),
    [
        pytest.param(
            [*DATA, "--model-options.dim", "16", "--model-options.filters", "8"],
            ["embedding", "body"],
            {"head.1.weight", "head.1.bias"},
            id="texts",
        ),
        pytest.param(
            ["--dataset", "table:diabetes", "--target", make_table.TARGET, *USUAL],
            ["0", "2"],
            {"4.weight", "4.bias"},
            id="table",
        ),
    ],
)
def test_fine_tuning_keeps_what_is_frozen(
    words: list[str], frozen: list[str], learned: set[str], person: Person
) -> None:
    make_texts.make(person.home / "reviews", 240)
    make_table.make(person.home / "diabetes")
    words = [*words, "--epochs", "2"]
    person.succeeds("train", *words, "--run-name", "first")
    person.succeeds("train", *words, "--run-name", "second", "--weights", "first", "--freeze", *frozen)
    first, second = (
        checkpoint.load(checkpoint.every(person.home / ".cifar_ray" / "runs" / name / "checkpoints")[-1]).weights
        for name in ("first", "second")
    )
    moved = {name for name in first if not first[name].equal(second[name])}
    assert moved == learned
