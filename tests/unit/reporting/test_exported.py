"""A study as a file, and several as one report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import cautions, exported, pages, report, scaling
from cifar_ray.reporting.frame import Runs
from cifar_ray.tracking.study import Sweep
from tests.support.studies import grid, study, trial, without_run


def round_trip(of: Sweep, folder: Path) -> Sweep:
    made = folder / "study.json"
    made.write_text(exported.text(of))
    return exported.read(made)


def plain(of: Sweep) -> str:
    """Its report, but for the moment and the place that it comes from."""
    return pages.markdown(replace(report.build(replace(of, store="", page=None)), written=""))


def test_a_file_makes_the_report_that_the_store_makes(tmp_path: Path) -> None:
    of = grid()
    assert plain(round_trip(of, tmp_path)) == plain(of)
    assert round_trip(of, tmp_path).store == "study.json"


def test_a_file_names_nobody(tmp_path: Path) -> None:
    tags = {"mlflow.user": "ada", "mlflow.source.git.commit": "abc", "cifar_ray.folder": "/home/ada/runs/one"}
    tags |= {"cifar_ray.earlier.mlflow.user": "ada", "cifar_ray.earlier.cifar_ray.folder": "/home/ada/0"}
    tags |= {
        "cifar_ray.command": "cifar-ray train --seed 1 --data-dir=/home/ada/data --storage /home/ada/runs --epochs 2"
    }
    tags["cifar_ray.earlier.cifar_ray.command"] = "cifar-ray train --tracking-uri http://ada:secret@host --epochs 1"
    of = study(
        replace(trial(tags=tags), page="http://here/"),
        store="sqlite:////home/ada/mlflow.db",
        page="http://here/",
        command="cifar-ray sweep --tracking-uri http://ada:secret@host --grid 'lr=0.1,0.2' batch_size=16",
    )
    (back,) = round_trip(of, tmp_path).trials
    assert round_trip(of, tmp_path).command == "cifar-ray sweep --grid lr=0.1,0.2 batch_size=16"
    assert back.tags["cifar_ray.command"] == "cifar-ray train --seed 1 --epochs 2"
    assert back.tags["cifar_ray.earlier.cifar_ray.command"] == "cifar-ray train --epochs 1"
    assert not re.search("ada|secret|host", (tmp_path / "study.json").read_text().replace("host, Linux", ""))
    assert back.page is None
    assert "mlflow.user" not in back.tags
    assert back.tags["mlflow.source.git.commit"] == "abc"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"cifar_ray_study": 2}', '{"cifar_ray_study": 1, "trials": [3]}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    made = tmp_path / "other.json"
    made.write_text(content)
    with pytest.raises(
        ConfigError, match=r"other\.json is no study that `cifar-ray export` of this version has written"
    ):
        exported.read(made)
    with pytest.raises(ConfigError, match=r"cannot read nosuch\.json: No such file or directory"):
        exported.read(Path("nosuch.json"))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *((("params", "batch_size"), value) for value in ("", "x", None, 1e999, ["1"])),
        (("params", "topology"), None),
        (("tags",), None),
        (("tags", "cifar_ray.hardware"), 3),
        (("metrics", "images_per_s"), "inf"),
        (("metrics", "images_per_s"), 1e999),
        (("history", "test/accuracy", "step"), [None, 2, 3]),
        (("history", "test/accuracy", "value"), [0.5]),
        (("history", "test/accuracy"), 3),
    ],
)
def test_a_run_without_what_reports_need_is_refused(where: tuple[str, ...], value: object, tmp_path: Path) -> None:
    whole = json.loads(exported.text(grid()))
    place = whole["trials"][1]
    for name in where[:-1]:
        place = place[name]
    place[where[-1]] = value
    (tmp_path / "study.json").write_text(json.dumps(whole))
    with pytest.raises(
        ConfigError, match=r"study\.json is no study that `cifar-ray export` of this version has written"
    ):
        exported.read(tmp_path / "study.json")


def test_seeds_of_two_files_are_one_configuration_and_machines_are_not() -> None:
    first, second = study(trial(seed=0)), study(trial(seed=1))
    (one,) = Runs(exported.together([first, second])).configurations
    assert [run.seed for run in one.trials] == [0, 1]
    elsewhere = study(trial(seed=1, tags={"cifar_ray.hardware": "NVIDIA H200"}))
    apart = Runs(exported.together([first, elsewhere])).configurations
    assert [len(one.trials) for one in apart] == [1, 1]
    assert exported.together([first]) is first


def test_accuracies_of_two_machines_are_one_configuration_where_runs_were_made_for_them() -> None:
    first, second = (
        study(
            trial(
                seed=seed,
                params={"cpus_per_worker": cpus},
                tags={"cifar_ray.hardware": machine, "cifar_ray.measure": "accuracy"},
            )
        )
        for seed, (machine, cpus) in enumerate((("AMD EPYC", "2"), ("Xeon", "16")))
    )
    for other in (first, replace(first, axes=(), run_id="")):  # of sweeps, and of runs named one by one
        (one,) = Runs(exported.together([other, second])).configurations
        assert [run.seed for run in one.trials] == [0, 1]


def test_times_of_two_machines_never_share_a_mean() -> None:
    everything = study(trial(seed=0, tags={"cifar_ray.hardware": "AMD EPYC"}))
    times = study(trial(seed=1, tags={"cifar_ray.hardware": "Xeon", "cifar_ray.measure": "times"}))
    apart = Runs(exported.together([everything, times])).configurations
    assert [len(one.trials) for one in apart] == [1, 1]


def test_an_axis_of_one_file_alone_is_one_of_all() -> None:
    """A second seed of a part of a grid belongs to the cells of the grid."""
    grid = study(trial(), trial(run_id="b", params={"lr": "0.2"}), axes=("lr", "batch_size", "topology"))
    part = study(trial(seed=1), axes=("batch_size", "topology"))
    one_cell = study(trial(seed=2), axes=(), run_id="sweep of one cell")
    merged = exported.together([grid, part, one_cell])
    assert merged.axes == ("lr", "batch_size", "topology")
    assert [[run.seed for run in one.trials] for one in Runs(merged).configurations] == [[0, 1, 2], [0]]


def test_a_run_that_two_files_have_counts_once() -> None:
    """As the file knows it in which it has finished; a cell that had not begun gives way to its run."""
    early = study(trial(seed=0), replace(trial(seed=1), status="RUNNING"), without_run("PENDING", "", "1x2", 16))
    late = study(trial(seed=0), trial(seed=1), replace(trial("1x2"), name="bs16 1x2 seed0"))
    early = replace(early, trials=[*early.trials[:2], replace(early.trials[2], name="bs16 1x2 seed0")])
    merged = exported.together([early, late])
    assert [(one.name, one.status) for one in merged.trials] == [(one.name, one.status) for one in late.trials]
    assert [len(one.trials) for one in Runs(merged).configurations] == [2, 1]


def test_two_exports_of_a_sweep_are_the_later_one_of_it() -> None:
    skipped = without_run("SKIPPED", "too large", "2x2", 16)
    early, late = (study(trial(seed=0), skipped, status=status) for status in ("RUNNING", "FINISHED"))
    for files in ([early, late], [late, early]):
        merged = exported.together(files)
        assert (merged.status, len(merged.trials)) == ("FINISHED", 2)
        assert not any("RUNNING" in line for line in cautions.cautions(Runs(merged)))


def test_a_skipped_cell_stays_where_another_study_trained_one_with_other_settings() -> None:
    skipped = without_run("SKIPPED", "too large", "1x2", 16)
    run = replace(trial("1x2"), name=skipped.name)
    same, other = (study(run, trial(seed=5)), study(replace(run, params={**run.params, "lr": "0.7"}), trial(seed=5)))
    assert len(exported.together([study(replace(skipped, params={**skipped.params, "lr": "0.1"})), other]).trials) == 3
    assert len(exported.together([study(replace(skipped, params=dict(run.params))), same]).trials) == 2


def test_a_report_of_its_parts_is_that_of_the_whole() -> None:
    """Also where a parameter follows an axis, as the threads of a worker follow the topology."""
    runs = [
        trial(topology, seed=seed, images_per_s=speed + seed, params={"cpus_per_worker": cpus})
        for seed in (0, 1)
        for topology, speed, cpus in (("1x1", 100.0, "4"), ("1x2", 190.0, "2"))
    ]
    whole, parts = study(*runs), [study(*runs[:2]), study(*runs[2:])]
    merged = exported.together(parts)
    assert [one.trials for one in Runs(merged).configurations] == [one.trials for one in Runs(whole).configurations]
    among = Runs(merged).configurations
    again = Runs(whole).configurations
    assert scaling.ratio(among[1], among)[1:] == scaling.ratio(again[1], again)[1:]  # type: ignore[index]
    slower = study(*(replace(run, params={**run.params, "lr": "0.2"}) for run in runs[2:]))
    assert len(Runs(exported.together([parts[0], slower])).configurations) == 4


def test_what_one_file_warns_of_all_of_them_warn_of() -> None:
    busy = study(trial(seed=0), metrics={"sweep/concurrency": 2.0})
    killed = study(trial(seed=1), name="other", status="KILLED")
    running = study(trial(seed=2), name="third", status="RUNNING")
    said = cautions.cautions(Runs(exported.together([busy, killed, running])))
    assert "The sweep third is RUNNING." in said
    assert "The sweep other is KILLED." in said
    assert any(line.startswith("Up to 2 runs trained at the same time") for line in said)


def test_sweeps_that_held_different_batches_need_to_be_told_which_one_a_column_shares() -> None:
    grown = study(trial("1x1", 16), trial("1x1", 32), trial("1x2", 32), name="grown")
    held = study(trial("1x2", 16), name="held", hold="global_batch", run_id="other")
    with pytest.raises(ConfigError, match=r"^hold must be .* not held the same: grown: batch; held: global_batch$"):
        exported.together([grown, held])
    both = exported.together([grown, held], "global_batch")
    found = {(one.topology, one.batch_size): one for one in Runs(both).configurations}
    ratio = scaling.ratio(found["1x2", 16], list(found.values()))
    assert ratio is not None
    assert ratio.reference is found["1x1", 32]  # no 1x1 has held the global batch: a single worker holds both
    assert exported.together([grown], "global_batch").hold == "global_batch"


def of_two_sweeps() -> Sweep:
    """A hundred steps on an emulated cluster for the times, and whole runs on a busy machine for the accuracies."""
    steps = {"epochs": "1", "steps_per_epoch": "100"}
    times, accuracies = (
        {"cifar_ray.measure": measure, "cifar_ray.hardware": f"AMD EPYC ({where})"}
        for measure, where in (("times", "emulated"), ("accuracy", "busy"))
    )
    timed = [
        trial("1x1", training_s=4, images=1600, images_per_s=400, accuracies=(0.1,), params=steps, tags=times),
        trial("2x2", training_s=5, images=6400, images_per_s=1280, accuracies=(0.1,), params=steps, tags=times),
    ]
    busy = {"times_are_a_clusters": "false"}
    learned = [
        trial("1x1", training_s=900, images_per_s=7, run_id="a", tags=accuracies),
        trial("2x2", training_s=100, images_per_s=9, run_id="b", accuracies=(0.7,) * 3, tags={**accuracies, **busy}),
    ]
    return exported.together([study(*timed, name="times"), study(*learned, name="accuracies", run_id="other")])


@pytest.mark.parametrize(("measure", "said"), [("all", True), ("times", False)])
def test_accuracies_of_a_part_of_the_test_images_are_said_to_be(measure: str, said: bool) -> None:
    params, tags = {"test_images": "128"}, {"cifar_ray.measure": measure}
    made = report.build(study(trial("1x1", params=params, tags=tags), trial("1x2", tags=tags)))
    assert ("1 of 2 finished runs were evaluated on 128 test images only." in made.cautions) == said


def test_copies_of_training_images_in_the_test_are_said_and_tell_no_runs_apart() -> None:
    params = {"data.test_size": "56", "data.test_copies": "42"}
    runs = study(trial("1x1", params=params), trial("1x1", params={"data.test_size": "56"}, run_id="b"))
    said = "1 of 2 finished runs have copies of training images in the test (42 of 56): their figures may be too good."
    assert said in report.build(runs).cautions
    assert len(Runs(runs).configurations) == 1


def test_times_and_accuracies_of_two_sweeps_make_one_report() -> None:
    made = report.build(of_two_sweeps(), "rangoju_katneni_2025")
    (finding,) = made.findings
    assert [(one.title, one.figure) for one in finding.highlights] == [
        ("Most images/s (n = 1)", "1,280.0 images/s"),
        ("Best accuracy (n = 1)", "70.00 %"),
        ("Speed-up", "3.20 times"),
    ]
    assert list(made.cautions)[:2] == [
        "2 of 4 finished runs were made for their times alone: accuracy is left out.",
        "2 of 4 finished runs were made for their accuracy alone: their times are left out.",
    ]
    assert not [line for line in made.cautions if "shared the cores" in line]
    assert made.comparison is not None
    rows = dict(made.comparison.tables[0].rows)
    shown = dict(zip(made.comparison.tables[0].columns[1:], rows["resnet, 2x2, batch 16"], strict=True))
    assert {title.removesuffix(", ours"): entry.text for title, entry in shown.items() if "ours" in title} == {
        "Training, % of base": "31.2",  # 400 of 1280 images/s
        "Training (s)": "117.19",  # three epochs of 50,000 images at 1280 images/s
        "Accuracy (%)": "70.00",
    }
    assert shown["Training (s), ours"].note == "by images/s"
    alone = replace(of_two_sweeps(), trials=[one for one in of_two_sweeps().trials if one.measure == "times"])
    compared = report.build(alone, "rangoju_katneni_2025").comparison
    assert compared is not None
    (table,) = compared.tables
    assert all(
        entry.text == ""
        for entry in (
            dict(zip(table.columns[1:], entries, strict=True))["Training (s), ours"] for _, entries in table.rows
        )
    )


def test_a_configuration_has_its_times_of_one_sweep_and_its_accuracies_of_the_other() -> None:
    made = report.build(of_two_sweeps())
    (section,) = made.sections
    (main,) = section.tables
    rows = {label: dict(zip(main.columns[1:], entries, strict=True)) for label, entries in main.rows}
    assert list(rows) == ["1x1", "2x2"]
    four = rows["2x2"]
    assert (four["Images/s"].run_ids, four["Images/s"].text) == (("id-bs16-2x2-seed0",), "1,280.0")
    assert (four["Accuracy (%)"].run_ids, four["Accuracy (%)"].text) == (("b",), "70.00")
    assert {(entry.n, entry.partial) for entry in four.values() if entry.n} == {(1, False)}
    assert section.notes[:2] == [
        "Made for accuracy: epochs 3, lr 0.1, lr_scaling none, strategy ddp.",
        "Made for times: steps_per_epoch 100, epochs 1, lr 0.1, lr_scaling none, strategy ddp.",
    ]
    total = next(table for table in section.folded if "Total (s)" in table.columns)
    assert all(entry.run_ids in ((), ("id-bs16-1x1-seed0",)) for entry in dict(total.rows)["1x1"])


def test_data_and_weights_are_named_without_the_folders_of_people(tmp_path: Path) -> None:
    """Wherever they are told, and two data sets of one name stay two."""
    lists = {"/home/ada/my photos/flowers": 0.6, "/home/bob/flowers/": 0.9}
    runs = [
        trial(
            accuracies=(accuracy,),
            run_id=path,
            params={"dataset": f"folder:{path}", "weights": "/Users/ada/first.pt"},
            tags={
                "dataset": f"folder:{path}",
                "cifar_ray.command": f"cifar-ray train --dataset 'folder:{path}' --weights=/Users/ada/first.pt",
            },
        )
        for path, accuracy in lists.items()
    ]
    lost = replace(runs[0], status="FAILED", reason="there is no file '/home/ada/my photos/flowers/train/1.png'")
    of = study(*(replace(run, run_id=f"{at}") for at, run in enumerate((*runs, lost))), axes=("dataset",))
    (first, second, third) = round_trip(of, tmp_path).trials
    text = (tmp_path / "study.json").read_text()
    assert not [name for name in ("home", "ada", "bob", "Users") if name in text]
    assert first.params["weights"] == "first.pt"
    assert "--weights=first.pt" in first.tags["cifar_ray.command"]
    assert first.dataset == first.tags["dataset"] == third.dataset != second.dataset
    assert [run.dataset for run in exported.as_in_a_file(of).trials] == [first.dataset, second.dataset, third.dataset]
