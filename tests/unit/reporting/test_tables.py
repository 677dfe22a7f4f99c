from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from cifar_ray.reporting import aggregate, cost, markdown, measures, tables, words
from cifar_ray.reporting.table import Entry, Table
from cifar_ray.tracking.study import Point, Study
from tests.support.studies import grid, study, trial, without_run


def table(of: Study, key: str, target: float | None = None) -> Table:
    (section,) = tables.sections(of, target, None)
    return next(found for found in section.tables if found.key == f"resnet_cifar10_{key}")


def texts(of: Table) -> dict[str, list[str]]:
    return {label: [entry.text for entry in entries] for label, entries in of.rows}


def test_rows_are_topologies_and_columns_batch_sizes() -> None:
    found = table(grid(), "training_time_s")
    assert found.columns == ["Configuration", "batch 16 per worker", "batch 64 per worker"]
    assert texts(found) == {
        "1x1 (1 CPU worker)": ["400.00 s", "200.00 s"],
        "1x2 (2 CPU workers)": ["210.00 s", "110.00 s"],
        "2x2 (4 CPU workers)": ["105.00 s", "60.00 s"],
    }
    assert found.rows[2][1][1].note == "global batch 256"


def test_the_best_of_each_column_is_marked_in_the_metrics_direction() -> None:
    def best(key: str) -> list[list[bool]]:
        return [[entry.best for entry in entries] for _, entries in table(grid(), key).rows]

    assert best("training_time_s") == [[False, False], [False, False], [True, True]]
    assert best("accuracy_percent") == [[True, True], [False, False], [False, False]]
    assert best("time_per_iteration_ms") == [[False, False]] * 3  # all the same


def test_a_best_of_what_grows_with_the_work_is_among_equal_work() -> None:
    less = replace(grid(), trials=[*grid().trials[:5], trial("2x2", 64, training_s=20.0, accuracies=(0.9,))])

    def best(key: str) -> list[bool]:
        rows = [entries for _, entries in table(less, key, target=0.3).rows]
        return [any(column) for column in zip(*([entry.best for entry in entries] for entries in rows))]

    of_work = ["training_time_s", "time_per_epoch_s", "accuracy_percent", "f1_percent", "epochs_to_target"]
    assert {key: best(key) for key in of_work} == {
        "training_time_s": [True, False],
        "time_per_epoch_s": [True, False],
        "accuracy_percent": [True, False],
        "f1_percent": [True, False],
        "epochs_to_target": [False, False],
    }
    assert not any(best("test_metrics_percent"))
    assert best("images_per_s") == best("speed_up") == best("time_to_target_s") == [True, True]
    (section,) = tables.sections(less, None, cost.find("c7i.xlarge"))
    costs = next(found for found in section.tables if found.key.endswith("cost_of_run_usd"))
    assert [any(entries[column].best for _, entries in costs.rows) for column in (0, 1)] == [True, False]
    sentence = (
        "The runs trained on different numbers of images (50,000 to 150,000): seconds, costs and accuracies have a "
        "best only among those of equal work."
    )
    assert sentence in section.notes
    assert not [note for note in tables.sections(grid(), None, None)[0].notes if "equal work" in note]


def test_a_single_measured_entry_is_not_the_best_of_anything() -> None:
    one = study(trial("1x1", 16), without_run("FAILED", "out of memory", "1x2", 16))
    found = table(one, "training_time_s")
    assert not any(entry.best for _, entries in found.rows for entry in entries)


def test_seeds_become_mean_deviation_and_count() -> None:
    seeds = study(*(trial(seed=n, accuracies=(0.1, value)) for n, value in enumerate((0.6, 0.61, 0.62))))
    entry = table(seeds, "accuracy_percent").rows[0][1][0]
    assert entry.text == "61.00 % ± 1.00 (n=3)"
    assert entry.std == pytest.approx(1.0)  # the sample's, with n - 1
    assert entry.run_ids == ("id-bs16-1x1-seed0", "id-bs16-1x1-seed1", "id-bs16-1x1-seed2")


