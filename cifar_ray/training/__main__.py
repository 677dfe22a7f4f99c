"""The same training under torchrun, without Ray or MLflow.

    torchrun --nproc-per-node 2 -m cifar_ray.training --dataset digits --model resnet --epochs 2

takes the flags of ``cifar-ray train`` but for those that concern Ray and MLflow; the workers are those that
torchrun starts. Checkpoints go to ``--storage``, and the same command continues from them.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

from cifar_ray import IMPORTED_AT, data, strategies
from cifar_ray.config import errors, files, flags, limits, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.train import TrainConfig
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, recipe
from cifar_ray.training.errors import CheckpointError, DivergedError, RankFailedError
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Launch, Outcome, Row, SavedCheckpoint, Started, Traced
from cifar_ray.training.setup import prepare

_NOT_HERE = (
    "topology",
    "elastic",
    "address",
    "local_nodes",
    "max_failures",
    *limits.KEYS,
    "hang_timeout_s",
    "tracking_uri",
    "verbose",
    "weights",
)


class Printer:
    """Plain lines from rank 0, of the training of a model."""

    def __init__(self, rank: int, model: str) -> None:
        self._quiet, self._model = rank != 0, model

    def started(self, event: Started) -> None:
        for sentence in event.skipped:
            print(f"passed over: {sentence}")
        origin = f"from step {event.step} ({event.resumed_from})" if event.resumed_from else "from scratch"
        print(f"training {self._model} on {event.hardware} in {event.decided.precision}, {origin}")

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        if row is not None and not self._quiet:
            print(f"epoch {epoch + 1} step {step}: loss {row.metrics['train/loss']:.4f}", flush=True)

    def epoch_done(self, record: EpochRecord) -> None:
        if not self._quiet:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in record.row.metrics.items())
            print(f"epoch {record.row.step}: {shown}", flush=True)

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        print(f"checkpoint {saved.path} sha256 {saved.weights_sha256}", flush=True)

    def traced(self, event: Traced) -> None:
        print(f"trace of rank {event.rank}: {event.problem or event.path}", flush=True)


def main(words: list[str], begun: float) -> Outcome:
    """Run one worker; the process group is torchrun's."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    values = flags.parse(TrainConfig, words, "python -m cifar_ray.training")
    for key in _NOT_HERE:
        if key in values:
            raise errors.ConfigError(
                key, "is for `cifar-ray train`; under torchrun it follows from torchrun, or is not"
            )
    values["topology"] = f"{world_size // local_world_size}x{local_world_size}"
    asked = runfile.load(None, values)
    config = recipe.resolve(asked)
    for note in recipe.notes(config, asked) if rank == 0 else ():
        print(note)
    if strategies.of(config).needs_server:
        raise errors.ConfigError("strategy", f"{config.strategy} needs a server, which only `cifar-ray train` starts")
    given = _gpus(config, local_rank, local_world_size)
    device = torch.device("cuda", given[0]) if given else torch.device("cpu")
    if given:
        hardware.check_gpus(given)
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if given else "gloo")
    name = config.run_name or f"{config.model_name}-{config.dataset_name}-{config.topology}-seed{config.seed}"
    folder = files.storage(config.storage) / name / "checkpoints"
    loading = time.time()
    worker = Worker(rank, world_size, local_rank, os.environ.get("GROUP_RANK", "0"), device, given)
    dataset = data.read(config)
    launch = Launch(begun, time.time() - loading)
    state = prepare(config, Decided.asked(config), dataset, folder, worker, launch)
    outcome = fit(state, Printer(rank, config.model)).at(time.time())
    if rank == 0:
        for title, figures in (("result", outcome.metrics), ("times", outcome.times)):
            print(title + ":", ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    if dist.is_initialized():  # not after an error: it would wait for the others, and they for this rank
        dist.destroy_process_group()
    return outcome


def _gpus(config: TrainConfig, local_rank: int, local_world_size: int) -> tuple[int, ...]:
    """The GPUs of this worker: each worker of the node has as many, or none has any."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    each = math.ceil(config.gpus_per_worker)
    needed = local_world_size * each
    if config.device != "cpu" and count >= needed:
        return tuple(range(local_rank * each, (local_rank + 1) * each))
    if config.device == "cuda":
        raise errors.ConfigError(
            "device",
            f"must be cpu or auto here: {errors.counted(needed, 'GPU')} needed, {count} found",
        )
    return ()


def end_process(status: int) -> None:
    """End at once, without the interpreter's own end.

    After an error that may wait for ranks that wait for this one. After a run, threads of gloo live on though the
    process group is destroyed; one that still lets go of a tensor while the interpreter ends aborts the process.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    status = 0
    try:
        main(sys.argv[1:], IMPORTED_AT)
    except (errors.ConfigError, CheckpointError, DivergedError, RankFailedError) as error:
        sentence = error.as_flag() if isinstance(error, errors.ConfigError) else str(error)
        print(f"error: {sentence}", file=sys.stderr)
        status = 2 if isinstance(error, (errors.ConfigError, CheckpointError)) else 1
    except Exception:
        traceback.print_exc()
        status = 1
    end_process(status)
