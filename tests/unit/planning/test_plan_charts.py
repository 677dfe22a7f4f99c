"""A plan as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from cifar_ray.config.errors import ConfigError
from cifar_ray.planning import chart
from cifar_ray.planning.model import Means, Plan, Row
from cifar_ray.planning.span import Span


def row(topology: str, workers: int, usd: Span | None = None) -> Row:
    step = Span(0.1, 0.2, 0.4).times(1 / workers)
    return Row(topology, workers, 64, step, step.under(64), 0.8, Span(60, 120, 240), usd, {}, "computing")


def plan(*rows: Row) -> Plan:
    return Plan(rows, {}, None, "", "", "")


PRICED = plan(*(row(f"{nodes}x{each}", nodes * each, Span(1, 2, 3)) for nodes in (1, 2, 4) for each in (1, 2)))


def test_the_panels_have_the_figures_of_the_rows_with_their_ranges_and_limits() -> None:
    step, whole, efficiency, cost = chart.panels(PRICED, Means(deadline_s=180, budget_usd=2.5))
    assert step.figures[0] == Span(0.1, 0.2, 0.4)
    assert (whole.label, whole.figures[0], whole.limit) == ("whole run (min)", Span(1, 2, 4), 3)
    ends = efficiency.figures[0]
    assert (ends.low, ends.mid, ends.high) == pytest.approx((40, 80, 160))
    assert (cost.figures[0], cost.limit) == (Span(1, 2, 3), 2.5)
    assert len(chart.panels(plan(row("1x1", 1)), Means())) == 3, "without a price there is no cost"


def test_both_kinds_of_files_are_written(tmp_path: Path) -> None:
    chart.write(tmp_path / "plan.svg", PRICED, Means(deadline_s=180), "vit on cifar10")
    text = (tmp_path / "plan.svg").read_text()
    for word in ("vit on cifar10", "whole run (min)", "2 workers per node", "deadline, budget"):
        assert word in text
    chart.write(tmp_path / "plan.png", plan(row("1x1", 1)), Means(), "vit on cifar10")
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.format == "PNG"


def test_what_cannot_be_written_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    for text, problem in {
        "plan.pdf": "must be a file that ends in .svg or .png",
        str(tmp_path / "nosuch" / "plan.svg"): "must be a file that can be written",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            chart.file(text)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(ConfigError, match="must be a file that can be written"):
        chart.file(str(tmp_path / "folder.svg"))
    (tmp_path / "there.svg").touch()
    with pytest.raises(ConfigError, match=r"must be a new file, and .*there\.svg is there; --overwrite replaces it"):
        chart.file(str(tmp_path / "there.svg"))
    assert chart.file(str(tmp_path / "there.svg"), overwrite=True) == tmp_path / "there.svg"
