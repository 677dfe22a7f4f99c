"""Verdicts on times of steps: what they name, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.training.bottleneck import explain
from cifar_ray.training.rank_times import LEAST_STRETCHES, RankTimes, Spread, StepTimes
from tests.support.step_times import EXCHANGE, USUAL, at_own_pace, rank_times, run

LATE = {"backward": 60.0}
UNKNOWN = "not enough evidence"


@pytest.mark.parametrize(
    ("times", "kind", "ranks", "said"),
    [
        (run({}, {}, {}, {"backward": 26.0}), "slow rank", (3,), "rank 3 on node1 takes 118 ms for forward, backward"),
        (run({}, {}, {"backward": 30.0}, {"backward": 28.0}), "slow rank", (2, 3), "; so does rank 3"),
        (run({}, {"forward": 40.0}, cpu_wait=(0.01, 0.28)), "slow rank", (1,), "waits for a CPU for 28 % of the time"),
        (run({}, LATE, late_in=0.2), "balanced", (), ""),  # slow for a while
        (run({}, LATE, late_in=0.6), UNKNOWN, (), "do not tell whether"),
        (run({"data": 30.0}, {"data": 30.0}), "slow data", (), "takes 34 ms of a step of 131 ms: 26 %"),
        (run({}, {"data": 30.0}), "slow data", (1,), "rank 1 on node0 takes 34 ms"),
        (run({"data": 30.0}), "slow data", (), "34 ms"),
        (run({}, {}, {}, {}, exchange=40.0), "slow link", (), "takes 40 ms of a step of 137 ms"),
        (run({}, {}, exchange=40.0), "overhead", (), "within the node takes 40 ms"),  # there is no link
        (run({}, {}, exchange=40.0, workers_per_node=1, cpu_wait=(0.0, 0.3)), UNKNOWN, (), "29 %"),
        (run({}, LATE, exchange=30.0), "slow rank", (1,), ""),
        (run({}, {"backward": 20.0}, exchange=80.0, workers_per_node=1), "slow link", (), ""),
        (run({}, {}, rest=40.0), "overhead", (), "40 ms of a step of 140 ms go to work between its parts"),
        (run({}, LATE, exchange=60.0, cpu_wait=(0.45, 0.5)), "too few CPUs", (), "at least 45 %"),
        (run({}, LATE, cpu_wait=(0.2, 0.22)), "slow rank", (1,), ""),
        (run({}, {"backward": 20.0}, cpu_wait=(0.2, 0.2)), "too few CPUs", (), ""),
        (run({}, cpu_wait=(0.2,)), "too few CPUs", (), ""),
        (run({}, {}, {}, {}, noise=0.03), "balanced", (), "computing takes 89 % of a step, and"),
        (run({}), "balanced", (), "computing takes 95 % of a step"),
        (at_own_pace({}, {"forward": 40.0}), "slow rank", (1,), "its epochs end 40 ms a step later"),
        (at_own_pace({}, {}), "balanced", (), ""),
        (at_own_pace({}, {}, communication=60.0), UNKNOWN, (), "a server"),
        (replace(run({}, LATE), incomparable="its passes wait"), UNKNOWN, (), "its passes wait"),
        (replace(run({}), incomparable="its passes wait"), "balanced", (), ""),  # for no other
        (run({}, LATE, stretches=LEAST_STRETCHES - 1), UNKNOWN, (), "8 steps that take 3.2 s or more are needed"),
        (run({}, LATE, stretches=LEAST_STRETCHES), "slow rank", (1,), ""),
        (StepTimes(()), UNKNOWN, (), "were not recorded"),
        (StepTimes((rank_times(0, 0, {"iteration": [1.0]}),)), UNKNOWN, (), "were not recorded"),
        (StepTimes((RankTimes(0, 0, "", 0, 0.0, Spread(0.0, 0.0, 0.0), {}, {}),)), UNKNOWN, (), "0 measured steps"),
    ],
)
def test_the_verdict_names_what_costs_most(times: StepTimes, kind: str, ranks: tuple[int, ...], said: str) -> None:
    verdict = explain(times)
    assert (verdict.kind, verdict.ranks, said in verdict.sentence) == (kind, ranks, True), verdict.sentence


def test_a_slow_rank_is_told_with_its_host_and_what_the_others_wait() -> None:
    times = run({}, {}, {}, {"backward": 26.0})
    verdict = explain(replace(times, ranks=tuple(replace(rank, host=f"host{rank.rank}") for rank in times.ranks)))
    assert verdict.share == pytest.approx(26 / 127)
    assert "rank 3 on node1 (host3) takes" in verdict.sentence
    assert "they wait 26 ms in every step, 20 % of the training" in verdict.sentence
    assert "node1" in verdict.advice[0]
    assert "for a CPU" not in explain(run({}, {"forward": 60.0}, cpu_wait=(0.2, 0.22))).sentence  # so do the others
    assert explain(run({})).share is None
    assert "no rank" not in explain(run({})).sentence  # there is no other
    assert "no rank exchanges or waits" in explain(run({}, {})).sentence


@pytest.mark.parametrize("slower", [0.05, 0.2, 0.5])
def test_twenty_percent_are_named_within_noise_and_five_are_not(slower: float) -> None:
    more = {part: slower * USUAL[part] for part in ("forward", "backward", "optimizer")}
    assert (explain(run({}, more, noise=0.03)).ranks == (1,)) is (slower >= 0.2)


def test_a_rank_that_computes_longer_while_nobody_waits_is_not_named() -> None:
    times = run({}, {"backward": 30.0})
    patient = times.ranks[1]
    equal = {**patient.stretches, "communication": times.ranks[0].stretches["communication"]}
    assert explain(replace(times, ranks=(times.ranks[0], replace(patient, stretches=equal)))).ranks == ()


def test_ranks_that_wait_in_turn_are_overhead_and_one_that_always_waits_is_not() -> None:
    times = run({}, {})
    ranks = [replace(rank, stretches={**rank.stretches, "communication": (0.034,) * 20}) for rank in times.ranks]
    in_turn = explain(replace(times, ranks=tuple(ranks)))
    assert (in_turn.kind, "each time another one" in in_turn.sentence) == ("overhead", True)
    one = replace(ranks[0], stretches={**ranks[0].stretches, "communication": (EXCHANGE / 1000,) * 20})
    assert explain(replace(times, ranks=(one, ranks[1]))).kind == UNKNOWN


def test_ranks_that_recorded_different_numbers_of_steps_are_not_compared() -> None:
    times = run({}, LATE)
    uneven = explain(replace(times, ranks=(times.ranks[0], replace(times.ranks[1], steps=150))))
    assert (uneven.kind, "rank 0: 200, rank 1: 150" in uneven.sentence) == (UNKNOWN, True)
