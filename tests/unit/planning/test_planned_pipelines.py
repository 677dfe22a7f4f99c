"""Steps of pipelines: the order of the passes, and what is sent between stages. Figures are worked out by hand."""

from __future__ import annotations

import pytest

from cifar_ray.config.topology import Topology
from cifar_ray.planning import pipeline
from cifar_ray.planning.link import Link, Route
from cifar_ray.planning.pipeline import Pipeline, Stages, timeline

EVEN = [(1.0, 2.0)] * 4
UNITS = tuple((float(seconds), 100.0 * seconds, 10 * seconds) for seconds in (1, 2, 3, 4))


def halves(seconds: object, stages: int) -> list[slice]:
    """Cuts four units into two or four stages."""
    step = 4 // stages
    return [slice(begin, begin + step) for begin in range(0, 4, step)]


def test_gpipe_takes_all_forward_passes_first_and_1f1b_takes_turns_after_its_warm_up() -> None:
    assert pipeline.order(1, 3, 2, by_turns=False) == [(False, 0), (False, 1), (True, 0), (True, 1)]
    assert pipeline.order(0, 2, 2, by_turns=True) == [(False, 0), (False, 1), (True, 0), (True, 1)]
    last = [(False, 0), (True, 0), (False, 1), (True, 1), (False, 2), (True, 2)]
    assert pipeline.order(2, 3, 3, by_turns=True) == last


@pytest.mark.parametrize("by_turns", [False, True])
def test_four_even_stages_idle_for_as_long_as_the_theory_says(by_turns: bool) -> None:
    for micro_batches in (4, 8):
        took = timeline(EVEN, micro_batches, by_turns, [0.0] * 3)
        # GPipe, section 2.3: M + S - 1 times a stage's passes, of which M compute.
        assert took == pytest.approx((micro_batches + 3) * 3)
    # Of M S by one worker: a step takes (M + S - 1) / (M S) of it.
    assert timeline(EVEN, 4, by_turns, [0.0] * 3) / (4 * 4 * 3) == pytest.approx(7 / 16)


def test_one_micro_batch_passes_stage_by_stage_and_back() -> None:
    pair = [(1.0, 2.0), (3.0, 4.0)]
    assert timeline(pair, 1, False, [0.0]) == pytest.approx(1 + 3 + 4 + 2)
    for overlapped in (True, False):
        assert timeline(pair, 1, False, [0.5], overlapped) == pytest.approx(11.0)


@pytest.mark.parametrize("by_turns", [False, True])
def test_the_slower_stage_sets_the_pace(by_turns: bool) -> None:
    # The second stage computes from 1 to 9 without a pause, then the first takes its last backward pass.
    assert timeline([(1.0, 1.0), (2.0, 2.0)], 2, by_turns, [0.0]) == pytest.approx(10.0)


def test_what_is_sent_overlaps_with_passes_or_does_not() -> None:
    pair = [(1.0, 1.0)] * 2
    assert timeline(pair, 2, False, [0.0]) == 6.0
    # The second activation leaves while the first one is computed on: only the first, and a gradient, are waited for.
    assert timeline(pair, 2, False, [1.0]) == 8.0
    # Received by turns with passes: at 1, 3 and, of gradients, at 6 and 8.
    assert timeline(pair, 2, False, [1.0], overlapped=False) == 10.0
    # What takes longer than the passes goes one after the other: there at 11, 21, and back at 33 and 43.
    assert timeline(pair, 2, False, [10.0]) == 44.0


def test_a_model_is_cut_into_shares_of_its_passes_and_parameters() -> None:
    made = Pipeline(UNITS, halves, micro_batches=4).stages(2)
    assert made == Stages(shares=(0.3, 0.7), sent=(200.0,), sizes=(0.3, 0.7))
    four = Pipeline(UNITS, halves, micro_batches=4).stages(4)
    assert isinstance(four, Stages)
    assert four.sent == (100.0, 200.0, 300.0)


def test_what_is_no_pipeline_is_said_in_a_sentence() -> None:
    of = Pipeline(UNITS, halves, micro_batches=2, by_turns=True)
    assert of.stages(1) == "a pipeline of one worker is plain training"
    assert of.stages(4) == "one_f_one_b needs a micro-batch for each of 4 workers, and there are 2"
    assert of.stages(5) == "the model has 4 layers with parameters to cut into 5 stages"


def test_neighbours_on_a_node_send_nothing_over_the_network() -> None:
    cut = Stages((0.25,) * 4, (1000.0,) * 3, (0.25,) * 4)
    of = Pipeline((), halves, micro_batches=1)
    slow = Route(Link(1e4), None)  # 0.1 s of each message of 1,000 bytes
    every, one, none = (
        pipeline.seconds(of, cut, topology, slow, 1, 1.0, 2.0)
        for topology in (Topology(4, 1), Topology(2, 2), Topology(1, 4))
    )
    assert [alone for alone, _ in (every, one, none)] == pytest.approx([3.0] * 3)
    # There and back over three cuts, over the one between the nodes, and over none.
    assert [sent.mid for _, sent in (every, one, none)] == pytest.approx([0.6, 0.2, 0.0])
    assert pipeline.seconds(of, cut, Topology(4, 1), slow, 10, 1.0, 2.0)[1].mid == pytest.approx(6.0)


def test_the_range_is_from_beside_the_passes_to_by_turns_with_them() -> None:
    cut, route = Stages((0.5, 0.5), (1000.0,), (0.5, 0.5)), Route(Link(1000.0), None)
    alone, sent = pipeline.seconds(Pipeline((), halves, 2), cut, Topology(2, 1), route, 1, 2.0, 2.0)
    assert (alone, sent.low, sent.mid, sent.high) == pytest.approx((6.0, 2.0, 3.0, 4.0))
