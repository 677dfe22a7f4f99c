"""A study's report: put together, and written as files."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import pandas as pd

from cifar_ray import tracking
from cifar_ray.config import files, flags, keywords, option
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.flags import Overwrite
from cifar_ray.config.limits import PriceText
from cifar_ray.config.schema import Numbers
from cifar_ray.reporting import (
    EXPORTED,
    cautions,
    charts,
    cost,
    data,
    draw,
    exported,
    misread,
    pages,
    papers,
    search_page,
    tables,
    words,
)
from cifar_ray.reporting.contents import Report
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.latex import tables as latex_tables
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Sweep

_FILES = ("report.html", "report.md", "runs.csv", "figures.csv")


@tracking.unchanged()
@keywords.checked
def report(
    *sweeps: str,
    out: str | None = None,
    baseline: str | None = None,
    price: PriceText | None = None,
    title: str | None = None,
    hold: Literal["batch", "global_batch"] | None = None,
    target: Numbers = (),
    style: Literal["screen", "paper"] = "screen",
    latex: bool = False,
    tracking_uri: str | None = None,
    overwrite: Overwrite = False,
) -> Report:
    """Report on sweeps or runs, from the tracking store or from exported files alone.

    The result's ``data["runs"]`` and ``data["figures"]`` are pandas frames. With ``out``, the report is written there,
    too.

    Args:
        sweeps: Names of sweeps or runs, or .json files of cifar-ray export; several make one report.
        out: Folder for the report's page, tables and charts; none without it.
        baseline: Published study to show beside the results, such as rangoju_katneni_2025.
        title: Heading of the report; when not given, the names of one or two sweeps, or the models and data sets of
            more.
        hold: Group results by batch per worker or by global batch. Default: what the sweeps kept fixed.
        target: Values of the task's main test figure, a share as 0 to 1, for which to show the time to reach them.
            Default: a share that all runs of a model reach.
        style: paper: charts also as PDF for a LaTeX document, in charts/, without titles.
        latex: Also write the tables as LaTeX, in tables/, which need the packages booktabs and adjustbox.

    Raises:
        ConfigError: when an option is wrong, there is no such sweep or run, or the folder cannot be written to.
    """
    node = cost.checked(price)
    pdf = style == "paper"
    if out is None and (latex or pdf):
        raise ConfigError("latex" if latex else "style", "writes files, and needs --out, a folder for them")
    into = files.folder("out", out) if out is not None else None
    if baseline is not None:
        papers.check(baseline)
    study = exported.together(read(list(dict.fromkeys(sweeps)), tracking_uri), hold)
    if target or baseline is not None:
        TaskFigures(study.task).check(target)
    if into is not None:
        prepare(into, overwrite)
    built = build(study, baseline, node, target, title)
    if into is None:
        return built
    built = replace(built, files=write(built, into, flags.note, pdf, latex, overwrite))
    if study.run_id and not any(name.endswith(EXPORTED) for name in sweeps):
        from cifar_ray.tracking import parent

        uri, csvs = stores.resolve_uri(tracking_uri), [file for file in built.files if file.suffix == ".csv"]
        first = [*filter(None, [built.lead]), *pages.summary(built.findings, built.cautions)]
        if refused := parent.attach(uri, study.run_id, built.files[0], csvs, first):
            flags.note(f"MLflow does not take the report as an artifact of the sweep: {refused}")
    return built


def read(names: Sequence[str], tracking_uri: str | None) -> list[Sweep]:
    """Read exported files, and sweeps or runs of a tracking store; for files alone, MLflow is not loaded."""
    studies = {name: exported.read(files.absolute("", name)) for name in names if name.endswith(EXPORTED)}
    if recorded := [name for name in names if name not in studies]:
        from cifar_ray.tracking import reading

        stored = reading.sweeps_or_runs(stores.resolve_uri(tracking_uri), recorded)
        studies |= zip(recorded, map(exported.as_in_a_file, stored) if studies else stored)
    return [studies[name] for name in names]


def build(
    study: Sweep,
    baseline: str | None = None,
    price: Price | None = None,
    targets: Sequence[float] = (),
    title: str | None = None,
) -> Report:
    """Everything that the report of a study says; runs of several tasks are compared with those of their own.

    Args:
        study: the runs.
        baseline: a published study to lay beside it, by its key in ``papers.yaml``.
        price: of one node, for what the runs would cost.
        targets: values of the task's primary figure, for the times to them; by default one that all runs of a model
            reach, where it is a share.
        title: heading of the report; the study's name when not given.

    Raises:
        ConfigError: when the baseline is not known.
    """
    named = replace(study.meant, name=title or study.name)
    tasks = [_build(each, baseline, price, targets) for each in named.by_task]
    return tasks[0] if len(tasks) == 1 else _together(named, tasks)


def _build(study: Sweep, baseline: str | None, price: Price | None, targets: Sequence[float]) -> Report:
    """The report of runs that learn one thing."""
    runs = Runs(study)
    made = results(runs, tables.parts(runs, targets, price), price)
    made = replace(made, comparison=papers.comparison(runs, baseline) if baseline is not None else None)
    if not study.search:
        return replace(made, charts=charts.charts(runs))
    return search_page.page(made, runs, targets, price)


def _together(study: Sweep, tasks: Sequence[Report]) -> Report:
    """One report of all runs of a study, from those by task."""
    labels = _labels([each.study for each in tasks])
    charts = [
        [replace(chart, key=f"{key}_{chart.key}", title=f"{chart.title} ({label})") for chart in each.charts]
        for each, label, key in ((each, label, re.sub(r"\W", "_", label)) for each, label in zip(tasks, labels))
    ]
    return replace(
        tasks[0],
        study=study,
        findings=[
            replace(finding, title=f"{label}: {finding.title}")
            for each, label in zip(tasks, labels)
            for finding in each.findings
        ],
        cautions=list(dict.fromkeys(caution for each in tasks for caution in each.cautions)),
        sections=[section for each in tasks for section in each.sections],
        runs=tables.runs_table(study),
        data={name: pd.concat([each.data[name] for each in tasks], ignore_index=True) for name in tasks[0].data},
        charts=[chart for row in zip_longest(*charts) for chart in row if chart is not None],
    )


def _labels(studies: Sequence[Sweep]) -> list[str]:
    """What the tasks are called: those of one name after their data sets, and if these are the same, by number."""
    names = [study.task.name for study in studies]
    datasets = [" and ".join(dict.fromkeys(option.short(run.dataset) for run in study.trials)) for study in studies]
    labels = [f"{name} of {of}" if names.count(name) > 1 else name for name, of in zip(names, datasets)]
    return [
        f"{label} ({labels[:at].count(label) + 1})" if labels.count(label) > 1 else label
        for at, label in enumerate(labels)
    ]


def results(runs: Runs, parts: Sequence[tables.Part], price: Price | None) -> Report:
    """The results of a study's runs without charts, which reports and comparisons share.

    ``parts`` are what the tables show of them, from :func:`tables.parts` with the same price of one node.
    """
    return Report(
        study=runs.study,
        findings=words.findings(runs, price),
        cautions=cautions.cautions(runs, price),
        sections=[*(part.section for part in parts), *misread.sections(runs)],
        runs=tables.runs_table(runs.study),
        data={"runs": data.runs(runs, parts), "figures": data.figures(parts)},
    )


def means(study: Sweep) -> list[str]:
    """Lines for a terminal: the means of every configuration, their standard deviations and how many runs there are."""
    printed = [table for runs in map(Runs, study.meant.by_task) for table in tables.means(runs)]
    return [line for table in printed for line in ("", *pages.lines(table), *table.notes)] + [""] * bool(printed)


def summary(study: Sweep) -> list[str]:
    """What the report of a study says first, as paragraphs in Markdown."""
    made = build(study)
    return pages.summary(made.findings, made.cautions)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path, reason = error.filename or folder, error.strerror or error
        problem = f"must be a folder that can be written to, and {path} is not ({reason})"
        raise ConfigError("out", problem) from None


def prepare(out: Path, overwrite: bool = False) -> None:
    """Make the folder that receives a report, and write to it, before anything is computed.

    Raises:
        ConfigError: when it cannot be written to, or has a folder or somebody else's file where a report has its own.
    """
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
        files.write_whole(probe := out / ".probe", "")
        probe.unlink()
    _refuse_taken(out, _FILES, overwrite)


def _refuse_taken(out: Path, names: Sequence[str], overwrite: bool) -> None:
    """Raise where a folder stands in the way of a file, or a file that is of no report: its report.html tells."""
    replaces = overwrite or (out / "report.html").exists()
    for path in (out / name for name in names):
        if path.is_dir():
            raise ConfigError("out", f"must have no folder where a report has a file, and {path} is one")
        if not replaces and path.exists():
            raise ConfigError("out", f"must be a folder without {path.name}, or with a report; --overwrite replaces it")


def write(
    report: Report,
    out: Path,
    note: Callable[[str], None] = lambda _: None,
    pdf: bool = False,
    latex: bool = False,
    overwrite: bool = False,
) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``runs.csv``, ``figures.csv`` and ``charts/*``, and tell ``note`` of it.

    When all is written, it replaces files of the same names; others stay.

    Args:
        report: to write.
        out: a folder that :func:`prepare` has made.
        note: receives what is being written.
        pdf: whether to write charts for a paper, ``charts/*.pdf``.
        latex: whether to write ``tables/*.tex``.
        overwrite: whether to replace files that are of no report.

    Returns:
        The files, the page for a browser first.

    Raises:
        ConfigError: when the folder cannot be written to.
    """
    kinds, tabled = ("png", "svg", "pdf")[: 2 + pdf], latex_tables(report) if latex else {}
    drawn = [f"charts/{chart.key}.{kind}" for chart in report.charts for kind in kinds]
    names = [*_FILES, *drawn, *(f"tables/{key}.tex" for key in tabled)]
    _refuse_taken(out, names, overwrite)
    with _writing(out), tempfile.TemporaryDirectory(prefix=".report-", dir=out) as folder:
        staged = Path(folder)
        for path in {Path(name).parent for name in names}:
            (out / path).mkdir(exist_ok=True)
            (staged / path).mkdir(exist_ok=True)
        for number, chart in enumerate(report.charts, 1):
            note(f"chart {number} of {len(report.charts)}: {chart.title}")
            draw.save(chart, staged / "charts", pdf)
        wanted = {"charts as PDF": (pdf, report.charts), "LaTeX tables": (latex, tabled)}
        if lacking := [kind for kind, (asked, there) in wanted.items() if asked and not there]:
            note(f"there are no {' and no '.join(lacking)}: no finished run has figures for them")
        note("pages")
        texts = {"report.html": pages.html(report), "report.md": pages.markdown(report)}
        texts |= {f"{name}.csv": data.csv_text(rows) for name, rows in report.data.items()}
        texts |= {f"tables/{key}.tex": text for key, text in tabled.items()}
        for name, content in texts.items():
            (staged / name).write_text(content, encoding="utf-8")
        for name in names:
            shutil.move(staged / name, out / name)
    return [out / name for name in names]
