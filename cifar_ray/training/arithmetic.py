"""Decide what a run computes with: the precision, and on a CPU the layout and which convolutions are matrix products.

What is not named is measured, once in a run: passes forward and backward in float32 and in bfloat16; then, if the run
is long enough, each part of each convolution both ways; and at last whole passes with what these have shown and
without, of which a gain must be left.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_ray import data, models, strategies, tasks
from cifar_ray.config.model import PARTS, USUAL, Convolutions, ConvolutionShape
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.models import convolution
from cifar_ray.strategies import compiling
from cifar_ray.strategies.worker import HALVES, Worker, autocast, seed
from cifar_ray.training import hardware

MARGIN = 1.15
"""How many times as fast as float32 bfloat16 must be to be chosen, and a product as a convolution: for less, rounding
is not worth it, and two runs would decide differently by chance."""

GAIN = 1.05
"""How many times as fast as usual a whole pass must be with another layout or products."""

LEAST_STEPS = 1000
"""Passes of a run for which convolutions are measured: that takes as long as 20 to 40 of them."""

PASS_S = 0.25
"""A pass of the images that convolutions are measured with, at most, in CPU seconds. There are as many of them as are
trained on together, if these do not take longer."""

_SAMPLES = 16
"""At most so many on a CPU, where the ratio hardly depends on them and a large model's passes take long. On a GPU it
does, since few images are over before their kernels are launched: so many as are trained on together."""

_ENOUGH_S = 0.3
_PRECISIONS, PARTS_ROUNDS, _PASSES = (2, 10), (5, 5), (5, 50)  # rounds, at least and while there is time
_HOPELESS = 1.5


@dataclass(frozen=True)
class Choice:
    """What a run computes with.

    Attributes:
        precision: ``fp32``, ``bf16`` or ``fp16``.
        convolutions: as :class:`~cifar_ray.config.model.Convolutions` are written.
        measured: what it was decided by, in words; empty when nothing was measured.
    """

    precision: str
    convolutions: str
    measured: str = ""

    @property
    def words(self) -> str:
        """The choice, in short."""
        return ", ".join(filter(None, (self.precision, Convolutions.parse(self.convolutions).words)))


def choose(config: ResolvedConfig, worker: Worker, passes: int | None = None) -> Choice:
    """What ``config`` names and the faster of what it does not, the same on every rank.

    ``reproducible`` is for weights that are equal on any number of workers and on any machine, so no measurement
    decides there: it is ``fp32`` and convolutions as usual.

    Args:
        config: a resolved config.
        worker: this worker; every rank must call it.
        passes: of all the runs that are to compute so; those of this run when it is None.
    """
    names = undecided(config, worker.device.type, passes_of(config) if passes is None else passes)
    precision, convolutions = config.precision.replace("auto", "fp32"), config.convolutions or USUAL
    measured = []
    with _one_thread(), compiling.refusing(config):
        if "precision" in names:
            precision, why = _choose_precision(config, worker)
            measured.append(why)
        if "convolutions" in names:
            convolutions, why = _choose_convolutions(config, precision, worker)
            measured.append(why)
    return Choice(precision, convolutions, "; ".join(measured))


def undecided(config: ResolvedConfig, device: str, passes: int) -> set[str]:
    """Which of ``precision`` and ``convolutions`` are to be measured for so many ``passes`` of one or several runs."""
    if config.strategy == "reproducible":
        return set()
    names = {"precision"} if config.precision == "auto" else set()
    has_images = data.spec(config).inputs == "images"
    if has_images and config.convolutions is None and device != "cuda" and not config.compile:
        names |= {"convolutions"} if passes >= LEAST_STEPS else set()
    return names


def passes_of(config: ResolvedConfig) -> int:
    """Passes through the model in a whole run, forward and backward."""
    return config.epochs * data.steps_per_epoch(config) * config.accumulate


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _choose_precision(config: ResolvedConfig, worker: Worker) -> tuple[str, str]:
    """The faster precision, and what was measured, in words."""
    count, seconds = _measure_what_fits(config, _samples(config, worker.device), worker.device)
    fp32, bf16 = _mean(seconds, worker)
    if math.isinf(bf16):
        return "fp32", "a GPU here has no bf16 arithmetic; --precision fp16 is for such a one"
    counted = f"{count} {tasks.spec(config).unit}"
    measured = f"{counted} forward and backward: fp32 {1000 * fp32:.1f} ms, bf16 {1000 * bf16:.1f} ms"
    return "bf16" if fp32 > MARGIN * bf16 else "fp32", measured


def _mean(seconds: Sequence[float], worker: Worker) -> list[float]:
    """The mean of each figure over all ranks."""
    if worker.world_size == 1:
        return [*seconds]
    mean = torch.tensor(seconds, dtype=torch.float64, device=worker.device) / worker.world_size
    dist.all_reduce(mean)
    return mean.tolist()  # type: ignore[no-any-return]


def _samples(config: ResolvedConfig, device: torch.device) -> int:
    """How many samples to measure precisions with."""
    at_once = max(strategies.of(config).at_once(config), 2)
    return at_once if device.type == "cuda" else min(at_once, _SAMPLES)


def _measure_what_fits(config: ResolvedConfig, count: int, device: torch.device) -> tuple[int, list[float]]:
    """As :func:`_measure`, with half as many samples where a GPU has no memory for them in float32; and how many."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return 0, [0.0, math.inf]
    try:
        return count, _measure(config, count, device)
    except torch.OutOfMemoryError:
        if count < 4:
            raise
    return _measure_what_fits(config, count // 2, device)


def _measure(config: ResolvedConfig, count: int, device: torch.device) -> list[float]:
    """Least seconds of a forward and backward pass in float32 and in bfloat16; in turn, and without the first round."""
    one_pass = _pass(config, count, Convolutions(), device)
    passes = [functools.partial(one_pass, precision) for precision in ("fp32", "bf16")]
    return [min(times) for times in _in_turn(passes, *_PRECISIONS)]


def _in_turn(timed: Sequence[Callable[[], float]], least: int, most: int) -> list[tuple[float, ...]]:
    """Seconds of each call in every round but the first: ``least`` rounds, or up to ``most`` in :data:`_ENOUGH_S`."""
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) <= least or (len(rounds) <= most and time.perf_counter() - begin < _ENOUGH_S):
        rounds.append([call() for call in timed])
    return [*zip(*rounds[1:])]


