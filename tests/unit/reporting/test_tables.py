"""The tables of a report, and the same figures as data."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest

from cifar_ray.reporting import compare, data, pages, report, tables
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.frame import Runs
from cifar_ray.tracking.study import Run, Sweep
from tests.support.studies import (
    grid,
    of_strategies,
    of_strategy,
    skipped_strategy,
    study,
    trial,
    twice,
    validated,
    without_run,
)

PRICE = 0.1785


def sections(of: Sweep, targets: Sequence[float] = (), price: float | None = None) -> list[Section]:
    return [part.section for part in tables.parts(Runs(of), targets, price)]


def figures(of: Sweep, targets: Sequence[float] = (), price: float | None = None) -> list[data.Row]:
    """The rows of figures.csv."""
    return data.records(data.figures(tables.parts(Runs(of), targets, price)))


def run_rows(of: Sweep, price: float | None = None) -> pd.DataFrame:
    """The rows of runs.csv."""
    runs = Runs(of)
    return data.runs(runs, tables.parts(runs, (), price))


def section(of: Sweep, targets: Sequence[float] = (), price: float | None = None) -> Section:
    (found,) = sections(of, targets, price)
    return found


def table(of: Sweep, key: str, targets: Sequence[float] = (), price: float | None = None) -> Table:
    found = section(of, targets, price)
    return next(one for one in (*found.tables, *found.folded) if one.key.endswith(f"_cifar10_{key}"))


def column(of: Table, title: str) -> dict[str, Entry]:
    at = list(of.columns[1:]).index(title)
    return {label: entries[at] for label, entries in of.rows}


def texts(of: Table, title: str) -> dict[str, str]:
    return {label: entry.text for label, entry in column(of, title).items()}


def best(of: Table) -> dict[str, list[str]]:
    """The rows that are marked, by column."""
    found = {title: [label for label, e in column(of, title).items() if e.best] for title in of.columns[1:]}
    return {title: labels for title, labels in found.items() if labels}


def small() -> Sweep:
    """Three strategies with 1 and 2 workers; a pipeline with one worker is skipped."""
    alone = (0.01, 0.13, 0.25, None, 0.01)
    ddp, slow = (0.01, 0.07, 0.14, 0.02, 0.01), (0.01, 0.07, 0.14, 0.17, 0.01)
    bubble = {"bubble/measured": 0.25, "bubble/theory": 0.2}
    ranks = {"losses": (2.1, 2.3), "right": (0.15, 0.17), "memory": (512, 498)}
    return of_strategies(
        of_strategy("gather_scatter", "1x1", 0.402, parts=alone),
        of_strategy("gather_scatter", "1x2", 0.41, parts=slow, **ranks),  # type: ignore[arg-type]
        of_strategy("ddp", "1x1", 0.4, parts=alone, losses=(2.25,), right=(0.2,), memory=(700.4,)),
        of_strategy("ddp", "1x2", 0.26, parts=ddp),
        skipped_strategy("gpipe", "1x1", "needs 2 workers or more"),
        of_strategy("gpipe", "1x2", 0.3, also=bubble, params={"strategy_options.micro_batches": "4"}),
    )


def test_the_main_table_has_a_row_for_every_configuration() -> None:
    found = table(grid(), "main", price=PRICE)
    assert found.columns == [
        *("Configuration", "Global batch", "Training (s)", "Images/s", "Speed-up (times)", "Efficiency (%)"),
        *("Accuracy (%)", "F1 (%)", "Peak memory (MiB)", "Cost (USD)"),
    ]
    rows = {label: [entry.text for entry in entries] for label, entries in found.rows}
    assert list(rows) == [f"{top}, batch {size}" for top in ("1x1", "1x2", "2x2") for size in (16, 64)]
    assert rows["2x2, batch 64"] == ["256", "60.00", "640.0", "3.20", "80.0", "65.00", "65.00", "512", "0.00992"]
    first, batch = "1x1, batch 16", "2x2, batch 64"
    assert best(found) == {}  # one run of each
    assert best(table(twice(grid()), "main", price=PRICE)) == {
        **{"Training (s)": [batch], "Images/s": [batch], "Speed-up (times)": [batch]},
        **{"Accuracy (%)": [first], "F1 (%)": [first], "Cost (USD)": ["1x2, batch 64"]},
    }
    assert column(found, "Speed-up (times)")["2x2, batch 16"].run_ids == ("id-bs16-2x2-seed0", "id-bs16-1x1-seed0")
    assert found.notes[0] == "n = 1."


def test_figures_that_were_reckoned_by_hand() -> None:
    """768 images an epoch, for two epochs, beside 40 s of all else, on machines for 0.1785 USD an hour.

    An iteration of 32 images on 1x1 takes 0.5 s, one of 64 on 1x2 takes 0.6 s, and one of 128 on 2x2 takes 0.8 s.
    """
    known = (("1x1", 24.0, 64.0), ("1x2", 14.4, 64 / 0.6), ("2x2", 9.6, 160.0))
    given = {"images": 768, "accuracies": (0.2, 0.5)}
    runs = study(*(trial(top, 32, training_s=s, images_per_s=v, **given) for top, s, v in known))  # type: ignore[arg-type]
    found = {
        ("main", "Images/s"): ["64.0", "106.7", "160.0"],
        ("main", "Speed-up (times)"): ["1.00", "1.67", "2.50"],
        ("main", "Efficiency (%)"): ["100.0", "83.3", "62.5"],
        ("main", "Cost (USD)"): ["0.00317", "0.00270", "0.00492"],  # 64 s, 54.4 s, and twice 49.6 s of a machine
        ("phases", "Epoch (s)"): ["12.000", "7.200", "4.800"],
        ("phases", "Total (s)"): ["64.00", "54.40", "49.60"],
        ("to_50_percent", "Epochs"): ["2.0"] * 3,
        ("to_50_percent", "Training (s)"): ["24.00", "14.40", "9.60"],
    }
    assert {key: [*texts(table(runs, key[0], [0.5], PRICE), key[1]).values()] for key in found} == found


def test_a_best_of_what_grows_with_the_work_is_among_equal_work() -> None:
    less = replace(grid(), trials=[*grid().trials[:5], trial("2x2", 64, training_s=20.0, accuracies=(0.9,))])
    less = twice(less)
    assert set(best(table(less, "main", price=PRICE))) == {"Images/s", "Speed-up (times)"}
    assert set(best(table(less, "to_30_percent", [0.3], PRICE))) == {"Training (s)"}
    for of, told in ((less, True), (grid(), False)):
        assert any("different numbers of images" in note for note in section(of).notes) == told


def test_a_best_is_of_several_values_and_of_like_devices() -> None:
    alone = study(trial("1x1", 16), without_run("FAILED", "out of memory", "1x2", 16))
    assert best(table(alone, "main")) == {}
    little = {**trial().metrics, "peak_memory_mib": 5.0}
    for device, memory in (("cuda", []), ("cpu", ["1x1"])):
        runs = study(trial(metrics=little), trial("1x2", params={"device": device}))
        assert best(table(twice(runs), "main")).get("Peak memory (MiB)", []) == memory


@pytest.mark.parametrize(
    ("memory", "marked"),
    [
        ((856.0, 858.0, 857.0, 857.0), []),  # 857 +- 1 and 857 +- 0
        ((856.9, 856.9, 857.1, 857.1), []),
        ((679.1, 679.2, 684.9, 685.0), []),  # below 1 %
        ((800.0, 801.0, 857.0, 857.0), ["1x1"]),
    ],
)
def test_no_best_is_marked_where_nothing_tells_a_difference(memory: tuple[float, ...], marked: list[str]) -> None:
    runs = [trial(top, seed=seed) for top in ("1x1", "1x2") for seed in (0, 1)]
    runs = [replace(run, metrics={**run.metrics, "peak_memory_mib": mib}) for run, mib in zip(runs, memory)]
    assert best(table(study(*runs), "main")).get("Peak memory (MiB)", []) == marked


def test_no_speed_up_is_the_best_over_a_single_run_of_the_reference() -> None:
    speeds = (("1x2", (100.0, 101.0)), ("1x4", (180.0, 181.0)), ("2x4", (300.0, 301.0)))
    runs = [trial(top, seed=n, images_per_s=speed) for top, both in speeds for n, speed in enumerate(both)]
    assert best(table(study(*runs), "main"))["Speed-up (times)"] == ["2x4"]
    assert "Speed-up (times)" not in best(table(study(*runs[1:]), "main"))  # the other has failed


def test_what_was_not_measured_is_empty() -> None:
    lost = replace(trial(seed=1, training_s=1.0), status="FAILED", reason="a worker died.")
    skipped, pending = without_run("SKIPPED", "needs 4 CPUs", "2x2", 16), without_run("PENDING", "", "1x2", 16)
    odd = replace(without_run("SKIPPED", "", "1x1", 16), name="odd", params={**trial().params, "topology": "2y2"})
    main = table(study(trial(), lost, skipped, pending, odd), "main")
    assert texts(main, "Training (s)") == {
        "1x1": "100.00",
        "2y2 (SKIPPED)": "",
        "1x2 (PENDING)": "",
        "2x2 (SKIPPED)": "",
    }
    assert column(main, "Speed-up (times)")["2x2 (SKIPPED)"] == Entry()
    bare = replace(trial("1x2"), metrics={})
    assert column(table(study(trial(), bare), "main"), "Training (s)")["1x2"] == Entry()
    assert section(study(pending)).tables == []


def test_validation_stands_beside_the_test_and_has_the_mark() -> None:
    of = twice(validated(grid(), 0.6, 0.7, 0.71, 0.72, 0.73, 0.9))
    main = table(of, "main")
    validation, test = titles = [title for title in main.columns if "ccuracy" in title]
    assert [texts(main, title)["2x2, batch 64"] for title in titles] == [
        "90.00 ± 0.00",
        "66.00 ± 0.00",
    ]  # of that epoch
    assert (best(main)[validation], test in best(main)) == (["2x2, batch 64"], False)
    assert {"validation_accuracy_percent", "accuracy_percent"} <= {row["figure"] for row in figures(of)}
    mixed = replace(of, trials=[*of.trials[:-1], twice(grid()).trials[-1]])
    assert best(table(mixed, "main"))["Accuracy (%)"] == ["1x1, batch 16"]


def test_the_way_to_a_target_is_that_of_the_validation_images() -> None:
    of = validated(study(trial(training_s=30.0)), 0.9)
    found = table(of, "to_90_percent", [0.9])
    assert found.title == "To 90 % validation accuracy"
    assert texts(found, "Epochs") == {"1x1": "2.0"}
    lost = validated(study(trial("1x2"), trial()), 0.9, 0.95)
    assert column(table(lost, "to_95_percent", [0.95]), "Epochs")["1x2"] == Entry()


def test_a_target_that_is_not_there_is_empty() -> None:
    reached = trial(accuracies=(0.3, 0.6))
    for run in (trial("1x2", accuracies=(0.1, 0.3)), replace(trial("1x2", accuracies=(0.3, 0.6)), history={})):
        found = table(study(reached, run), "to_60_percent", [0.6])
        assert column(found, "Training (s)")["1x2"] == Entry()


def test_the_way_to_every_target_has_a_table_and_figures_of_its_own() -> None:
    runs = study(trial(training_s=20.0, accuracies=(0.3, 0.6)))
    keys = [one.key for one in section(runs, [0.3, 0.6, 0.3]).folded if "_to_" in one.key]
    assert [key.partition("_to_")[2] for key in keys] == ["30_percent", "60_percent"]
    found = {row["figure"]: row["mean"] for row in figures(runs, [0.3, 0.6], None)}
    assert (found["to_30_percent_epochs"], found["to_60_percent_epochs"]) == (1.0, 2.0)


def test_a_target_that_only_some_seeds_reached_is_never_the_best() -> None:
    lucky = [trial("1x1", seed=n, training_s=30.0, accuracies=(best,)) for n, best in enumerate((0.7, 0.5, 0.5))]
    rest = [trial("1x2", training_s=60.0, accuracies=(0.7,)), trial("2x2", training_s=90.0, accuracies=(0.7,))]
    again = twice(study(*rest)).trials
    found = table(study(*lucky, *again), "to_70_percent", [0.7])
    assert texts(found, "Training (s)") == {"1x1": "30.00 (n=1 of 3)", "1x2": "60.00 ± 0.00", "2x2": "90.00 ± 0.00"}
    assert best(found) == {"Training (s)": ["1x2"]}


@pytest.mark.parametrize(("reached", "target"), [(0.19, None), (0.21, 0.2)])
def test_no_default_target_is_what_guessing_nearly_reaches(reached: float, target: float | None) -> None:
    """Of ten classes, 15 % is 1.5 times chance."""
    runs = [trial(accuracies=(value,), class_names=tuple("0123456789")) for value in (0.9, reached)]
    assert Runs(study(*runs)).task.default_target(runs) == target


def test_rows_are_named_by_what_differs() -> None:
    held = study(trial("1x2", 32), trial("2x2", 32), hold="global_batch", axes=("topology", "global_batch_size"))
    assert [label for label, _ in table(held, "main").rows] == ["1x2, global batch 64", "2x2, global batch 128"]
    rates = study(*(trial(params={"lr": lr}) for lr in ("0.1", "0.2")), axes=("lr",))
    assert [label for label, _ in table(rates, "main").rows] == ["1x1, lr=0.1", "1x1, lr=0.2"]
    devices = study(trial(), trial(params={"device": "cuda"}))
    assert [label for label, _ in table(devices, "main").rows] == ["1x1, cpu", "1x1, cuda"]
    both = study(trial(), trial(params={"model": "vit"}), axes=("model",))
    assert [one.title for one in sections(both)] == ["resnet on cifar10", "vit on cifar10"]


def test_strategies_are_an_axis_like_any_other() -> None:
    found = table(small(), "main")
    assert texts(found, "Iteration (ms)") == {
        **{"gather_scatter, 1x1": "402", "ddp, 1x1": "400", "gpipe, 1x1 (SKIPPED)": ""},
        **{"gather_scatter, 1x2": "410", "ddp, 1x2": "260", "gpipe, 1x2": "300"},
    }
    assert best(table(twice(small()), "main"))["Iteration (ms)"] == ["ddp, 1x2"]
    other = study(*small().trials, trial("1x1", 64, params={"model": "vgg11"}), axes=("strategy", "topology"))
    assert "Iteration (ms)" not in best(table(other, "main"))  # iterations of different sizes
    assert column(found, "Speed-up (times)")["gpipe, 1x2"].note == "against gather_scatter, 1x1"


def test_a_steps_parts_add_up_to_its_iteration() -> None:
    found = table(small(), "steps")
    row = dict(found.rows)["ddp, 1x2"]
    assert [entry.text for entry in row] == ["10.0", "70.0", "140", "20.0", "10.0", "10.0", "260", "250", "65.0"]
    assert sum(entry.value or 0 for entry in row[:6]) == pytest.approx(row[6].value)
    assert (row[8].note, row[8].run_ids) == ("against ddp, 1x1", ("id-ddp-1x2-seed0", "id-ddp-1x1-seed0"))
    whole = dict(found.rows)["gpipe, 1x2"]
    assert [entry.text for entry in whole] == ["", "", "", "", "", "300", "300", "250", "74.6"]

    def other(title: str, label: str, *runs: Run) -> Entry:
        return column(table(of_strategies(*runs), "steps"), title)[label]

    half = of_strategy("ddp", "1x2", params={"global_batch_size": "128"})
    assert other("Share of a single worker's (%)", "ddp, 1x2, global batch 128", half, *small().trials) == Entry()
    split = of_strategy("fsdp", "1x2", parts=(0.1,))
    assert other("Not split (ms)", "ddp, 1x2", of_strategy("ddp", "1x2", 0.1, parts=(0.1, 0.1)), split) == Entry()
    assert other("Not split (ms)", "hogwild, 1x2", of_strategy("hogwild", "1x2", parts=(0.1,)), split).text == ""


def test_ranks_have_columns_of_their_own() -> None:
    loss, right, memory = (table(small(), key) for key in ("test_loss_by_rank", "accuracy_percent_by_rank", "memory"))
    assert loss.columns == ["Configuration", "Mean over ranks", "Rank 0", "Rank 1"]
    rows = {label: [entry.text for entry in entries] for label, entries in loss.rows}
    assert rows == {"gather_scatter, 1x2": ["2.2000", "2.1000", "2.3000"], "ddp, 1x1": ["2.2500", "2.2500", ""]}
    assert [entry.text for entry in dict(right.rows)["gather_scatter, 1x2"]] == ["16.00", "15.00", "17.00"]
    assert texts(memory, "Rank 1") == {"gather_scatter, 1x2": "498", "ddp, 1x1": ""}
    partly = of_strategies(of_strategy("ddp", "1x2", losses=(2.1,)), of_strategy("fsdp", "1x2", losses=(2.1, 2.2)))
    assert texts(table(partly, "test_loss_by_rank"), "Mean over ranks") == {"ddp, 1x2": "", "fsdp, 1x2": "2.1500"}


def test_pipelines_and_stale_gradients_have_tables_where_they_were_measured() -> None:
    def rows(of: Sweep, key: str) -> dict[str, list[str]]:
        return {label: [entry.text for entry in entries] for label, entries in table(of, key).rows}

    assert rows(small(), "bubble") == {"gpipe, 1x2": ["4", "25.0", "20.0"]}
    assert not [one for one in section(small()).folded if one.key.endswith("staleness")]
    also = [{"staleness/mean": 1.0 + n, "staleness/max": 3.0 + n} for n in (0, 1)]
    stale = of_strategies(*(of_strategy("hogwild", "1x2", seed=n, also=of) for n, of in enumerate(also)))
    assert rows(stale, "staleness") == {"1x2": ["1.50 ± 0.71", "4"]}


@pytest.mark.parametrize("of", [grid(), small()])
def test_every_figure_leads_to_its_runs_and_every_table_has_a_name_of_its_own(of: Sweep) -> None:
    found = section(of, price=PRICE)
    every = [*found.tables, *found.folded]
    measured = [entry for one in every for _, row in one.rows for entry in row if entry.n]
    assert len(measured) > 40
    assert all(entry.run_ids for entry in measured)
    assert len({one.key for one in every}) == len(every)


def test_data_has_a_row_for_every_run_and_for_every_figure() -> None:
    seeds = study(trial(seed=0, training_s=10.0), trial(seed=1, training_s=12.0), trial("1x2", training_s=7.5))
    rows = figures(seeds, [], None)
    (entry,) = (row for row in rows if row["figure"] == "training_s" and row["topology"] == "1x1")
    assert entry == {
        **{"model": "resnet", "dataset": "cifar10", "device": "cpu", "strategy": "ddp", "topology": "1x1"},
        **{"workers": 1, "batch_size": 16, "global_batch_size": 16, "figure": "training_s"},
        **{"mean": 11.0, "std": pytest.approx(2**0.5), "n": 2, "run_ids": "id-bs16-1x1-seed0 id-bs16-1x1-seed1"},
    }
    assert len({(row["topology"], row["figure"]) for row in rows}) == len(rows)
    read = list(csv.DictReader(io.StringIO(data.csv_text(run_rows(seeds, PRICE)))))
    assert [(row["run_id"], row["seed"], row["training_s"], row["commit"]) for row in read] == [
        (f"id-bs16-{top}-seed{seed}", f"{seed}", seconds, "c" * 40)
        for top, seed, seconds in (("1x1", 0, "10.0"), ("1x1", 1, "12.0"), ("1x2", 0, "7.5"))
    ]
    assert float(read[0]["cost_usd"]) == pytest.approx(50 / 3600 * 0.1785)
    assert "lr" not in read[0]  # the same in all
    skipped = run_rows(study(trial(), without_run("SKIPPED", "no room", "2x2", 16))).to_dict("records")[1]
    assert (skipped["status"], skipped["reason"], skipped["run_id"]) == ("SKIPPED", "no room", "")


@pytest.mark.parametrize("axes", [(), ("lr",)])
@pytest.mark.parametrize("trials", [(), (without_run("FAILED", "out of memory", "1x1", 16),)])
def test_before_a_run_has_finished_data_has_its_columns(trials: tuple[Run, ...], axes: tuple[str, ...]) -> None:
    """A sweep of one cell has no axes, and no runs before its first begins."""
    made = report.build(study(*trials, axes=axes))
    place = ["model", "dataset", "device", "strategy", "topology", "workers", "batch_size", "global_batch_size"]
    columns = [*place, "figure", "mean", "std", "n", "run_ids"]
    assert data.csv_text(made.data["figures"]) == ",".join(columns) + "\n"
    assert {"run_id", "status", "model", "seed", "commit"} <= set(made.data["runs"])
    assert len(made.data["runs"]) == len(trials)
    assert "No run has finished" in pages.markdown(made) or not trials


def test_frames_have_the_numbers_that_their_csv_files_have() -> None:
    """A whole number stays one beside an empty cell, in the file as well."""
    fast = trial("1x2", params={"lr": "0.2", "accumulate": "4", "amp": "x"})
    made = report.build(study(trial(params={"amp": "4"}), fast, axes=("topology", "lr", "accumulate"))).data
    figures, runs = made["figures"], made["runs"]
    assert set(figures[(figures.workers == 2) & (figures.lr == 0.2)].accumulate) == {4}
    assert list(runs[["batch_size", "seed", "lr"]].dtypes.map(str)) == ["Int64", "Int64", "Float64"]
    assert (list(runs.accumulate.isna()), list(runs.amp)) == ([True, False], ["4", "x"])
    assert [row["accumulate"] for row in csv.DictReader(io.StringIO(data.csv_text(runs)))] == ["", "4"]
    assert list(figures.index) == list(range(len(figures)))


def test_figures_have_the_names_that_programs_read() -> None:
    runs = [of_strategy("ddp", "1x2", parts=(0.1,) * 5, losses=(2.0, 2.1), right=(0.1, 0.2), memory=(5, 6))]
    runs += [of_strategy("hogwild", "1x1", also={"staleness/mean": 1, "staleness/max": 2, "bubble/measured": 0.1})]
    assert {row["figure"] for row in figures(of_strategies(*runs), [0.1], PRICE)} == {
        *("training_s", "images_per_s", "iteration_ms", "speed_up", "scaling_efficiency_percent", "cost_usd"),
        *("accuracy_percent", "precision_percent", "recall_percent", "f1_percent", "specificity_percent", "test_loss"),
        *("test_loss_ranks_mean", "test_loss_rank0", "test_loss_rank1", "peak_memory_mib", "peak_memory_mib_rank0"),
        *("accuracy_percent_ranks_mean", "accuracy_percent_rank0", "accuracy_percent_rank1", "peak_memory_mib_rank1"),
        *("startup_s", "data_s", "evaluation_s", "checkpoint_s", "wall_s", "epoch_s", "iteration_p95_ms"),
        *("step_data_ms", "step_forward_ms", "step_backward_ms", "step_communication_ms", "step_optimizer_ms"),
        *("step_not_split_ms", "share_of_single_percent", "to_10_percent_s", "to_10_percent_epochs"),
        *("bubble_percent", "staleness_mean_updates", "staleness_max_updates"),
    }


def test_what_bounds_each_configuration_is_one_table() -> None:
    def bounded(topology: str, bound: str, share: float) -> Run:
        one = trial(topology, tags={"cifar_ray.bound": bound})
        return replace(one, metrics={**one.metrics, "bound/share": share})

    runs = study(
        bounded("1x1", "balanced: computing takes 95 % of a step", 0.0),
        bounded("1x2", "slow rank: rank 1 on node0 takes 92 ms, the others 66: ...", 0.18),
        bounded("2x2", "not enough evidence: too short", 0.3),  # the share of a process before a resume
    )
    shown = table(runs, "bounds")
    assert texts(shown, "Bound") == {"1x1": "balanced", "1x2": "slow rank"}
    assert texts(shown, "Costs (% of training)")["1x2"] == "18"


def test_everything_of_a_report_as_plain_values() -> None:
    one = study(trial(), axes=(), hold="")
    found = data.whole(report.build(one))
    assert found.keys() == {"study", "store", "status", "command", "findings", "cautions", "figures", "runs"}
    assert (found["study"], found["store"], found["status"]) == ("scaling", "sqlite:////tmp/mlflow.db", "FINISHED")
    assert found["findings"][0]["highlights"][1] == {"title": "Accuracy", "figure": "60.00 %", "configuration": "1x1"}
    assert (found["runs"], found["figures"]) == (data.records(run_rows(one)), figures(one))
    lost = [trial(), without_run("SKIPPED", "no room", "2x2", 16), trial("1x2", params={"strategy": ""})]
    rows = run_rows(study(*lost, axes=("strategy", "topology"))).to_dict("records")
    assert [row["strategy"] for row in rows] == ["ddp", "", ""]


def side_by_side(*trials: Run, full: bool = False) -> tuple[list[str], dict[str, list[str]]]:
    """A comparison's lines, and the rows of its one table."""
    of = study(*trials, axes=(), hold="", run_id="")
    lines = str(compare.build(of, full=full)).splitlines()
    start = next((at for at, line in enumerate(lines) if line and set(line) <= {"-", " "}), len(lines)) + 1
    split = (re.split(r"\s{2,}", line.strip()) for line in lines[start:])
    return lines, {label: entries for label, *entries in split}


