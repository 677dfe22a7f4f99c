"""``--compile``: one graph, made before the first step, and the losses, checkpoints and evaluations of a run without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

from cifar_ray import data, models
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import ModelName
from cifar_ray.config.strategy import COMPILING, NAMES
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import Dataset, modality
from cifar_ray.strategies import compiling
from cifar_ray.strategies.worker import Worker, autocast
from cifar_ray.tasks.classification import Classification
from cifar_ray.training import arithmetic, checkpoint, hardware, predictor
from cifar_ray.training.errors import CheckpointError
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.observer import Started
from tests.support.helpers import Recorder, Stopped, built, digest, resolved, train_here, train_on_ranks
from tests.unit.models.test_text_models import SPEC as TEXTS
from tests.unit.models.test_text_models import texts
from tests.unit.strategies.test_exchange import BATCH, backward, micro_batches, model

pytestmark = pytest.mark.slow

SMALL = {"dataset": "digits", "model": "resnet", "model_options": {"blocks": (1,), "width": 4}, "augment": "none"}
SHORT = {"precision": "fp32", "global_batch_size": 64, "epochs": 2, "steps_per_epoch": 4, "log_every": 1}
config = partial(resolved, {**SMALL, **SHORT})


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graphs and no counts of earlier tests."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    """Digits whose test images are a batch and a smaller one."""
    return replace(digits, test=digits.test.at(slice(128 + 61)))


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@dataclass
class Counting(Recorder):
    """Also keeps how many graphs had been made when each step was done, and before the first."""

    graphs: list[int] = field(default_factory=list)

    def started(self, event: Started) -> None:
        super().started(event)
        self.graphs.append(graphs())

    def step_done(self, epoch: int, step: int, row: Any) -> None:
        super().step_done(epoch, step, row)
        self.graphs.append(graphs())


def losses(recorder: Recorder) -> list[float]:
    return [row.metrics["train/loss"] for row in recorder.rows]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in get_args(ModelName)
        if name not in ("lstm", "resnet18")  # torch.compile takes no recurrent layers; more of the blocks of resnet
    ],
)
def test_every_model_is_one_graph(name: str) -> None:
    """As torch sees it, in bfloat16, where some compute otherwise; what it makes of the graph does not matter here."""
    wanted = TrainConfig(model=name)  # type: ignore[arg-type]
    kind = models.of(name).inputs
    spec = {"images": data.SPECS["cifar10"], "features": replace(TEXTS, inputs="features"), "tokens": TEXTS}[kind]
    made = torch.compile(models.build(wanted, spec).train(), backend="eager", fullgraph=True)
    inputs = texts() if kind == "tokens" else modality.of(spec).example(2)
    if kind == "images":
        inputs = inputs.to(memory_format=torch.channels_last)
    with autocast("bf16", torch.device("cpu")):
        for _ in range(2):
            made(inputs).float().sum().backward()
    assert (graphs(), dict(counters["graph_break"])) == (1, {})


@pytest.mark.extended
def test_a_compiled_run_is_close_to_the_run_without(few: Dataset, tmp_path: Path) -> None:
    """Two epochs with evaluations, whose last batch is smaller; compiled before the first step, and never again."""
    plain = train_here(config(), few, tmp_path / "plain", usual := Recorder())
    outcome = train_here(config(compile=True), few, tmp_path / "compiled", recorder := Counting())
    assert (recorder.graphs, dict(counters["graph_break"])) == ([1] * 9, {})
    assert losses(recorder) == pytest.approx(losses(usual), rel=1e-4)
    assert losses(recorder) != losses(usual)
    ends = [checkpoint.load(Path(end.checkpoint)) for end in (plain, outcome)]
    shapes, compiled_shapes = ({name: each.shape for name, each in end.weights.items()} for end in ends)
    assert compiled_shapes == shapes
    restored = predictor.of(outcome.checkpoint, ends[1]).model
    figures = Evaluator(few, Worker(), Classification(TrainConfig()))(restored)  # which nobody has compiled
    assert {f"test/{name}": value for name, value in figures.metrics.items()}.items() <= outcome.metrics.items()


def test_a_killed_run_goes_on_to_the_same_bits_and_not_without(few: Dataset, tmp_path: Path) -> None:
    wanted = config(compile=True, checkpoint_every=2, ema=0.9, accumulate=2)
    whole = train_here(wanted, few, tmp_path / "whole")
    with pytest.raises(Stopped):
        train_here(wanted, few, tmp_path / "parts", Recorder(stop_after=3))
    with pytest.raises(CheckpointError, match="was made with compile True, and this run has False"):
        train_here(replace(wanted, compile=False), few, tmp_path / "parts")
    rest = train_here(wanted, few, tmp_path / "parts", recorder := Recorder())
    assert recorder.steps[0] == 3
    assert len({digest(checkpoint.load(Path(end.checkpoint))) for end in (whole, rest)}) == 1


@pytest.mark.extended
def test_two_compiled_workers_are_close_to_two_without(tmp_path: Path) -> None:
    plain, each = (
        train_on_ranks(config(topology="1x2", accumulate=2, compile=is_compiled), tmp_path / name)
        for name, is_compiled in (("plain", False), ("compiled", True))
    )
    assert losses(each[0][1]) == pytest.approx(losses(plain[0][1]), rel=1e-4)
    assert losses(each[0][1]) == losses(each[1][1]) != losses(plain[0][1])


class Replayed(torch.autograd.Function):
    """A linear layer whose gradient is always written to the same memory, as a CUDA graph does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.place = place
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        torch.mm(gradients[0].t(), x, out=ctx.place)
        return gradients[0] @ weight, ctx.place.view_as(ctx.place), None