def test_a_failed_seed_is_left_out_and_told() -> None:
    seeds = study(trial(seed=0), replace(trial(seed=1, training_s=1.0), status="FAILED", reason="a worker died."))
    found = table(seeds, "training_time_s")
    assert found.rows[0][1][0].text == "100.00 s"
    assert found.rows[0][1][0].note == "bs16 1x1 seed1 FAILED: a worker died; global batch 16"
    (section,) = tables.sections(seeds, None, None)
    assert "1x1 (1 CPU worker), batch 16 per worker: bs16 1x1 seed1 FAILED: a worker died." in section.notes


def test_what_was_not_measured_is_empty_with_the_reason() -> None:
    some = study(
        trial("1x1", 16), without_run("SKIPPED", "needs 4 CPUs", "2x2", 16), without_run("PENDING", "", "1x2", 16)
    )
    rows = dict(table(some, "training_time_s").rows)
    assert rows["2x2 (4 CPU workers)"][0] == Entry(note="bs16 2x2 seed0 SKIPPED: needs 4 CPUs")
    assert rows["1x2 (2 CPU workers)"][0] == Entry(note="bs16 1x2 seed0 PENDING")
    assert texts(table(some, "cpu_utilisation_percent"))["1x1 (1 CPU worker)"] == [""]


def test_weak_scaling_is_against_the_fewest_workers_of_the_column() -> None:
    assert texts(table(grid(), "speed_up"))["2x2 (4 CPU workers)"] == ["3.00 times", "3.20 times"]
    found = table(grid(), "scaling_efficiency_percent")
    assert texts(found)["2x2 (4 CPU workers)"] == ["75.0 %", "80.0 %"]
    assert found.rows[2][1][0].run_ids == ("id-bs16-2x2-seed0", "id-bs16-1x1-seed0")
    assert found.notes[0].startswith("Weak scaling")


def test_figures_that_were_reckoned_by_hand() -> None:
    """768 images an epoch, for two epochs, beside 40 s of all else, on machines for 0.526 USD an hour.

    An iteration of 32 images on 1x1 takes 0.5 s, one of 64 on 1x2 takes 0.6 s, and one of 128 on 2x2 takes 0.8 s.
    """
    runs = study(
        trial("1x1", 32, images=768, training_s=24.0, images_per_s=64.0, accuracies=(0.2, 0.5)),
        trial("1x2", 32, images=768, training_s=14.4, images_per_s=64 / 0.6, accuracies=(0.2, 0.5)),
        trial("2x2", 32, images=768, training_s=9.6, images_per_s=160.0, accuracies=(0.2, 0.5)),
    )
    price = cost.find("g4dn.xlarge")
    (section,) = tables.sections(runs, 0.5, price)
    found = {one.key.removeprefix("resnet_cifar10_"): list(texts(one).values()) for one in section.tables}
    assert found["images_per_s"] == [["64.0/s"], ["106.7/s"], ["160.0/s"]]
    assert found["speed_up"] == [["1.00 times"], ["1.67 times"], ["2.50 times"]]
    assert found["scaling_efficiency_percent"] == [["100.0 %"], ["83.3 %"], ["62.5 %"]]
    assert found["training_time_s"] == [["24.00 s"], ["14.40 s"], ["9.60 s"]]
    assert found["time_per_epoch_s"] == [["12.000 s"], ["7.200 s"], ["4.800 s"]]
    assert [row[-1] for row in found["where_the_time_went_s"]] == ["64.00 s", "54.40 s", "49.60 s"]
    # 64 s, 54.4 s, and twice 49.6 s of a machine.
    assert found["cost_of_run_usd"] == [["0.00935 USD"], ["0.00795 USD"], ["0.0145 USD"]]
    # Of the training alone, for 1,536 images.
    assert found["cost_per_1000_images_usd"] == [["0.00228 USD"], ["0.00137 USD"], ["0.00183 USD"]]
    fastest, _, cheapest, *_ = words.summary(runs, aggregate.configurations(runs), price)
    assert "fastest is 2x2 (4 CPU workers)" in fastest
    assert "9.60 s of training, 2.50 times as fast as the slowest, 1x1" in fastest
    assert "cheapest is 1x2 (2 CPU workers)" in cheapest
    assert cheapest.endswith("with 0.00795 USD a run on g4dn.xlarge.")


