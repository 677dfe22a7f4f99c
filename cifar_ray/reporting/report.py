"""A study's report: put together, and written as files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from cifar_ray import __version__, tracking
from cifar_ray.config import files, flags
from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import EXPORTED, cautions, charts, cost, data, draw, exported, pages, papers, tables, words
from cifar_ray.reporting.contents import Report, Results
from cifar_ray.reporting.cost import Price
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.latex import Style, chart_width
from cifar_ray.reporting.latex import tables as latex_tables
from cifar_ray.tracking import uri as stores
from cifar_ray.tracking.study import Study

_MANIFEST = ".report.json"
"""Lists the charts and tables of the report in a folder, for the next one to remove."""


@tracking.unchanged()
def report(
    *sweeps: str,
    out: str | None = None,
    baseline: str | None = None,
    price: str | None = None,
    title: str | None = None,
    hold: Literal["batch", "global_batch"] | None = None,
    target: Sequence[float] = (),
    style: Style = "screen",
    width: str | None = None,
    latex: bool = False,
    tracking_uri: str | None = None,
) -> Report:
    """Report on sweeps or runs of these names, or on .json files of ``cifar-ray export``.

    The result's ``data["runs"]`` and ``data["figures"]`` are pandas frames. With ``out``, a folder, the report is
    written there, too. The others are the options of ``cifar-ray report``.

    Raises:
        ConfigError: when an option is wrong, there is no such sweep or run, or the folder cannot be written to.
    """
    node = cost.checked(price, target)
    inches = chart_width(style, width)
    if out is None and (latex or inches is not None):
        raise ConfigError("latex" if latex else "style", "writes files, so there must be a folder for them")
    if baseline is not None:
        papers.check(baseline)
    study = exported.together(_read(list(dict.fromkeys(sweeps)), tracking_uri), hold)
    into = folder(out) if out is not None else None
    built = build(study, baseline, node, target, title)
    if into is None:
        return built
    built = replace(built, files=write(built, into, flags.note, inches, latex))
    if study.run_id and not any(name.endswith(EXPORTED) for name in sweeps):
        from cifar_ray.tracking import parent

        uri, csvs = stores.resolve_uri(tracking_uri), [file for file in built.files if file.suffix == ".csv"]
        first = pages.summary(built.findings, built.cautions)
        if refused := parent.attach(uri, study.run_id, built.files[0], csvs, first):
            flags.note(f"MLflow does not take the report as an artifact of the sweep: {refused}")
    return built


def _read(names: Sequence[str], tracking_uri: str | None) -> list[Study]:
    """Read exported files, and sweeps or runs of a tracking store; for files alone, MLflow is not loaded."""
    studies = {name: exported.read(files.absolute("", name)) for name in names if name.endswith(EXPORTED)}
    if recorded := [name for name in names if name not in studies]:
        from cifar_ray.tracking import reading

        studies |= zip(recorded, reading.sweeps_or_runs(stores.resolve_uri(tracking_uri), recorded))
    return [studies[name] for name in names]


def build(
    study: Study,
    baseline: str | None = None,
    price: Price | None = None,
    targets: Sequence[float] = (),
    title: str | None = None,
) -> Report:
    """Everything that the report of a study says.

    Args:
        study: the runs.
        baseline: a published study to lay beside it, by its key in ``papers.yaml``.
        price: of one node, for what the runs would cost.
        targets: test accuracies, 0 to 1, for the times to them; by default one that all runs of a model reach.
        title: heading of the report; the study's name when not given.

    Raises:
        ConfigError: when the baseline is not known.
    """
    runs = Runs(replace(study.meant, name=title or study.name))
    return Report(
        **vars(results(runs, tables.parts(runs, targets, price), price)),
        comparison=papers.comparison(runs, baseline) if baseline is not None else None,
        charts=charts.charts(runs),
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def results(runs: Runs, parts: Sequence[tables.Part], price: Price | None) -> Results:
    """The results of a study's runs, which reports and comparisons share.

    Args:
        runs: of the study.
        parts: what the tables show of them, from :func:`tables.parts` with the same price.
        price: of one node, for what the runs would cost; None for no costs.
    """
    return Results(
        study=runs.study,
        findings=words.findings(runs, price),
        cautions=cautions.cautions(runs, price),
        sections=[part.section for part in parts],
        runs=tables.runs_table(runs.study),
        data={"runs": data.runs(runs, parts), "figures": data.figures(parts)},
    )


def summary(study: Study) -> list[str]:
    """What the report of a study says first, as paragraphs in Markdown."""
    runs = Runs(study.meant)
    return pages.summary(words.findings(runs, None), cautions.cautions(runs))


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"must be a folder that can be written to, and {out} is not ({error.strerror or error})"
        raise ConfigError("out", problem) from None


def folder(given: str) -> Path:
    """The folder that receives a report, made if it is missing, so that nothing is computed in vain.

    Raises:
        ConfigError: when it cannot be written to.
    """
    out = files.absolute("out", given)
    with _writing(out):
        (out / "charts").mkdir(parents=True, exist_ok=True)
        for probe in (out / ".probe", out / "charts" / ".probe"):
            files.write_whole(probe, "")
            probe.unlink()
    return out


def write(
    report: Report,
    out: Path,
    note: Callable[[str], None] = lambda _: None,
    inches: float | None = None,
    latex: bool = False,
) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``runs.csv``, ``figures.csv`` and ``charts/*``, and tell ``note`` of it.

    The charts and LaTeX tables of an earlier report in the same folder are removed first, and nothing else is.

    Args:
        report: to write.
        out: the folder.
        note: receives what is being written.
        inches: width of charts for a paper, ``charts/*.pdf``; None for none.
        latex: whether to write ``tables/*.tex``.

    Returns:
        The files, the page for a browser first.

    Raises:
        ConfigError: when the folder cannot be written to.
    """
    with _writing(out):
        _remove_earlier(out)
        latex_texts = {f"tables/{key}.tex": text for key, text in latex_tables(report).items()} if latex else {}
        kinds = ("png", "svg") if inches is None else ("png", "svg", "pdf")
        listed = [f"charts/{chart.key}.{kind}" for chart in report.charts for kind in kinds] + list(latex_texts)
        files.write_whole(out / _MANIFEST, json.dumps({"files": listed}, indent=1) + "\n")
        drawn: list[Path] = []
        for number, chart in enumerate(report.charts, 1):
            note(f"chart {number} of {len(report.charts)}: {chart.title}")
            drawn += draw.save(chart, out / "charts")
            if inches is not None:
                drawn.append(draw.save_for_print(chart, out / "charts", inches))
        wanted = {"charts as PDF": (inches is not None, report.charts), "LaTeX tables": (latex, latex_texts)}
        if lacking := [kind for kind, (asked, there) in wanted.items() if asked and not there]:
            note(f"there are no {' and no '.join(lacking)}: no finished run has figures for them")
        note("pages")
        texts = {"report.html": pages.html(report), "report.md": pages.markdown(report)} | {
            **{f"{name}.csv": data.csv_text(rows) for name, rows in report.data.items()},
            **latex_texts,
        }
        if latex_texts:
            (out / "tables").mkdir(exist_ok=True)
        for name, content in texts.items():
            files.write_whole(out / name, content)
    return [*(out / name for name in texts), *drawn]


def _remove_earlier(out: Path) -> None:
    """Remove what an earlier report says that it wrote here, as far as a report writes such files at all."""
    try:
        listed = json.loads((out / _MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in listed if isinstance(listed, list) else ():
        if isinstance(name, str) and re.fullmatch(r"charts/\w+\.(png|svg|pdf)|tables/\w+\.(csv|tex)", name):
            (out / name).unlink(missing_ok=True)
            if name.startswith("tables/"):
                with suppress(OSError):  # somebody else's files are in it
                    (out / "tables").rmdir()
