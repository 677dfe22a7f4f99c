"""A plan as a picture: time, efficiency and cost by workers, with their ranges as bands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cifar_ray.config import files
from cifar_ray.config.errors import ConfigError, brief, counted
from cifar_ray.planning.model import Means, Plan, Row
from cifar_ray.planning.span import Span
from cifar_ray.reporting import draw
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.draw import Look

_KINDS = (".svg", ".png")
_FARTHEST_LIMIT = 2.0  # as a multiple of the largest figure; farther away, a limit would flatten all lines
_WIDTH = 3.8  # of a panel in inches
_SHORT_S = 2 * 3600  # up to which the whole run is drawn in minutes


class Panel(NamedTuple):
    """One of the pictures: the axis's label, the figure of each row, and a limit or None."""

    label: str
    figures: Sequence[Span]
    limit: float | None = None


def file(text: str, overwrite: bool = False) -> Path:
    """The file of ``--chart``, of which it is known before anything is measured that it can be written.

    Raises:
        ConfigError: when it cannot, or is of another kind, or there and not to be replaced.
    """
    if not text.endswith(_KINDS):
        raise ConfigError("chart", f"must be a file that ends in .svg or .png, got {brief(text)}")
    return files.output("chart", text, overwrite)


def write(path: Path, plan: Plan, means: Means, title: str) -> None:
    """Draw a plan with a row at least.

    Raises:
        ConfigError: when the file can no longer be written.
    """
    chart = Chart("plan", title, "", draw.drawn(_paint, panels(plan, means), plan.rows))
    try:
        draw.write(chart, [path])
    except OSError as error:
        raise ConfigError(
            "chart", f"must be a file that can be written, and {path} is not ({error.strerror})"
        ) from None


def panels(plan: Plan, means: Means) -> list[Panel]:
    """What there is to draw: the cost only with a price."""
    rows = plan.rows
    unit, seconds = ("min", 60) if max(row.total_s.high for row in rows) <= _SHORT_S else ("h", 3600)
    percent = [
        row.images_per_s.times(100 * row.efficiency / row.images_per_s.mid) for row in rows
    ]  # the range is that of its speed, beside the first row's own
    shown = [
        Panel("step (s)", [row.step_s for row in rows]),
        Panel(
            f"whole run ({unit})",
            [row.total_s.times(1 / seconds) for row in rows],
            means.deadline_s / seconds if means.deadline_s else None,
        ),
        Panel("efficiency (%)", percent),
    ]
    dollars = [row.usd for row in rows if row.usd is not None]
    return [*shown, Panel("cost of the whole run (USD)", dollars, means.budget_usd)] if dollars else shown


def _paint(look: Look, shown: Sequence[Panel], rows: Sequence[Row]) -> Any:
    """A panel for each figure, in it a line for each number of workers on a node."""
    columns, width = look.fitted(len(shown), 2, _WIDTH)
    figure, every = draw.panel_axes(look, [""] * len(shown), columns, width, share=False)
    per_node = [row.workers // int(row.topology.partition("x")[0]) for row in rows]
    kinds = list(dict.fromkeys(sorted(per_node)))
    counts = sorted({row.workers for row in rows})
    has_limit = False
    for panel, axes in zip(shown, every):
        for at, kind in enumerate(kinds):
            points = [(row.workers, span) for row, of, span in zip(rows, per_node, panel.figures) if of == kind]
            x, y = [workers for workers, _ in points], [span.mid for _, span in points]
            low, high = ([getattr(span, end) for _, span in points] for end in ("low", "high"))
            axes.plot(x, y, **look.line(at, at))
            axes.fill_between(x, low, high, color=look.colour(at), alpha=0.2, linewidth=0)
            if len(points) == 1:  # a band of one point cannot be seen
                axes.vlines(x, low, high, color=look.colour(at))
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set(xlabel="workers", ylabel=panel.label)
        axes.set_ylim(bottom=0)
        if panel.limit is not None and panel.limit <= _FARTHEST_LIMIT * max(span.high for span in panel.figures):
            axes.axhline(panel.limit, color=look.text, linestyle=":", linewidth=1.2)
            has_limit = True
    handles = []
    if len(kinds) > 1:
        handles = [
            draw.handle(f"{counted(kind, 'worker')} per node", **look.line(at, at)) for at, kind in enumerate(kinds)
        ]
    if has_limit:
        handles.append(draw.handle("deadline, budget", color=look.text, linestyle=":"))
    draw.add_legend(look, figure, handles)
    return figure
