from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.reporting import figures
from tests.support.studies import grid, study, trial
from tests.unit.reporting.test_tables import sections


def test_a_run_costs_its_nodes_for_all_its_phases() -> None:
    run = trial("2x2", training_s=3560.0)  # and 4 x 10 s
    assert figures.cost_of_run(3.0).measure(run) == pytest.approx(6.0)
    timed = replace(run, metrics={**run.metrics, "time/wall_s": 5400.0})
    assert figures.cost_of_run(3.0).measure(timed) == pytest.approx(9.0)
    partly = replace(run, metrics={k: v for k, v in run.metrics.items() if k != "time/startup_s"})
    assert figures.cost_of_run(3.0).measure(partly) is None


def test_there_are_no_costs_without_a_price() -> None:
    def costs(price: float | None) -> set[str]:
        (section,) = sections(grid(), (), price)
        headings = {title for table in (*section.tables, *section.folded) for title in table.columns}
        return {title for title in headings if "USD" in title}

    assert costs(None) == set()
    assert costs(1.0) == {"Cost (USD)"}


def test_a_cost_says_what_it_assumes() -> None:
    (section,) = sections(study(trial()), (), 36.0)
    (main,) = section.tables
    assert dict(zip(main.columns[1:], main.rows[0][1]))["Cost (USD)"].text == "1.40"  # 140 s
    assert any("36 USD per node and hour" in note for note in main.notes)