def replayed(network: nn.Module, device: torch.device) -> Any:
    head = network[-1]  # type: ignore[index]
    place = torch.zeros_like(head.weight)
    body = network[:-1]  # type: ignore[index]
    return lambda images: Replayed.apply(body(images), head.weight, place) + head.bias  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_gradients_add_up_though_passes_overwrite_them(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "Compiled", replayed)
    wanted = config(strategy="all_reduce", global_batch_size=BATCH, accumulate=accumulate, compile=True)
    strategy = built(wanted, model())
    for _ in range(2):
        loss = strategy.gradients(micro_batches(wanted, Worker(), 0))
        found = [parameter.grad.clone() for parameter in strategy.model.parameters()]
        strategy.optimizer.zero_grad()
        expected, gradients = backward()
        assert loss.item() == pytest.approx(expected)
        torch.testing.assert_close(found, gradients)


class Refused(nn.Module):
    """What it computes depends on the images, or on how often it was called."""

    def __init__(self, sides: int, classes: int, counts: bool) -> None:
        super().__init__()
        self.head = nn.Linear(sides, classes)
        self.counts, self.calls = counts, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.counts
        if not self.counts and images.sum() > 1e9:
            return -self.head(images.flatten(1))
        return self.head(images.flatten(1)) / max(self.calls, 1)


def branching(image_size: int, channels: int, classes: int) -> nn.Module:
    return Refused(channels * image_size**2, classes, counts=False)


def counted(image_size: int, channels: int, classes: int) -> nn.Module:
    return Refused(channels * image_size**2, classes, counts=True)


BREAK = r"Data-dependent branching .* \(test_compile\.py, line \d+\)"


@pytest.mark.parametrize(
    ("name", "precision", "reason"),
    [
        ("branching", "fp32", BREAK),
        ("branching", "auto", BREAK),
        # it is compiled, which takes long where it has not been before
        pytest.param("counted", "fp32", "Detected recompile"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    name: str, precision: str, reason: str, few: Dataset, tmp_path: Path
) -> None:
    own = {"model": f"{__name__}:{name}", "model_options": {}, "precision": precision}
    recorder = Recorder()
    with pytest.raises(ConfigError, match=reason) as caught:
        train_here(config(**own, compile=True), few, tmp_path, recorder)
    assert (caught.value.key, recorder.begun, recorder.checkpoints) == ("compile", [], [])


def test_only_faults_of_the_compilers_become_a_sentence() -> None:
    recompiled = RuntimeError("Detected recompile when torch.compile stance is 'fail_on_recompile'.")
    for wanted, error in ((config(compile=True), RuntimeError("a peer has closed")), (config(), recompiled)):
        with pytest.raises(RuntimeError) as caught, compiling.refusing(wanted):
            raise error
        assert caught.value is error
    for fault, said in (
        (BackendCompilerFailed("inductor", RuntimeError("No working C++ compiler found"), None), "No working C"),
        (RuntimeError("Error: accessing tensor output of CUDAGraphs that has been overwritten"), "CUDAGraphs"),
    ):
        with pytest.raises(ConfigError, match=f"compile .*{said}"), compiling.refusing(config(compile=True)):
            raise fault


def test_random_numbers_are_drawn_as_without_it() -> None:
    network, ones = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)), torch.ones(4, 8)
    drawn = []
    for call in (network, compiling.Compiled(network, torch.device("cpu"))):
        torch.manual_seed(3)
        drawn.append(call(ones) == 0)
    assert torch.equal(*drawn)
    assert drawn[0].any()


@pytest.mark.parametrize("strategy", sorted({*NAMES} - {*COMPILING}))
def test_other_strategies_refuse_it(strategy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(strategy=strategy, compile=True)
    assert caught.value.key == "compile"
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "key"), [({"sync_batchnorm": True}, "compile"), ({"bucket_cap_mb": 0.5}, "bucket_cap_mb")]
)
def test_what_does_not_go_with_it(values: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(compile=True, **values)
    assert (caught.value.key, bool(config(**values))) == (key, True)


def test_convolutions_are_not_measured_for_it() -> None:
    names = {"precision", "convolutions"}
    assert arithmetic.undecided(config(precision="auto"), "cpu", 10_000) == names
    assert arithmetic.undecided(config(precision="auto", compile=True), "cpu", 10_000) == {"precision"}


def test_a_gpu_measures_its_kernels_but_where_bits_are_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, is_repeated, before in itertools.product(("cuda", "cpu"), (True, False), (True, False)):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        hardware.choose_kernels(torch.device(kind), is_repeated)
        assert torch.backends.cudnn.benchmark is (before if kind == "cpu" else not is_repeated)


def test_only_reproducible_repeats_its_bits(few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(hardware, "choose_kernels", lambda device, is_repeated: asked.append(is_repeated))
    for strategy in ("reproducible", "ddp"):
        train_here(config(strategy=strategy, epochs=1, steps_per_epoch=1), few, tmp_path / strategy)
    assert asked == [True, False]
