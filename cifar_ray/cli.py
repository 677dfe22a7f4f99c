"""The ``cifar-ray`` command. Each subcommand reads its words and calls one function."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro
from tyro.conf import Positional

from cifar_ray import IMPORTED_AT, __version__, strict
from cifar_ray import config as configs
from cifar_ray.config import TrainConfig, WhichCheckpoint
from cifar_ray.strict import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class TrainCommand(TrainConfig):
    """Train one image classifier on one topology, and record it in MLflow."""

    config: str | None = None
    """YAML file with any of these options; flags override it."""


@dataclass(frozen=True)
class ResumeCommand:
    """Continue a run at the step after its newest usable checkpoint, in the same MLflow run.

    What is learned and how stays as it was; these options say where it goes on.
    """

    run: Positional[str]
    """The run's name or MLflow id."""

    topology: str | None = None
    """NODESxWORKERS, if another than before; the global batch stays the same."""

    data_dir: str | None = None
    """Folder that holds the data set."""

    address: str | None = None
    """Ray cluster to join (RAY_ADDRESS)."""

    local_nodes: int | None = None
    """Ray nodes to start on this machine."""

    oversubscribe: bool | None = None
    """Let the Ray started here count more CPUs than the machine has."""

    max_failures: int | None = None
    """Worker failures to recover from before the run fails."""

    start_timeout_s: float | None = None
    """Seconds to wait for the workers to be placed before the run fails."""

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
    """Name of the sweep; that of the file when not given."""

    resume: str | None = None
    """Name of a sweep to continue: what has finished stays, and the rest is trained under the same parent."""

    seeds: int = 1
    """Runs of every cell, with seeds counting up from --seed."""

    hold: Literal["batch", "global_batch"] | None = None
    """What stays when the workers change: 'batch' per worker, or 'global_batch' over all of them."""

    search: Literal["grid", "random"] = "grid"
    """Every combination, or --samples of them drawn at random, where FIELD=loguniform:LOW:HIGH is a range."""

    samples: int | None = None
    """Combinations to draw in a random search."""

    scheduler: Literal["none", "asha"] = "none"
    """'asha' stops runs early whose test accuracy falls behind that of the others."""

    skip_infeasible: bool = False
    """Leave out cells that cannot run here, instead of refusing the sweep."""

    max_concurrent: int | None = None
    """Most runs at once; as many as the cluster holds when not given."""


@dataclass(frozen=True)
class ReportCommand:
    """Write a sweep's results as a page, tables and charts, from the tracking store alone."""

    sweep: Positional[str]
    """The sweep's name."""

    out: str = "report"
    """Folder that receives report.html, report.md, tables/ and charts/."""

    baseline: str | None = None
    """Published study to lay beside it, such as rangoju_katneni_2025."""

    price: str | None = None
    """What a node costs: a machine type such as g4dn.xlarge, TYPE:spot, or a Ray cluster file."""

    target: float | None = None
    """Test accuracy, 0 to 1, for the time to a target; when not given, one that all runs of a model reach."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the sweep."""


@dataclass(frozen=True)
class CompareCommand:
    """Show the results of some runs side by side."""

    runs: Positional[tuple[str, ...]]
    """Names or MLflow ids of two or more runs."""

    price: str | None = None
    """What a node costs: a machine type such as g4dn.xlarge, TYPE:spot, or a Ray cluster file."""

    target: float | None = None
    """Test accuracy, 0 to 1, for the time to a target; when not given, one that all runs of a model reach."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the runs."""


@dataclass(frozen=True)
class EvaluateCommand:
    """Evaluate a run's model on every test image."""

    run: Positional[str]
    """The run's name or MLflow id."""

    checkpoint: WhichCheckpoint = "last"
    """The newest checkpoint, or the one with the highest test accuracy."""

    data_dir: str | None = None
    """Folder that holds the data set."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run."""


@dataclass(frozen=True)
class PredictCommand:
    """Classify image files with a run's model."""

    run: Positional[str]
    """The run's name or MLflow id."""

    images: Positional[tuple[Path, ...]]
    """Image files of any size and common format."""

    checkpoint: WhichCheckpoint = "last"
    """The newest checkpoint, or the one with the highest test accuracy."""

    top: int = 3
    """Classes to show for each image, likeliest first."""

    tracking_uri: str | None = None
    """MLflow tracking store that has the run."""


@dataclass(frozen=True)
class UiCommand:
    """Open MLflow's pages on the tracking store, for this machine only."""

    tracking_uri: str | None = None
    """MLflow tracking store to show."""

    port: int = 5000
    """Port on the loopback interface."""


@dataclass(frozen=True)
class DoctorCommand:
    """Look at what this machine offers to a run, and what would stop one."""

    data_dir: str | None = None
    """Folder that holds the data sets."""

    storage: str | None = None
    """Folder for runs and their checkpoints."""

    tracking_uri: str | None = None
    """MLflow tracking store."""

    address: str | None = None
    """Ray cluster to join (RAY_ADDRESS)."""


