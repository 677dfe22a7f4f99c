"""Verdicts on times of steps: what they name, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.training.bottleneck import explain
from cifar_ray.training.rank_times import LEAST_STRETCHES, RankTimes, Spread, StepTimes
from tests.support.step_times import EXCHANGE, USUAL, at_own_pace, rank_times, run


def test_a_slow_rank_is_named_with_what_the_others_wait() -> None:
    verdict = explain(run({}, {}, {}, {"backward": 26.0}))
    assert verdict.kind == "slow rank"
    assert verdict.ranks == (3,)
    assert verdict.sentence == (
        "rank 3 on node1 takes 118 ms for forward, backward and the optimizer, the others 92 ms: they wait 26 ms in "
        "every step, 20 % of the training"
    )
    assert verdict.share == pytest.approx(26 / 127)
    assert "node1" in verdict.advice[0]


def test_a_host_is_named_where_there_are_several() -> None:
    times = run({}, {"forward": 40.0})
    named = replace(times, ranks=tuple(replace(rank, host=f"host{rank.rank}") for rank in times.ranks))
    assert explain(named).sentence.startswith("rank 1 on node0 (host1) takes 132 ms")


def test_two_slow_ranks_of_four_are_both_named() -> None:
    verdict = explain(run({}, {}, {"backward": 30.0}, {"backward": 28.0}))
    assert verdict.ranks == (2, 3)
    assert verdict.sentence.startswith("rank 2 on node1 takes")
    assert verdict.sentence.endswith("; so does rank 3")


def test_a_rank_that_others_leave_no_cpu_says_so() -> None:
    verdict = explain(run({}, {"forward": 40.0}, cpu_wait=(0.01, 0.28)))
    assert verdict.ranks == (1,)
    assert verdict.sentence.endswith("; it waits for a CPU for 28 % of the time")
    assert "for a CPU" not in explain(run({}, {"forward": 60.0}, cpu_wait=(0.2, 0.22))).sentence  # so do the others


@pytest.mark.parametrize("slower", [0.0, 0.02, 0.05, 0.2, 0.25, 0.5])
def test_twenty_percent_are_named_within_noise_and_five_are_not(slower: float) -> None:
    """A rank on CPUs of which it has 80 % takes a quarter longer."""
    more = {part: slower * USUAL[part] for part in ("forward", "backward", "optimizer")}
    assert (explain(run({}, more, noise=0.03)).ranks == (1,)) is (slower >= 0.2)


@pytest.mark.parametrize("late_in", [0.2, 0.6])
def test_a_rank_that_was_slow_for_a_while_is_not_the_slow_one(late_in: float) -> None:
    verdict = explain(run({}, {"backward": 60.0}, late_in=late_in))
    assert verdict.ranks == ()
    assert verdict.kind == ("balanced" if late_in < 0.5 else "not enough evidence")
    assert "do not tell whether" in verdict.sentence or late_in < 0.5


def test_a_rank_that_computes_longer_while_nobody_waits_is_not_named() -> None:
    """As where it has less to do of something else in the step."""
    times = run({}, {"backward": 30.0})
    patient = times.ranks[1]
    equal = {**patient.stretches, "communication": times.ranks[0].stretches["communication"]}
    assert explain(replace(times, ranks=(times.ranks[0], replace(patient, stretches=equal)))).ranks == ()


def test_slow_data_is_named_everywhere_or_on_its_rank() -> None:
    everywhere = explain(run({"data": 30.0}, {"data": 30.0}))
    assert (everywhere.kind, everywhere.ranks) == ("slow data", ())
    assert everywhere.sentence == "making the batches takes 34 ms of a step of 131 ms: 26 % of the training"
    one = explain(run({}, {"data": 30.0}))
    assert (one.kind, one.ranks) == ("slow data", (1,))
    assert one.sentence.startswith(
        "rank 1 on node0 takes 34 ms to make its part of a batch, the others 4.0 ms: they wait"
    )
    alone = explain(run({"data": 30.0}))
    assert (alone.kind, alone.ranks) == ("slow data", ())


def test_a_slow_link_is_what_the_last_rank_waits_for() -> None:
    verdict = explain(run({}, {}, {}, {}, exchange=40.0))
    assert verdict.kind == "slow link"
    assert verdict.sentence == (
        "the exchange between the nodes takes 40 ms of a step of 137 ms once the last rank has come: 29 % of the training"
    )
    assert "--strategy-options.comm-hook" in verdict.advice[0]
    inside = explain(run({}, {}, exchange=40.0))
    assert inside.kind == "overhead"  # there is no link
    assert "the exchange within the node takes 40 ms" in inside.sentence


def test_an_exchange_between_busy_cpus_is_no_slow_link() -> None:
    verdict = explain(run({}, {}, exchange=40.0, workers_per_node=1, cpu_wait=(0.0, 0.3)))
    assert verdict.kind == "not enough evidence"
    assert "29 %" in verdict.sentence


def test_the_larger_of_two_causes_is_the_verdict() -> None:
    assert explain(run({}, {"backward": 60.0}, exchange=30.0)).kind == "slow rank"
    assert explain(run({}, {"backward": 20.0}, exchange=80.0, workers_per_node=1)).kind == "slow link"


def test_overhead_is_what_is_in_no_part_or_what_ranks_wait_in_turn() -> None:
    verdict = explain(run({}, {}, rest=40.0))
    assert verdict.kind == "overhead"
    assert "40 ms of a step of 140 ms go to work between its parts" in verdict.sentence
    times = run({}, {})
    ranks = [replace(rank, stretches={**rank.stretches, "communication": (0.034,) * 20}) for rank in times.ranks]
    in_turn = explain(replace(times, ranks=tuple(ranks)))
    assert in_turn.kind == "overhead"
    assert "and each time another one is the slowest" in in_turn.sentence
    one = replace(ranks[0], stretches={**ranks[0].stretches, "communication": (EXCHANGE / 1000,) * 20})
    always = explain(replace(times, ranks=(one, ranks[1])))
    assert always.kind == "not enough evidence"
    assert "waits for 34 % of a step, but these times do not tell" in always.sentence


def test_workers_that_share_too_few_cpus_are_told_so_unless_more_is_lost_to_one_rank() -> None:
    verdict = explain(run({}, {"backward": 60.0}, exchange=60.0, cpu_wait=(0.45, 0.5)))
    assert verdict.kind == "too few CPUs"
    assert verdict.sentence == "every rank waits for a CPU for at least 45 % of the training"
    assert explain(run({}, {"backward": 60.0}, cpu_wait=(0.2, 0.2))).ranks == (1,)
    assert explain(run({}, {"backward": 20.0}, cpu_wait=(0.2, 0.2))).kind == "too few CPUs"
    assert explain(run({}, cpu_wait=(0.2,))).sentence.endswith("at least 20 % of the training")


def test_a_balanced_run_has_nothing_to_say() -> None:
    several, alone = explain(run({}, {}, {}, {}, noise=0.03)), explain(run({}))
    assert (several.kind, several.share) == ("balanced", None)
    assert several.sentence == "computing takes 89 % of a step, and no rank exchanges or waits for 15 % of it"
    assert alone.sentence == "computing takes 95 % of a step"


def test_ranks_with_a_pace_each() -> None:
    slow = explain(at_own_pace({}, {"forward": 40.0}))
    assert (slow.kind, slow.ranks) == ("slow rank", (1,))
    assert "its epochs end 40 ms a step later" in slow.sentence
    assert explain(at_own_pace({}, {})).kind == "balanced"
    served = explain(at_own_pace({}, {}, communication=60.0))
    assert served.kind == "not enough evidence"
    assert "a server" in served.sentence


def test_where_computing_cannot_be_compared_nothing_is_named() -> None:
    times = replace(run({}, {"backward": 60.0}), incomparable="its passes wait")
    assert explain(times).kind == "not enough evidence"
    assert explain(times).sentence == "its passes wait"
    assert explain(replace(run({}), incomparable="its passes wait")).kind == "balanced"  # for no other


def test_too_short_a_run_says_what_it_lacks() -> None:
    verdict = explain(run({}, {"backward": 60.0}, stretches=LEAST_STRETCHES - 1))
    assert verdict.kind == "not enough evidence"
    assert verdict.sentence.startswith(
        "200 measured steps of 32.2 s together are too few: 8 steps and 3.2 s are needed"
    )
    assert explain(run({}, {"backward": 60.0}, stretches=LEAST_STRETCHES)).kind == "slow rank"
    single = RankTimes(0, 0, "", 0, 0.0, Spread(0.0, 0.0, 0.0), {}, {"iteration": (0.0,)})
    for none in (single, replace(single, stretches={})):
        assert explain(StepTimes((none,))).sentence.startswith("0 measured steps of 0.0 s together are too few")


def test_ranks_that_recorded_different_numbers_of_steps_are_not_compared() -> None:
    times = run({}, {"backward": 60.0})
    uneven = replace(times, ranks=(times.ranks[0], replace(times.ranks[1], steps=150)))
    assert explain(uneven).kind == "not enough evidence"
    assert explain(uneven).sentence == ("the ranks recorded different numbers of steps (rank 0: 200, rank 1: 150)")


@pytest.mark.parametrize("times", [StepTimes(()), StepTimes((rank_times(0, 0, {"iteration": [1.0]}),))])
def test_a_run_without_the_parts_of_its_steps_says_so(times: StepTimes) -> None:
    assert explain(times).kind == "not enough evidence"
    assert explain(times).sentence == "the parts of the steps were not recorded"
