from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from cifar_ray.config.model import PARTS, USUAL, Convolutions
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
    passes = iter([90.0, 1.0, 5.0, 3.0, 4.0, 9.0])
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


def test_it_leaves_the_number_of_threads_as_it_is() -> None:
    torch.set_num_threads(3)
    arithmetic.choose(CONFIG, Worker())
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)


def test_reproducible_is_float32_whatever_is_faster(passing: dict[str, float]) -> None:
    passing["bf16"] = 0.1
    asked: ResolvedConfig = replace(CONFIG, strategy="reproducible")
    assert arithmetic.choose(asked, Worker(), passes=10**6) == Choice("fp32", USUAL)


@pytest.mark.parametrize(("batch_size", "images"), [(1, 2), (7, 7), (500, 16)])
def test_it_measures_the_batch_of_the_run_up_to_16_images(batch_size: int, images: int) -> None:
    chosen = arithmetic.choose(replace(CONFIG, global_batch_size=batch_size), Worker(), passes=999)
    assert re.fullmatch(rf"{images} images forward and backward: fp32 [\d.]+ ms, bf16 [\d.]+ ms", chosen.measured)


GPU = Worker(device=torch.device("cuda"))


def test_a_gpu_without_bfloat16_is_not_asked_to_try_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert arithmetic.choose(CONFIG, GPU) == Choice(
        "fp32", USUAL, "a GPU here has no bf16 arithmetic; --precision fp16 is for such a one"
    )


@pytest.mark.parametrize(("room", "images"), [(1000, 500), (250, 250), (100, 62)])
def test_a_gpu_is_measured_with_the_batch_of_the_run_or_the_part_that_fits(
    room: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(config: ResolvedConfig, count: int, device: torch.device) -> list[float]:
        if count > room:
            raise torch.OutOfMemoryError
        return [1.0, 0.5]

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(arithmetic, "_measure", measure)
    chosen = arithmetic.choose(replace(CONFIG, global_batch_size=500), GPU)
    assert (chosen.precision, chosen.measured.split()[0]) == ("bf16", str(images))


NETWORK = {"model": "resnet", "model_options": {"blocks": (1, 1), "width": 8}, "batch_size": 20, "precision": "fp32"}
LONG = recipe.resolve(TrainConfig(dataset="digits", epochs=20, **NETWORK))  # type: ignore[arg-type]
SHAPES = (
    "3x32x32>8 k3 p1",
    "8x32x32>8 k3 p1",
    "8x32x32>16 k3 s2 p1",
    "16x16x16>16 k3 p1",
    "8x32x32>16 k1 s2",
)


def test_a_long_run_on_cpus_measures_its_convolutions_at_its_own_batch() -> None:
    chosen = arithmetic.choose(LONG, Worker())
    assert chosen.precision == "fp32"
    ways = r"convolutions [\d.]+ ms, contiguous [\d.]+ ms(, \d as products [\d.]+ ms)?"
    assert re.fullmatch(rf"20 images in fp32: {ways}", chosen.measured)
    assert {str(shape) for shape in Convolutions.parse(chosen.convolutions).products} <= {*SHAPES}


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
    """Seconds of every part both ways, the columns, and whole passes, in place of a clock's."""
    times = {f"{part} {way}": 1.0 for part in PARTS for way in ("convolution", "product")} | {"columns product": 0.1}
    whole = {"usual": 1.0, "contiguous": 1.0, "products": 0.5}

    def one_pass(config: object, count: int, chosen: Convolutions, device: object) -> object:
        return lambda precision: times["products" if chosen.products else chosen.words or "usual"]

    times |= whole
    monkeypatch.setattr(arithmetic, "_pass", one_pass)
    monkeypatch.setattr(arithmetic, "measure_parts", lambda *_: [times[" ".join(way)] for way in arithmetic.WAYS])
    return times


@pytest.mark.parametrize(
    ("faster", "parts"),
    [
        ({}, ""),
        ({"forward": 0.72}, "forward"),
        ({"forward": 0.75}, ""),
        ({"forward": 1.2, "weight": 0.6}, "weight"),
        ({"forward": 1.2, "weight": 0.7}, ""),
        ({"forward": 0.9, "weight": 0.8}, "forward weight"),
        ({"data": 0.86}, "data"),
        ({"data": 0.88}, ""),
        ({"forward": 0.5, "data": 0.5, "weight": 0.5}, "forward data weight"),
    ],
)
def test_the_parts_are_products_that_are_15_percent_faster_with_the_columns_that_they_need(
    faster: dict[str, float], parts: str, seconds: dict[str, float]
) -> None:
    seconds |= {f"{part} product": time for part, time in faster.items()}
    chosen = Convolutions.parse(arithmetic.choose(LONG, Worker()).convolutions)
    of_images = parts.replace("data", "").replace("  ", " ").strip()  # they need no gradient
    wanted = [f"{shape}: {parts}" for shape in SHAPES[1:] if parts]
    assert str(chosen) == "; ".join([USUAL, *([f"{SHAPES[0]}: {of_images}"] if of_images else []), *wanted])


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        ({"products": 0.94}, "5 kinds of convolution as products"),
        ({"products": 0.96}, ""),
        ({"contiguous": 0.94, "products": 0.95}, "contiguous"),
        ({"contiguous": 0.94, "products": 0.93}, "5 kinds of convolution as products"),
    ],
)
def test_whole_passes_must_gain_5_percent(whole: dict[str, float], words: str, seconds: dict[str, float]) -> None:
    seconds |= whole | {"forward product": 0.1}
    assert Convolutions.parse(arithmetic.choose(LONG, Worker()).convolutions).words == words


def test_a_pipeline_keeps_its_layout(seconds: dict[str, float]) -> None:
    seconds |= {"contiguous": 0.1, "products": 2.0}
    pipeline = recipe.resolve(replace(LONG, strategy="gpipe", topology="1x2", strategy_options={}))
    assert arithmetic.choose(pipeline, Worker()).convolutions == USUAL
    assert arithmetic.choose(LONG, Worker()).convolutions == "contiguous"


def test_layers_whose_columns_are_too_large_stay_convolutions(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds["forward product"] = 0.1
    monkeypatch.setattr(arithmetic.convolution, "MOST_BYTES", 16 * 32 * 32 * 72 * 4 - 1)  # of 16 images
    products = Convolutions.parse(arithmetic.choose(LONG, Worker()).convolutions).products
    assert {str(shape) for shape in products} == {*SHAPES} - {SHAPES[1]}


def test_after_a_measurement_that_fails_there_are_as_many_threads_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(MemoryError), arithmetic._one_thread():
            raise MemoryError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
