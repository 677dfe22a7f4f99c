"""The options of every ``cifar-ray`` command but those that are a run's own: flags, defaults and help."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from cifar_ray.config import schema
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.flags import Positional, Switch
from cifar_ray.config.limits import DurationText, PriceText
from cifar_ray.config.schema import Count, NotNegative, Numbers, Positive, Whole
from cifar_ray.config.sections import Measure, WhichCheckpoint
from cifar_ray.config.strategy import StrategyName
from cifar_ray.config.sweep import Asha, ObjectiveText, SchedulerName, SearchName
from cifar_ray.config.train import TrainConfig

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class ResultAsJson:
    """The option of commands whose result a program may read."""

    json: Switch = False
    """Print the result as one JSON document on standard output; progress goes to standard error."""


@dataclass(frozen=True, kw_only=True)
class WritesFiles:
    """The option of commands that write files which a person names."""

    overwrite: Switch = False
    """Replace files that are there."""


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """The options of commands that use a run's model."""

    run: Positional[str]
    """Name or MLflow id of the run, or its folder if MLflow has lost it."""

    checkpoint: WhichCheckpoint = "last"
    """The newest checkpoint, or the one with the best validation figure (--val-share)."""

    tracking_uri: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainCommand(ResultAsJson, TrainConfig):
    """Train one model on one topology, and record it in MLflow."""

    USUAL = (
        *("dataset", "model", "epochs", "seed", "lr"),
        *("global_batch_size", "topology", "strategy", "run_name", "config"),
    )
    EXAMPLES = (
        "  cifar-ray train --dataset digits --epochs 3\n"
        "  cifar-ray train --model vit --model-options.depth 4 --topology 1x2\n"
        "  cifar-ray train --config run.yaml --seed 1",
    )

    config: str | None = None
    """YAML file with any of these options; flags override it."""

    quiet: Switch = False
    """Print one line, the result."""


@dataclass(frozen=True)
class ResumeCommand:
    """Continue a run after its newest usable checkpoint, in the same MLflow run.

    The training itself stays as it was; these options say where it continues.
    """

    run: Positional[str]
    """Name or MLflow id of the run, or its folder if MLflow has lost it."""

    topology: str | None = None
    """NODESxWORKERS, if it changes. The global batch stays the same."""

    data_dir: str | None = None
    address: str | None = None
    local_nodes: int | None = None

    price: PriceText | None = None
    max_time: DurationText | None = None
    """Larger than what the run has taken, to go on after a stop by --max-time."""

    max_cost: Positive | None = None
    """Larger than what the run has cost, to go on after a stop by --max-cost."""

    patience: Count | None = None
    """More epochs than before, to go on after a stop by --patience."""

    max_failures: int | None = None
    hang_timeout_s: float | None = None
    tracking_uri: str | None = None
    verbose: bool = False


@dataclass(frozen=True)
class SweepCommand(TrainConfig):
    """Train every combination of values, and record all runs in MLflow under one parent.

    A YAML file names the grids. These options override the file; those of a run apply to all runs.
    """

    USUAL = ("file", "grid", "seeds", "hold", "name", "resume", "dataset", "model", "epochs", "topology")
    EXAMPLES = (
        "  cifar-ray sweep --dataset digits --grid batch_size=16,64 topology=1x1,1x2\n"
        "  cifar-ray sweep sweep.yaml --epochs 5\n"
        "  cifar-ray sweep --resume NAME",
    )

    file: Positional[str | None] = None
    """YAML file with the sweep."""

    grid: tuple[str, ...] = ()
    """FIELD=VALUE,VALUE ...: fields of a run and the values they take, instead of the file's."""

    name: str | None = None
    """Name of the sweep. Default: that of the file, or one made from the time."""

    resume: str | None = None
    """Name of a sweep to continue: finished runs stay, the rest is trained under the same parent. Only --max-time and
    --max-cost may be given anew."""

    retry_failed: Switch = False
    """With --resume: runs that have failed go on, too, from their newest checkpoints."""

    dry_run: Switch = False
    """Train and write nothing: print the runs, those that are skipped, and their time and cost where finished runs tell
    them."""

    plan_from: tuple[str, ...] = ()
    """With --dry-run: names of finished sweeps or runs that tell times, or .json files of cifar-ray export."""

    json: Switch = False
    """With --dry-run: print it as one JSON document on standard output."""

    seeds: Count = 1
    hold: Literal["batch", "global_batch"] | None = None
    measure: Measure = "all"
    search: SearchName = "grid"
    """Train every combination, or --samples of them: 'random' ones, or those that Optuna proposes one after another
    (TPE), knowing how the earlier ones came out. FIELD=uniform:LOW:HIGH, loguniform:LOW:HIGH and int:LOW:HIGH are
    ranges to draw from."""

    samples: Count | None = None
    scheduler: SchedulerName = "none"
    asha: Asha = field(default_factory=Asha)
    objective: ObjectiveText | None = None
    repeat: Whole = 0
    skip_infeasible: bool = False
    max_concurrent: Count | None = None
    quiet: Switch = False
    """Print one line, the result."""


