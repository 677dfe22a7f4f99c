"""Build everything the loop needs before its first step, on every rank."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock
from torch import Tensor, nn

from cifar_ray import models, strategies, tasks
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import Dataset, modality
from cifar_ray.data.datasets import as_tensor
from cifar_ray.data.loader import TrainLoader
from cifar_ray.models import convolution
from cifar_ray.strategies import compiling, gradients
from cifar_ray.strategies.protocol import Strategy, StrategyContext
from cifar_ray.strategies.served_weights import ServerHandle
from cifar_ray.strategies.worker import Worker, unchanged
from cifar_ray.tasks.protocol import Task
from cifar_ray.training import arithmetic, checkpoint, freezing, hardware, initial_weights, optimizer, recipe
from cifar_ray.training.checkpoint import Snapshot
from cifar_ray.training.clock import Clock
from cifar_ray.training.collectives import from_rank0
from cifar_ray.training.evaluate import Evaluator
from cifar_ray.training.observer import Launch, Row, Started
from cifar_ray.training.stopping import Stopper

_PREPARING_SAMPLES = 5000
"""Training samples from which weights may follow; the first ones, so that they are the same in every run."""


@dataclass
class TrainingState:
    """One rank's part of a run, ready for its next step.

    Attributes:
        decided: what the config leaves open, all of it.
        step: optimizer steps done.
        evaluator: of the samples that are measured after every epoch.
        tester: of the test; the same one where there are no validation samples.
        lock: of the folder, on rank 0.
        saved: those of the newest checkpoint.
        epoch_loss: this rank's sum of losses since the epoch began; float64, on the device.
        history: every row recorded so far.
        frozen: whether the parameters that ``--freeze`` names do not learn now.
    """

    config: ResolvedConfig
    decided: Decided
    worker: Worker
    folder: Path
    task: Task
    loader: TrainLoader
    evaluator: Evaluator
    tester: Evaluator
    clock: Clock
    encoding: str
    lock: FileLock | None
    stopper: Stopper
    started: Started
    epoch_loss: Tensor
    model: nn.Module = dataclasses.field(init=False)
    strategy: Strategy = dataclasses.field(init=False)
    step: int = 0
    saved: int = 0
    history: list[Row] = dataclasses.field(default_factory=list)
    frozen: bool = False


def prepare(
    config: ResolvedConfig,
    decided: Decided,
    dataset: Dataset,
    folder: Path,
    worker: Worker,
    launch: Launch,
    server: ServerHandle | None = None,
    asked: Callable[[], bool] | None = None,
    initial: Callable[[], bytes] | None = None,
) -> TrainingState:
    """Build what the run needs and restore the newest usable checkpoint below ``folder``.

    Every rank calls this with the same arguments but for ``worker``.

    Args:
        config: a resolved config.
        decided: what the launcher has decided beside it; its topology is that of the workers.
        dataset: the data in memory.
        folder: where checkpoints are; only rank 0 looks into it.
        worker: this worker; the process group is up when there are several workers.
        launch: what happened before; what is left of the time since then is start-up time.
        server: the parameter server, for the strategy that has one.
        asked: whether the run is to stop, which only rank 0 is asked; None on every rank when it never is.
        initial: reads the weights of ``config.weights`` as a safetensors file; only rank 0 calls it.

    Raises:
        CheckpointError: on rank 0, when another process trains into ``folder``, or there are checkpoints and none can
            be used, as those of another config, or the weights to start from are damaged.
        RankFailedError: on the others, when rank 0 has failed.
        ConfigError: when the config needs hardware that is not there.
    """
    held: list[FileLock] = []

    def newest() -> Any:
        held.append(checkpoint.lock(folder))
        return checkpoint.latest(folder, config, decided)

    cpus = decided.cpus_per_worker or max(hardware.allowed_cpus() // decided.placement.workers_per_node, 1)
    decided = dataclasses.replace(decided, device=worker.device.type, cpus_per_worker=cpus)
    decided, dataset = recipe.settle(config, decided, dataset), dataset.normalised(config.normalise)
    recipe.check_place(config, decided)
    hardware.keep_freed_memory()
    hardware.choose_kernels(worker.device, is_repeated=config.strategy == "reproducible")
    path, resumed, skipped = from_rank0(worker, newest) or (None, None, ())
    # Decided once in a run, or before in its sweep: it goes on as it began, whatever processor it is on now.
    before = resumed.decided if resumed else decided
    is_open = before.precision == "auto" or before.convolutions is None
    chosen: Any = arithmetic.choose(config, worker) if is_open else before
    decided = dataclasses.replace(decided, precision=chosen.precision, convolutions=chosen.convolutions)
    torch.set_num_threads(cpus)
    clock = Clock(worker.device, launch.begun)
    task = tasks.build(config, dataset.spec)
    shard, variation = strategies.of(config).data_shard(config, worker), models.of(config.model).variation
    loader = TrainLoader(config, decided, dataset, shard, worker.device, variation)
    tester = Evaluator(dataset.tested_on(config.test_images), worker, task)
    steps = loader.steps_per_epoch
    state = TrainingState(
        config=config,
        decided=decided,
        worker=worker,
        folder=folder,
        task=task,
        loader=loader,
        evaluator=Evaluator(dataset, worker, task, "val") if dataset.spec.val_size else tester,
        tester=tester,
        clock=clock,
        encoding=dataset.encoding,
        lock=held[0] if held else None,
        stopper=Stopper(worker, asked, config.epochs * steps),
        started=Started(
            decided,
            resumed.step if resumed else 0,
            steps,
            resumed_from=str(path) if path else None,
            skipped=skipped,
            history=tuple(resumed.history) if resumed else (),
            hardware=hardware.describe(worker.device),
            measured=chosen.measured if is_open else "",
        ),
        epoch_loss=torch.zeros((), dtype=torch.float64, device=worker.device),
        frozen=freezing.holds(config, resumed.epoch if resumed else 0),
    )
    _build_model(state)
    if resumed is None:
        _begin(state, dataset, initial)
    _build_strategy(state, server)
    if resumed is not None:
        _restore(state, resumed)
    clock.seconds["data"] += launch.data_s
    clock.seconds["startup"] += max(time.time() - launch.begun - launch.data_s, 0.0)
    return state


def unfreeze(state: TrainingState, epoch: int) -> None:
    """At the epoch of ``--unfreeze-epoch``, from 0, build model and strategy again, as in a run that resumes there."""
    if not state.frozen or freezing.holds(state.config, epoch):
        return
    state.frozen = False
    with state.clock.phase("startup"):
        weights, kept = gradients.on_cpu(state.model.state_dict()), state.strategy.state()
        kept["state"] = {number: gradients.on_cpu(values) for number, values in kept["state"].items()}
        del state.model, state.strategy
        gc.collect()  # a GPU may have no room for two
        _build_model(state)
        _build_strategy(state)
        state.strategy.load(weights, kept)
        state.clock.leave_out()


def _build_model(state: TrainingState) -> None:
    """Set the configured model, with fresh weights on this worker's device."""
    config, worker = state.config, state.worker
    torch.manual_seed(config.seed)
    model = models.build(config, state.decided.facts)
    if config.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    state.model = model.to(worker.device).train()
    convolution.install(state.model, state.decided.convolutions)
    if state.frozen:
        freezing.freeze(state.model, config)


