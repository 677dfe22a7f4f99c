"""The ``cifar-ray`` command. Each subcommand calls one function."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from cifar_ray import IMPORTED_AT, __version__, tasks, tracking
from cifar_ray.cli import cluster, comparison, dry_run, early, explain, models, output, plan, predictions
from cifar_ray.config import command_line, errors, files, flags, keywords, limits, ports, servers
from cifar_ray.config.commands import (
    CompareCommand,
    CompletionCommand,
    DeleteCommand,
    DoctorCommand,
    EvaluateCommand,
    ExplainCommand,
    ExportCommand,
    ModelsCommand,
    PredictCommand,
    ReportCommand,
    ResumeCommand,
    RunsCommand,
    StrategiesCommand,
    SweepCommand,
    TrainCommand,
    UiCommand,
)
from cifar_ray.config.errors import CommandFailedError, ConfigError, InterruptedRunError, counted, printable
from cifar_ray.config.plan_command import PlanCommand
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.reporting import EXPORTED, cost, latex
from cifar_ray.tracking import uri as stores
from cifar_ray.training.errors import CheckpointError

_OBJECTS_PER_LOOK = 100_000
_LIBRARIES = "loading PyTorch and Ray"


def train(words: Sequence[str]) -> int:
    """``cifar-ray train``."""
    asked = command_line.train(words)
    config = asked.config
    price = cost.word(config.price)
    early.check_training(config)
    named = f"run {config.run_name}: " if config.run_name else ""
    what = f"{config.model} on {config.dataset}, {config.elastic or config.topology}, {config.strategy}"
    with output.progress(asked.json, asked.quiet):
        with early.loading(f"{named}{what}: {_LIBRARIES}", always=True):
            from cifar_ray.training import recipe

            with tracking.unchanged():  # a module of the user's may set MLflow's address when it is imported
                resolved = recipe.resolve(config, price=price)  # what is refused here need not wait for Ray and MLflow
            with servers.before_ray(config):
                from cifar_ray.orchestration.run.driver import train as run

        for note in recipe.notes(resolved, config):
            Console().line(note)
        result = run(resolved, begun=IMPORTED_AT)
    if asked.quiet or asked.json:
        console = Console(tasks.recorded(result.task))
        stopped = f"run {result.name}: stopped by {limits.named(result.stopped_by)}"

        def show() -> None:
            if result.stopped_by:
                console.line(stopped)
            if not limits.is_halted(result.stopped_by):
                console.result(result.name, result.metrics, result.times)

        output.show(result, asked.json, show)
    return 0


def resume(words: Sequence[str]) -> int:
    """``cifar-ray resume``."""
    run, changes = command_line.resume(words)
    cost.checked(changes.get("price"))
    early.check_runs([run], changes.get("tracking_uri"))
    servers.reach_chosen(changes.get("address"))
    before = early.known_config(run)
    with early.loading(f"run {run}: {_LIBRARIES}", always=True), servers.before_ray(before, changes):
        from cifar_ray.orchestration.run.driver import resume as run_again

    if run_again(run, changes, begun=IMPORTED_AT) is None:
        uri = changes.get("tracking_uri")
        words = shlex.quote(run) + (f" --tracking-uri {shlex.quote(uri)}" if uri else "")
        print(f"run {run} is finished; `cifar-ray train --weights {words}` starts another from its weights")
    return 0


def sweep(words: Sequence[str]) -> int:
    """``cifar-ray sweep``."""
    asked = command_line.sweep(words)
    if asked.config is None:
        early.check_sweep(asked.name, asked.tracking_uri)
    else:
        cost.checked(asked.config.base.price)
        servers.reach_chosen(asked.config.base.address)
    if asked.dry_run:
        return dry_run.show(asked)
    with output.progress(as_json=False, quiet=asked.quiet):
        base = early.known_config(asked.name) if asked.config is None else asked.config.base
        with early.loading(f"sweep {asked.name}: {_LIBRARIES}", always=True), servers.before_ray(base):
            from cifar_ray.orchestration.sweep.runner import resume as sweep_on
            from cifar_ray.orchestration.sweep.runner import sweep as run

        if asked.config is None:
            result = sweep_on(asked.name, asked.tracking_uri, IMPORTED_AT, asked.retry_failed, asked.limits)
        else:
            result = run(asked.config, " ".join(["cifar-ray sweep", *map(shlex.quote, words)]), begun=IMPORTED_AT)
    if result is None:
        print(f"sweep {asked.name} is finished; there is nothing to resume")
        return 0
    from cifar_ray.tracking import pages

    store_flag, best = stores.flag(result.tracking_uri), result.winner
    if asked.quiet:
        sentence = best.sentence if best else ""
        Console().sweep_result(result.states, result.figures, result.name, store_flag, sentence)
    else:
        way = pages.way(result.tracking_uri, result.page)
        rows = [("best run", best.sentence), ("train it longer", best.command)] if best else []
        Console().sweep_summary(result.states, result.figures, result.name, store_flag, way, rows)
    return 1 if result.failed else 0


def runs(command: RunsCommand) -> int:
    """``cifar-ray runs``."""
    if command.sweep is not None:
        early.check_sweep(command.sweep, command.tracking_uri)
    with output.progress(command.json), early.loading("loading MLflow"):
        from cifar_ray.cli.listing import show
        from cifar_ray.tracking import listing, store

    uri = store.resolve_uri(command.tracking_uri)
    listed = listing.everything(uri) if command.sweep is None else listing.of_sweep(uri, command.sweep)
    output.show(listed, command.json, lambda: show(listed, store.shown(uri)))
    return 0


def report(command: ReportCommand) -> int:
    """``cifar-ray report``."""
    cost.checked(command.price)
    latex.chart_width(command.style, command.width)
    usual = None if command.json else "report"
    out = usual if command.out is None else command.out
    if out is not None:
        files.folder("out", out)
    in_store = early.check_studies(command.sweeps, command.tracking_uri)
    from cifar_ray.reporting import data, papers
    from cifar_ray.reporting import report as reports
    from cifar_ray.reporting.words import spoken

    if command.baseline is not None:
        papers.check(command.baseline)
    options = {name: value for name, value in vars(command).items() if name not in ("sweeps", "out", "json")}
    with output.progress(command.json):
        if in_store:
            with early.loading("loading MLflow"):
                import cifar_ray.tracking.reading  # noqa: F401
        report = reports.report(*command.sweeps, out=out, **options)
    if command.json:
        output.show(data.whole(report), as_json=True)
        return 0
    for line in (*filter(None, [report.lead]), *spoken(report.findings, report.cautions)):
        print(printable(line))
    print(report.files[0])
    print(f"{len(report.files)} files in {report.files[0].parent}")
    return 0


def delete(command: DeleteCommand) -> int:
    """``cifar-ray delete``."""
    if not command.yes and not sys.stdin.isatty():
        raise ConfigError("yes", "must be given where there is no terminal to ask on")
    early.check_runs([command.name], command.tracking_uri)
    with early.loading("loading PyTorch and MLflow"):
        from cifar_ray.orchestration.sweep import removal

    with contextlib.ExitStack() as stack:
        doomed = removal.prepare(command.name, command.tracking_uri, stack, flags.note)
        if not command.yes and not _agreed(f"delete {doomed.title}: {doomed.contents}? [y/N] "):
            print("nothing is deleted")
            return 1
        doomed.execute()
    print(f"deleted {doomed.title}: {doomed.contents}")
    return 0


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False


def export(command: ExportCommand) -> int:
    """``cifar-ray export``."""
    early.check_sweep(command.sweep, command.tracking_uri, stores.no_such_name)
    from cifar_ray.reporting import exported

    path = command.out or f"{command.sweep}{EXPORTED}"
    if not path.endswith(EXPORTED):
        raise ConfigError("out", f"must be a file whose name ends in {EXPORTED}, got {path}")
    out = files.output("out", path, command.overwrite)
    with early.loading("loading MLflow"):
        from cifar_ray.tracking import reading
    (study,) = reading.sweeps_or_runs(stores.resolve_uri(command.tracking_uri), [command.sweep])
    try:
        files.write_whole(out, exported.text(study))
    except OSError as error:
        raise ConfigError("out", f"must be a file that can be written, and {out} is not ({error.strerror})") from None
    print(f"{out}: {counted(len(study.trials), 'run')}; `cifar-ray report {shlex.quote(path)}` reads it")
    return 0


def evaluate(command: EvaluateCommand) -> int:
    """``cifar-ray evaluate``."""
    early.check_runs([command.run], command.tracking_uri)

    with output.progress(command.json):
        with early.loading("loading PyTorch and MLflow"):
            from cifar_ray.orchestration.run import results

        scored = results.evaluate(
            command.run, command.checkpoint, command.data_dir, command.tracking_uri, flags.note, command.device
        )
    checkpoint = f"{scored.checkpoint} (step {scored.step:,})"
    recorded = (scored.recorded_score, scored.recorded_images, scored.recorded_on)
    console = Console(tasks.recorded(scored.task))
    output.show(scored, command.json, lambda: console.scores(scored.metrics, scored.images, checkpoint, *recorded))
    return 0


def strategies(command: StrategiesCommand) -> int:
    """``cifar-ray strategies``."""
    from cifar_ray.strategies import CONTEXT, NAMES, about, named

    if command.name is None:
        Console().strategies({name: about(name) for name in NAMES})
        return 0
    with early.loading("loading PyTorch"):
        options = keywords.of(named(command.name), CONTEXT) or []
    Console().strategies({command.name: about(command.name)})
    print(f"\n{flags.listed('strategy_options', command.name, options)}")
    return 0


def ui(command: UiCommand) -> int:
    """``cifar-ray ui``."""
    uri = stores.resolve_uri(command.tracking_uri)
    if not stores.is_server(uri):
        ports.check("127.0.0.1", command.port)
    with early.loading("loading MLflow"):
        from cifar_ray.tracking.ui import serve

    serve(uri, command.port, command.open)
    return 0


def doctor(command: DoctorCommand) -> int:
    """``cifar-ray doctor``."""
    from cifar_ray.cli.doctor import examine

    where = {name: value for name, value in vars(command).items() if name != "json"}
    with output.progress(command.json):
        checks = Console().checks(examine(TrainConfig(**where)))
    output.show(checks, command.json)
    return 1 if any(check.problem for check in checks) else 0


def completion(command: CompletionCommand) -> int:
    """``cifar-ray completion``."""
    from cifar_ray.cli.completion import script

    print(script(command.shell, COMMANDS))
    return 0


COMMANDS: cluster.Commands = {
    "train": (train, TrainCommand, "train a model and record it in MLflow"),
    "resume": (resume, ResumeCommand, "continue a run that was interrupted or has failed"),
    "sweep": (sweep, SweepCommand, "train every combination of batch sizes, workers or other options"),
    "report": (report, ReportCommand, "write the results of sweeps or runs as a page, tables and charts"),
    "export": (export, ExportCommand, "write a sweep with its runs as one file"),
    "runs": (runs, RunsCommand, "list the runs and sweeps that MLflow has"),
    "compare": (comparison.show, CompareCommand, "show what differs between runs, and their results"),
    "explain": (explain.show, ExplainCommand, "say what bounds a run: a slow rank, its data, the network"),
    "plan": (plan.show, PlanCommand, "say what a training would take on other machines"),
    "delete": (delete, DeleteCommand, "delete a run or a sweep: its MLflow runs, folder and checkpoints"),
    "models": (models.show, ModelsCommand, "list the models of this package, torchvision and timm"),
    "strategies": (strategies, StrategiesCommand, "list the ways of keeping replicas in step, and what each costs"),
    "evaluate": (evaluate, EvaluateCommand, "evaluate a run's model on every test image"),
    "predict": (predictions.show, PredictCommand, "answer for images, texts or rows with a run's model"),
    "ui": (ui, UiCommand, "open MLflow's pages on the runs"),
    "doctor": (doctor, DoctorCommand, "look at what this machine offers, and what would stop a run"),
    **cluster.COMMANDS,
    "completion": (completion, CompletionCommand, "print what lets bash or zsh complete these words"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 on success; 1 when a run or a check fails; 2 on a user's mistake; 128 + N on signal N.
    """
    words = sys.argv[1:] if words is None else words
    if list(words[:1]) == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in flags.HELP:
        print(_overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"cifar-ray {__version__}")
        return 0
    try:
        command_line.greet()
        if words[0] not in COMMANDS:
            near = errors.suggestion(words[0], COMMANDS) or f"; it may be {errors.one_of(COMMANDS)}"
            raise ConfigError("", f"unknown command {errors.brief(words[0])}{near}")
        with tracking.settings():
            return cluster.call(COMMANDS, words[0], words[1:])
    except ConfigError as error:
        return _complain(error.as_flag(), 2)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has gone; so shall the rest of the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except CheckpointError as error:
        return _complain(str(error), 2)
    except CommandFailedError as error:
        return _complain(str(error), 1)
    except InterruptedRunError as error:
        print(error, file=sys.stderr)
        return 128 + error.signum


def _complain(sentence: str, status: int) -> int:
    print(f"error: {printable(sentence)}", file=sys.stderr)
    return status


def _overview() -> str:
    lines = ["usage: cifar-ray COMMAND [OPTIONS]", ""]
    lines += ["Distributed training of image classifiers on Ray, tracked in MLflow.", ""]
    lines += [f"  {name:<10} {summary}" for name, (_, _, summary) in COMMANDS.items()]
    lines += ["", "`cifar-ray COMMAND --help` lists a command's usual options, `--help-all` all;"]
    lines += ["`cifar-ray -V` shows the version."]
    return "\n".join(lines)


def program() -> NoReturn:
    """``main`` as a process of its own, which neither begins nor ends more slowly than it has to.

    torch, Ray and MLflow bring a million objects that are needed until the end: no garbage is collected among them
    while they are imported, and they are not taken apart at the end.
    """
    gc.set_threshold(_OBJECTS_PER_LOOK)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of ASCII, and names that are not
    os.environ.update(servers.token_mode())
    try:
        status = main()
    except SystemExit as stop:  # from --help
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):  # nobody reads the output any more
                sys.excepthook(*sys.exc_info())
            status = status or 1
    os._exit(status)
