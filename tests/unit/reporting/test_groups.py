"""Which runs a chart shows where, and what an iteration's parts leave over."""

from __future__ import annotations

import pytest

from cifar_ray.reporting import aggregate, groups, measures, pace, scaling
from tests.support.studies import grid, of_strategies, of_strategy, study, trial, without_run

ANY = groups.having(measures.TRAINING_TIME.measure)


def shown(panels: list[groups.Panel]) -> dict[str, list[tuple[str, int]]]:
    return {panel.title: [(one.topology, one.batch_size) for one in panel.configurations] for panel in panels}


def test_a_panel_runs_from_few_workers_to_many() -> None:
    mixed = study(trial("2x2", 16), trial("2x1", 64), trial("1x2", 64), trial("2x1", 16), trial("1x1", 16))
    assert shown(groups.panels(mixed, ANY)) == {
        "resnet": [("1x1", 16), ("1x2", 64), ("2x1", 16), ("2x1", 64), ("2x2", 16)]
    }


def test_panels_are_told_apart_by_what_varies() -> None:
    on_mnist = trial("1x1", 16, params={"dataset": "mnist"})
    on_a_gpu = trial("1x1", 64, params={"device": "cuda"})
    vit = trial("1x2", 16, params={"model": "vit"})
    assert list(shown(groups.panels(study(trial("1x1"), vit), ANY))) == ["resnet", "vit"]
    assert list(shown(groups.panels(study(trial("1x1"), on_mnist), ANY))) == ["resnet on cifar10", "resnet on mnist"]
    assert list(shown(groups.panels(study(trial("1x1", 16), on_a_gpu), ANY))) == ["resnet, cpu", "resnet, cuda"]


def test_only_finished_runs_that_have_the_figure_are_shown() -> None:
    some = study(trial("1x1", 16), trial("1x2", 16, status="FAILED"), without_run("SKIPPED", "no room", "2x2", 16))
    assert shown(groups.panels(some, ANY)) == {"resnet": [("1x1", 16)]}
    assert groups.panels(some, groups.having(aggregate.metric("bubble/measured"))) == []


def test_a_caption_tells_of_seeds_only_where_there_are_several() -> None:
    one = aggregate.configurations(study(trial("1x1", 16), trial("1x2", 16)))
    several = aggregate.configurations(study(trial("1x1", 16), trial("1x2", 16, 0), trial("1x2", 16, 1)))
    assert groups.over_seeds(one) == ""
    assert "Means over the seeds" in groups.over_seeds(several)
    assert "one sample standard deviation" in groups.over_seeds(several)


def test_lines_are_named_by_their_place_and_look_alike_in_every_panel() -> None:
    panels = groups.line_panels(grid(), ANY)
    name, names = groups.line_names(grid(), panels)
    assert names == ["1x1", "1x2", "2x2"]
    assert {name(one) for one in panels[0].configurations} == set(names)
    varied = study(trial("1x1", 16, params={"lr": "0.1"}), trial("1x1", 16, params={"lr": "0.2"}), axes=("lr",))
    assert groups.all_places(groups.panels(varied, ANY)) == ["1x1 lr=0.1", "1x1 lr=0.2"]


def test_strategies_that_are_compared_have_a_panel_for_each_topology() -> None:
    compared = of_strategies(
        *(of_strategy(name, topology) for topology in ("1x2", "2x2") for name in ("ddp", "all_reduce"))
    )
    panels = groups.line_panels(compared, ANY)
    assert [panel.title for panel in panels] == ["vgg11, 1x2", "vgg11, 2x2"]
    assert [{one.topology for one in panel.configurations} for panel in panels] == [{"1x2"}, {"2x2"}]
    name, names = groups.line_names(compared, panels)
    assert len(names) == 2
    assert [{name(one) for one in panel.configurations} for panel in panels] == [set(names), set(names)]


@pytest.mark.parametrize(
    ("parts", "rest"),
    [((0.1, 0.1, 0.1, 0.1, 0.05), 50.0), ((0.1, 0.2, 0.1, 0.1, 0.0), 0.0), ((0.1, 0.1), 300.0), ((0.6,), None)],
)
def test_what_is_not_split_is_the_iteration_without_its_parts(parts: tuple[float, ...], rest: float | None) -> None:
    found = pace.unsplit_ms(of_strategy("ddp", "1x2", 0.5, parts=parts))
    assert found == (None if rest is None else pytest.approx(rest, abs=1e-9))


def test_parts_may_exceed_their_sum_by_rounding_alone() -> None:
    assert pace.unsplit_ms(of_strategy("ddp", "1x2", 0.5, parts=(0.5000005,))) == 0.0
    assert pace.unsplit_ms(of_strategy("ddp", "1x2", 0.5, parts=(0.500002,))) is None


@pytest.mark.parametrize(("strategy", "topology", "own"), [("hogwild", "1x2", True), ("hogwild", "1x1", False), ("parameter_server", "1x4", True), ("ddp", "1x2", False)])  # fmt: skip
def test_ranks_with_a_pace_each_have_neither_a_percentile_nor_a_rest(strategy: str, topology: str, own: bool) -> None:
    run = of_strategy(strategy, topology, 0.5, parts=(0.4,))
    assert pace.own_paces(run) is own
    assert pace.iteration_p95_ms(run) == (None if own else 250.0)
    assert (pace.unsplit_ms(run) is None) is own


def test_a_speed_up_is_held_against_a_worker_of_the_same_strategy_where_there_is_one() -> None:
    runs = [("ddp", "1x1", 0.5), ("all_reduce", "1x1", 0.4), ("ddp", "1x2", 0.2), ("all_reduce", "1x2", 0.2)]
    both = of_strategies(*(of_strategy(*run) for run in runs))
    every = aggregate.configurations(both)
    found = {(one.others[0][1], one.topology): scaling.ratio(both, one, every) for one in every}
    speed_ups = {which: (ratio.speed_up, ratio.efficiency) for which, ratio in found.items() if ratio is not None}
    assert speed_ups == {
        ("ddp", "1x1"): (1.0, 1.0),
        ("all_reduce", "1x1"): (1.0, 1.0),
        ("ddp", "1x2"): pytest.approx((2.5, 1.25)),
        ("all_reduce", "1x2"): pytest.approx((2.0, 1.0)),
    }
    alone = of_strategies(*(of_strategy(*run) for run in (runs[0], runs[3])))
    every = aggregate.configurations(alone)
    ratio = scaling.ratio(alone, every[1], every)
    assert ratio is not None
    assert (ratio.reference, ratio.speed_up) == (every[0], pytest.approx(2.5))