def test_of_several_with_the_fewest_workers_the_speed_up_is_against_the_one_on_the_fewest_nodes() -> None:
    runs = study(trial("2x1", images_per_s=100.0), trial("1x2", images_per_s=160.0), trial("2x2", images_per_s=240.0))
    rows = dict(table(runs, "speed_up").rows)
    entry = rows["2x2 (4 CPU workers)"][0]
    assert (entry.text, entry.note.split(";")[0]) == ("1.50 times", "against 1x2 (2 CPU workers)")
    assert texts(table(runs, "scaling_efficiency_percent"))["2x2 (4 CPU workers)"] == ["75.0 %"]


def test_speed_ups_over_seeds_have_a_spread_and_a_count() -> None:
    slow = [trial("1x1", seed=n, images_per_s=100.0 + n) for n in (-1, 0, 1)]
    fast = [trial("1x2", seed=n, images_per_s=150.0 + 3 * n) for n in (-1, 0, 1)]
    found = dict(table(study(*slow, *fast), "speed_up").rows)
    assert found["1x1 (1 CPU worker)"][0].text == "1.00 times (n=3)"
    entry = found["1x2 (2 CPU workers)"][0]
    assert entry.text == "1.50 times ± 0.03 (n=3)"
    assert entry.std == pytest.approx(1.5 * (0.01**2 + 0.02**2) ** 0.5)
    assert entry.note.startswith("against 1x1 (1 CPU worker); a ratio of two means, ± what their standard deviations")
    efficiency = dict(table(study(*slow, *fast), "scaling_efficiency_percent").rows)["1x2 (2 CPU workers)"][0]
    assert efficiency.text == "75.0 % ± 1.7 (n=3)"


def test_strong_scaling_has_the_global_batch_in_its_columns() -> None:
    held = study(
        trial("1x2", 32, images_per_s=100.0),
        trial("2x2", 16, images_per_s=150.0),
        hold="global_batch",
        axes=("topology", "global_batch_size"),
    )
    found = table(held, "scaling_efficiency_percent")
    assert found.columns == ["Configuration", "global batch 64"]
    assert texts(found)["2x2 (4 CPU workers)"] == ["75.0 %"]  # 1.5 times with twice the workers
    assert dict(found.rows)["1x2 (2 CPU workers)"][0] == Entry(note="nothing with fewer workers to compare with")
    assert found.notes[0].startswith("Strong scaling")


def test_another_axis_is_part_of_the_rows_name_and_not_mixed_into_one_mean() -> None:
    rates = study(
        *(trial(params={"lr": lr}, training_s=s) for lr, s in (("0.1", 10.0), ("0.2", 20.0))),
        axes=("lr",),
    )
    assert texts(table(rates, "training_time_s")) == {
        "1x1 (1 CPU worker), lr=0.1": ["10.00 s"],
        "1x1 (1 CPU worker), lr=0.2": ["20.00 s"],
    }


def test_compared_runs_differ_by_whatever_they_differ_in_but_not_by_where_they_are_kept() -> None:
    pair = study(
        trial(params={"storage": "/a", "run_name": "a"}),
        trial(params={"storage": "/b", "run_name": "b", "strategy": "other"}),
        axes=(),
        hold="",
    )
    assert [one.others for one in aggregate.configurations(pair)] == [(("strategy", "ddp"),), (("strategy", "other"),)]
    machines = study(trial(), trial(tags={"cifar_ray.hardware": "NVIDIA H200"}), axes=(), hold="")
    assert [one.row.split(", ")[1] for one in aggregate.configurations(machines)] == [
        "hardware=AMD EPYC 9754",
        "hardware=NVIDIA H200",
    ]


def test_compared_runs_that_are_alike_in_everything_stay_apart() -> None:
    twins = (trial(training_s=10.0, name="a", run_id="1" * 32), trial(training_s=20.0, name="b", run_id="2" * 32))
    pair = study(*twins, axes=(), hold="")
    assert texts(table(pair, "training_time_s")) == {
        "1x1 (1 CPU worker), run=a": ["10.00 s"],
        "1x1 (1 CPU worker), run=b": ["20.00 s"],
    }
    of_one_name = study(*(replace(one, name="a") for one in twins), axes=(), hold="")
    assert [one.others for one in aggregate.configurations(of_one_name)] == [
        (("run", "a 11111111"),),
        (("run", "a 22222222"),),
    ]
    seeds = study(trial(seed=0), trial(seed=1), axes=(), hold="")
    assert [len(one.trials) for one in aggregate.configurations(seeds)] == [2]


