"""Studies made of given figures, for tests of reports: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cifar_ray.tracking.study import TASK_TAG, Point, Run, Sweep

PHASES = ("startup", "data", "training", "evaluation", "checkpoint")


def trial(
    topology: str = "1x1",
    batch: int = 16,
    seed: int = 0,
    *,
    training_s: float = 100.0,
    accuracies: Sequence[float] = (0.3, 0.5, 0.6),
    images_per_s: float = 1000.0,
    images: int = 50000,
    params: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    **changes: Any,
) -> Run:
    """A finished run of as many epochs as there are accuracies, each of so many images, with 10 s of every other phase."""
    nodes, workers = (int(number) for number in topology.split("x"))
    name = f"bs{batch} {topology} seed{seed}"
    epochs = len(accuracies)
    epoch_s = training_s / epochs
    metrics = {f"time/{phase}_s": 10.0 for phase in PHASES}
    metrics |= {f"test/{metric}": accuracies[-1] for metric in ("accuracy", "precision", "recall", "f1")}
    metrics |= {
        "test/specificity": 1 - (1 - accuracies[-1]) / 9,
        "time/training_s": training_s,
        "time/epoch_mean_s": epoch_s,
        "time/iteration_mean_s": 0.125,
        "time/iteration_p95_s": 0.25,
        "images_per_s": images_per_s,
        "epoch_s": epoch_s,
        "epoch_images_per_s": images / epoch_s,
        "peak_memory_mib": 512.0,
        "best/accuracy": max(accuracies),
    }
    made = Run(
        name=name,
        run_id=f"id-{name.replace(' ', '-')}",
        status="FINISHED",
        params={
            "model": "resnet",
            "dataset": "cifar10",
            "topology": topology,
            "batch_size": str(batch),
            "global_batch_size": str(batch * nodes * workers),
            "seed": str(seed),
            "device": "cpu",
            "epochs": str(epochs),
            "strategy": "ddp",
            "lr": "0.1",
            "lr_scaling": "none",
            **(params or {}),
        },
        tags={
            "cifar_ray.hardware": "AMD EPYC 9754",
            "cifar_ray.machine": "host, Linux",
            "cifar_ray.command": "cifar-ray train --model resnet",
            "mlflow.source.git.commit": "c" * 40,
            **(tags or {}),
        },
        metrics=metrics,
        history={
            "test/accuracy": [Point(n, n * 1000, value) for n, value in enumerate(accuracies, 1)],
            "epoch_s": [Point(n, n * 1000, epoch_s) for n in range(1, epochs + 1)],
        },
    )
    return replace(made, **changes)


def validated(of: Sweep, *accuracies: float) -> Sweep:
    """The runs of a study, whose second epoch was chosen by these validation accuracies; the third one's are lower.

    The chosen checkpoint has a point more in the test than the last.
    """
    return replace(of, trials=[_validated(run, value) for run, value in zip(of.trials, accuracies, strict=True)])


def _validated(run: Run, accuracy: float) -> Run:
    test = {name: value for name, value in run.metrics.items() if name.startswith("test/")}
    chosen = {f"chosen/{name}": value + 0.01 for name, value in test.items()}
    val = {"val/accuracy": accuracy - 0.02, "val/loss": 0.5, "val/images": 5000.0, "best/accuracy": accuracy}
    by_epoch = [Point(n, n * 1000, value) for n, value in enumerate((0.1, accuracy, accuracy - 0.02), 1)]
    history = {"val/accuracy": by_epoch, "test/accuracy": [run.history["test/accuracy"][-1]], "epoch_s": run.history["epoch_s"]}  # fmt: skip
    metrics = {**run.metrics, **chosen, **val, "chosen/epoch": 2.0, "test/images": 10000.0}
    return replace(run, metrics=metrics, history=history, tags={**run.tags, "cifar_ray.chosen_by": "val"})


def without_run(status: str, reason: str, topology: str, batch: int) -> Run:
    """A cell that has no run, or one that came to nothing."""
    whole = trial(topology, batch)
    run_id = "" if status in ("SKIPPED", "PENDING") else whole.run_id
    placed = {k: v for k, v in whole.params.items() if k not in ("device", "epochs", "strategy", "lr", "lr_scaling")}
    return Run(whole.name, run_id, status, reason, params=placed)


def study(*trials: Run, **changes: Any) -> Sweep:
    """A finished sweep over topology and batch size."""
    whole = Sweep(
        name="scaling",
        trials=trials,
        store="sqlite:////tmp/mlflow.db",
        command="cifar-ray sweep --name scaling",
        hold="batch",
        axes=("topology", "batch_size"),
        run_id="parent",
    )
    return replace(whole, **changes)


def grid() -> Sweep:
    """Three topologies with two batch sizes; more workers are faster and less accurate."""
    return study(
        trial("1x1", 16, training_s=400.0, accuracies=(0.4, 0.6, 0.8), images_per_s=100.0),
        trial("1x1", 64, training_s=200.0, accuracies=(0.4, 0.6, 0.78), images_per_s=200.0),
        trial("1x2", 16, training_s=210.0, accuracies=(0.4, 0.6, 0.75), images_per_s=180.0),
        trial("1x2", 64, training_s=110.0, accuracies=(0.4, 0.6, 0.72), images_per_s=360.0),
        trial("2x2", 16, training_s=105.0, accuracies=(0.3, 0.5, 0.7), images_per_s=300.0),
        trial("2x2", 64, training_s=60.0, accuracies=(0.3, 0.5, 0.65), images_per_s=640.0),
    )


def twice(of: Sweep) -> Sweep:
    """A study with a second seed of every run, whose figures are the same."""
    again = [
        replace(one, run_id=f"{one.run_id}-again", params={**one.params, "seed": str(one.seed + 100)})
        for one in of.trials
    ]
    return replace(of, trials=(*of.trials, *again))


PARTS = ("data", "forward", "backward", "communication", "optimizer")


def of_strategy(
    strategy: str,
    topology: str = "1x1",
    seconds: float = 0.5,
    *,
    parts: Sequence[float | None] = (),
    losses: Sequence[float] = (),
    right: Sequence[float] = (),
    memory: Sequence[float] = (),
    also: dict[str, float] | None = None,
    **changes: Any,
) -> Run:
    """A finished run of vgg11 with a global batch of 256 images, one epoch of 40 steps of so many seconds.

    ``parts`` are seconds of a step's PARTS, None for one that was not measured; ``losses``, ``right`` (accuracies) and
    ``memory`` (MiB) are those of every rank; ``also`` are other metrics, ``changes`` other arguments of :func:`trial`.
    """
    nodes, workers = (int(number) for number in topology.split("x"))
    params = {"model": "vgg11", "strategy": strategy, "steps_per_epoch": "40", **changes.pop("params", {})}
    given = {"training_s": 40 * seconds, "images_per_s": 256 / seconds, "accuracies": (0.2,), "images": 40 * 256}
    made = trial(topology, 256 // (nodes * workers), params=params, **{**given, **changes})
    metrics = {**made.metrics, "time/iteration_mean_s": seconds, "test/loss": 2.2}
    metrics |= {f"time/step_{part}_s": value for part, value in zip(PARTS, parts) if value is not None}
    metrics |= {f"test/loss_rank{rank}": value for rank, value in enumerate(losses)}
    metrics |= {f"test/accuracy_rank{rank}": value for rank, value in enumerate(right)}
    metrics |= {f"peak_memory_mib_rank{rank}": value for rank, value in enumerate(memory)}
    name = f"{strategy} {topology} seed{made.seed}"
    return replace(made, name=name, run_id=f"id-{name.replace(' ', '-')}", metrics={**metrics, **(also or {})})


def skipped_strategy(strategy: str, topology: str, reason: str) -> Run:
    """A cell of a sweep over strategies that cannot be."""
    whole = of_strategy(strategy, topology)
    return Run(whole.name, "", "SKIPPED", reason, params={k: v for k, v in whole.params.items() if k != "device"})


def of_strategies(*trials: Run, axes: tuple[str, ...] = ("strategy", "topology")) -> Sweep:
    """A finished sweep over strategy and topology that holds the global batch."""
    return study(*trials, name="strategies", hold="global_batch", axes=axes)


DEPTH = {
    "name": "nets:Depth",
    "figures": [
        {"name": "rmse", "title": "RMSE", "better": "min"},
        {"name": "near", "title": "Within 1 m", "percent": True},
    ],
    "unit": "rows",
    "answer": "values",
}
"""What a run holds of a task of one's own."""


def of_another_task(one: Run) -> Run:
    """The run as one that learns depths: 10 times its accuracies are values of the RMSE."""
    values = [Point(point.step, point.timestamp_ms, 10 * point.value) for point in one.history["test/accuracy"]]
    kept = {name: value for name, value in one.metrics.items() if not name.startswith(("test/", "best/"))}
    metrics = {name.replace("images", "rows"): value for name, value in kept.items()}
    metrics |= {"test/rmse": values[-1].value, "test/near": 0.5, "best/rmse": min(point.value for point in values)}
    history = {"epoch_s": one.history["epoch_s"], "test/rmse": values}
    return replace(one, metrics=metrics, history=history, tags={**one.tags, TASK_TAG: json.dumps(DEPTH)})