@dataclass(frozen=True, kw_only=True)
class ReportCommand(ResultAsJson, WritesFiles):
    """Write the results of sweeps or runs as a page, charts and data, from the tracking store or from exported files
    alone."""

    sweeps: Positional[tuple[str, ...]]
    """Names of sweeps or runs, or .json files of cifar-ray export; several make one report."""

    out: str | None = None
    """Folder for report.html, report.md, runs.csv, figures.csv, charts/ and, with --latex, tables/. An earlier report
    in it is replaced. Default: report; with --json, none."""

    baseline: str | None = None
    """Published study to show beside the results, such as rangoju_katneni_2025."""

    price: PriceText | None = None
    """Price of a node: your own in USD per hour, such as 2.49, a machine type such as g4dn.xlarge, TYPE:spot, or a Ray
    cluster file."""

    title: str | None = None
    """Heading of the report; when not given, the names of one or two sweeps, or the models and data sets of more."""

    hold: Literal["batch", "global_batch"] | None = None
    """Group results by batch per worker or by global batch. Default: what the sweeps kept fixed."""

    target: Numbers = ()
    """Values of the task's main test figure, a share as 0 to 1, for which to show the time to reach them. Default: a
    share that all runs of a model reach."""

    style: Literal["screen", "paper"] = "screen"
    """paper: charts also as PDF for a LaTeX document, charts/*.pdf, without titles."""

    latex: bool = False
    """Also write the tables as LaTeX, tables/*.tex, which need the packages booktabs and adjustbox."""

    tracking_uri: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportCommand(WritesFiles):
    """Write the figures of a sweep's runs to one file, from which anyone can make its report; it contains no
    weights."""

    sweep: Positional[str]
    """Name of the sweep or run."""

    out: str | None = None
    """The file; when not given, NAME.json here."""

    tracking_uri: str | None = None


@dataclass(frozen=True)
class RunsCommand(ResultAsJson):
    """List sweeps, and runs that belong to none, newest first."""

    sweep: Positional[str | None] = None
    """Sweep whose runs to list. Default: all sweeps and single runs."""

    tracking_uri: str | None = None


@dataclass(frozen=True)
class DeleteCommand:
    """Delete a run, or a sweep with all of its runs: from MLflow, and its folder with all checkpoints.

    A run that is being trained, or whose model is registered, is refused.
    """

    name: Positional[str]
    """Name or MLflow id of the run or sweep."""

    yes: Switch = False
    """Delete without asking; needed where there is no terminal."""

    tracking_uri: str | None = None


@dataclass(frozen=True)
class CompareCommand(ResultAsJson):
    """Show in which settings runs differ, and their results; of one run, all its settings. With --max-slowdown, tell
    whether the runs of B train slower than those of A.

    Exit status with --max-slowdown: 0 if B is not slower than allowed, 1 if it is by more than chance, 2 on a mistake,
    3 if there is not enough evidence.
    """

    EXAMPLES = (
        "  cifar-ray compare one two\n"
        "  cifar-ray compare baseline.json mine --max-slowdown 5\n"
        "  cifar-ray compare a1,a2,a3 b1,b2,b3 --max-slowdown 5",
    )

    runs: Positional[tuple[str, ...]]
    """Names or MLflow ids of runs. With --max-slowdown, A and B: each is a sweep, runs or .json files of cifar-ray
    export, separated by commas, whose runs differ in the seed alone."""

    max_slowdown: NotNegative | None = None
    """Percent by which B's mean step, in steady state, may take longer than A's."""

    price: PriceText | None = None
    """Price of a node: your own in USD per hour, such as 2.49, a machine type such as g4dn.xlarge, TYPE:spot, or a Ray
    cluster file."""

    target: Numbers = ()
    """Values of the task's main test figure, a share as 0 to 1, for which to show the time to reach them. Default: a
    share that all runs of a model reach."""

    full: Switch = False
    """Show every table of a report, not only the main figures."""

    tracking_uri: str | None = None


