from __future__ import annotations

import itertools
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
NETWORK = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}, "batch_size": 20, "precision": "fp32"}
LONG = recipe.resolve(TrainConfig(dataset="digits", epochs=20, **NETWORK))  # type: ignore[arg-type]


def passing(monkeypatch: pytest.MonkeyPatch, passes: Iterator[float]) -> None:
    """Have each pass take the next of so many seconds, on a clock that nothing else moves."""
    now = [0.0]

    @contextmanager
    def autocast(name: str, device: torch.device) -> Iterator[None]:
        yield
        now[0] += next(passes)

    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(arithmetic, "autocast", autocast)


@pytest.mark.parametrize(("bf16", "chosen"), [(0.86, "bf16"), (0.88, "fp32")])
def test_bf16_must_be_15_percent_faster(bf16: float, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passing(monkeypatch, itertools.cycle([1.0, bf16]))
    assert arithmetic.choose(CONFIG, Worker()).precision == chosen


def test_the_first_passes_do_not_count_and_of_the_others_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([90.0, 1.0, 5.0, 3.0, 4.0, 9.0, 1.0, 0.5, *[4.0, 3.0] * 5])
    passing(monkeypatch, passes)
    measured = "16 images forward and backward: fp32 4000.0 ms, bf16 3000.0 ms"
    assert arithmetic.choose(CONFIG, Worker()) == Choice("bf16", USUAL, measured)
    assert next(passes, None) is None


def test_passes_are_those_of_every_micro_batch() -> None:
    once = arithmetic.passes_of(CONFIG)
    assert once == CONFIG.epochs * (1437 // 64)
    assert arithmetic.passes_of(replace(CONFIG, accumulate=2)) == 2 * once


def test_reproducible_is_float32_whatever_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    passing(monkeypatch, iter([]))
    asked: ResolvedConfig = replace(CONFIG, strategy="reproducible")
    assert arithmetic.choose(asked, Worker(), passes=10**6) == Choice("fp32", USUAL)


@pytest.mark.parametrize(("batch_size", "images"), [(1, 2), (500, 16)])
def test_it_measures_the_batch_of_the_run_up_to_16_images(batch_size: int, images: int) -> None:
    chosen = arithmetic.choose(replace(CONFIG, global_batch_size=batch_size), Worker(), passes=999)
    assert re.fullmatch(rf"{images} images forward and backward: fp32 [\d.]+ ms, bf16 [\d.]+ ms", chosen.measured)


def test_what_a_gpu_cannot_compute_or_has_no_room_for_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(arithmetic, "autocast", fail)
        assert arithmetic.timed_pass(CONFIG, 2, USUAL, torch.device("cpu"))("fp32") == math.inf
    for impossible, other in (("fp32", "bf16"), ("bf16", "fp32")):
        seconds = {impossible: math.inf, other: 0.5}
        monkeypatch.setattr(arithmetic, "timed_pass", lambda *_, seconds=seconds: seconds.__getitem__)
        assert arithmetic.choose(CONFIG, Worker()).precision == other


def test_a_long_run_on_cpus_measures_its_convolutions_at_its_own_batch() -> None:
    chosen = arithmetic.choose(LONG, Worker())
    assert re.fullmatch(rf"20 images in fp32: {USUAL} [\d.]+ ms(, \w+ [\d.]+ ms){{1,2}}", chosen.measured)
    assert {*re.findall(r"(\w+) [\d.]+ ms", chosen.measured)} <= {*arithmetic.ways(LONG)}
    assert (chosen.precision, chosen.convolutions in arithmetic.ways(LONG)) == ("fp32", True)


@pytest.mark.parametrize(
    "values",
    [{"epochs": 13}, {"strategy": "reproducible"}, {"convolutions": "contiguous"}],
    ids=["short", "reproducible", "named"],
)
def test_all_other_runs_measure_nothing(values: dict[str, object]) -> None:
    assert arithmetic.undecided(LONG, "cuda", 10_000) == set()
    named = str(values.get("convolutions", USUAL))
    assert arithmetic.choose(replace(LONG, **values), Worker()) == Choice("fp32", named)


@pytest.mark.parametrize(
    ("times", "chosen", "strategy"),
    [
        ({"products8": 0.94}, "products8", "ddp"),
        ({"products8": 0.96}, USUAL, "ddp"),
        ({"contiguous": 0.94, "products8": 0.95}, "contiguous", "ddp"),
        ({"contiguous": 0.1}, USUAL, "gpipe"),  # whose stages hand on what is channels last
    ],
)
def test_the_fastest_way_is_taken_if_it_gains_5_percent(
    times: dict[str, float], chosen: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = dict.fromkeys(get_args(ConvolutionsName), 1.0) | times
    monkeypatch.setattr(arithmetic, "timed_pass", lambda config, count, name, device: lambda precision: seconds[name])
    asked = recipe.resolve(replace(LONG, strategy=strategy, topology="1x2", strategy_options={}))
    assert arithmetic.choose(asked, Worker()).convolutions == chosen
