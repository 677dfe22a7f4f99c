from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

import pytest
import torch

from cifar_ray.config.model import USUAL, ConvolutionsName
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import arithmetic, recipe
from cifar_ray.training.arithmetic import Choice

CONFIG = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", batch_size=64))


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that a pass of each precision takes, on a clock that nothing else moves."""
    seconds, now = {"fp32": 1.0, "bf16": 1.0}, [0.0]

    @contextmanager
    def autocast(name: str, device: torch.device) -> Iterator[None]:
        yield
        now[0] += seconds[name]

    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(arithmetic, "autocast", autocast)
    return seconds


@pytest.mark.parametrize(
    ("bf16", "chosen"), [(0.5, "bf16"), (0.86, "bf16"), (0.88, "fp32"), (1.0, "fp32"), (2.0, "fp32")]
)
def test_bf16_must_be_15_percent_faster(bf16: float, chosen: str, passing: dict[str, float]) -> None:
    passing["bf16"] = bf16
    assert arithmetic.choose(CONFIG, Worker()) == Choice(
        chosen,
        USUAL,
        f"16 images forward and backward: fp32 1000.0 ms, bf16 {1000 * bf16:.1f} ms",
    )


def test_the_first_passes_do_not_count_and_of_the_others_the_fastest(
    passing: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = iter([90.0, 1.0, 5.0, 3.0, 4.0, 9.0, *[4.0, 3.0] * 6])
    monkeypatch.setattr(arithmetic, "autocast", _each(passes, monkeypatch))
    assert arithmetic.choose(CONFIG, Worker()) == Choice(
        "bf16",
        USUAL,
        "16 images forward and backward: fp32 4000.0 ms, bf16 3000.0 ms",
    )
    assert next(passes, None) is None


def _each(passes: Iterator[float], monkeypatch: pytest.MonkeyPatch) -> object:
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    @contextmanager
    def autocast(name: str, device: torch.device) -> Iterator[None]:
        yield
        now[0] += next(passes)

    return autocast


def test_reproducible_is_float32_whatever_is_faster(passing: dict[str, float]) -> None:
    passing["bf16"] = 0.1
    asked: ResolvedConfig = replace(CONFIG, strategy="reproducible")
    assert arithmetic.choose(asked, Worker(), passes=10**6) == Choice("fp32", USUAL)


@pytest.mark.parametrize(("batch_size", "images"), [(1, 2), (7, 7), (500, 16)])
def test_it_measures_the_batch_of_the_run_up_to_16_images(batch_size: int, images: int) -> None:
    chosen = arithmetic.choose(replace(CONFIG, global_batch_size=batch_size), Worker(), passes=999)
    assert re.fullmatch(rf"{images} images forward and backward: fp32 [\d.]+ ms, bf16 [\d.]+ ms", chosen.measured)


def test_what_a_gpu_cannot_compute_or_has_no_room_for_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for impossible, other in (("fp32", "bf16"), ("bf16", "fp32")):
        seconds = {impossible: math.inf, other: 0.5}
        monkeypatch.setattr(arithmetic, "timed_pass", lambda *_, seconds=seconds: seconds.__getitem__)
        chosen = arithmetic.choose(replace(CONFIG, global_batch_size=500), Worker())
        assert chosen.precision == other
        assert f"{impossible} not here" in chosen.measured


def test_a_pass_without_room_for_it_takes_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(arithmetic, "autocast", fail)
    assert arithmetic.timed_pass(CONFIG, 2, USUAL, torch.device("cpu"))("fp32") == math.inf


NETWORK = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}, "batch_size": 20, "precision": "fp32"}
LONG = recipe.resolve(TrainConfig(dataset="digits", epochs=20, **NETWORK))  # type: ignore[arg-type]


def test_a_long_run_on_cpus_measures_its_convolutions_at_its_own_batch() -> None:
    chosen = arithmetic.choose(LONG, Worker())
    assert chosen.precision == "fp32"
    names = arithmetic.ways(LONG)
    told = ", ".join(rf"{name} [\d.]+ ms" for name in names)
    assert re.fullmatch(rf"20 images in fp32: {told}", chosen.measured)
    assert chosen.convolutions in names


@pytest.mark.parametrize(
    "values",
    [{"epochs": 13}, {"strategy": "reproducible"}, {"convolutions": "contiguous"}],
    ids=["short", "reproducible", "named"],
)
def test_all_other_runs_measure_nothing(values: dict[str, object]) -> None:
    assert arithmetic.undecided(LONG, "cuda", 10_000) == set()
    named = str(values.get("convolutions", USUAL))
    assert arithmetic.choose(replace(LONG, **values), Worker()) == Choice("fp32", named)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of a pass in every way, in place of a clock's."""
    times = dict.fromkeys(get_args(ConvolutionsName), 1.0)
    monkeypatch.setattr(arithmetic, "timed_pass", lambda config, count, name, device: lambda precision: times[name])
    return times


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"products8": 0.94}, "products8"),
        ({"products8": 0.96}, USUAL),
        ({"contiguous": 0.94, "products8": 0.95}, "contiguous"),
    ],
)
def test_the_fastest_way_is_taken_if_it_gains_5_percent(
    times: dict[str, float], chosen: str, seconds: dict[str, float]
) -> None:
    seconds |= times
    assert arithmetic.choose(LONG, Worker()).convolutions == chosen


def test_a_pipeline_keeps_its_layout(seconds: dict[str, float]) -> None:
    seconds["contiguous"] = 0.1
    pipeline = recipe.resolve(replace(LONG, strategy="gpipe", topology="1x2", strategy_options={}))
    assert arithmetic.choose(pipeline, Worker()).convolutions == USUAL
    assert arithmetic.choose(LONG, Worker()).convolutions == "contiguous"