def test_compared_runs_are_columns_and_what_differs_comes_first() -> None:
    other = trial("1x2", training_s=50.0, params={"lr": "0.2"}, tags={"cifar_ray.hardware": "NVIDIA H200"})
    lines, rows = side_by_side(trial(), other)
    assert list(rows)[:4] == ["topology", "global_batch_size", "lr", "hardware"]
    assert (rows["lr"], rows["Training (s)"]) == (["0.1", "0.2"], ["100.00", "50.00"])
    full, _ = side_by_side(trial(), other, full=True)
    assert {"Where the time went", "Runs"} <= set(full) - set(lines)


def test_a_comparison_is_frames_too() -> None:
    twins = [replace(trial(training_s=seconds), run_id=digit * 32) for digit, seconds in (("a", 9.0), ("b", 8.0))]
    made = compare.build(study(*twins, trial("1x2", training_s=50.0), axes=(), hold="", run_id=""))
    shown = made.data["side_by_side"]
    assert list(shown) == ["bs16 1x1 seed0 aaaaaaaa", "bs16 1x1 seed0 bbbbbbbb", "bs16 1x2 seed0"]
    assert list(shown.loc["topology"]) == ["1x1", "1x1", "1x2"]
    figures = made.data["figures"]
    assert list(figures[figures.figure == "training_s"]["mean"]) == [9.0, 8.0, 50.0]


