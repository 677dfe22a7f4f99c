"""A study's report: put together, and written as files."""

from __future__ import annotations

import re
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
from cifar_ray.config.schema import Numbers, Positive
from cifar_ray.reporting import (
    EXPORTED,
    cautions,
    charts,
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
from cifar_ray.reporting.contents import Finding, Report
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.latex import tables as latex_tables
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Sweep

_OWN = ("report.html", "report.md", "runs.csv", "figures.csv", "charts", "tables")


@tracking.unchanged()
@keywords.checked
def report(
    *sweeps: str,
    out: str | None = None,
    baseline: str | None = None,
    price: Positive | None = None,
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
    pdf = style == "paper"
    if out is None and (latex or pdf):
        raise ConfigError("latex" if latex else "style", "writes files, and needs --out, a folder for them")
    into = files.folder("out", out) if out is not None else None
    if baseline is not None:
        papers.find(baseline)
    study = exported.together(read(list(dict.fromkeys(sweeps)), tracking_uri), hold)
    if target or baseline is not None:
        TaskFigures(study.task).check(target)
    if into is not None:
        prepare(into, overwrite)
    built = build(study, baseline, price, target, title)
    if into is None:
        return built
    built = replace(built, files=write(built, into, flags.note, pdf, latex))
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
    price: float | None = None,
    targets: Sequence[float] = (),
    title: str | None = None,
) -> Report:
    """Everything that the report of a study says; runs of several tasks are compared with those of their own.

    Args:
        study: the runs.
        baseline: a published study to lay beside it, by its key in ``papers.yaml``.
        price: USD per hour of one node, for what the runs would cost.
        targets: values of the task's primary figure, for the times to them.
        title: heading of the report; the study's name when not given.
    """
    named = replace(study.meant, name=title or study.name)
    tasks = [_build(each, baseline, price, targets) for each in named.by_task]
    return tasks[0] if len(tasks) == 1 else _together(named, tasks)


def _build(study: Sweep, baseline: str | None, price: float | None, targets: Sequence[float]) -> Report:
    """The report of runs that learn one thing."""
    runs = Runs(study)
    made = results(runs, tables.parts(runs, targets, price), price)
    made = replace(made, comparison=papers.comparison(runs, baseline) if baseline is not None else None)
    return search_page.page(made, targets, price) if study.search else replace(made, charts=charts.charts(runs))


def _together(study: Sweep, tasks: Sequence[Report]) -> Report:
    """One report of all runs of a study, from those by task."""
    names, labels, drawn = [each.study.task.name for each in tasks], list[str](), []
    for name, each in zip(names, tasks):
        of = " and ".join(dict.fromkeys(option.short(run.dataset) for run in each.study.trials))
        label = f"{name} of {of}" if names.count(name) > 1 else name
        labels.append(f"{label} ({len(labels) + 1})" if label in labels else label)
        key, label = re.sub(r"\W", "_", labels[-1]), labels[-1]
        drawn.append([replace(one, key=f"{key}_{one.key}", title=f"{one.title} ({label})") for one in each.charts])
    found = [(label, finding) for label, each in zip(labels, tasks) for finding in each.findings]
    return replace(
        tasks[0],
        study=study,
        findings=[replace(finding, title=f"{label}: {finding.title}") for label, finding in found],
        cautions=list(dict.fromkeys(caution for each in tasks for caution in each.cautions)),
        sections=[section for each in tasks for section in each.sections],
        runs=tables.runs_table(study),
        data={name: pd.concat([each.data[name] for each in tasks], ignore_index=True) for name in tasks[0].data},
        charts=[chart for row in zip_longest(*drawn) for chart in row if chart is not None],
    )


def results(runs: Runs, parts: Sequence[tables.Part], price: float | None) -> Report:
    """The results of a study's runs without charts, which reports and comparisons share.

    ``parts`` are what the tables show of them, from :func:`tables.parts`.
    """
    return Report(
        study=runs.study,
        findings=_findings(runs, price),
        cautions=cautions.cautions(runs),
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
    tasks = list(map(Runs, study.meant.by_task))
    warned = dict.fromkeys(caution for runs in tasks for caution in cautions.cautions(runs))
    return pages.summary([finding for runs in tasks for finding in _findings(runs, None)], list(warned))


def _findings(runs: Runs, price: float | None) -> Sequence[Finding]:
    return [search_page.finding(runs)] if runs.study.search else words.findings(runs, price)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path, reason = error.filename or folder, error.strerror or error
        problem = f"must be a folder that can be written to, and {path} is not ({reason})"
        raise ConfigError("out", problem) from None


def prepare(out: Path, overwrite: bool = False) -> None:
    """Make the folder that receives a report, before anything is computed.

    Raises:
        ConfigError: when it cannot be written to, or has a file where a report has its own, and is no report's.
    """
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    taken = [name for name in _OWN if (out / name).exists()]
    if taken and not overwrite and not (out / "report.html").is_file():
        raise ConfigError("out", f"must be a folder without {taken[0]}, or with a report; --overwrite replaces it")


def write(report: Report, out: Path, note: Callable[[str], None], pdf: bool, latex: bool) -> list[Path]:
    """Write the files of a report into a folder that :func:`prepare` has made, and tell ``note`` of each chart.

    When all is written, it replaces files of the same names; others stay. ``pdf`` adds charts for a paper, and
    ``latex`` tables. The page for a browser is the first file. A ConfigError says that it cannot be written.
    """
    texts = {"report.html": pages.html(report), "report.md": pages.markdown(report)}
    texts |= {f"{name}.csv": data.csv_text(rows) for name, rows in report.data.items()}
    texts |= {f"tables/{key}.tex": text for key, text in latex_tables(report).items()} if latex else {}
    kinds = ("png", "svg", "pdf")[: 2 + pdf]
    names = [*texts, *(f"charts/{chart.key}.{kind}" for chart in report.charts for kind in kinds)]
    with _writing(out), tempfile.TemporaryDirectory(prefix=".report-", dir=out) as folder:
        staged = Path(folder)
        for path in {Path(name).parent for name in names}:
            (out / path).mkdir(exist_ok=True)
            (staged / path).mkdir(exist_ok=True)
        for number, chart in enumerate(report.charts, 1):
            note(f"chart {number} of {len(report.charts)}: {chart.title}")
            draw.save(chart, staged / "charts", pdf)
        for name, content in texts.items():
            (staged / name).write_text(content, encoding="utf-8")
        for name in names:
            (staged / name).replace(out / name)
    return [out / name for name in names]
