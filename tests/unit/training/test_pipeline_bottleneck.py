"""Verdicts on pipelines, whose stages are played through: what they name, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.training.bottleneck import explain
from tests.support.step_times import pipeline


def test_a_long_stage_is_named_with_what_it_costs_either_way() -> None:
    """Of a step of 112 ms: evened out, its schedule of 107 ms is 75 ms with 60 ms each, 88 ms with 71 ms each."""
    verdict = explain(pipeline(60.0, 60.0, 92.0, workers_per_node=1))
    assert (verdict.kind, verdict.ranks) == ("long stage", (2,))
    assert verdict.sentence == (
        "stage 3 of 3 (rank 2 on node2) computes for 92 ms of a step, the others for 60 ms: that costs 29 % of the "
        "training if the rank is slow, 17 % if the model is cut unevenly, which look alike in one run"
    )
    assert verdict.share == pytest.approx(32 / 112)
    assert "--strategy ddp" in verdict.advice[0]
    assert "fewer stages" in verdict.advice[1]


def test_a_long_stage_whose_rank_is_left_no_cpu_says_so() -> None:
    times = pipeline(60.0, 92.0)
    waiting = replace(times, ranks=(times.ranks[0], replace(times.ranks[1], cpu_wait=0.3)))
    assert explain(waiting).sentence.endswith("; it waits for a CPU for 30 % of the time")
    assert explain(pipeline(40.0, 90.0, 92.0)).sentence.endswith("; so does rank 1")


@pytest.mark.parametrize("slower", [0.0, 0.02, 0.05, 0.25, 0.5])
@pytest.mark.parametrize("by_turns", [False, True])
def test_a_quarter_is_named_within_noise_and_five_percent_are_not(slower: float, by_turns: bool) -> None:
    verdict = explain(pipeline(60.0, 60.0 * (1 + slower), by_turns=by_turns, noise=0.02))
    assert verdict.ranks == ((1,) if slower >= 0.25 else ())


@pytest.mark.parametrize("late_in", [0.3, 0.6])
def test_a_stage_that_was_long_for_a_while_is_not_named(late_in: float) -> None:
    verdict = explain(pipeline(60.0, 92.0, late_in=late_in))
    assert verdict.ranks == ()
    assert verdict.kind == ("balanced" if late_in < 0.5 else "not enough evidence")
    assert "only in a part of the run" in verdict.sentence or late_in < 0.5


def test_the_bubble_of_even_stages_is_named_with_what_makes_it_smaller() -> None:
    """Stages of 60 ms wait for a micro-batch's 15 ms: a fifth of the schedule, as (S - 1) / (M + S - 1)."""
    verdict = explain(pipeline(60.0, 60.0, micro_batches=4))
    assert (verdict.kind, verdict.ranks) == ("bubble", ())
    assert verdict.share == pytest.approx(15 / 80)
    assert verdict.sentence == (
        "the stages wait for 15 ms of a step of 80 ms while the pipeline fills and drains, as the schedule of 4 "
        "micro-batches in 2 stages has it: 19 % of the training"
    )
    assert "--strategy-options.micro-batches 8" in verdict.advice[0]
    whole = explain(pipeline(60.0, 60.0, micro_batches=1, strategy="model_parallel"))
    assert "1 micro-batch in 2 stages" in whole.sentence
    assert whole.advice[0].startswith("--strategy gpipe or one_f_one_b")


def test_slow_data_are_those_of_the_first_stage() -> None:
    verdict = explain(pipeline(60.0, 60.0, data=20.0, rest=0.7))
    assert (verdict.kind, verdict.ranks) == ("slow data", (0,))
    assert verdict.sentence == (
        "stage 1 of 2 (rank 0 on node0) takes 20 ms of a step of 90 ms to make the batch, and the others wait: 22 % of "
        "the training"
    )


def test_what_passes_and_schedule_leave_unexplained_is_waiting_for_messages() -> None:
    """Eight passes forward on the last stage and eight backward on the first begin 2 ms late each."""
    between = explain(pipeline(60.0, 60.0, message=2.0, workers_per_node=1))
    assert between.kind == "slow link"
    assert between.share == pytest.approx(32 / 104.5)
    assert "for messages between the nodes, beyond their passes and the bubble of the schedule" in between.sentence
    assert explain(pipeline(60.0, 60.0, message=2.0)).kind == "overhead"  # there is no link
    crowded = explain(pipeline(60.0, 60.0, message=2.0, workers_per_node=1, cpu_wait=0.12))
    assert crowded.kind == "too few CPUs"
    times = pipeline(60.0, 60.0, message=2.0, workers_per_node=1)
    busy = replace(times, ranks=(times.ranks[0], replace(times.ranks[1], cpu_wait=0.12)))
    assert explain(busy).kind == "not enough evidence"
    assert "for messages, but some workers share their CPUs" in explain(busy).sentence


@pytest.mark.parametrize("by_turns", [False, True])
@pytest.mark.parametrize(
    "stages", [(60.0, 60.0), (30.0, 60.0), (90.0, 30.0), (20.0, 80.0, 40.0), (80.0, 20.0, 20.0, 50.0)]
)
@pytest.mark.parametrize("micro_batches", [4, 16])
def test_no_schedule_is_taken_for_a_slow_link(stages: tuple[float, ...], micro_batches: int, by_turns: bool) -> None:
    verdict = explain(pipeline(*stages, micro_batches=micro_batches, by_turns=by_turns, workers_per_node=1))
    assert verdict.kind in ("long stage", "bubble", "balanced")


def test_the_larger_of_two_causes_is_the_verdict() -> None:
    assert explain(pipeline(60.0, 80.0, data=60.0)).kind == "slow data"
    assert explain(pipeline(60.0, 120.0, data=30.0)).kind == "long stage"
    assert explain(pipeline(60.0, 60.0, rest=40.0)).kind == "overhead"
    assert explain(pipeline(60.0, 75.0, cpu_wait=0.4)).kind == "too few CPUs"


def test_a_balanced_pipeline_says_what_its_bubble_is() -> None:
    verdict = explain(pipeline(60.0, 60.0))
    assert (verdict.kind, verdict.is_news) == ("balanced", False)
    assert verdict.sentence == (
        "each stage computes for 83 % of a step, none much longer than the others, and the bubble of the schedule is "
        "10 % of it"
    )


def test_too_short_a_run_says_what_it_lacks() -> None:
    assert "are too few" in explain(pipeline(60.0, 92.0, stretches=7)).sentence
