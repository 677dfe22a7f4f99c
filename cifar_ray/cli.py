"""The ``cifar-ray`` command. Each subcommand reads its words and calls one function."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cifar_ray import IMPORTED_AT, __version__, cluster_cli, flags, strict
from cifar_ray import config as configs
from cifar_ray.commands import (
    CompareCommand,
    DoctorCommand,
    EvaluateCommand,
    PredictCommand,
    ReportCommand,
    ResumeCommand,
    StrategiesCommand,
    SweepCommand,
    TrainCommand,
    UiCommand,
)
from cifar_ray.config import TrainConfig
from cifar_ray.strict import ConfigError


def train(words: Sequence[str]) -> int:
    """``cifar-ray train``."""
    file, given = _config_file(words)
    base = configs.load(file) if file else TrainConfig()
    command = flags.read(TrainCommand, given, _as_command(_give_way(base, given), file), "train")
    from cifar_ray.orchestration.trainer import train as run

    run(_as_config(command), begun=IMPORTED_AT)
    return 0


def resume(words: Sequence[str]) -> int:
    """``cifar-ray resume``."""
    command = flags.read(ResumeCommand, words, None, "resume")
    given = dataclasses.asdict(command).items()
    changes = {name: value for name, value in given if value is not None and (name, value) != ("oversubscribe", False)}
    run = changes.pop("run")
    from cifar_ray.orchestration.trainer import resume as run_again

    if run_again(run, changes, begun=IMPORTED_AT) is None:
        print(f"run {run} is finished; there is nothing to resume")
    return 0


def sweep(words: Sequence[str]) -> int:
    """``cifar-ray sweep``."""
    if {"-h", "--help"} & set(words):
        flags.read(SweepCommand, ["--help"], None, "sweep")
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
    command = flags.read(ReportCommand, words, None, "report")
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
    command = flags.read(CompareCommand, words, None, "compare")
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
    command = flags.read(EvaluateCommand, words, None, "evaluate")
    from cifar_ray import results
    from cifar_ray.console import Console

    scored = results.evaluate(command.run, command.checkpoint, command.data_dir, command.tracking_uri, _note)
    Console().scores(scored)
    return 0


def predict(words: Sequence[str]) -> int:
    """``cifar-ray predict``."""
    command = flags.read(PredictCommand, words, None, "predict")
    if command.top < 1:
        raise ConfigError("top", f"must be at least 1, got {command.top}")
    from cifar_ray import results
    from cifar_ray.console import Console

    predictions = results.predict(command.run, command.images, command.checkpoint, command.tracking_uri, _note)
    Console().predictions(predictions, command.top)
    return 0


def strategies(words: Sequence[str]) -> int:
    """``cifar-ray strategies``."""
    flags.read(StrategiesCommand, words, None, "strategies")
    from cifar_ray.console import Console
    from cifar_ray.strategies import NAMES, about

    Console().strategies({name: about(name) for name in NAMES})
    return 0


def ui(words: Sequence[str]) -> int:
    """``cifar-ray ui``."""
    command = flags.read(UiCommand, words, None, "ui")
    from cifar_ray.tracking.ui import serve

    serve(command.tracking_uri, command.port)
    return 0


def doctor(words: Sequence[str]) -> int:
    """``cifar-ray doctor``."""
    command = flags.read(DoctorCommand, words, None, "doctor")
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
    "strategies": (strategies, "list the ways of keeping replicas in step, and what each costs"),
    "evaluate": (evaluate, "evaluate a run's model on every test image"),
    "predict": (predict, "classify image files with a run's model"),
    "ui": (ui, "open MLflow's pages on the runs"),
    "doctor": (doctor, "look at what this machine offers, and what would stop a run"),
    **cluster_cli.COMMANDS,
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
    named = {word.split("=")[0] for word in words}
    if named & {"--batch-size", "--batch_size"}:
        return dataclasses.replace(base, global_batch_size=None)
    if named & {"--global-batch-size", "--global_batch_size"}:
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