def train(words: Sequence[str]) -> int:
    """``cifar-ray train``."""
    file, given = _config_file(words)
    base = configs.load(file) if file else TrainConfig()
    command = _read(TrainCommand, given, _as_command(_give_way(base, given), file), "train")
    from cifar_ray.orchestration.trainer import train as run

    run(_as_config(command), begun=IMPORTED_AT)
    return 0


def resume(words: Sequence[str]) -> int:
    """``cifar-ray resume``."""
    command = _read(ResumeCommand, words, None, "resume")
    changes = {name: value for name, value in dataclasses.asdict(command).items() if value is not None}
    run = changes.pop("run")
    from cifar_ray.orchestration.trainer import resume as run_again

    if run_again(run, changes, begun=IMPORTED_AT) is None:
        print(f"run {run} is finished; there is nothing to resume")
    return 0


def sweep(words: Sequence[str]) -> int:
    """``cifar-ray sweep``."""
    if {"-h", "--help"} & set(words):
        _read(SweepCommand, ["--help"], None, "sweep")
    file, given = _sweep_words(words)
    from cifar_ray.console import Console

    if "resume" in given:
        alone = ("resume", "tracking_uri")
        other = next((key for key in strict.flatten(given) if key not in alone), None)
        if file or other:
            raise ConfigError("resume", f"goes on as the sweep was begun, and takes no {other or 'file'} beside it")
        from cifar_ray.orchestration.sweep import resume as sweep_on

        result = sweep_on(given["resume"], given.get("tracking_uri"), begun=IMPORTED_AT)
        if result is None:
            print(f"sweep {given['resume']} is finished; there is nothing to resume")
            return 0
    else:
        from cifar_ray import sweeptext

        config = sweeptext.from_mapping(sweeptext.merge(sweeptext.load(file) if file else {}, given, file))
        from cifar_ray.orchestration.sweep import sweep as run

        result = run(config, " ".join(["cifar-ray sweep", *map(shlex.quote, words)]), begun=IMPORTED_AT)
    Console().sweep_summary(result.states, result.figures, result.name)
    return 1 if result.failed else 0


def report(words: Sequence[str]) -> int:
    """``cifar-ray report``."""
    command = _read(ReportCommand, words, None, "report")
    from cifar_ray.reporting import cost, papers
    from cifar_ray.reporting import report as reports

    _check_target(command.target)
    price = cost.find(command.price) if command.price is not None else None
    if command.baseline is not None:
        papers.check(command.baseline)
    from cifar_ray.tracking import reading, store

    study = reading.study(store.resolve_uri(command.tracking_uri), command.sweep)
    folder = reports.folder(command.out)
    whole = reports.build(study, command.baseline, price, command.target)
    written = reports.write(whole, folder, _note)
    for sentence in (*whole.summary, *(f"caution: {warning}" for warning in whole.warnings)):
        print(sentence)
    print(written[0])
    print(f"{len(written)} files in {folder}")
    return 0


def compare(words: Sequence[str]) -> int:
    """``cifar-ray compare``."""
    command = _read(CompareCommand, words, None, "compare")
    from cifar_ray.reporting import cost
    from cifar_ray.reporting import report as reports

    _check_target(command.target)
    if len(set(command.runs)) < 2:
        raise ConfigError("", f"cifar-ray compare needs two or more different runs, got {len(set(command.runs))}")
    price = cost.find(command.price) if command.price is not None else None
    from cifar_ray.tracking import reading, store

    study = reading.runs(store.resolve_uri(command.tracking_uri), command.runs)
    for line in reports.terminal(study, price, command.target):
        print(line)
    return 0


def _check_target(target: float | None) -> None:
    if target is not None and not 0 < target < 1:
        raise ConfigError("target", f"must be a test accuracy above 0 and below 1, such as 0.6, got {target:g}")


def evaluate(words: Sequence[str]) -> int:
    """``cifar-ray evaluate``."""
    command = _read(EvaluateCommand, words, None, "evaluate")
    from cifar_ray import results
    from cifar_ray.console import Console

    scored = results.evaluate(command.run, command.checkpoint, command.data_dir, command.tracking_uri, _note)
    Console().scores(scored)
    return 0


def predict(words: Sequence[str]) -> int:
    """``cifar-ray predict``."""
    command = _read(PredictCommand, words, None, "predict")
    if command.top < 1:
        raise ConfigError("top", f"must be at least 1, got {command.top}")
    from cifar_ray import results
    from cifar_ray.console import Console

    predictions = results.predict(command.run, command.images, command.checkpoint, command.tracking_uri, _note)
    Console().predictions(predictions, command.top)
    return 0


def ui(words: Sequence[str]) -> int:
    """``cifar-ray ui``."""
    command = _read(UiCommand, words, None, "ui")
    from cifar_ray.tracking.ui import serve

    serve(command.tracking_uri, command.port)
    return 0


