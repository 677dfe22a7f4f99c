"""What several test modules use."""

from __future__ import annotations

import hashlib
import io
import json
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from cifar_ray import data, models, strategies, tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import Dataset, modality, order
from cifar_ray.data.loader import TrainLoader
from cifar_ray.display import dataset as dataset_lines
from cifar_ray.strategies.protocol import Strategy, StrategyContext
from cifar_ray.strategies.served_weights import ParameterServer, ServerHandle
from cifar_ray.strategies.worker import Worker
from cifar_ray.tasks import USUAL, TaskSpec
from cifar_ray.tasks.protocol import Evaluation
from cifar_ray.training import arithmetic, optimizer, recipe
from cifar_ray.training.checkpoint import WEIGHTS, Snapshot
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import MANIFEST, EpochRecord, Launch, Outcome, Row, SavedCheckpoint, Started, Traced
from cifar_ray.training.setup import prepare
from tests.support import warm

T = TypeVar("T")
AUTHKEY = secrets.token_bytes()


@dataclass
class Recorder:
    """An observer that keeps what it hears, and can end the run after a step."""

    stop_after: int | None = None
    begun: list[Started] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)

    def started(self, event: Started) -> None:
        self.begun.append(event)

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        self.steps.append(step)
        if row is not None:
            self.rows.append(row)
        if step == self.stop_after:
            raise Stopped

    def epoch_done(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        self.checkpoints.append(saved)

    def traced(self, event: Traced) -> None:
        self.traces.append(event)


@dataclass
class Paced(Recorder):
    """A rank that is slower than it could be. It keeps the names of what is mapped from memory files, too.

    From its first step on it waits for others in a collective no longer than ``timeout_s``.
    """

    pause_s: float = 0.0
    timeout_s: float | None = None
    mapped: set[str] = field(default_factory=set)

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        maps = Path("/proc/self/maps").read_text().splitlines()
        self.mapped |= {line.split(maxsplit=5)[5] for line in maps if "memfd" in line}
        if self.timeout_s:
            dist.set_timeout(timedelta(seconds=self.timeout_s))
        time.sleep(self.pause_s)
        super().step_done(epoch, step, row)


class Stopped(Exception):  # noqa: N818
    """The run was ended on purpose."""


def train_here(
    config: TrainConfig,
    dataset: Dataset,
    folder: Path,
    recorder: Recorder | None = None,
    worker: Worker | None = None,
    server: ServerHandle | None = None,
    initial: bytes = b"",
) -> Outcome:
    """The loop in this process, with no launcher."""
    heard, start = recorder or Recorder(), Launch(0.0, 0.0)
    decided = replace(Decided.asked(config), weights_digest=hashlib.sha256(initial).hexdigest() if initial else None)
    state = prepare(config, decided, dataset, folder, worker or Worker(), start, server, None, lambda: initial)
    return fit(state, heard)


def digest(snapshot: Snapshot) -> str:
    """SHA-256 of everything that goes on: weights, buffers, optimizer state, and the losses that were seen."""
    state = {f"optimizer.{index}.{name}": value for index, of in snapshot.optimizer["state"].items() for name, value in of.items()}  # fmt: skip
    found = hashlib.sha256()
    for name, value in sorted({**snapshot.weights, **state}.items()):
        found.update(name.encode())
        found.update(torch.as_tensor(value).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    losses = [row.metrics["train/loss"] for row in snapshot.history if row.kind == "iteration"]
    assert losses
    found.update(repr(losses).encode())
    return found.hexdigest()


def forge(path: Path, file: str = "", content: bytes = b"", **changes: object) -> None:
    """Change a checkpoint's values, and with ``file`` a file's content, as somebody would who knows the digests."""
    values = json.loads((path / MANIFEST).read_text())
    if file:
        (path / file).write_bytes(content)
        values["weights_sha256" if file == WEIGHTS else "state_sha256"] = hashlib.sha256(content).hexdigest()
    (path / MANIFEST).write_text(json.dumps({**values, **changes}))


def resolved(usual: dict[str, object], **values: object) -> TrainConfig:
    """A resolved config: these values on top of what is usual where it is asked for; one thread for each worker."""
    return recipe.resolve(TrainConfig(**{"cpus_per_worker": 1, **usual, **values}))  # type: ignore[arg-type]


def decided_of(config: TrainConfig) -> Decided:
    """What a config alone decides, and the facts of its data set as they are known in this process."""
    return replace(Decided.asked(config), data=data.facts(config))


def small_config(strategy: str, topology: str, **values: object) -> TrainConfig:
    """A resolved config of two epochs that trains in about a second."""
    usual = {"dataset": "digits", "model": "simple_cnn", "epochs": 2, "precision": "fp32", "log_every": 2}
    return resolved(usual, strategy=strategy, topology=topology, **values)


def built(
    config: TrainConfig,
    model: nn.Module,
    worker: Worker | None = None,
    mark: Callable[[str], None] = lambda part: None,
    server: ServerHandle | None = None,
    decided: Decided | None = None,
) -> Any:
    """The configured strategy over ``model``; its class says what it has beside the protocol."""
    made = partial(optimizer.build, config=config)
    decided = decided or decided_of(config)
    task = tasks.build(config, decided.facts)
    return strategies.build(StrategyContext(config, decided, worker or Worker(), model, made, task, mark, server))


def train_on_ranks(
    config: TrainConfig,
    folder: Path,
    stop_after: int | None = None,
    test_images: int | None = None,
    initial: bytes = b"",
) -> list[tuple[Outcome | None, Recorder]]:
    """The loop in one process per worker, over gloo: of every rank its outcome, and what its observer heard.

    After step ``stop_after`` all processes end, without an outcome; ``test_images`` are the first ones to evaluate on,
    all when None; ``initial`` are the weights to start from, as a safetensors file.
    """
    return _on_ranks(config, _train, folder, stop_after, test_images, initial)


def traffic_on_ranks(config: TrainConfig, steps: int) -> list[tuple[float, float]]:
    """What the profiler sees each rank hand to gloo in a step: messages and bytes, as means over ``steps``."""
    return _on_ranks(config, _traffic, steps)


@dataclass(frozen=True)
class Steps:
    """What some steps of a strategy came to on one rank.

    Attributes:
        weights: hash of the whole model's parameters and buffers afterwards.
        replica: hash of this rank's own parameters, before the ranks are made equal.
        trained: parameters that had a gradient.
        kept: parameters that the optimizer has a state for.
        messages: sent by this rank in the last step, a broadcast counting once.
        bytes: in them.
        activations: bytes of one micro-batch at all cuts of a pipeline.
    """

    losses: list[float]
    weights: str
    replica: str
    trained: set[str]
    kept: set[str]
    messages: int = 0
    bytes: int = 0
    activations: int = 0


def steps_on_ranks(config: TrainConfig, count: int) -> list[Steps]:
    """The first ``count`` steps without the loop around them, of every rank."""
    return _on_ranks(config, _steps, count)


def choices_on_ranks(config: TrainConfig) -> list[arithmetic.Choice]:
    """What every rank decides to compute with."""
    return _on_ranks(config, arithmetic.choose)


class ServerHost(BaseManager):
    """A parameter server in a process of its own, between ``start()`` and ``shutdown()``."""

    server: Callable[[], ServerHandle]


@cache
def _the_server() -> ParameterServer:
    return ParameterServer()


ServerHost.register("server", _the_server, exposed=("reset", "pull", "push", "states"))


def train_at_own_pace(
    config: TrainConfig,
    folder: Path,
    host: ServerHost,
    stop_after: int | None = None,
    pauses: tuple[float, ...] = (),
    timeout_s: float | None = None,
) -> list[tuple[Outcome | None, Recorder]]:
    """As :func:`train_on_ranks`, with a server that has started, and with seconds of sleep after every rank's step.

    ``timeout_s`` is that of the process group once steps run; PyTorch's own when None.
    """
    return _on_ranks(config, _train_at_own_pace, folder, host.address, AUTHKEY, stop_after, pauses, timeout_s)


def wait_for_the_dead(config: TrainConfig) -> list[str]:
    """What the error says of each rank that waits in :meth:`Strategy.consolidate` for another that has ended; else ""."""
    return _on_ranks(config, _wait_for_the_dead)


def _on_ranks(config: TrainConfig, work: Callable[..., T], *arguments: object) -> list[T]:
    with tempfile.TemporaryDirectory() as meeting, warm.context().Pool(config.world_size) as pool:
        tasks = [(config, rank, f"{meeting}/store", work, arguments) for rank in range(config.world_size)]
        # A rank that is killed would never answer.
        return pool.starmap_async(_on_rank, tasks, chunksize=1).get(timeout=600)


def _on_rank(config: TrainConfig, rank: int, store: str, work: Callable[..., T], arguments: tuple[object, ...]) -> T:
    if config.world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=config.world_size)
    try:
        return work(config, Worker(rank, config.world_size, rank), *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _train(
    config: TrainConfig,
    worker: Worker,
    folder: Path,
    stop_after: int | None,
    test_images: int | None,
    initial: bytes,
) -> tuple[Outcome | None, Recorder]:
    recorder = Recorder(stop_after)
    dataset = data.read(config)
    test = dataset.test.at(slice(test_images))
    try:
        with _watching(recorder):
            kept = replace(dataset, test=test)
            return train_here(config, kept, folder, recorder, worker, initial=initial), recorder
    except Stopped:
        return None, recorder


def _train_at_own_pace(
    config: TrainConfig,
    worker: Worker,
    folder: Path,
    address: tuple[str, int],
    key: bytes,
    stop_after: int | None,
    pauses: tuple[float, ...],
    timeout_s: float | None,
) -> tuple[Outcome | None, Recorder]:
    host = ServerHost(address, key)
    host.connect()
    recorder = Paced(stop_after, pause_s=pauses[worker.rank] if pauses else 0.0, timeout_s=timeout_s)
    try:
        with _watching(recorder):
            return train_here(config, data.read(config), folder, recorder, worker, host.server()), recorder
    except Stopped:
        return None, recorder


def _wait_for_the_dead(config: TrainConfig, worker: Worker) -> str:
    strategy, _ = _ready(config, worker)
    try:
        if worker.rank == 0:
            strategy.consolidate()
    except RuntimeError as error:
        return str(error)
    return ""


@contextmanager
def _watching(recorder: Recorder) -> Iterator[None]:
    """Within it, the recorder has the hashes of this rank's own weights at every evaluation."""
    evaluate = Evaluator.__call__

    def watched(self: Evaluator, model: nn.Module) -> Evaluation:
        weights = model.state_dict()
        recorder.weights = {name: hashlib.sha256(weights[name].numpy().tobytes()).hexdigest() for name in weights}
        return evaluate(self, model)

    with mock.patch.object(Evaluator, "__call__", watched):
        yield


def _traffic(config: TrainConfig, worker: Worker, steps: int) -> tuple[float, float]:
    strategy, loader = _ready(config, worker)
    for _ in range(3):  # in the third, DDP tells the ranks once how its buckets lie
        strategy.gradients(loader.micro_batches(0, 0))
    strategy.load(strategy.context.model.state_dict(), None)  # type: ignore[attr-defined]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for step in range(steps):
            strategy.gradients(loader.micro_batches(0, step))
            strategy.step()
    sizes = {"float": 4, "c10::Half": 2, "c10::BFloat16": 2}
    found = []
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name().startswith("gloo:") and event.name() != "gloo:recv":
            # Whoever is scattered to hands over nothing.
            found.append(math.prod(event.shapes()[0]) * sizes[event.dtypes()[0]] if event.shapes() else 0)
    return len(found) / steps, sum(found) / steps


def _ready(config: TrainConfig, worker: Worker) -> tuple[Strategy, TrainLoader]:
    """A strategy with fresh weights, and what feeds it."""
    dataset = data.read(config)
    torch.manual_seed(0)
    model = models.build(config, dataset.spec).to(memory_format=torch.channels_last)
    decided = recipe.settle(config, Decided.asked(config), dataset)
    shard = strategies.of(config).data_shard(config, worker)
    loader = TrainLoader(config, decided, dataset, shard, worker.device)
    return built(config, model, worker, decided=decided), loader


def _steps(config: TrainConfig, worker: Worker, count: int) -> Steps:
    torch.set_num_threads(config.cpus_per_worker)
    strategy, loader = _ready(config, worker)
    model: nn.Module = strategy.model  # type: ignore[attr-defined]
    losses = []
    sent: list[int] = []
    for step in range(count):
        with _sending(sent, worker):
            losses.append(strategy.gradients(loader.micro_batches(0, step)).item())
        trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        strategy.step()
    kept = {name for name, parameter in model.named_parameters() if parameter in strategy.optimizer.state}
    replica = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    strategy.consolidate()
    weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    activations = 0
    x = next(iter(loader.micro_batches(0, 0))).inputs[: strategies.of(config).at_once(config)]
    for stage in getattr(strategy, "_stages", [])[:-1]:
        x = stage(x)
        activations += x.nbytes
    return Steps(losses, weights.hexdigest(), replica, trained, kept, len(sent), sum(sent), activations)


@contextmanager
def _sending(sent: list[int], worker: Worker) -> Iterator[None]:
    """Within it, ``sent`` has the bytes of every message that this rank sends."""
    operation, broadcast = dist.P2POp, dist.broadcast

    def told(op: Callable[..., object], tensor: torch.Tensor, *arguments: object) -> dist.P2POp:
        if op is dist.isend:
            sent.append(tensor.nbytes)
        return operation(op, tensor, *arguments)  # type: ignore[arg-type]

    def spread(tensor: torch.Tensor, src: int) -> None:
        if src == worker.rank:
            sent.append(tensor.nbytes)
        broadcast(tensor, src=src)

    sent.clear()
    with mock.patch.object(dist, "P2POp", told), mock.patch.object(dist, "broadcast", spread):
        yield


@dataclass(frozen=True)
class Cell:
    """What some ranks have come to with one config.

    Attributes:
        error: what has ended it; nothing if it has ended well.
        loss: of the test.
        begun: the model's state when it was built.
        weights: its state at the end.
        digests: of each rank's state.
    """

    error: str
    loss: float
    begun: dict[str, NDArray[Any]]
    weights: dict[str, NDArray[Any]]
    digests: tuple[str, ...]


def cells_on_ranks(
    like: TrainConfig, configs: list[TrainConfig], folder: Path, address: tuple[str, int] | None
) -> list[Cell]:
    """Train each config in the same processes, as many as ``like`` has workers; those of one worker on rank 0 alone."""
    ranks: list[list[Cell]] = _on_ranks(like, _cells, configs, folder, address, AUTHKEY)
    return [replace(one[0], digests=tuple(each.digests[0] for each in one)) for one in zip(*ranks)]


def _cells(
    config: TrainConfig,
    worker: Worker,
    configs: list[TrainConfig],
    folder: Path,
    address: tuple[str, int] | None,
    key: bytes,
) -> list[Cell]:
    server = None
    if address is not None:
        host = ServerHost(address, key)
        host.connect()
        server = host.server()
    return [_cell(each, worker, folder / str(number), server) for number, each in enumerate(configs)]


def _cell(config: TrainConfig, worker: Worker, folder: Path, server: ServerHandle | None) -> Cell:
    if config.world_size == 1 and worker.rank:
        return Cell("", 0.0, {}, {}, ("",))
    made: list[Strategy] = []
    build = strategies.build
    begun: dict[str, NDArray[Any]] = {}

    def watched(context: StrategyContext) -> Strategy:
        begun.update(_arrays(context.model))
        made.append(build(context))
        return made[-1]

    mine = worker if config.world_size > 1 else Worker()
    group = dist.GroupMember.WORLD if mine.world_size == 1 else None
    with mock.patch.object(strategies, "build", watched):
        try:
            with mock.patch.object(dist, "is_initialized", return_value=False) if group else nullcontext():
                outcome = train_here(config, data.read(config), folder, None, mine, server)
        except Exception as error:
            return Cell(f"{type(error).__name__}: {error}", 0.0, begun, {}, ("",))
    weights = _arrays(made[-1].context.model)  # type: ignore[attr-defined]
    whole = hashlib.sha256(b"".join(array.tobytes() for array in weights.values())).hexdigest()
    return Cell("", outcome.metrics["test/loss"], begun, weights, (whole,))


def _arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    """A model's state; a tensor would cross to another process as memory that both share, while both live."""
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def contents(dataset: Dataset, task: TaskSpec = USUAL) -> str:
    """The sentence on what is in a data set."""
    return next(dataset_lines.lines(dataset, task))


def png(pixels: NDArray[Any]) -> bytes:
    """An image file of uint8 pixels, (height, width) or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def plain_losses(
    asked: TrainConfig, steps: int, target: str, loss_of: Callable[[Tensor, Tensor], Tensor]
) -> list[float]:
    """The losses of a plain loop over global batches, without a strategy; ``loss_of`` gets outputs and targets."""
    assert isinstance(asked, ResolvedConfig)
    dataset = data.read(asked)
    torch.manual_seed(0)
    model = models.build(asked, dataset.spec).to(memory_format=torch.channels_last)
    descent = torch.optim.SGD(model.parameters(), asked.lr, asked.momentum, nesterov=True)
    inputs, targets = (torch.from_numpy(column) for column in (dataset.train.inputs, dataset.train[target]))
    losses = []
    for step in range(steps):
        samples = order.global_batch(order.permutation(0, 0, len(targets)), step, asked.global_batch_size)
        loss = loss_of(model(modality.of(dataset.spec).normaliser()(inputs[samples])), targets[samples])
        descent.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        descent.step()
        losses.append(loss.item())
    return losses