def _build_strategy(state: TrainingState, server: ServerHandle | None = None) -> None:
    """Set the configured strategy over the model, after forward and backward passes that leave the model unchanged.

    DDP rebuilds its buckets after the first backward passes. With those done here, every real step sums gradients
    in the same layout, so a resumed run adds them in the same order as an uninterrupted one. What libraries set up
    at first use counts as start-up this way. What is compiled is so in the first one, or never.
    """
    config, decided, model = state.config, state.decided, state.model
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    make_optimizer = partial(optimizer.build, config=config, rules=freezing.rules(model, config))
    context = StrategyContext(
        config, decided, state.worker, model, make_optimizer, state.task, state.clock.mark, server
    )
    state.strategy = strategy = strategies.build(context)
    hardware.use_precision(decided.precision)  # after all of the user's own modules
    passes = max(strategy.warm_ups, compiling.PASSES * config.compile)
    with compiling.refusing(config), unchanged(strategy.model):
        for number in range(passes):
            with torch.compiler.set_stance("fail_on_recompile") if number and config.compile else nullcontext():
                strategy.gradients(state.loader.micro_batches(0, 0))
            strategy.optimizer.zero_grad()
    strategy.load(fresh, None)


def _begin(state: TrainingState, dataset: Dataset, initial: Callable[[], bytes] | None) -> None:
    """Give every rank the weights of rank 0: random ones, but for those that ``--weights`` or training inputs set."""
    config, model, worker = state.config, state.model, state.worker
    prepare_weights = models.of(config.model).prepare

    def set_weights() -> None:
        if config.weights is not None:
            assert initial is not None, "the launcher has kept them"
            initial_weights.load(model, state.decided.weights_digest, initial())
        elif prepare_weights is not None:
            inputs = as_tensor(dataset.train.inputs)[:_PREPARING_SAMPLES]
            prepare_weights(model, modality.of(dataset.spec).normaliser()(inputs).to(worker.device))

    from_rank0(worker, set_weights)
    if worker.world_size > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(gradients.flat(tensor), src=0)


def _restore(state: TrainingState, snapshot: Snapshot) -> None:
    """Continue from a checkpoint, the same one on every rank."""
    state.strategy.load(snapshot.weights, snapshot.optimizer)
    optimizer.exchange(state.strategy.optimizer)
    state.clock.restore(snapshot.clock, same_workers=snapshot.decided.topology == state.decided.topology)
    state.step = state.saved = snapshot.step
    state.history = list(snapshot.history)
    if state.worker.rank == 0:  # it holds the sum over all ranks
        state.epoch_loss.fill_(snapshot.epoch_loss * state.worker.world_size)