def test_an_axis_counts_whatever_it_is() -> None:
    runs = study(*(trial(params={"log_every": n}) for n in ("1", "50")), axes=("log_every", "seed"))
    assert [one.others for one in aggregate.configurations(runs)] == [(("log_every", "1"),), (("log_every", "50"),)]


def test_a_topology_that_is_none_is_a_row_as_it_was_asked_for() -> None:
    odd = replace(trial(), name="odd", status="SKIPPED", run_id="", metrics={}, history={})
    odd = replace(odd, params={**odd.params, "topology": "2y2"})
    assert texts(table(study(trial(), odd), "training_time_s")) == {"1x1 (1 CPU worker)": ["100.00 s"], "2y2": [""]}
    assert (odd.nodes, odd.world_size) == (1, 1)


def test_memory_of_processes_and_of_gpus_has_no_best() -> None:
    little = {**trial().metrics, "peak_memory_mib": 5.0}
    on_gpu = trial("1x2", params={"device": "cuda"})
    for runs, marked in ((study(trial(metrics=little), on_gpu), 0), (study(trial(metrics=little), trial("1x2")), 1)):
        rows = table(runs, "peak_memory_mib").rows
        assert sum(entry.best for _, entries in rows for entry in entries) == marked


def test_gpus_are_called_so() -> None:
    (one,) = aggregate.configurations(study(trial("2x2", params={"device": "cuda"})))
    assert one.row == "2x2 (4 GPUs)"


def test_the_way_to_a_target_ends_with_the_first_epoch_that_has_it() -> None:
    run = trial(training_s=90.0, accuracies=(0.3, 0.6, 0.5))
    assert aggregate.epochs_to(0.6)(run) == 2
    assert aggregate.seconds_to(0.6)(run) == pytest.approx(60.0)
    assert aggregate.images_to(0.6)(run) == pytest.approx(100000)
    assert aggregate.seconds_to(0.7)(run) is None
    entry = table(study(run), "time_to_target_s", target=0.7).rows[0][1][0]
    assert (entry.text, entry.note) == ("", "not reached: the best epoch has 60.00%")


def test_a_target_that_only_some_seeds_reached_is_never_the_best() -> None:
    lucky = [trial("1x1", seed=n, training_s=30.0, accuracies=(best,)) for n, best in enumerate((0.7, 0.5, 0.5))]
    slow = trial("1x2", training_s=60.0, accuracies=(0.7,))
    slower = trial("2x2", training_s=90.0, accuracies=(0.7,))
    rows = dict(table(study(*lucky, slow, slower), "time_to_target_s", target=0.7).rows)
    assert rows["1x1 (1 CPU worker)"][0].text == "30.00 s (n=1 of 3)"
    assert [entries[0].best for entries in rows.values()] == [False, True, False]


def test_a_target_is_reached_but_for_rounding_and_lost_times_are_called_lost() -> None:
    run = trial(training_s=90.0, accuracies=(0.3, 0.5999999))
    assert aggregate.epochs_to(0.6)(run) == 2
    assert aggregate.default_target(aggregate.configurations(study(run))) == 0.6
    lost = replace(run, history={"test/accuracy": run.history["test/accuracy"]})
    entry = table(study(lost), "time_to_target_s", target=0.6).rows[0][1][0]
    assert entry.note == "reached in epoch 2, but not every epoch until then has its figures recorded"
    entry = table(study(replace(run, history={})), "epochs_to_target", target=0.6).rows[0][1][0]
    assert entry.note == "reached, since the best epoch has 60.00%, but the epoch is not recorded"


def test_an_epoch_recorded_twice_counts_once_and_one_that_was_lost_leaves_no_time() -> None:
    run = trial(training_s=90.0)
    epochs = [*run.history["epoch_s"][:1], *run.history["epoch_s"]]
    twice = replace(run, history={**run.history, "epoch_s": epochs})
    assert aggregate.seconds_to(0.5)(twice) == pytest.approx(60.0)
    lost = replace(run, history={**run.history, "epoch_s": run.history["epoch_s"][1:]})
    assert aggregate.seconds_to(0.5)(lost) is None


@pytest.mark.parametrize(("bests", "target"), [((0.8, 0.649), 0.6), ((0.65, 0.7), 0.65), ((0.9, 0.04), None)])
def test_the_default_target_is_one_that_all_reach(bests: tuple[float, float], target: float | None) -> None:
    runs = study(trial(accuracies=(bests[0], 0.1)), trial("1x2", accuracies=(bests[1],)))
    assert aggregate.default_target(aggregate.configurations(runs)) == target


