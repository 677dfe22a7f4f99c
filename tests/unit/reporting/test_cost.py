from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.reporting import figures
from tests.support.studies import grid, trial
from tests.unit.reporting.test_tables import sections


def test_a_run_costs_its_nodes_for_all_its_phases() -> None:
    run = trial("2x2", training_s=3560.0)  # and 4 x 10 s
    assert figures.cost_of_run(3.0).measure(run) == pytest.approx(6.0)
    timed = replace(run, metrics={**run.metrics, "time/wall_s": 5400.0})
    assert figures.cost_of_run(3.0).measure(timed) == pytest.approx(9.0)
    partly = replace(run, metrics={k: v for k, v in run.metrics.items() if k != "time/startup_s"})
    assert figures.cost_of_run(3.0).measure(partly) is None


@pytest.mark.parametrize(("price", "titles"), [(None, set()), (1.0, {"Cost (USD)"})])
def test_there_are_no_costs_without_a_price(price: float | None, titles: set[str]) -> None:
    (section,) = sections(grid(), (), price)
    headings = {title for table in (*section.tables, *section.folded) for title in table.columns}
    assert {title for title in headings if "USD" in title} == titles
