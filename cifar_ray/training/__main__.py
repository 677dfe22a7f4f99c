"""The same training under torchrun, without Ray or MLflow.

    torchrun --nproc-per-node 2 -m cifar_ray.training --dataset digits --model resnet --epochs 2

takes the flags of ``cifar-ray train`` that concern training; the workers are those that torchrun starts,
and ``--topology`` follows from them. Checkpoints go to ``--storage``, and the same command continues
from them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from cifar_ray import IMPORTED_AT, data, strict
from cifar_ray import config as configs
from cifar_ray.config import TrainConfig
from cifar_ray.training import recipe
from cifar_ray.training.errors import CheckpointError, DivergedError
from cifar_ray.training.hardware import Place
from cifar_ray.training.loop import fit
from cifar_ray.training.observer import EpochRecord, Launch, Outcome, Row, SavedCheckpoint, Started


class Printer:
    """Plain lines from rank 0."""

    def __init__(self, rank: int) -> None:
        self._quiet = rank != 0

    def started(self, event: Started) -> None:
        for sentence in event.skipped:
            print(f"passed over: {sentence}")
        origin = f"from step {event.step} ({event.resumed_from})" if event.resumed_from else "from scratch"
        print(f"training {event.config['model']} on {event.hardware} in {event.config['precision']}, {origin}")

    def step_done(self, epoch: int, step: int, row: Row | None) -> None:
        if row is not None and not self._quiet:
            print(f"epoch {epoch + 1} step {step}: loss {row.metrics['train/loss']:.4f}", flush=True)

    def epoch_done(self, record: EpochRecord) -> None:
        if not self._quiet:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in record.row.metrics.items())
            print(f"epoch {record.row.step}: {shown}", flush=True)

    def checkpoint_ready(self, saved: SavedCheckpoint) -> None:
        print(f"checkpoint {saved.path} sha256 {saved.weights_sha256}", flush=True)


def main(words: list[str], begun: float) -> Outcome:
    """Run one worker; the process group is torchrun's."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    nodes = world_size // int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    values = strict.parse_flags(TrainConfig, words)
    values["topology"] = f"{nodes}x{world_size // nodes}"
    config = recipe.resolve(configs.merge(TrainConfig(), values))
    use_gpu = config.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    if use_gpu:
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if use_gpu else "gloo")
    try:
        loading = time.time()
        dataset = data.load(config.dataset, config.data_dir)
        launch = Launch(begun, time.time() - loading)
        name = config.run_name or f"{config.model}-{config.dataset}-{config.topology}-seed{config.seed}"
        folder = Path(config.storage or "~/.cifar_ray/runs").expanduser().absolute() / name / "checkpoints"
        place = Place(rank, world_size, local_rank, os.environ.get("GROUP_RANK", "0"), device)
        outcome = fit(config, dataset, folder, place, Printer(rank), launch)
        if rank == 0:
            for title, figures in (("result", outcome.metrics), ("times", outcome.times)):
                print(title + ":", ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
        return outcome
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _complain(sentence: str, status: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    try:
        main(sys.argv[1:], IMPORTED_AT)
    except strict.ConfigError as error:
        sys.exit(_complain(error.as_flag(), 2))
    except CheckpointError as error:
        sys.exit(_complain(str(error), 2))
    except DivergedError as error:
        sys.exit(_complain(str(error), 1))
