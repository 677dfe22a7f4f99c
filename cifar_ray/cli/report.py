"""``cifar-ray report``, ``compare`` and ``export``: the results of runs and sweeps."""

from __future__ import annotations

import shlex
from typing import Annotated

from cifar_ray.cli import output
from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, counted, printable
from cifar_ray.config.flags import AsJson, Given, Of, Overwrite
from cifar_ray.config.schema import NotNegative
from cifar_ray.reporting import EXPORTED, data, exported
from cifar_ray.reporting import compare as side_by_side
from cifar_ray.reporting import report as reports
from cifar_ray.reporting.words import spoken
from cifar_ray.tracking import uri as stores


def report(
    *sweeps: str, out: str | None = None, json: AsJson = False, options: Annotated[Given, Of(reports.report)]
) -> None:
    """Write the results of sweeps or runs as a page, charts and data, from the tracking store or from exported files
    alone.

    Args:
        out: Folder for report.html, report.md, runs.csv, figures.csv, charts/ and, with --latex, tables/. An earlier
            report in it is replaced. Default: report; with --json, none.
    """
    with output.progress(json), output.loading("reading runs"):
        made = reports.report(*sweeps, out="report" if out is None and not json else out, **options)
    if json:
        output.show(data.whole(made), as_json=True)
        return
    for line in (*filter(None, [made.lead]), *spoken(made.findings, made.cautions)):
        print(printable(line))
    print(made.files[0])
    print(f"{len(made.files)} files in {made.files[0].parent}")


def compare(
    *runs: str,
    max_slowdown: NotNegative | None = None,
    json: AsJson = False,
    options: Annotated[Given, Of(side_by_side.compare)],
) -> int:
    """Show in which settings runs differ, and their results; of one run, all its settings. With --max-slowdown, tell
    whether the runs of B train slower than those of A.

    Exit status with --max-slowdown: 0 if B is not slower than allowed, 1 if it is by more than chance, 2 on a mistake,
    3 if there is not enough evidence.

    Examples:
        cifar-ray compare one two
        cifar-ray compare baseline.json mine --max-slowdown 5
        cifar-ray compare a1,a2,a3 b1,b2,b3 --max-slowdown 5

    Args:
        runs: Names or MLflow ids of runs. With --max-slowdown, A and B: each is a sweep, runs or .json files of
            cifar-ray export, separated by commas, whose runs differ in the seed alone.
        max_slowdown: Percent by which B's mean step, in steady state, may take longer than A's.
    """
    if max_slowdown is None:
        with output.progress(json), output.loading("reading runs"):
            comparison = side_by_side.compare(*runs, **options)
        output.show(data.whole(comparison), json, lambda: print(comparison))
        return 0
    sides = [(side, list(dict.fromkeys(name.strip() for name in side.split(",")))) for side in runs]
    if len(sides) != 2 or any("" in names for _, names in sides):
        raise ConfigError("max_slowdown", f"compares two sides, A and B, of names separated by commas, got {len(runs)}")
    with output.progress(json), output.loading("reading runs"):
        from cifar_ray.reporting import slowdown

        names = [name for _, of in sides for name in of]
        studies = dict(zip(names, reports.read(names, options.get("tracking_uri"))))
        verdict = slowdown.judge([(side, [studies[name] for name in of]) for side, of in sides], max_slowdown)
    output.show(verdict, json, lambda: print(printable(verdict.sentence)))
    return verdict.status


def export(
    sweep: str, *, out: str | None = None, tracking_uri: str | None = None, overwrite: Overwrite = False
) -> None:
    """Write the figures of a sweep's runs to one file, from which anyone can make its report; it contains no weights.

    Args:
        sweep: Name of the sweep or run.
        out: The file; when not given, NAME.json here.
    """
    path = out or f"{sweep}{EXPORTED}"
    if not path.endswith(EXPORTED):
        raise ConfigError("out", f"must be a file whose name ends in {EXPORTED}, got {path}")
    file = files.output("out", path, overwrite)
    with output.loading("loading MLflow"):
        from cifar_ray.tracking import reading
    (study,) = reading.sweeps_or_runs(stores.resolve_uri(tracking_uri), [sweep])
    try:
        files.write_whole(file, exported.text(study))
    except OSError as error:
        raise ConfigError("out", f"must be a file that can be written, and {file} is not ({error.strerror})") from None
    print(f"{file}: {counted(len(study.trials), 'run')}; `cifar-ray report {shlex.quote(path)}` reads it")