def doctor(words: Sequence[str]) -> int:
    """``cifar-ray doctor``."""
    command = _read(DoctorCommand, words, None, "doctor")
    from cifar_ray.console import Console
    from cifar_ray.doctor import examine

    healthy = Console().findings(examine(TrainConfig(**dataclasses.asdict(command))))
    return 0 if healthy else 1


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "train": (train, "train a model and record it in MLflow"),
    "resume": (resume, "continue a run that was interrupted or has failed"),
    "sweep": (sweep, "train every combination of batch sizes, worker counts or any other options"),
    "report": (report, "write a sweep's results as a page, tables and charts"),
    "compare": (compare, "show the results of some runs side by side"),
    "evaluate": (evaluate, "evaluate a run's model on every test image"),
    "predict": (predict, "classify image files with a run's model"),
    "ui": (ui, "open MLflow's pages on the runs"),
    "doctor": (doctor, "look at what this machine offers, and what would stop a run"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 on success; 1 when a run or a check fails; 2 on a user's mistake; 128 + N on signal N.
    """
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        print(f"cifar-ray {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise ConfigError("", f"unknown command {words[0]!r}; it may be {strict.one_of(COMMANDS)}")
        return COMMANDS[words[0]][0](words[1:])
    except ConfigError as error:
        return _complain(error.as_flag(), 2)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader, such as `head`, has gone; so shall the rest of the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Exit status of what the heavier modules raise; they are only known once something has imported them."""
    from cifar_ray.training.errors import CheckpointError

    if isinstance(error, CheckpointError):
        return _complain(str(error), 2)
    attempt = sys.modules.get("cifar_ray.orchestration.attempt")
    if attempt is not None and isinstance(error, attempt.RunFailedError):
        return _complain(str(error), 1)
    interrupts = sys.modules.get("cifar_ray.orchestration.interrupts")
    if interrupts is not None and isinstance(error, interrupts.InterruptedRunError):
        return _complain(str(error), 128 + error.signum)
    raise error


def _note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)


def _complain(sentence: str, status: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return status


def _overview() -> str:
    lines = ["usage: cifar-ray COMMAND [OPTIONS]", "", __doc__ or "", ""]
    lines[2] = "Distributed training of image classifiers on Ray, tracked in MLflow."
    lines += [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "`cifar-ray COMMAND --help` lists a command's options; `cifar-ray --version` tells the version."]
    return "\n".join(lines)


def _read(kind: type[T], words: Sequence[str], default: T | None, command: str) -> T:
    """The words as a ``kind``. What tyro refuses is told in one sentence instead of its box."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            if default is None:
                return tyro.cli(kind, args=words, prog=f"cifar-ray {command}")
            return tyro.cli(kind, args=words, prog=f"cifar-ray {command}", default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
    if default is not None:
        strict.build(kind, strict.parse_flags(kind, words), default)
    # What is left is about the few words of the smaller commands.
    text = " ".join(re.sub(r"[^\x20-\x7e]+", " ", complaint.getvalue().split("For full helptext")[0]).split())
    problem = "needs more words" if text.startswith("Required") else text.removeprefix("Unrecognized options ")
    raise ConfigError("", f"cifar-ray {command}: {problem}; `cifar-ray {command} --help` tells what it takes")


def _config_file(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file named by ``--config``, and the words without it."""
    file: str | None = None
    rest: list[str] = []
    position = 0
    while position < len(words):
        flag, equals, inline = words[position].partition("=")
        position += 1
        if flag != "--config":
            rest.append(words[position - 1])
            continue
        if file is not None:
            raise ConfigError("config", "may be given once")
        if not equals and position == len(words):
            raise ConfigError("config", "must be followed by a YAML file")
        file = inline if equals else words[position]
        position += not equals
    return file, rest


def _give_way(base: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """A batch size given as a flag replaces the file's, in whichever of the two ways that is given."""
    flags = {word.split("=")[0] for word in words}
    if flags & {"--batch-size", "--batch_size"}:
        return dataclasses.replace(base, global_batch_size=None)
    if flags & {"--global-batch-size", "--global_batch_size"}:
        return dataclasses.replace(base, batch_size=None)
    return base


def _sweep_words(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The file that a sweep is named by, and its options; ``--grid`` takes everything up to the next option."""
    file = words[0] if words and not words[0].startswith("-") else None
    return file, strict.parse_flags(SweepCommand, words[1:] if file else words)


def _as_command(config: TrainConfig, file: str | None) -> TrainCommand:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    return TrainCommand(**values, config=file)


def _as_config(command: TrainCommand) -> TrainConfig:
    return TrainConfig(**{field.name: getattr(command, field.name) for field in dataclasses.fields(TrainConfig)})


if __name__ == "__main__":
    sys.exit(main())
