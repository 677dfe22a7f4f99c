"""The options of every ``cifar-ray`` command but those that are a run's own: flags, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cifar_ray.config.flags import Positional, Switch
from cifar_ray.config.schema import Count, Numbers
from cifar_ray.config.train import TrainConfig, WhichCheckpoint


@dataclass(frozen=True, kw_only=True)
class ResultAsJson:
    """The option of commands whose result another program may read."""

    json: Switch = False
    """Print the result as one JSON document on standard output; progress goes to standard error."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand(ResultAsJson, TrainConfig):
    """Train one image classifier on one topology, and record it in MLflow."""

    config: str | None = None
    """YAML file with any of these options; flags override it."""

    quiet: Switch = False
    """Print one line, the result."""


@dataclass(frozen=True)
class ResumeCommand:
    """Continue a run at the step after its newest usable checkpoint, in the same MLflow run.

    What is learned and how stays as it was; these options say where it goes on.
    """

    run: Positional[str]
    """The run's name or MLflow id; its folder, where MLflow has lost it."""

    topology: str | None = None
    """NODESxWORKERS, if another than before; the global batch stays the same."""

    data_dir: str | None = None
    """Folder that holds the data set."""

    address: str | None = None
    """Ray cluster to join (RAY_ADDRESS)."""

    local_nodes: int | None = None
    """Ray nodes to start on this machine."""

    oversubscribe: bool = False
    """Let the Ray started here count more CPUs than the machine has, as it also does if the run was begun so."""

    max_failures: int | None = None
    """Worker failures to recover from before the run fails."""

    start_timeout_s: float | None = None
    """Seconds to wait for nodes, and then for the workers to be placed on them, before the run fails."""

    hang_timeout_s: float | None = None
    """Seconds without an answer from a worker's process after which the workers are restarted."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run."""

    verbose: bool = False
    """Also show what Ray and MLflow have to say."""


@dataclass(frozen=True)
class SweepCommand(TrainConfig):
    """Train every combination of values, and record all runs in MLflow under one parent.

    A YAML file names the grids; these options override what it says, and those of a run are shared by all runs.
    """

    file: Positional[str | None] = None
    """YAML file with the sweep."""

    grid: tuple[str, ...] = ()
    """FIELD=VALUE,VALUE ...: fields of a run and the values they take; in place of the file's."""

    name: str | None = None
    """Name of the sweep; when not given, that of the file, or one made from the time."""

    resume: str | None = None
    """Name of a sweep to continue: what has finished stays, and the rest is trained under the same parent."""

    retry_failed: Switch = False
    """With --resume: runs that have failed go on, too, from their newest checkpoints."""

    seeds: Count = 1
    """Runs of every cell, with seeds counting up from --seed."""

    hold: Literal["batch", "global_batch"] | None = None
    """What stays when the workers change: 'batch' per worker, or 'global_batch' over all of them; when not
    given, the former where --batch-size alone is named, in the grid or for all runs, else the latter."""

    measure: Literal["all", "accuracy", "times"] = "all"
    """What the runs are made for: with 'accuracy' a report leaves out their times, such as those on a busy machine,
    and with 'times' what they have learned, such as in a hundred steps."""

    search: Literal["grid", "random"] = "grid"
    """Every combination, or --samples of them drawn at random, where FIELD=loguniform:LOW:HIGH is a range."""

    samples: Count | None = None
    """Combinations to draw in a random search."""

    scheduler: Literal["none", "asha"] = "none"
    """'asha' stops runs early whose test accuracy falls behind that of the others."""

    skip_infeasible: bool = False
    """Leave out cells that cannot run here, instead of refusing the sweep."""

    max_concurrent: Count | None = None
    """Most runs at once; as many as the cluster holds when not given."""

    quiet: Switch = False
    """Print one line, the result."""


