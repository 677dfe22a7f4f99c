from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset, Split, loader, order
from cifar_ray.data.loader import DataShard, TrainLoader
from cifar_ray.training import evaluate, recipe
from cifar_ray.training.evaluate import evaluation_batches

CPU = torch.device("cpu")
SEED = 5


def config(**values: object) -> TrainConfig:
    plain = {"dataset": "digits", "global_batch_size": 120, "topology": "1x2", "seed": SEED}
    return recipe.resolve(TrainConfig(**{**plain, **values}))  # type: ignore[arg-type]


def loader_of(digits: Dataset, shard: DataShard, **values: object) -> TrainLoader:
    asked = config(**values)
    return TrainLoader(asked, Decided.asked(asked), digits, shard, CPU)  # type: ignore[arg-type]


def test_a_pieces_dropout_follows_from_its_number_and_its_step_over_the_whole_run(digits: Dataset) -> None:
    expected = [order.step_seeds(SEED, range(33), micro_batch) for micro_batch in range(6)]
    for rank in (0, 1):
        made = loader_of(digits, DataShard(rank, 2, 3))
        for epoch, step in ((epoch, step) for epoch in (0, 2) for step in range(11)):
            found = [micro_batch.seed for micro_batch in made.micro_batches(epoch, step)]
            assert found == [seeds[11 * epoch + step] for seeds in expected[3 * rank : 3 * rank + 3]]


def test_every_epoch_has_an_order_and_an_augmentation_of_its_own_whichever_comes_first(digits: Dataset) -> None:
    made = loader_of(digits, DataShard(0, 2))
    first, second, again = (next(made.micro_batches(epoch, 3)) for epoch in (0, 1, 0))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, second.inputs)
    samples = order.global_batch(order.permutation(SEED, 1, 1437), 3, 120)[:60]
    assert second.targets.tolist() == digits.train["labels"][samples.numpy()].tolist()


def test_images_are_mixed_as_was_asked(digits: Dataset) -> None:
    """Beside an image's own pixels, cutmix has some of another's as they are, and mixup all of them blended."""
    plain, mixup, cutmix = (
        next(loader_of(digits, DataShard(), topology="1x1", augment=name).micro_batches(0, 0))
        for name in ("none", "mixup", "cutmix")
    )
    assert [batch.targets.ndim for batch in (plain, mixup, cutmix)] == [1, 2, 2]
    kept = [(batch.inputs == plain.inputs).float().mean((1, 2, 3)) for batch in (mixup, cutmix)]
    assert (kept[0] < kept[1]).float().mean() > 0.5


def test_a_rank_without_use_for_images_gets_labels_and_seeds(digits: Dataset) -> None:
    both = [[*loader_of(digits, DataShard(1, 2, 3, inputs=inputs)).micro_batches(0, 0)] for inputs in (True, False)]
    assert [micro_batch.inputs.shape for micro_batch in both[1]] == [(0, 3, 32, 32)] * 3
    for one, other in zip(*both, strict=True):
        assert (one.targets.tolist(), one.seed) == (other.targets.tolist(), other.seed)


def test_evaluation_is_in_batches_of_bounded_size(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluate.EVALUATION_BATCH, "cpu", 100)
    ranks = [[*evaluation_batches(digits.test, "labels", digits.spec, rank, 2, CPU)] for rank in (0, 1)]
    assert [[(len(images), len(labels)) for images, labels in batches] for batches in ranks] == [
        [(100, 100), (80, 80)]
    ] * 2
    assert torch.cat([labels for batches in ranks for _, labels in batches]).tolist() == digits.test["labels"].tolist()
    for side, size in ((64, 100), (128, 25), (224, 8)):
        spec = replace(digits.spec, shape=(3, side, side))
        large = Split({"images": np.zeros((100, side, side, 3), np.uint8), "labels": digits.test["labels"][:100]})
        assert len(next(evaluation_batches(large, "labels", spec, 0, 1, CPU))[0]) == size


@pytest.mark.parametrize(("dataset", "can_stream"), [("folder:photos", True), ("digits", False)])
def test_images_for_which_a_gpu_has_no_room_name_what_helps(
    dataset: str, can_stream: bool, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TooMany:
        nbytes = 15_000_000_000

        def to(self, device: torch.device) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 13.97 GiB")

    monkeypatch.setattr(loader, "as_tensor", lambda array: TooMany() if array.ndim == 4 else torch.from_numpy(array))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7_900_000_000, 8_000_000_000))
    asked = replace(config(), dataset=dataset)
    with pytest.raises(ConfigError, match=r"^dataset .* take 15.0 GB, and the GPU has 7.9 GB free") as refused:
        TrainLoader(asked, Decided.asked(asked), digits, DataShard(), CPU)
    assert ("--stream" in str(refused.value)) is can_stream


def test_a_step_made_ahead_is_the_same(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(ahead: int, first: int) -> list[tuple[torch.Tensor, list[int]]]:
        monkeypatch.setattr(loader, "AHEAD", ahead)
        parts = loader_of(digits, DataShard(1, 2, 3)).micro_batches
        return [(part.inputs, part.targets.tolist()) for step in range(first, 11) for part in parts(1, step)]

    alone = steps(1, 0)
    for ahead, first in ((150, 0), (150, 4), (10_000, 0), (10_000, 10)):
        together = steps(ahead, first)
        assert len(together) == len(alone) - 3 * first
        for (images, labels), (expected, of) in zip(together, alone[3 * first :], strict=True):
            assert labels == of
            assert torch.equal(images, expected)