def _pass(config: ResolvedConfig, count: int, chosen: Convolutions, device: torch.device) -> Callable[[str], float]:
    """A function that takes a forward and backward pass of a new model in a precision, and returns its seconds."""
    model, inputs = _model(config, count, chosen, device)
    forward = compiling.compiled(model, device) if config.compile else model

    def seconds(precision: str) -> float:
        hardware.use_precision(precision)
        model.zero_grad()
        before = _now(device)
        with autocast(precision, device):
            loss = forward(inputs).float().square().mean()  # of a cost that does not count, as every task's is
        loss.backward()  # type: ignore[no-untyped-call]
        return _now(device) - before

    return seconds


def _model(config: ResolvedConfig, count: int, chosen: Convolutions, device: torch.device) -> tuple[nn.Module, Tensor]:
    """A new model, which computes as ``chosen``, and inputs for it."""
    spec = data.spec(config)
    model = models.build(config, spec).to(device).to(memory_format=convolution.memory_format(chosen)).train()
    inputs = spec.example(count, device)
    convolution.install(model, chosen)
    return model, convolution.laid_out(inputs, chosen)


def _choose_convolutions(config: ResolvedConfig, precision: str, worker: Worker) -> tuple[str, str]:
    """The fastest way to compute convolutions on CPUs, and what was measured, in words."""
    usual, at_once = Convolutions(), max(strategies.of(config).at_once(config), 2)
    few = min(at_once, _SAMPLES)
    one_pass = _pass(config, few, usual, worker.device)
    (seconds,) = _mean([min(one_pass(precision) for _ in range(3))], worker)
    count = min(at_once, max(few, int(few * PASS_S / seconds)))
    products = {}
    for shape, with_data in shapes(config, count, precision, worker.device).items():
        times = dict(zip(WAYS, _mean(measure_parts(shape, count, precision, with_data), worker)))
        if parts := faster(times, with_data):
            products[shape] = parts
    ways = {"convolutions": usual}
    if strategies.of(config).cut is None:  # what a pipeline's stages send one another is channels last
        ways["contiguous"] = Convolutions("contiguous")
    if products:
        ways[f"{len(products)} as products"] = Convolutions(products=products)
    passes = [functools.partial(_pass(config, count, way, worker.device), precision) for way in ways.values()]
    medians = _mean([statistics.median(times) for times in _in_turn(passes, *_PASSES)], worker)
    best = min(range(len(ways)), key=medians.__getitem__)
    told = ", ".join(f"{name} {1000 * of:.1f} ms" for name, of in zip(ways, medians))
    chosen = [*ways.values()][best] if medians[0] > GAIN * medians[best] else usual
    return str(chosen), f"{count} images in {precision}: {told}"


