"""A study as a file, and several as one report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import cautions, exported, pages, report, scaling
from cifar_ray.reporting.contents import Entry, Report
from cifar_ray.reporting.frame import Runs
from cifar_ray.tracking.study import Run, Sweep
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
    command = "cifar-ray train --seed 1 --data-dir=/home/ada/data --storage /home/ada/runs --epochs 2"
    tags |= {"cifar_ray.command": command, "cifar_ray.earlier.cifar_ray.command": f"{command} --tracking-uri http://ada:secret@host"}  # fmt: skip
    of = study(
        replace(trial(tags=tags), page="http://here/"),
        store="sqlite:////home/ada/mlflow.db",
        page="http://here/",
        command="cifar-ray sweep --tracking-uri http://ada:secret@host --grid 'lr=0.1,0.2' batch_size=16",
    )
    made = round_trip(of, tmp_path)
    (back,) = made.trials
    assert made.command == "cifar-ray sweep --grid lr=0.1,0.2 batch_size=16"
    commands = {value for name, value in back.tags.items() if name.endswith("command")}
    assert commands == {"cifar-ray train --seed 1 --epochs 2"}
    assert not re.search("ada|secret|host", (tmp_path / "study.json").read_text().replace("host, Linux", ""))
    assert (back.page, back.tags["mlflow.source.git.commit"], "mlflow.user" in back.tags) == (None, "abc", False)


def refused(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"{path.name} is no study that `cifar-ray export`"):
        exported.read(path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"cifar_ray_study": 2}', '{"cifar_ray_study": 1, "trials": [3]}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    refused(tmp_path / "other.json", content)
    with pytest.raises(ConfigError, match="cannot read nosuch"):
        exported.read(Path("nosuch.json"))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *((("params", "batch_size"), value) for value in ("x", None, 1e999, ["1"])),
        (("params", "topology"), None),
        (("tags",), None),
        (("tags", "cifar_ray.hardware"), 3),
        *((("metrics", "images_per_s"), value) for value in ("inf", 1e999)),
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
    refused(tmp_path / "study.json", json.dumps(whole))


def sizes(*files: Sweep) -> list[int]:
    """Runs in each configuration of what several files make."""
    return [len(one.trials) for one in Runs(exported.together(files)).configurations]


def on(machine: str, seed: int, measure: str = "all", **params: str) -> Sweep:
    tags = {"cifar_ray.hardware": machine, "cifar_ray.measure": measure}
    return study(trial(seed=seed, params=params, tags=tags))


def test_times_of_two_machines_never_share_a_mean_and_accuracies_do() -> None:
    first, second = study(trial(seed=0)), study(trial(seed=1))
    assert sizes(first, second) == [2]
    assert exported.together([first]) is first
    assert sizes(first, on("NVIDIA H200", 1)) == [1, 1]
    assert sizes(on("AMD EPYC", 0), on("Xeon", 1, "times")) == [1, 1]
    one, other = on("AMD EPYC", 0, "accuracy", cpus_per_worker="2"), on("Xeon", 1, "accuracy", cpus_per_worker="16")
    assert sizes(one, other) == sizes(replace(one, axes=(), run_id=""), other) == [2]


def test_an_axis_of_one_file_alone_is_one_of_all() -> None:
    """A second seed of a part of a grid belongs to the cells of the grid."""
    grid = study(trial(), trial(run_id="b", params={"lr": "0.2"}), axes=("lr", "batch_size", "topology"))
    part = study(trial(seed=1), axes=("batch_size", "topology"))
    one_cell = study(trial(seed=2), axes=(), run_id="sweep of one cell")
    merged = exported.together([grid, part, one_cell])
    seeds = [[run.seed for run in one.trials] for one in Runs(merged).configurations]
    assert (merged.axes, seeds) == (("lr", "batch_size", "topology"), [[0, 1, 2], [0]])


def test_a_run_that_two_files_have_counts_once() -> None:
    """As the file knows it in which it has finished; a cell that had not begun gives way to its run."""
    early = study(trial(seed=0), replace(trial(seed=1), status="RUNNING"), without_run("PENDING", "", "1x2", 16))
    late = study(trial(seed=0), trial(seed=1), replace(trial("1x2"), name="bs16 1x2 seed0"))
    early = replace(early, trials=[*early.trials[:2], replace(early.trials[2], name="bs16 1x2 seed0")])
    merged = exported.together([early, late])
    assert [(one.name, one.status) for one in merged.trials] == [(one.name, one.status) for one in late.trials]
    assert [len(one.trials) for one in Runs(merged).configurations] == [2, 1]


def test_two_exports_of_a_sweep_are_the_later_one_of_it_and_different_ones_keep_their_cautions() -> None:
    skipped = without_run("SKIPPED", "too large", "2x2", 16)
    early, late = (study(trial(seed=0), skipped, status=status) for status in ("RUNNING", "FINISHED"))
    for files in ([early, late], [late, early]):
        merged = exported.together(files)
        assert (merged.status, len(merged.trials)) == ("FINISHED", 2)
        assert not any("RUNNING" in line for line in cautions.cautions(Runs(merged)))
    busy = study(trial(seed=0), metrics={"sweep/concurrency": 2.0})
    others = [study(trial(seed=at), name=status, status=status) for at, status in enumerate(("KILLED", "RUNNING"), 1)]
    said = cautions.cautions(Runs(exported.together([busy, *others])))
    assert all(any(word in line for line in said) for word in ("Up to 2 runs", "KILLED", "RUNNING"))


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
    parts = [study(*runs[:2]), study(*runs[2:])]
    merged, whole = (Runs(of).configurations for of in (exported.together(parts), study(*runs)))
    assert [one.trials for one in merged] == [one.trials for one in whole]
    assert scaling.ratio(merged[1], merged)[1:] == scaling.ratio(whole[1], whole)[1:]  # type: ignore[index]
    slower = study(*(replace(run, params={**run.params, "lr": "0.2"}) for run in runs[2:]))
    assert sizes(parts[0], slower) == [1] * 4


def test_sweeps_that_held_different_batches_need_to_be_told_which_one_a_column_shares() -> None:
    grown = study(trial("1x1", 16), trial("1x1", 32), trial("1x2", 32), name="grown")
    held = study(trial("1x2", 16), name="held", hold="global_batch", run_id="other")
    with pytest.raises(ConfigError, match=r"^hold must be "):
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


def test_copies_of_training_images_in_the_test_are_said_and_tell_no_runs_apart() -> None:
    params = {"data.test_size": "56", "data.test_copies": "42"}
    runs = study(trial("1x1", params=params), trial("1x1", params={"data.test_size": "56"}, run_id="b"))
    assert any("copies of training images" in line and "42 of 56" in line for line in report.build(runs).cautions)
    assert len(Runs(runs).configurations) == 1


def test_times_and_accuracies_of_two_sweeps_make_one_report() -> None:
    made = report.build(of_two_sweeps(), "rangoju_katneni_2025")
    assert [one.figure for one in made.findings[0].highlights] == ["1,280.0 images/s", "70.00 %", "3.20 times"]
    assert ["alone" in line for line in made.cautions][:2] == [True, True]
    assert not [line for line in made.cautions if "shared the cores" in line]

    def ours(of: Report) -> dict[str, Entry]:
        (table,) = of.comparison.tables  # type: ignore[union-attr]
        row = zip(table.columns[1:], dict(table.rows)["resnet, 2x2, batch 16"], strict=True)
        return {title.removesuffix(", ours"): entry for title, entry in row if "ours" in title}

    shown = ours(made)
    assert {title: entry.text for title, entry in shown.items()} == {
        "Training, % of base": "31.2",  # 400 of 1280 images/s
        "Training (s)": "117.19",  # three epochs of 50,000 images at 1280 images/s
        "Accuracy (%)": "70.00",
    }
    assert shown["Training (s)"].note == "by images/s"
    alone = replace(of_two_sweeps(), trials=[one for one in of_two_sweeps().trials if one.measure == "times"])
    assert ours(report.build(alone, "rangoju_katneni_2025"))["Training (s)"].text == ""


def test_data_and_weights_are_named_without_the_folders_of_people(tmp_path: Path) -> None:
    """Wherever they are told, and two data sets of one name stay two."""

    def run(at: int, path: str, **changes: str) -> Run:
        dataset = f"folder:{path}"
        command = f"cifar-ray train --dataset '{dataset}' --weights=/Users/ada/first.pt"
        return trial(
            run_id=f"{at}",
            params={"dataset": dataset, "weights": "/Users/ada/first.pt"},
            tags={"dataset": dataset, "cifar_ray.command": command},
            **changes,
        )

    photos, reason = "/home/ada/my photos/flowers", "there is no file '/home/ada/my photos/flowers/train/1.png'"
    runs = run(0, photos), run(1, "/home/bob/flowers/"), run(2, photos, status="FAILED", reason=reason)
    of = study(*runs, axes=("dataset",))
    first, second, third = back = round_trip(of, tmp_path).trials
    text = (tmp_path / "study.json").read_text()
    assert not [name for name in ("home", "ada", "bob", "Users") if name in text]
    assert (first.params["weights"], "--weights=first.pt" in first.tags["cifar_ray.command"]) == ("first.pt", True)
    assert first.dataset == first.tags["dataset"] == third.dataset != second.dataset
    assert [run.dataset for run in exported.as_in_a_file(of).trials] == [one.dataset for one in back]