def test_utilisation_is_the_mean_of_the_samples_within_the_training() -> None:
    samples = [Point(0, 500, 1.0), Point(1, 1500, 40.0), Point(2, 2500, 60.0), Point(3, 9000, 2.0)]
    run = trial()  # its epochs end after 1, 2 and 3 s
    name = "system/0123abcd/cpu_utilization_percentage"
    run = replace(run, history={**run.history, name: samples})
    assert aggregate.utilisation("cpu")(run) == pytest.approx(50.0)
    assert aggregate.utilisation("gpu")(run) is None


def test_where_the_time_went_adds_up() -> None:
    assert texts(table(grid(), "where_the_time_went_s"))["2x2 (4 CPU workers), batch 64 per worker"] == [
        "10.00 s",
        "10.00 s",
        "60.00 s",
        "10.00 s",
        "10.00 s",
        "",
        "100.00 s",
    ]
    run = trial()
    timed = replace(run, metrics={**run.metrics, "time/other_s": 3.5, "time/wall_s": 143.5})
    assert texts(table(study(timed), "where_the_time_went_s")).popitem()[1][-2:] == ["3.50 s", "143.50 s"]
    partly = replace(run, metrics={k: v for k, v in run.metrics.items() if k != "time/data_s"})
    assert texts(table(study(partly), "where_the_time_went_s")).popitem()[1][-1] == ""


def test_every_figure_leads_to_its_runs_and_every_key_is_a_file_name_of_its_own() -> None:
    (section,) = tables.sections(grid(), None, None)
    entries = [entry for found in section.tables for _, row in found.rows for entry in row]
    assert all(entry.run_ids for entry in entries if entry.text)
    keys = [found.key for found in section.tables]
    assert len(set(keys)) == len(keys)
    assert all(key.replace("_", "").isalnum() for key in keys)


def test_models_have_sections_of_their_own() -> None:
    both = study(trial(), trial(params={"model": "vit"}), axes=("model",))
    assert [section.title for section in tables.sections(both, None, None)] == ["resnet on cifar10", "vit on cifar10"]


def test_the_runs_with_their_links() -> None:
    made = study(trial(page="http://host/#/runs/1"), without_run("SKIPPED", "needs 4 CPUs", "2x2", 16))
    first, second = tables.runs_table(made).rows
    assert first[1][1] == Entry("id-bs16-1x1-seed0", run_ids=("id-bs16-1x1-seed0",), link="http://host/#/runs/1")
    assert [entry.text for entry in first[1][4:]] == ["60.00 %", "100.00 s", "cifar-ray train --model resnet"]
    assert [entry.text for entry in second[1]] == ["SKIPPED", *[""] * 6]
    assert second[1][0].note == "needs 4 CPUs"


def test_csv_has_value_deviation_count_and_runs_of_every_column() -> None:
    seeds = study(trial(seed=0, training_s=10.0), trial(seed=1, training_s=12.0), trial("1x2", training_s=7.5))
    rows = list(csv.reader(io.StringIO(markdown.csv_text(table(seeds, "training_time_s")))))
    column = "batch 16 per worker"
    assert rows[0] == ["Configuration", column, f"{column} std", f"{column} n", f"{column} run_ids"]
    assert rows[1] == ["1x1 (1 CPU worker)", "11", "1.414213562", "2", "id-bs16-1x1-seed0 id-bs16-1x1-seed1"]
    assert rows[2] == ["1x2 (2 CPU workers)", "7.5", "", "1", "id-bs16-1x2-seed0"]


def test_a_terminals_lines_are_aligned() -> None:
    title, head, rule, *rows = markdown.lines(table(grid(), "training_time_s"))
    assert title == "Training time (s)"
    assert {len(head), *map(len, rows)} == {len(rule)}
    assert rows[2].endswith("60.00 s*")


def test_small_amounts_show_three_digits() -> None:
    figure = measures.Figure("k", "K", lambda _: None, " USD", None, "low")
    assert [figure.number(value) for value in (0.00012345, 0.5, 12.345, 0.0)] == ["0.000123", "0.500", "12.3", "0.00"]