@dataclass(frozen=True)
class ExplainCommand(ResultAsJson):
    """Say what bounds a run, with the times of a step on every rank and what to try.

    That is a slow rank, slow data, a slow link, too few CPUs, overhead, or nothing that stands out (balanced).
    """

    run: Positional[str]
    """Name or MLflow id of the run."""

    tracking_uri: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(ResultAsJson, OfModel):
    """Evaluate a run's model on every test image."""

    data_dir: str | None = None

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; 'auto' takes the first GPU, unless it is full or PyTorch cannot use it."""


@dataclass(frozen=True, kw_only=True)
class PredictCommand(ResultAsJson, WritesFiles, OfModel):
    """Answer for image files, texts, or the rows of CSV files, with a run's model."""

    images: Positional[tuple[Path, ...]] = ()
    """Image files of any size and common format, or folders: all images below them, sorted by name; a damaged one is
    named and left out. For a model of texts, files with a column 'text' (.csv, .jsonl) or a text on each line
    (.txt); for a model of table:PATH, CSV files with its features."""

    text: tuple[str, ...] = ()
    """Texts, for a model of texts."""

    csv: str | None = None
    """File for the answers as CSV: a row for each image with its path, or for each text, and the likeliest
    classes with their probabilities or, of a task that answers values, each value by name. '-' prints it."""

    top: Count = 3
    """Classes to show per image or text, most likely first."""

    out: str | None = None
    """Folder for predicted masks, of a model that predicts them: PNG files with the number of each pixel's class, named
    as the images and as large. It must be new or empty, without --overwrite. Default: predicted_masks."""


@dataclass(frozen=True)
class ModelsCommand:
    """List the models of this package, of torchvision and of timm.

    With PATTERN: also the parameters, the side of the images in pixels and the names for --weights. Those of this
    package depend on the data, and have no such names. With the whole NAME of one of this package: its options.
    """

    pattern: Positional[str | None] = None
    """Part of a name, or a pattern of the whole name such as 'timm:convnext*'. Default: the names of all."""


@dataclass(frozen=True)
class StrategiesCommand:
    """List the strategies that keep replicas in step: promise, source, and cost per step."""

    name: Positional[StrategyName | None] = None
    """The strategy to list, with its options. Default: all."""


@dataclass(frozen=True)
class UiCommand:
    """Open MLflow's pages of the tracking store, on this machine only."""

    tracking_uri: str | None = None

    port: int = 5000
    """Port on the loopback interface."""

    open: Switch = False
    """Also open the runs in a browser."""


@dataclass(frozen=True)
class DoctorCommand(ResultAsJson):
    """Check what this machine offers to a run, and what would stop one."""

    data_dir: str | None = None
    storage: str | None = None
    tracking_uri: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class CompletionCommand:
    """Print the script that completes cifar-ray's words in a shell."""

    shell: Positional[Literal["bash", "zsh"]]
    """The shell."""


def checked(command: type, names: str) -> Callable[[_F], _F]:
    """Decorator for a function that does from Python what a command does: check its arguments as the command's.

    The field ``names`` has the function's positional arguments, of which there must be one.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if not args:
                raise ConfigError(names, "must be given")
            texts = schema.field(command, names, tuple(map(schema.plain, args)), strict=True)
            known = {name for name, value in options.items() if value is not None} & {*schema.field_types(command)}
            plain = {name: schema.field(command, name, schema.plain(options[name]), strict=True) for name in known}
            return function(*texts, **{**options, **plain})

        return cast(_F, call)

    return decorate