def shapes(config: ResolvedConfig, count: int, precision: str, device: torch.device) -> dict[ConvolutionShape, bool]:
    """The shapes of a model's convolutions that can be products, and whether their input needs a gradient."""
    seed(config.seed, device)  # a model that leaves out layers by chance has the same ones on all ranks
    model, images = _model(config, count, Convolutions(), device)
    shapes: dict[ConvolutionShape, bool] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        for given in inputs[:1]:
            shape = convolution.shape_of(layer, given)
            if shape and convolution.columns_bytes(shape, count, _dtype(precision)) <= convolution.MOST_BYTES:
                shapes[shape] = shapes.get(shape, False) or given.requires_grad

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(note)
    with autocast(precision, device):
        model(images)
    return shapes


WAYS = (*itertools.product(PARTS, ("convolution", "product")), ("columns", "product"))


@torch.no_grad()
def measure_parts(shape: ConvolutionShape, count: int, precision: str, with_data: bool) -> list[float]:
    """Median seconds of every one of :data:`WAYS`; in turn, and without the first round.

    Where products are far slower it ends early. The gradient of data that needs none is not measured.
    """
    x, weight, result = (
        torch.rand(size).to(_dtype(precision), memory_format=torch.channels_last)
        for size in (
            (count, shape.channels, shape.height, shape.width),
            (shape.filters, shape.channels, *shape.kernel),
            (count, shape.filters, *shape.result),
        )
    )
    columns = convolution.columns_of(x, shape)
    gradients = convolution.convolution_gradients
    calls: list[Callable[[], object]] = [
        lambda: F.conv2d(x, weight, None, shape.stride, shape.padding),
        lambda: convolution.forward(convolution.columns_of(x, shape), weight, None, x, shape),
        lambda: with_data and gradients(result, x, weight, shape, [True, False, False]),
        lambda: with_data and convolution.data_gradient(result, weight, x, shape),
        lambda: gradients(result, x, weight, shape, [False, True, False]),
        lambda: convolution.weight_gradient(result, columns, weight),
        lambda: convolution.columns_of(x, shape),
    ]
    timed = [functools.partial(_seconds, call) for call in calls]
    first = dict(zip(WAYS, [min(times) for times in _in_turn(timed, 1, 1)]))
    if all(first[part, "product"] > _HOPELESS * first[part, "convolution"] for part in ("forward", "weight")):
        return [*first.values()]
    return [statistics.median(times) for times in _in_turn(timed, *PARTS_ROUNDS)]


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def faster(seconds: Mapping[tuple[str, str], float], with_data: bool) -> frozenset[str]:
    """The parts to compute as products."""
    by_part = {part: (seconds[part, "convolution"], seconds[part, "product"]) for part in PARTS}
    (forward, forward_product), (weight, weight_product) = by_part["forward"], by_part["weight"]
    # The weight's gradient needs the columns, which a forward pass as a product leaves it.
    together = {
        frozenset({"forward"}): forward_product + weight,
        frozenset({"weight"}): forward + seconds["columns", "product"] + weight_product,
        frozenset({"forward", "weight"}): forward_product + weight_product,
    }
    best = min(together, key=together.__getitem__)
    chosen: frozenset[str] = best if forward + weight > MARGIN * together[best] else frozenset()
    usual, product = by_part["data"]
    return chosen | {"data"} if with_data and usual > MARGIN * product else chosen


def _dtype(precision: str) -> torch.dtype:
    return HALVES.get(precision, torch.float32)


def _now(device: torch.device) -> float:
    """On a CPU, CPU seconds of one thread: others who use it hardly prolong them, and threads that wait for one another
    would count as busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
