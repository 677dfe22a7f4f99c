from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import precision, recipe

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
    monkeypatch.setattr(precision, "autocast", autocast)
    return seconds


@pytest.mark.parametrize(
    ("bf16", "chosen"), [(0.5, "bf16"), (0.86, "bf16"), (0.88, "fp32"), (1.0, "fp32"), (2.0, "fp32")]
)
def test_bf16_must_be_15_percent_faster(bf16: float, chosen: str, passing: dict[str, float]) -> None:
    passing["bf16"] = bf16
    assert precision.choose(CONFIG, Worker()) == (
        chosen,
        f"16 images forward and backward: fp32 1000.0 ms, bf16 {1000 * bf16:.1f} ms",
    )


def test_the_first_passes_do_not_count_and_of_the_others_the_fastest(
    passing: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = iter([90.0, 1.0, 5.0, 3.0, 4.0, 9.0])
    monkeypatch.setattr(precision, "autocast", _each(passes, monkeypatch))
    assert precision.choose(CONFIG, Worker()) == (
        "bf16",
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


def test_it_leaves_the_number_of_threads_as_it_is() -> None:
    torch.set_num_threads(3)
    precision.choose(CONFIG, Worker())
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)


def test_reproducible_is_float32_whatever_is_faster(passing: dict[str, float]) -> None:
    passing["bf16"] = 0.1
    asked: ResolvedConfig = replace(CONFIG, strategy="reproducible")
    assert precision.choose(asked, Worker()) == ("fp32", "")


@pytest.mark.parametrize(("batch_size", "images"), [(1, 2), (7, 7), (500, 16)])
def test_it_measures_the_batch_of_the_run_up_to_16_images(batch_size: int, images: int) -> None:
    _, measured = precision.choose(replace(CONFIG, global_batch_size=batch_size), Worker())
    assert re.fullmatch(rf"{images} images forward and backward: fp32 [\d.]+ ms, bf16 [\d.]+ ms", measured)


GPU = Worker(device=torch.device("cuda"))


def test_a_gpu_without_bfloat16_is_not_asked_to_try_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert precision.choose(CONFIG, GPU) == ("fp32", "a GPU here has no bf16 arithmetic")


@pytest.mark.parametrize(("room", "images"), [(1000, 500), (250, 250), (100, 62)])
def test_a_gpu_is_measured_with_the_batch_of_the_run_or_the_part_that_fits(
    room: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(config: ResolvedConfig, count: int, device: torch.device) -> list[float]:
        if count > room:
            raise torch.OutOfMemoryError
        return [1.0, 0.5]

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(precision, "_measure", measure)
    chosen, measured = precision.choose(replace(CONFIG, global_batch_size=500), GPU)
    assert (chosen, measured.split()[0]) == ("bf16", str(images))
