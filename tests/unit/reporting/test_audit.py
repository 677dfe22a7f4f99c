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
    assert not list(faults(rounded, "cifar10"))
    assert not list(faults({"accuracy": [0.9], "recall": [0.91], "specificity": [0.98]}, "digits"))
    assert not list(faults({"test_loss": [2.0, 2.1], "strategy": "local_sgd"}, "cifar10"))
    assert not list(too_fast(4.0, 4))
    (told,) = too_fast(4.3, 4)
    assert told.startswith("4.30 times as fast with 4 workers")


def test_what_published_figures_cannot_be() -> None:
    found = papers.comparison(Runs(study(trial())), "rangoju_katneni_2025").folded[-1]
    assert found.title == "Cannot be right, and why"
    told = [(label, entries[0].text.split(":")[0]) for label, entries in found.rows]
    assert told == [
        ("simple_cnn, 1x2, batch 64", "accuracy 0.1476 beside macro recall 0.1714"),
        ("simple_cnn, 1x2, batch 64", "macro specificity 0.9079"),
        ("simple_cnn, 2x2, batch 16", "4.34 times as fast with 4 workers"),
        ("simple_cnn, 2x2, batch 64", "accuracy 0.1138 beside macro recall 0.1114"),
        ("simple_cnn, 2x2, batch 64", "macro specificity 0.9013"),
    ]


def test_our_own_speed_ups_are_looked_at_as_well() -> None:
    impossible = study(trial("1x1", images_per_s=100.0), trial("1x2", images_per_s=900.0))
    (fast,) = (line for line in cautions.cautions(Runs(impossible)) if "cannot be right" in line)
    assert fast.startswith("bs16 1x2 seed0 cannot be right: 9.00 times as fast with 2 workers")
    possible = study(trial("1x1", images_per_s=100.0), trial("1x2", images_per_s=204.0))
    assert not [line for line in cautions.cautions(Runs(possible)) if "cannot be right" in line]
