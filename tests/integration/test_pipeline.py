"""Pipelines over gloo, in real processes: what they compute, what they send, and what they refuse."""

from __future__ import annotations

import itertools
from functools import cache, partial
from pathlib import Path

import pytest
from torch import Tensor

from cifar_ray import models, strategies
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.strategy import PipelineOptions
from cifar_ray.training import checkpoint, probe
from tests.support.helpers import Recorder, Steps, small_config, steps_on_ranks, train_on_ranks

NORM = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}}
DROPS = {"model": "vit", "model_options": {"dim": 24, "depth": 2, "heads": 2, "dropout": 0.1, "stochastic_depth": 0.2}}
MODELS: dict[str, dict[str, object]] = {"plain": {}, "norm": NORM, "drops": DROPS}
TOLERANCE = 1e-4


config = partial(small_config, steps_per_epoch=10, global_batch_size=48)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """20 steps in two epochs; runs that several tests ask for are done once."""

    @cache
    def run(strategy: str, topology: str, model: str, **values: object) -> list:
        folder = tmp_path_factory.mktemp("run")
        return train_on_ranks(config(strategy, topology, **MODELS[model], **values), folder)

    return run


def sha(results: list) -> str:
    return results[0][0].weights_sha256


def weights(results: list) -> dict[str, Tensor]:
    return checkpoint.load(Path(results[0][0].checkpoint)).weights


def losses(recorder: Recorder) -> list[float]:
    return [row.metrics["train/loss"] for row in recorder.rows]


@pytest.mark.parametrize(("model", "topology", "precision"), [("plain", "1x2", "bf16"), ("norm", "1x4", "fp32")])
def test_model_parallel_is_one_worker_to_the_last_bit(trained, model: str, topology: str, precision: str) -> None:  # type: ignore[no-untyped-def]
    """With batch norm too: its only micro-batch is the whole global batch."""
    one = trained("ddp", "1x1", model, precision=precision)
    many = trained("model_parallel", topology, model, precision=precision)
    assert sha(many) == sha(one)
    assert many[0][0].confusion == one[0][0].confusion
    assert losses(many[0][1]) == losses(one[0][1])
    assert all(recorder.weights == many[0][1].weights for _, recorder in many)
    stages = many[0][0].metrics["bubble/theory"]  # of one micro-batch: one stage computes while all others wait
    assert many[0][0].metrics["bubble/measured"] >= stages == 1 - 1 / len(many)


@pytest.mark.parametrize(("strategy", "topology"), [("gpipe", "1x2"), ("one_f_one_b", "2x2")])
def test_losses_are_those_of_one_worker(trained, strategy: str, topology: str) -> None:  # type: ignore[no-untyped-def]
    """On a model without batch norm: losses within 1e-4 relative, weights within 1e-5 of the largest of their tensor.

    Both are to the bit those of one worker with as many accumulated micro-batches.
    """
    many, one = trained(strategy, topology, "plain"), trained("ddp", "1x1", "plain")
    assert len(losses(one[0][1])) == 10
    expected = weights(one)
    for name, found in weights(many).items():
        assert (found - expected[name]).abs().max() < 1e-5 * expected[name].abs().max()
    for outcome, recorder in many:
        assert losses(recorder) == pytest.approx(losses(one[0][1]), rel=TOLERANCE)
        assert recorder.weights == many[0][1].weights
        assert outcome.metrics["test/loss"] == many[0][0].metrics["test/loss"]
    assert sha(many) == sha(trained("ddp", "1x1", "plain", accumulate=4))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extended] * name.startswith(("resnet18", "resnet50")))
        for name, architecture in sorted(models.registry().items())
        if name != "speednet" and architecture.inputs == "images" and not architecture.has_masks
    ],
)
def test_every_model_passes_through_a_pipeline(name: str) -> None:
    """Two steps come to those of one worker with as many accumulated micro-batches, to the bit."""
    shape: dict[str, object] = {"model_options": {"stochastic_depth": 0.0}} if name == "vit" else {}
    shape |= {"model": name, "global_batch_size": 8, "strategy_options": {"micro_batches": 4}}
    first, second = steps_on_ranks(config("gpipe", "1x2", **shape), 2)
    accumulated = {**shape, "accumulate": 4, "strategy_options": {"micro_batches": PipelineOptions.micro_batches}}
    (one,) = steps_on_ranks(config("ddp", "1x1", **accumulated), 2)
    assert first.losses == second.losses == one.losses
    assert first.weights == second.weights == one.weights
    # Each rank trains its own part and holds nothing for the other's.
    assert not first.trained & second.trained
    assert first.trained | second.trained == one.trained
    assert (first.kept, second.kept) == (first.trained, second.trained)


def test_a_model_with_weights_that_do_not_learn_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        config("gpipe", "1x2", model="speednet")
    assert caught.value.as_flag() == (
        "--strategy must keep the model whole for --model speednet, some of whose weights do not learn, got gpipe"
    )


def test_an_interrupted_run_equals_an_uninterrupted_one(trained, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """To the bit, wherever the model is cut after the interruption, with dropout and AdamW."""
    whole = trained("one_f_one_b", "1x2", "drops")
    wanted = config("one_f_one_b", "1x2", **DROPS, checkpoint_every=4)
    train_on_ranks(wanted, tmp_path, stop_after=13)
    rest = train_on_ranks(wanted, tmp_path)
    assert rest[0][1].begun[0].step == 12
    assert sha(rest) == sha(whole)


def test_a_run_goes_on_at_another_number_of_stages(trained, tmp_path) -> None:  # type: ignore[no-untyped-def]
    whole = trained("gpipe", "1x2", "norm")
    train_on_ranks(config("gpipe", "1x2", **NORM, checkpoint_every=4), tmp_path, stop_after=6)
    rest = train_on_ranks(config("gpipe", "1x3", **NORM), tmp_path)
    assert rest[0][1].begun[0].step == 4
    assert losses(rest[0][1]) == pytest.approx(losses(whole[0][1])[2:], rel=TOLERANCE)
    assert sha(rest) == sha(whole)


@pytest.mark.parametrize("strategy", ["gpipe", "one_f_one_b", "model_parallel"])
def test_a_step_costs_what_the_strategy_says(strategy: str) -> None:
    """Messages and bytes, counted where they are sent."""
    wanted = config(strategy, "1x3")
    ranks: list[Steps] = steps_on_ranks(wanted, 2)
    about = strategies.about(strategy)
    values = {
        "W": 3,
        "M": 1 if strategy == "model_parallel" else wanted.strategy_options["micro_batches"],
        "A": ranks[0].activations,
    }
    assert ranks[0].activations > 0
    assert sum(rank.messages for rank in ranks) == eval(about.messages, values)
    assert sum(rank.bytes for rank in ranks) == eval(about.bytes, values)
    # Those that a plan takes, wherever this run was cut.
    sent = [unit.sent for unit in probe.readiness(wanted, "fp32", 4, 1).units[:-1]]
    at_once = wanted.global_batch_size // values["M"]
    assert ranks[0].activations in {at_once * sum(cuts) for cuts in itertools.combinations(sent, 2)}