def test_compared_runs_of_different_models_show_every_setting_that_differs_and_no_other() -> None:
    """What is recorded of one run alone was not set for the other: it is a difference, too."""
    one = trial(accuracies=(0.3, 0.5), params={"steps_per_epoch": "150", "precision": "bf16", "log_every": "1"})
    params = {"model": "vit", "dataset": "folder:/photos", "lr": "0.01", "precision": "fp32"}
    _, rows = side_by_side(
        one, trial(params={**params, "device": "cuda", "log_every": "9", "model_options.depth": "6"})
    )
    settings = {label: row for label, row in rows.items() if label[0].islower()}
    assert settings == {
        **{"model": ["resnet", "vit"], "dataset": ["cifar10", "folder:/photos"], "device": ["cpu", "cuda"]},
        **{"epochs": ["2", "3"], "log_every": ["1", "9"], "lr": ["0.1", "0.01"], "precision": ["bf16", "fp32"]},
        **{"steps_per_epoch": ["150", "-"], "model_options.depth": ["-", "6"]},
    }


def test_a_setting_that_only_one_of_two_seeds_has_parts_them() -> None:
    short = trial(seed=1, accuracies=(0.3, 0.5, 0.2), params={"steps_per_epoch": "150"})
    assert side_by_side(trial(), short)[1]["Accuracy (%)"] == ["60.00", "20.00"]
    assert side_by_side(trial(), trial(seed=1))[1]["Accuracy (%)"] == ["60.00 ± 0.00"]
