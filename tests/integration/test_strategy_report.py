"""What a report says of a study of several strategies; every figure here is made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cifar_ray.reporting import aggregate, charts, markdown, papers, report, strategies, tables, words
from cifar_ray.reporting.contents import Chart
from cifar_ray.reporting.table import Entry, Table
from cifar_ray.tracking.study import Study, Trial
from tests.support.studies import grid, of_strategies, of_strategy, skipped_strategy, study, trial

NEEDS = "--strategy gpipe needs 2 workers or more"
OF_STRATEGIES = [
    "s_per_iteration_by_strategy",
    "s_per_iteration_by_workers",
    "test_loss_by_rank",
    "test_accuracy_by_rank_percent",
    "where_a_step_goes_ms",
    "throughput_and_memory_by_strategy",
]
EVERY = [
    *("gather_scatter", "send_recv", "all_reduce", "ddp", "local_sgd", "data_parallel", "fsdp", "gpipe"),
    *("one_f_one_b", "model_parallel", "parameter_server", "hogwild", "reproducible"),
]


def small() -> Study:
    """Three strategies with 1 and 2 workers; a pipeline with one worker is skipped."""
    alone = (0.01, 0.13, 0.25, None, 0.01)
    ddp, slow = (0.01, 0.07, 0.14, 0.02, 0.01), (0.01, 0.07, 0.14, 0.17, 0.01)
    bubble = {"bubble/measured": 0.25, "bubble/theory": 0.2}
    return of_strategies(
        of_strategy("gather_scatter", "1x1", 0.402, parts=alone),
        of_strategy(
            "gather_scatter", "1x2", 0.41, parts=slow, losses=(2.1, 2.3), right=(0.15, 0.17), memory=(512, 498)
        ),
        of_strategy("ddp", "1x1", 0.4, parts=alone, losses=(2.25,), right=(0.2,), memory=(700.4,)),
        of_strategy("ddp", "1x2", 0.26, parts=ddp),
        skipped_strategy("gpipe", "1x1", NEEDS),
        of_strategy("gpipe", "1x2", 0.3, also=bubble, params={"micro_batches": "4"}),
    )


def table(of: Study, key: str) -> Table:
    (section,) = tables.sections(of, None, None)
    return next(found for found in section.tables if found.key == f"vgg11_cifar10_{key}")


def keys(of: Study) -> list[str]:
    return [found.key.split("_cifar10_")[1] for section in tables.sections(of, None, None) for found in section.tables]


def texts(of: Table) -> dict[str, list[str]]:
    return {label: [entry.text for entry in entries] for label, entries in of.rows}


def cell(of: Table, row: str, column: str) -> Entry:
    return dict(of.rows)[row][list(of.columns[1:]).index(column)]


def made(of: Study) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts.charts(of, None)}


def said(of: Study) -> list[str]:
    return [line for line in words.summary(of, aggregate.configurations(of), None) if " workers, " in line]


def test_a_study_of_one_strategy_has_none_of_it() -> None:
    one = of_strategies(*(run for run in small().trials if run.params["strategy"] == "ddp"))
    assert not set(OF_STRATEGIES) & set(keys(one))
    assert list(made(one))[:3] == ["training_time", "accuracy", "scaling"]
    assert said(one) == []
    assert not set(OF_STRATEGIES) & set(keys(grid()))


def test_every_figure_has_its_runs_and_every_table_a_name_of_its_own() -> None:
    found = keys(small())
    assert [key for key in found if key in OF_STRATEGIES] == OF_STRATEGIES
    assert "pipeline_bubble_percent" in found
    assert "staleness_updates" not in found
    assert len(set(found)) == len(found)
    (section,) = tables.sections(small(), None, None)
    entries = [entry for one in section.tables for _, row in one.rows for entry in row]
    assert all(entry.run_ids for entry in entries if entry.text)


def test_seconds_by_strategy_and_topology() -> None:
    found = table(small(), "s_per_iteration_by_strategy")
    assert found.title == "Seconds per iteration by strategy"
    assert found.columns == ["Strategy", "1x1 (1 CPU worker)", "1x2 (2 CPU workers)"]
    assert texts(found) == {
        "gather_scatter": ["0.402 s", "0.410 s"],
        "ddp": ["0.400 s", "0.260 s"],
        "gpipe": ["", "0.300 s"],
    }
    assert [[entry.best for entry in row] for _, row in found.rows] == [[False, False], [True, True], [False, False]]
    assert cell(found, "gpipe", "1x1 (1 CPU worker)").note == f"gpipe 1x1 seed0 SKIPPED: {NEEDS}"


def test_seconds_by_number_of_workers_are_also_shares_of_a_single_workers() -> None:
    found = table(small(), "s_per_iteration_by_workers")
    share = "2 workers, share of a single worker's (%)"
    assert found.columns == ["Strategy", "1 worker", "2 workers", share]
    assert cell(found, "ddp", share).text == "65.0 %"
    assert cell(found, "ddp", share).note == "against ddp, 1x1"
    assert cell(found, "ddp", share).run_ids == ("id-ddp-1x2-seed0", "id-ddp-1x1-seed0")
    pipeline = cell(found, "gpipe", share)  # it has no single worker, and another strategy's does the same
    assert (pipeline.text, pipeline.note) == ("74.6 %", "against gather_scatter, 1x1")
    assert markdown.csv_text(found).splitlines()[2].startswith("ddp,0.4,,1,id-ddp-1x1-seed0,0.26,,1,")


def test_of_several_topologies_with_as_many_workers_the_fastest_counts() -> None:
    both = of_strategies(
        *(of_strategy(name, "1x1", 0.4) for name in ("ddp", "all_reduce")),
        *(of_strategy(name, top, s) for name in ("ddp", "all_reduce") for top, s in (("1x2", 0.3), ("2x1", 0.2))),
    )
    entry = cell(table(both, "s_per_iteration_by_workers"), "ddp", "2 workers")
    assert (entry.text, entry.note) == ("0.200 s", "of 2x1")
    (line, _) = made(both)["s_per_iteration_by_workers"].draw("light").axes[0].lines
    assert list(line.get_ydata()) == [0.4, 0.2]


def test_where_nodes_alone_grow_they_are_counted() -> None:
    nodes = of_strategies(
        *(of_strategy(name, top, 0.4) for name in ("ddp", "all_reduce") for top in ("1x1", "2x1", "4x1"))
    )
    found = table(nodes, "s_per_iteration_by_nodes")
    assert found.title == "Seconds per iteration by number of nodes"
    assert found.columns[1:3] == ["1 node", "2 nodes"]
    assert made(nodes)["s_per_iteration_by_nodes"].title == found.title
    assert made(nodes)["scaling"].title == "Training speed by number of nodes"


def test_another_batch_is_no_single_worker_to_compare_with() -> None:
    other = of_strategies(
        trial("1x1", 64, params={"model": "vgg11", "strategy": "ddp"}),
        of_strategy("ddp", "1x2", 0.2),
        of_strategy("all_reduce", "1x2", 0.2),
    )
    found = table(other, "s_per_iteration_by_workers")
    entry = cell(found, "ddp, global batch 256", "2 workers, share of a single worker's (%)")
    assert entry == Entry(note="no single worker with a global batch of the same size was measured")


def test_loss_and_accuracy_of_every_rank() -> None:
    loss, accuracy = (table(small(), key) for key in OF_STRATEGIES[2:4])
    assert loss.title == "Test loss by strategy and rank"
    assert loss.columns == ["Strategy", "Of the run", "Mean over ranks", "Rank 0", "Rank 1"]
    assert texts(loss)["gather_scatter, 1x2"] == ["2.2000", "2.2000", "2.1000", "2.3000"]
    assert texts(accuracy)["gather_scatter, 1x2"] == ["20.00 %", "16.00 %", "15.00 %", "17.00 %"]
    assert texts(accuracy)["ddp, 1x1"] == ["20.00 %", "20.00 %", "20.00 %", ""]
    assert cell(accuracy, "ddp, 1x1", "Rank 1") == Entry()
    assert cell(accuracy, "ddp, 1x2", "Rank 1").note == "not tested rank by rank (--per-rank-test)"


def test_without_ranks_there_is_the_runs_one_figure() -> None:
    plain = of_strategies(of_strategy("ddp", "1x2"), of_strategy("fsdp", "1x2"))
    found = table(plain, "test_loss_by_rank")
    assert (found.title, found.columns) == ("Test loss by strategy", ["Strategy", "Of the run"])
    assert texts(found) == {"ddp, 1x2": ["2.2000"], "fsdp, 1x2": ["2.2000"]}


def test_a_mean_over_some_of_the_ranks_is_none() -> None:
    partly = of_strategies(of_strategy("ddp", "1x2", losses=(2.1,)), of_strategy("fsdp", "1x2", losses=(2.1, 2.2)))
    assert texts(table(partly, "test_loss_by_rank")) == {
        "ddp, 1x2": ["2.2000", "", "2.1000", ""],
        "fsdp, 1x2": ["2.2000", "2.1500", "2.1000", "2.2000"],
    }


def test_a_steps_parts_add_up_to_its_iteration() -> None:
    found = table(small(), "where_a_step_goes_ms")
    assert found.columns[1:] == [
        *("Data", "Forward", "Backward", "Exposed communication", "Optimizer", "Not split", "Whole iteration"),
    ]
    row = dict(found.rows)["ddp, 1x2"]
    assert [entry.text for entry in row] == [
        *("10.0 ms", "70.0 ms", "140 ms", "20.0 ms", "10.0 ms", "10.0 ms", "260 ms"),
    ]
    assert sum(entry.value or 0 for entry in row[:-1]) == pytest.approx(row[-1].value)
    missing = cell(found, "ddp, 1x1", "Exposed communication")
    assert (missing.text, missing.note) == ("", "not measured apart from the rest")
    whole = dict(found.rows)["gpipe, 1x2"]
    assert [entry.text for entry in whole] == ["", "", "", "", "", "300 ms", "300 ms"]
    assert whole[0].note == "the run did not split its steps"


def test_parts_that_exceed_the_iteration_leave_no_rest() -> None:
    odd = of_strategies(of_strategy("ddp", "1x2", 0.1, parts=(0.1, 0.1)), of_strategy("fsdp", "1x2"))
    entry = cell(table(odd, "where_a_step_goes_ms"), "ddp, 1x2", "Not split")
    assert entry == Entry(note="the parts come to more than the mean iteration")


def test_memory_is_a_list_by_rank() -> None:
    found = table(small(), "throughput_and_memory_by_strategy")
    memory = "Peak memory by rank (MiB)"
    assert cell(found, "gather_scatter, 1x2", memory).text == "512 / 498 MiB"
    assert cell(found, "ddp, 1x1", memory).text == "700 MiB"
    one = cell(found, "ddp, 1x2", memory)
    assert (one.text, one.note) == ("512 MiB", "of the worker that took most; not recorded by rank")
    assert cell(found, "ddp, 1x2", "Images per second").text == "984.6/s"
    assert ",512 / 498 MiB,," in markdown.csv_text(found)


def test_memory_over_seeds_is_the_mean_of_every_rank() -> None:
    seeds = of_strategies(
        *(of_strategy("ddp", "1x2", seed=n, memory=(100.0 + n, 200.0 + 3 * n)) for n in (0, 2)),
        of_strategy("fsdp", "1x2"),
    )
    found = table(seeds, "throughput_and_memory_by_strategy")
    assert cell(found, "ddp, 1x2", "Peak memory by rank (MiB)").text == "101 / 203 MiB (mean, n=2)"
    partly = replace(
        seeds, trials=[seeds.trials[0], of_strategy("ddp", "1x2", seed=2, memory=(102.0,)), *seeds.trials[2:]]
    )
    entry = cell(table(partly, "throughput_and_memory_by_strategy"), "ddp, 1x2", "Peak memory by rank (MiB)")
    assert (entry.text, entry.n) == ("101 / 200 MiB (mean, n=1 of 2)", 1)
    assert entry.note == "not every rank was recorded in every one of 2 finished runs"


def test_bubble_and_staleness_where_they_were_measured() -> None:
    assert texts(table(small(), "pipeline_bubble_percent")) == {"gpipe, 1x2": ["4", "25.0 %", "20.0 %"]}
    late = {"staleness/mean": 1.25, "staleness/max": 3.0}
    bound = {"max_staleness": "8", "staleness_weighting": "inverse"}
    alone = of_strategies(of_strategy("parameter_server", "1x2", also=late, params=bound))
    assert texts(table(alone, "staleness_updates")) == {"parameter_server, 1x2": ["8", "inverse", "1.25", "3"]}
    assert "pipeline_bubble_percent" not in keys(alone)
    later = of_strategy("parameter_server", "1x2", seed=1, also={**late, "staleness/max": 7.0}, params=bound)
    both = of_strategies(*alone.trials, later)
    assert texts(table(both, "staleness_updates"))["parameter_server, 1x2"][-1] == "7 (largest, n=2)"


def test_the_whole_batch_is_the_one_micro_batch_of_model_parallel() -> None:
    bubble = {"bubble/measured": 0.5, "bubble/theory": 0.5}
    given: tuple[dict[str, str], ...] = ({}, {"micro_batches": "4"})  # an older version recorded another's option
    for params in given:
        one = of_strategies(of_strategy("model_parallel", "1x2", also=bubble, params=params))
        assert texts(table(one, "pipeline_bubble_percent")) == {"model_parallel, 1x2": ["1", "50.0 %", "50.0 %"]}


def test_other_axes_are_part_of_a_strategys_name() -> None:
    hooks = of_strategies(
        *(of_strategy("ddp", "1x2", s, params={"comm_hook": h}) for h, s in (("none", 0.3), ("bf16", 0.2))),
        of_strategy("fsdp", "1x2", 0.4, params={"comm_hook": "none"}),
        axes=("strategy", "comm_hook"),
    )
    assert [label for label, _ in table(hooks, "s_per_iteration_by_strategy").rows] == [
        *("ddp, comm_hook=none", "ddp, comm_hook=bf16", "fsdp, comm_hook=none"),
    ]
    assert "the fastest strategy is ddp, comm_hook=bf16, with 200 ms" in said(hooks)[0]


def test_options_of_a_strategy_do_not_change_a_single_worker() -> None:
    compared = of_strategies(
        of_strategy("ddp", "1x1", 0.4, params={"micro_batches": "1", "lr": "0.1"}),
        of_strategy("gpipe", "1x2", 0.3, params={"micro_batches": "8", "lr": "0.1"}),
        of_strategy("fsdp", "1x2", 0.3, params={"micro_batches": "8", "lr": "0.2"}),
        axes=("strategy", "micro_batches", "lr"),
    )
    alone, pipeline, other_rate = aggregate.configurations(compared)
    measure = aggregate.metric("time/iteration_mean_s")
    assert strategies.single_worker(pipeline, [alone, pipeline], measure) == alone
    assert strategies.single_worker(other_rate, [alone, other_rate], measure) is None


def test_the_charts_of_several_strategies() -> None:
    found = made(small())
    assert list(found)[:7] == [
        *("s_per_iteration_by_strategy", "s_per_iteration_by_workers", "scaling", "training_time"),
        *("test_loss_by_rank", "test_accuracy_by_rank", "step"),
    ]
    assert "loss" not in found  # one epoch is a point and no line
    assert found["test_loss_by_rank"].title == "Test loss by strategy and rank"
    bare = of_strategies(of_strategy("ddp", "1x2"), of_strategy("fsdp", "1x2"))
    assert "step" not in made(bare)
    assert "s_per_iteration_by_workers" not in made(bare)  # one number of workers: nothing grows
    assert made(bare)["test_loss_by_rank"].title == "Test loss by strategy"


def bars(ax: Any) -> dict[str, float]:
    names = [label.get_text() for label in ax.figure.axes[0].get_yticklabels()]
    return {names[round(bar.get_y() + bar.get_height() / 2)]: bar.get_width() for c in ax.containers for bar in c}


def test_bars_have_a_row_for_every_strategy_in_the_grids_order() -> None:
    one, two = made(small())["s_per_iteration_by_strategy"].draw("light").axes
    assert (one.get_title(), two.get_title()) == ("1x1 (1 CPU worker)", "1x2 (2 CPU workers)")
    assert bars(one) == {"gather_scatter": 0.402, "ddp": 0.4}
    assert bars(two) == {"gather_scatter": 0.41, "ddp": 0.26, "gpipe": 0.3}
    assert [text.get_text() for text in one.texts] == ["0.402", "0.400", "no figure"]
    assert [text.get_text() for text in two.texts if text.get_fontweight() == "bold"] == ["0.260"]
    assert one.get_xlim() == two.get_xlim()


def test_ranks_are_points_beside_the_runs_figure() -> None:
    _, two = made(small())["test_accuracy_by_rank"].draw("light").axes
    points = [(line.get_xdata()[0], line.get_marker()) for line in two.lines if line.get_linestyle() == "None"]
    assert points == [(15.0, "o"), (17.0, "s")]
    strokes = [line.get_xdata() for line in two.lines if len(line.get_xdata()) == 2 and line.get_xdata()[0] > 1]
    assert [list(stroke) for stroke in strokes] == [[20.0, 20.0]] * 3


def test_a_steps_parts_are_stacked_up_to_the_iteration() -> None:
    _, two = made(small())["step"].draw("light").axes
    ends: dict[float, float] = {}
    for container in two.containers:
        for bar in container:
            ends[round(bar.get_y() + bar.get_height() / 2)] = bar.get_x() + bar.get_width()
    assert ends == pytest.approx({0: 410.0, 1: 260.0})
    assert [text.get_text() for text in two.texts] == ["410 ms", "260 ms"]


def whole() -> Study:
    runs = []
    for number, name in enumerate(EVERY):
        for top, workers in (("1x1", 1), ("1x2", 2), ("1x4", 4)):
            seconds = (1 + number / 10) / workers
            parts = [seconds / 6] * 5
            losses = [2.2 + rank / 100 for rank in range(workers)]
            runs.append(of_strategy(name, top, seconds, parts=parts, losses=losses, accuracies=(0.1, 0.2)))
    return of_strategies(*runs)


def test_thirteen_strategies_look_different_from_each_other() -> None:
    found = made(whole())
    (ax,) = found["s_per_iteration_by_workers"].draw("light").axes
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in ax.lines}
    assert len(ax.lines) == len(looks) == 13
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == EVERY
    by_time = found["accuracy_by_time"].draw("light")
    assert [ax.get_title() for ax in by_time.axes] == ["vgg11, 1x1", "vgg11, 1x2", "vgg11, 1x4"]
    assert [text.get_text() for text in by_time.legends[0].get_texts()][:13] == EVERY


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_covers_anything(theme: Any) -> None:
    for chart in charts.charts(whole(), None):
        figure = chart.draw(theme)
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[number + 1 :]), chart.key
            assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, chart.key
        for legend in figure.legends:
            assert not any(legend.get_window_extent().overlaps(box) for box in boxes), chart.key
            assert legend.get_window_extent().x1 <= figure.bbox.x1, chart.key


def test_the_fastest_with_every_number_of_workers_and_why() -> None:
    assert said(small()) == [
        "vgg11 on cifar10: with 2 workers, the fastest strategy is ddp, with 260 ms an iteration, 1.15 times as fast as "
        "the next, gpipe (300 ms), 1.58 times as fast as the slowest, gather_scatter (410 ms), and 1.54 times as fast "
        "as a single worker (ddp, 400 ms). Its lead over the next is 40.0 ms; with one run of a configuration (n=1) "
        "that cannot be told from noise.",
        "vgg11 on cifar10: with 2 workers, the test accuracy is 20.00 % with ddp, 20.00 % with gpipe and 20.00 % with "
        "gather_scatter.",
        "vgg11 on cifar10: with 2 workers, by the split of an iteration, exposed communication takes 20.0 ms (7.7 %) "
        "with ddp and 170 ms (41.5 %) with gather_scatter; the share of the time in which a stage idles is 25.0 % with "
        "gpipe.",
    ]


def pair(parts: tuple[float, ...], more: tuple[float, ...], *seeds: float) -> Study:
    """ddp with 100 ms, and fsdp with 120 ms; ``seeds`` are added to both."""
    return of_strategies(
        *(of_strategy("ddp", "1x2", 0.1 + s, parts=parts, seed=n) for n, s in enumerate(seeds or (0.0,))),
        *(of_strategy("fsdp", "1x2", 0.12 + s, parts=more, seed=n) for n, s in enumerate(seeds or (0.0,))),
    )


def test_the_split_claims_no_more_than_it_shows() -> None:
    even = (0.01, 0.02, 0.03, 0.01, 0.01)

    def split(*more: float) -> str:
        return said(pair(even, more, 0.0, 0.001))[-1]

    assert "most of it is not split" in split(*even)
    assert "is spread over several parts" in split(0.015, 0.025, 0.035, 0.015, 0.01)
    assert "is spread over several parts" in split(0.016, 0.026, 0.03, 0.01, 0.01)  # of 20 ms, 8 are not split
    assert "goes mostly into backward (15.0 ms longer there, 20.0 ms in all)" in split(0.01, 0.02, 0.045, 0.01, 0.01)
    assert (
        "what fsdp takes longer than ddp is less than exposed communication alone accounts for, since other parts are "
        "shorter (40.0 ms longer there, 20.0 ms in all)"
    ) in split(0.01, 0.02, 0.01, 0.05, 0.01)
    apart = of_strategies(
        *(of_strategy("ddp", "1x2", 0.1 + s, parts=even[:3], seed=n) for n, s in enumerate((0.0, 0.001))),
        *(of_strategy("fsdp", "1x2", 0.12 + s, parts=even, seed=n) for n, s in enumerate((0.0, 0.001))),
    )
    assert "since different parts of their steps were measured" in said(apart)[-1]
    assert not any("by the split" in line for line in said(pair((), ())))


def test_what_may_be_noise_has_no_cause() -> None:
    even, more = (0.01, 0.02, 0.03, 0.01, 0.01), (0.01, 0.02, 0.05, 0.01, 0.01)
    for seeds in ((), (0.0, 0.08)):
        assert "takes longer" not in " ".join(said(pair(even, more, *seeds)))
    assert "takes longer" in said(pair(even, more, 0.0, 0.001))[-1]


def test_a_tie_has_no_lead() -> None:
    tie = of_strategies(*(of_strategy(name, "1x2", 0.1, seed=n) for name in ("ddp", "fsdp") for n in (0, 1)))
    first = said(tie)[0]
    assert ", as fast as the next, fsdp (100 ms" in first
    assert "lead" not in first


def test_a_lead_is_held_against_the_spread_over_the_seeds() -> None:
    near, far = (said(pair((), (), *seeds))[0] for seeds in ((0.0, 0.08), (0.0, 0.001)))
    assert "within one standard deviation over the seeds (56.6), and may be noise" in near
    assert "more than one standard deviation over the seeds (0.707)" in far


@pytest.mark.parametrize("name", ["parameter_server", "hogwild"])
def test_asynchronous_ranks_are_told_by_the_pace_of_all(name: str) -> None:
    parts = (0.01, 0.1, 0.2, 0.1, 0.01)
    # Rank 0 takes 0.5 s for its share of 128 images, and rank 1 0.25 s: 256 / 768 s by the pace of both.
    runs = of_strategies(
        of_strategy(name, "1x2", 0.5, parts=parts, images_per_s=128 / 0.5 + 128 / 0.25),
        of_strategy("ddp", "1x2", 0.4, parts=parts),
    )
    found = table(runs, "s_per_iteration_by_strategy")
    assert texts(found) == {name: ["0.333 s"], "ddp": ["0.400 s"]}
    assert (cell(found, name, "1x2 (2 CPU workers)").best, cell(found, "ddp", "1x2 (2 CPU workers)").best) == (
        True,
        False,
    )
    assert cell(found, name, "1x2 (2 CPU workers)").note == "by images/s of all ranks, waits included"
    steps = table(runs, "where_a_step_goes_ms")
    assert cell(steps, f"{name}, 1x2", "Whole iteration").text == "333 ms"
    assert (entry := cell(steps, f"{name}, 1x2", "Not split")).text == ""
    assert entry.note.startswith("not known where ranks have a pace each")
    times = table(runs, "time_per_iteration_ms").rows
    assert [entries[0].text for _, entries in times] == ["333.33 ms", "400.00 ms"]
    assert "percentile" not in times[0][1][0].note
    first, *_, last = said(runs)
    assert (
        f"the fastest strategy is {name}, with 333 ms an iteration by images/s of all ranks, waits included, 1.20 times"
        in first
    )
    assert f"takes 100 ms (the mean over the ranks) with {name} and 100 ms (25.0 %) with ddp" in last
    chart = made(runs)["s_per_iteration_by_strategy"]
    assert bars(chart.draw("light").axes[0]) == pytest.approx({name: 1 / 3, "ddp": 0.4})
    assert chart.caption.endswith("That of asynchronous strategies is by images/s of all ranks, waits included.")


def test_what_an_asynchronous_strategy_takes_longer_is_not_split() -> None:
    parts = (0.01, 0.1, 0.2, 0.1, 0.01)
    runs = of_strategies(
        *(of_strategy("hogwild", "1x2", 0.5, parts=parts, images_per_s=512 - n, seed=n) for n in (0, 1)),
        *(of_strategy("ddp", "1x2", 0.4 + n / 1000, parts=parts, seed=n) for n in (0, 1)),
    )
    assert "since asynchronous ranks have a pace each" in said(runs)[-1]


def test_only_plain_training_stands_for_another_strategys_single_worker() -> None:
    pair = [of_strategy("reproducible", "1x1", 0.8), of_strategy("parameter_server", "1x1", 0.6)]
    others = [of_strategy("gpipe", "1x2", 0.3), of_strategy("reproducible", "1x2", 0.4)]
    share = "2 workers, share of a single worker's (%)"
    without, with_plain = of_strategies(*pair, *others), of_strategies(*pair, of_strategy("ddp", "1x1", 0.5), *others)
    found = table(without, "s_per_iteration_by_workers")
    assert cell(found, "gpipe", share) == Entry(
        note="no single worker with a global batch of the same size was measured"
    )
    assert cell(found, "reproducible", share).note == "against reproducible, 1x1"
    assert cell(table(with_plain, "s_per_iteration_by_workers"), "gpipe", share).note == "against ddp, 1x1"
    row = "1x2 (2 CPU workers), strategy=gpipe"
    assert dict(table(without, "speed_up").rows)[row][0] == Entry(note="nothing with fewer workers to compare with")
    entry = dict(table(with_plain, "speed_up").rows)[row][0]
    assert (entry.text, entry.note.split("; ")[0]) == ("1.67 times", "against 1x1 (1 CPU worker), strategy=ddp")
    fastest = [
        line for line in words.summary(with_plain, aggregate.configurations(with_plain), None) if "fastest is" in line
    ]
    assert "and 1.67 times as fast as 1x1 of ddp with the same batch." in fastest[0]


def test_shards_are_other_work_even_for_one_worker() -> None:
    one, other = aggregate.configurations(
        of_strategies(
            of_strategy("reproducible", "1x1", 0.8, params={"shards": "4"}),
            of_strategy("reproducible", "1x2", 0.4, params={"shards": "8"}),
            axes=("strategy", "topology", "shards"),
        )
    )
    assert strategies.single_worker(other, [one, other], aggregate.metric("images_per_s")) is None


def test_iterations_of_other_sizes_are_not_compared_and_devices_stay_apart() -> None:
    half = {"global_batch_size": "128"}
    mixed = of_strategies(
        of_strategy("ddp", "1x2", 0.1),
        replace(fsdp := of_strategy("fsdp", "1x2", 0.05), params={**fsdp.params, **half}),
    )
    assert said(mixed) == []
    gpu = {"device": "cuda"}
    apart = of_strategies(of_strategy("ddp", "1x2", 0.1), of_strategy("fsdp", "1x2", 0.05, params=gpu))
    assert said(apart) == []
    assert [label for label, _ in table(apart, "s_per_iteration_by_strategy").rows] == ["ddp, cpu", "fsdp, cuda"]


def test_one_worker_that_drives_two_gpus_is_held_against_two_workers() -> None:
    gpu = {"device": "cuda", "gpus_per_worker": "1"}
    runs = of_strategies(
        of_strategy("ddp", "1x1", 0.2, params=gpu),
        of_strategy("ddp", "1x2", 0.1, params=gpu),
        of_strategy("data_parallel", "1x1", 0.15, params={**gpu, "gpus_per_worker": "2"}),
        axes=("strategy", "topology", "gpus_per_worker"),
    )
    (line,) = (one for one in words.summary(runs, aggregate.configurations(runs), None) if "fastest strategy" in one)
    assert line.startswith(
        "vgg11 on cifar10: with 2 GPUs, the fastest strategy is ddp, gpus_per_worker=1 on 1x2, with 100 ms an iteration, "
        "1.50 times as fast as the next, data_parallel, gpus_per_worker=2 on 1x1 (150 ms), and 2.00 times as fast as a "
        "single worker"
    )


def test_several_gpus_of_one_worker_are_counted_as_so_many() -> None:
    gpu = {"device": "cuda"}
    runs = of_strategies(
        of_strategy("ddp", "1x1", 0.2, params=gpu),
        of_strategy("data_parallel", "1x1", 0.15, memory=(700,), params={**gpu, "gpus_per_worker": "2"}),
        of_strategy("ddp", "1x2", 0.1, params=gpu),
    )
    found = table(runs, "s_per_iteration_by_strategy")
    assert found.columns[1:] == ["1x1 (1 GPU)", "1x1 (2 GPUs)", "1x2 (2 GPUs)"]
    assert texts(found) == {"ddp": ["0.200 s", "", "0.100 s"], "data_parallel": ["", "0.150 s", ""]}
    assert not any(entry.best for _, entries in found.rows for entry in entries)
    assert texts(table(runs, "s_per_iteration_by_gpus"))["data_parallel"] == ["", "0.150 s", "75.0 %"]
    row = "1x1 (2 GPUs), strategy=data_parallel"
    assert texts(table(runs, "scaling_efficiency_percent"))[row] == ["66.7 %"]
    memory = cell(table(runs, "throughput_and_memory_by_strategy"), "data_parallel, 1x1", "Peak memory by rank (MiB)")
    assert (memory.text, memory.note) == ("700 MiB", "of the first of a worker's 2 GPUs")
    assert made(runs)["scaling"].title == "Training speed by number of GPUs"
    panels = made(runs)["s_per_iteration_by_strategy"].draw("light").axes
    assert [ax.get_title() for ax in panels] == found.columns[1:]


def test_a_best_is_among_equals() -> None:
    def speeds(*trials: Trial) -> list[bool]:
        rows = table(of_strategies(*trials), "throughput_and_memory_by_strategy").rows
        return [entries[0].best for _, entries in rows]

    def bold(*trials: Trial) -> list[str]:
        (ax,) = made(of_strategies(*trials))["s_per_iteration_by_strategy"].draw("light").axes
        return [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"]

    fast, slow = of_strategy("ddp", "1x2", 0.1), of_strategy("fsdp", "1x2", 0.2)
    assert (speeds(fast, slow), bold(fast, slow)) == ([True, False], ["0.100"])
    assert speeds(fast, slow, of_strategy("ddp", "1x1", 0.3)) == [False] * 3  # other numbers of workers
    half = replace(fast, params={**fast.params, "global_batch_size": "128"})
    assert (speeds(half, slow), bold(half, slow)) == ([False] * 2, [])
    same = of_strategy("fsdp", "1x2", 0.1)
    assert (speeds(fast, same), bold(fast, same)) == ([False] * 2, [])
    longer = of_strategy("ddp", "1x2", 0.1, images=80 * 256)
    assert speeds(longer, slow) == [True, False]
    (ax,) = made(of_strategies(longer, slow))["training_time"].draw("light").axes
    assert not [text for text in ax.texts if text.get_fontweight() == "bold"]  # the one trained twice as much
    rows = table(of_strategies(longer, of_strategy("fsdp", "1x2", also={"test/loss": 1.0})), "test_loss_by_rank").rows
    assert not any(entries[0].best for _, entries in rows)
    lucky = of_strategy("ddp", "1x2", seed=1)
    lost = replace(lucky, metrics={"time/training_s": 4.0})
    assert (speeds(fast, lost, slow), bold(fast, lost, slow)) == ([False] * 2, [])  # only one of two seeds has it


def test_an_epoch_cut_short_is_told() -> None:
    (section,) = tables.sections(small(), None, None)
    assert "steps_per_epoch 40" in section.notes[0]
    (section,) = tables.sections(study(trial(params={"steps_per_epoch": "None"})), None, None)
    assert "steps_per_epoch" not in section.notes[0]


def four() -> Study:
    return of_strategies(
        of_strategy("ddp", "1x1", 2.0, losses=(2.24,), right=(0.16,)),
        of_strategy("ddp", "1x2", 1.5),
        of_strategy("ddp", "1x4", 1.0, losses=(2.3, 2.2, 2.1, 2.0), right=(0.1, 0.2, 0.3, 0.2)),
        of_strategy("send_recv", "1x4", 1.2),
    )


def test_beside_the_vgg11_report() -> None:
    one, loss, accuracy, counts = papers.comparison(four(), "vgg11_group_report").tables
    assert cell(one, "ddp (4 workers)", "share of single, ours").text == "50.0 %"
    assert cell(one, "ddp (4 workers)", "test loss, theirs").text == "2.3030"
    computed = "computed here from the published figures"
    assert cell(one, "ddp (4 workers)", "test loss, theirs").note == f"mean over the ranks, {computed}"
    assert cell(one, "ddp (4 workers)", "share of single, theirs").note == computed
    assert cell(one, "single", "test loss, theirs").note == "as published"
    assert cell(accuracy, "single", "rank 0, theirs").text == "15 %"
    assert cell(one, "ddp (4 workers)", "test loss, ours").text == "2.1500"
    assert cell(one, "ddp (4 workers)", "test accuracy, ours").text == "20.00 %"
    assert cell(one, "ddp (4 workers)", "test accuracy, ours").note.startswith("mean over the ranks; 1x4")
    assert cell(loss, "gather_scatter (4 workers)", "rank 2, theirs").text == "2.1840"
    assert cell(loss, "gather_scatter (4 workers)", "rank 2, ours") == Entry(note="no finished run of the same kind")
    assert cell(loss, "ddp (4 workers)", "rank 3, ours").text == "2.0000"
    assert cell(loss, "single", "rank 0, ours").text == "2.2400"
    assert cell(loss, "single", "rank 1, theirs") == Entry()
    assert cell(accuracy, "ddp (4 workers)", "rank 2, ours").text == "30.00 %"
    assert [entry.text for entry in dict(counts.rows)["ddp"]] == [
        *("1.54361 s", "2.00 s", "", "1.50 s", "0.91532 s", "1.00 s"),
    ]
    assert cell(counts, "ddp", "2 nodes, theirs").note == "drawn in a figure, without its number"


def test_a_variant_of_a_strategy_is_compared_with_the_one_single_worker() -> None:
    hooks = of_strategies(
        of_strategy("ddp", "1x1", 2.0, params={"comm_hook": "none"}),
        of_strategy("ddp", "1x4", 1.0, params={"comm_hook": "none"}),
        of_strategy("ddp", "1x4", 0.8, params={"comm_hook": "bf16"}),
        axes=("strategy", "topology", "comm_hook"),
    )
    one = papers.comparison(hooks, "vgg11_group_report").tables[0]
    assert cell(one, "ddp (4 workers), comm_hook=bf16", "share of single, ours").text == "40.0 %"


def test_beside_the_comparative_analysis() -> None:
    gpu = {"device": "cuda", "model": "resnet"}
    pipeline = of_strategy("gpipe", "1x2", 0.1, memory=(900, 500), params={**gpu, "micro_batches": "4"})
    name = "system/0123abcd/gpu_0_utilization_percentage"
    history = {**pipeline.history, name: [replace(point, value=70.0) for point in pipeline.history["epoch_s"]]}
    both = of_strategies(
        replace(pipeline, history=history),
        of_strategy("data_parallel", "1x1", 0.1, params={**gpu, "gpus_per_worker": "2"}),
        axes=("strategy", "topology"),
    )
    speed, devices = papers.comparison(both, "comparative_analysis_asu").tables
    row = "gpipe (batch 256)"
    assert cell(devices, row, "utilisation, theirs (GPU)").text == "68 %"
    assert cell(devices, row, "utilisation, ours").text == "70.0 % (GPU)"
    assert cell(devices, row, "memory per device, theirs").text == "0.9 / 0.5 GB"
    assert cell(devices, row, "peak memory by rank, ours").text == "900 / 500 MiB"
    # One worker that drives two GPUs is their two GPUs, and is no single one.
    assert cell(speed, "data_parallel (batch 256)", "images/s, ours").text == "2,560.0/s"
    assert cell(speed, "single (batch 128)", "images/s, ours").text == ""
    # Theirs has 4 micro-batches.
    other = replace(pipeline, params={**pipeline.params, "micro_batches": "8"})
    speed, _ = papers.comparison(replace(both, trials=[other, both.trials[1]]), "comparative_analysis_asu").tables
    assert cell(speed, row, "images/s, ours").text == ""


def test_a_whole_report_of_strategies_is_put_together() -> None:
    made = report.build(small(), baseline="vgg11_group_report")
    text = markdown.text(made)
    assert "## Where a step's time goes" in text
    assert "### Seconds per iteration by number of workers" in text
    assert "512 / 498 MiB" in text
    assert any("the fastest strategy is ddp" in sentence for sentence in made.summary)
