"""Several workers over gloo, without a launcher: what must not depend on their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray import data, models, tasks
from cifar_ray.training import arithmetic, checkpoint
from cifar_ray.training.evaluate import Evaluator
from tests.support.helpers import choices_on_ranks, small_config, train_on_ranks
from tests.support.threads import on_threads

pytestmark = pytest.mark.slow


@pytest.mark.data
def test_an_evaluation_counts_exactly_10000_images_at_any_world_size() -> None:
    wanted = small_config("ddp", "1x1", dataset="cifar10")
    dataset = data.read(wanted)
    model = models.build(wanted, dataset.spec)
    reference, *others = [
        evaluation
        for size in (1, 2, 3)
        for evaluation in on_threads(size, lambda w: Evaluator(dataset, w, tasks.build(wanted, dataset.spec))(model))
    ]
    assert (reference.images, [sum(row) for row in reference.confusion]) == (10_000, [1000] * 10)
    for evaluation in others:
        assert (evaluation.images, evaluation.confusion) == (reference.images, reference.confusion)
        assert evaluation.metrics == pytest.approx(reference.metrics, rel=1e-6)


def test_an_interrupted_run_of_several_workers_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """To the last bit, with several buckets of DDP; all ranks alike pass over a damaged checkpoint."""
    network = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}, "global_batch_size": 96}
    wanted = small_config("ddp", "2x2", checkpoint_every=4, bucket_cap_mb=0.005, **network)
    (whole, _), *_ = train_on_ranks(wanted, tmp_path / "whole")
    for stop in (5, 17):
        train_on_ranks(wanted, tmp_path / "parts", stop_after=stop)
    (tmp_path / "parts" / "step-00000016" / checkpoint.WEIGHTS).write_bytes(b"")
    (parts, heard), *others = train_on_ranks(wanted, tmp_path / "parts")
    assert "step-00000016" in heard.begun[0].skipped[0]
    assert heard.steps == list(range(15, 29))  # that of the end of the first epoch is whole
    assert all(other.steps == heard.steps and other.weights == heard.weights for _, other in others)
    assert whole is not None
    assert parts is not None
    assert (parts.weights_sha256, parts.confusion) == (whole.weights_sha256, whole.confusion)


def test_all_ranks_decide_alike_and_only_once(tmp_path: Path) -> None:
    undecided = small_config("ddp", "1x3", global_batch_size=96, epochs=80, checkpoint_every=2)
    assert arithmetic.passes_of(undecided) >= arithmetic.LEAST_STEPS
    chosen = choices_on_ranks(undecided)
    assert chosen[0].measured.startswith("32 images in fp32: channels_last ")
    assert chosen[1:] == chosen[:1] * 2
    ((_, first), *_) = train_on_ranks(undecided, tmp_path, stop_after=3)
    ((_, after), *_) = train_on_ranks(undecided, tmp_path, stop_after=4)
    assert after.begun[0].decided.convolutions == first.begun[0].decided.convolutions
    assert (first.begun[0].measured != "", after.begun[0].step, after.begun[0].measured) == (True, 2, "")
