"""The table of what the runs of a population have taken over."""

from __future__ import annotations

from dataclasses import replace

from cifar_ray.reporting import lineage, report
from cifar_ray.tracking import lineage as lineages
from cifar_ray.tracking.lineage import Takeover
from tests.support.studies import study, trial

TAKEOVER = Takeover(2, 96, "lr0.1 seed0", "a" * 64, {"lr": 1e-9}, {"lr": 0.1}, {"lr": 0.12})


def test_the_tag_keeps_the_newest_that_it_has_room_for() -> None:
    many = tuple(replace(TAKEOVER, epoch=epoch) for epoch in range(1, 101))
    text = lineages.tag(many)
    assert len(text) <= 8000
    kept = lineages.read({lineages.LINEAGE_TAG: text})
    assert kept == many[-len(kept) :]
    assert 20 < len(kept) < 100
    assert lineages.read({}) == lineages.read({lineages.LINEAGE_TAG: "[1"}) == ()


def test_a_report_has_a_table_of_checkpoints_taken_over() -> None:
    plain, copied = trial(), trial(seed=1, tags={lineages.LINEAGE_TAG: lineages.tag([TAKEOVER])})
    assert lineage.sections(study(plain)) == []
    built = report.build(study(plain, copied))
    (table,) = built.sections[-1].tables
    assert [(label, [entry.text for entry in entries]) for label, entries in table.rows] == [
        (copied.name, ["2", "96", "lr0.1 seed0", "lr 1e-09", "lr 0.12"])
    ]