@dataclass(frozen=True)
class ReportCommand:
    """Write a sweep's results as a page, charts and data, from the tracking store or from exported files alone."""

    sweeps: Positional[tuple[str, ...]]
    """Name of the sweep, or a .json file of cifar-ray export; several make one report."""

    out: str = "report"
    """Folder that receives report.html, report.md, runs.csv, figures.csv and charts/."""

    format: Literal["files", "json"] = "files"
    """Files in a folder, or all figures as JSON on the terminal."""

    baseline: str | None = None
    """Published study to lay beside it, such as rangoju_katneni_2025."""

    price: str | None = None
    """What a node costs: a machine type such as g4dn.xlarge, TYPE:spot, or a Ray cluster file."""

    hold: Literal["batch", "global_batch"] | None = None
    """Batch size that a column shares: the one per worker, or the global one; what the sweeps held when not given."""

    target: Numbers = ()
    """Test accuracies, 0 to 1, for the times to them; when not given, one that all runs of a model reach."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the sweep."""


@dataclass(frozen=True)
class ExportCommand:
    """Write a sweep with its runs as one file, from which anyone can make its report; no weights are in it."""

    sweep: Positional[str]
    """The sweep's name."""

    out: str | None = None
    """The file; when not given, NAME.json here."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the sweep."""


@dataclass(frozen=True)
class RunsCommand(ResultAsJson):
    """List the sweeps of the tracking store, and the runs that belong to none, newest first."""

    sweep: Positional[str | None] = None
    """A sweep, to list its runs."""

    tracking_uri: str | None = None
    """MLflow tracking store that has them."""


@dataclass(frozen=True)
class CompareCommand(ResultAsJson):
    """Show the results of some runs side by side."""

    runs: Positional[tuple[str, ...]]
    """Names or MLflow ids of two or more runs."""

    price: str | None = None
    """What a node costs: a machine type such as g4dn.xlarge, TYPE:spot, or a Ray cluster file."""

    target: Numbers = ()
    """Test accuracies, 0 to 1, for the times to them; when not given, one that all runs of a model reach."""

    full: Switch = False
    """Show every table of a report, not the main figures alone."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the runs."""


@dataclass(frozen=True)
class EvaluateCommand(ResultAsJson):
    """Evaluate a run's model on every test image."""

    run: Positional[str]
    """The run's name or MLflow id; its folder, where MLflow has lost it."""

    checkpoint: WhichCheckpoint = "last"
    """The newest checkpoint, or the one with the highest test accuracy."""

    data_dir: str | None = None
    """Folder that holds the data set."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run."""


@dataclass(frozen=True)
class PredictCommand(ResultAsJson):
    """Classify image files with a run's model."""

    run: Positional[str]
    """The run's name or MLflow id; its folder, where MLflow has lost it."""

    images: Positional[tuple[Path, ...]]
    """Image files of any size and common format."""

    checkpoint: WhichCheckpoint = "last"
    """The newest checkpoint, or the one with the highest test accuracy."""

    top: Count = 3
    """Classes to show for each image, likeliest first."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run."""


@dataclass(frozen=True)
class StrategiesCommand:
    """List the ways of keeping replicas in step: what each promises, where it comes from, and what it sends."""


@dataclass(frozen=True)
class UiCommand:
    """Open MLflow's pages on the tracking store, for this machine only."""

    tracking_uri: str | None = None
    """MLflow tracking store to show."""

    port: int = 5000
    """Port on the loopback interface."""

    open: Switch = False
    """Also open the runs in a browser."""


@dataclass(frozen=True)
class DoctorCommand(ResultAsJson):
    """Look at what this machine offers to a run, and what would stop one."""

    data_dir: str | None = None
    """Folder that holds the data sets."""

    storage: str | None = None
    """Where runs and their checkpoints are kept: a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX."""

    tracking_uri: str | None = None
    """MLflow tracking store."""

    address: str | None = None
    """Ray cluster to join (RAY_ADDRESS)."""


@dataclass(frozen=True)
class CompletionCommand:
    """Print the script by which a shell completes the words of cifar-ray."""

    shell: Positional[Literal["bash", "zsh"]]
    """The shell that reads it."""
