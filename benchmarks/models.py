"""One run per model on real CIFAR-10, and the table of docs/measurements/models.md from what MLflow has of them.

    python benchmarks/models.py run FOLDER      # about an hour on 2 cores; a run that is there is left alone
    python benchmarks/models.py table FOLDER    # the table, as Markdown

CIFAR-10 is looked for where ``cifar-ray train`` looks for it. FOLDER receives the runs and their MLflow store.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from cifar_ray.config.limits import duration

EPOCHS = {"simple_cnn": 10, "resnet": 10, "resnet18": 2, "resnet50": 3, "vgg11": 3, "vit": 3}


def words(model: str) -> list[str]:
    """The command that is measured, but for where its results go."""
    return f"train --model {model} --epochs {EPOCHS[model]} --topology 1x2 --global-batch-size 128".split()


def _find(client: MlflowClient, model: str) -> Run | None:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    query = f"attributes.run_name = '{model}' and attributes.status = 'FINISHED'"
    return next(iter(client.search_runs(experiments, query)), None)


def run(folder: Path) -> None:
    """Train every model whose finished run is not there yet."""
    uri = f"sqlite:///{folder.absolute()}/mlflow.db"
    for model in EPOCHS:
        if _find(MlflowClient(uri), model) is None:
            places = ["--run-name", model, "--storage", str(folder / "runs"), "--tracking-uri", uri]
            subprocess.run([sys.executable, "-m", "cifar_ray.cli", *words(model), *places], check=True)


def table(folder: Path) -> None:
    """Print the table of the runs that are there."""
    client = MlflowClient(f"sqlite:///{folder.absolute()}/mlflow.db")
    rows = {model: found for model in EPOCHS if (found := _find(client, model))}
    print(
        "| command | test accuracy | macro F1 | training | start-up | images/s | iteration, median (p95) | peak memory of a worker |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for model, found in rows.items():
        metrics = found.data.metrics
        iteration = f"{1000 * metrics['time/iteration_median_s']:.0f} ({1000 * metrics['time/iteration_p95_s']:.0f}) ms"
        print(
            f"| `cifar-ray {' '.join(words(model))}` | {metrics['test/accuracy']:.2%} | {metrics['test/f1']:.4f} | "
            f"{duration(metrics['time/training_s'])} | {metrics['time/startup_s']:.0f} s | {metrics['images_per_s']:,.0f} | "
            f"{iteration} | {metrics['peak_memory_mib']:,.0f} MiB |"
        )
    one = next(iter(rows.values()))
    tags, params = one.data.tags, one.data.params
    print(
        f"\nMachine: {tags['cifar_ray.hardware']}, {params['world_size']} workers of {params['cpus_per_worker']} CPU thread; "
        f"{params['precision']}; torch {tags['version.torch']}, Ray {tags['version.ray']}; "
        f"commits {', '.join(sorted({r.data.tags['mlflow.source.git.commit'][:12] for r in rows.values()}))}; n = 1 each."
    )


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("run", "table"):
        sys.exit(__doc__)
    {"run": run, "table": table}[sys.argv[1]](Path(sys.argv[2]))
