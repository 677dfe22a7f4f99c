"""Figures that cannot be right."""

from __future__ import annotations

import pytest

from cifar_ray.reporting import cautions, papers
from cifar_ray.reporting.audit import faults, too_fast
from cifar_ray.reporting.frame import Runs
from tests.support.studies import study, trial

RIGHT = {"accuracy": [0.55], "precision": [0.6], "recall": [0.55], "f1": [0.57], "specificity": [0.95]}


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"recall": [0.56]}, "accuracy 0.5500 beside macro recall 0.5600: "),
        ({"specificity": [0.951]}, "macro specificity 0.9510: "),
        ({"f1": [0.58]}, "macro F1 0.5800: it is at most the mean of macro precision and recall, 0.5750"),
        ({"test_loss": [2.0, 2.1]}, "test losses 2.0000 to 2.1000 on 2 ranks: "),
    ],
)
def test_each_fault_is_told(changes: dict[str, list[float]], begins: str) -> None:
    assert not list(faults({**RIGHT, "strategy": "ddp"}, "cifar10"))
    (told,) = faults({**RIGHT, **changes, "strategy": "ddp"}, "cifar10")
    assert told.startswith(begins)


def test_what_may_be_is_not_told() -> None:
    rounded = {"accuracy": [0.3981], "recall": [0.3981], "specificity": [0.93313]}
    assert not [
        *faults(rounded, "cifar10"),
        *faults({"accuracy": [0.9], "recall": [0.91], "specificity": [0.98]}, "digits"),
        *faults({"test_loss": [2.0, 2.1], "strategy": "local_sgd"}, "cifar10"),
        *too_fast(4.0, 4),
    ]
    (told,) = too_fast(4.3, 4)
    assert told.startswith("4.30 times as fast with 4 workers")


def test_what_published_figures_cannot_be() -> None:
    found = papers.comparison(Runs(study(trial())), "rangoju_katneni_2025").folded[-1]
    assert [label.removeprefix("simple_cnn, ") for label, _ in found.rows] == [
        *("1x2, batch 64", "1x2, batch 64", "2x2, batch 16", "2x2, batch 64", "2x2, batch 64")
    ]
    assert found.rows[2][1][0].text.startswith("4.34 times as fast with 4 workers")


def test_our_own_speed_ups_are_looked_at_as_well() -> None:
    def told(fast: float) -> list[str]:
        of = study(trial("1x1", images_per_s=100.0), trial("1x2", images_per_s=fast))
        return [line for line in cautions.cautions(Runs(of)) if "cannot be right" in line]

    assert ([line[:18] for line in told(900.0)], told(204.0)) == (["bs16 1x2 seed0 can"], [])
