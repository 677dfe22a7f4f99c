"""Published studies beside made-up runs."""

from __future__ import annotations

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import papers
from cifar_ray.reporting.contents import Entry, Table
from cifar_ray.reporting.frame import Runs
from tests.support.studies import grid, of_strategies, of_strategy, study, trial

ALONE = "no finished run on their base with the same seeds"


def row(table: Table, label: str) -> dict[str, Entry]:
    return dict(zip(table.columns[1:], dict(table.rows)[label], strict=True))


def test_topologies_beside_ours() -> None:
    found = papers.comparison(Runs(grid()), "rangoju_katneni_2025")
    (main,), (quality, _) = found.tables, found.folded
    assert [label for label, _ in main.rows] == [
        f"resnet, {t}, batch {b}" for t in ("1x1", "1x2", "2x2") for b in (16, 64)
    ]
    assert main.columns[0] == "Configuration"
    last = row(main, "resnet, 2x2, batch 16")
    assert {title: entry.text for title, entry in last.items()} == {
        "Training, % of base, theirs": "25.2",  # 298.57 s of 1185.90 s
        "Training, % of base, ours": "33.3",  # 100 of 300 images/s
        "Training (s), theirs": "298.57",
        "Training (s), ours": "105.00",
        "Accuracy (%), theirs": "81.64",
        "Accuracy (%), ours": "70.00",
    }
    assert last["Training, % of base, ours"].run_ids == ("id-bs16-2x2-seed0", "id-bs16-1x1-seed0")
    assert row(quality, "resnet, 1x2, batch 64")["F1 (%), theirs"].text == "80.44"
    assert [table.title for table in (main, quality)] == ["resnet on cifar10", "resnet on cifar10: test metrics"]
    assert [table.key for table in (main, quality)] == [
        "baseline_resnet_on_cifar10",
        "baseline_resnet_on_cifar10_test_metrics",
    ]
    assert last["Training, % of base, ours"].note == "by images/s, against 1x1, batch 16"
    assert last["Training, % of base, ours"].value == pytest.approx(100 / 3)
    assert (last["Training (s), theirs"].note, last["Training (s), theirs"].value) == ("", 298.57)
    hardware = "NVIDIA Quadro P4000 (8 GB); multi-node is two nodes with two GPUs each, private network"
    assert found.notes[0] == f"Theirs: {hardware}."
    assert [note.split(":")[0] for note in found.notes[1:]] == ["Comparable", "With caution", "Not comparable"]


def test_shares_of_runs_that_did_less_are_computed_from_their_pace() -> None:
    """A quarter of the images, at twice as many a second: for as many, half the time."""
    alone = trial("1x1", training_s=400.0, images=50000, images_per_s=125.0)
    four = trial("2x2", training_s=50.0, images=12500, images_per_s=250.0)
    (table,) = papers.comparison(Runs(study(alone, four)), "rangoju_katneni_2025").tables
    ours = row(table, "resnet, 2x2, batch 16")["Training, % of base, ours"]
    assert (ours.text, ours.value) == ("50.0", pytest.approx(50))
    assert ours.note.startswith("by images/s, against ")


def test_what_we_have_not_run_stays_empty() -> None:
    (table,) = papers.comparison(Runs(study(trial("1x2", 16))), "rangoju_katneni_2025").tables
    assert row(table, "resnet, 1x2, batch 16")["Training, % of base, ours"] == Entry(note=ALONE)
    missing = row(table, "resnet, 1x2, batch 64")
    assert missing["Training (s), ours"] == Entry(note="no finished run of the same kind")
    assert missing["Training, % of base, ours"] == missing["Training (s), ours"]
    assert missing["Training, % of base, theirs"].text == "54.7"
    assert missing["Training, % of base, theirs"].value == pytest.approx(100 * 448.42 / 819.44)


def test_strategies_of_vgg11_by_time_per_iteration() -> None:
    runs = of_strategies(
        of_strategy("ddp", "1x1", 0.4),
        of_strategy("ddp", "4x1", 0.2, losses=(2.0, 2.1, 2.2, 2.3)),
        of_strategy("ddp", "2x1", 0.3),
    )
    found = papers.comparison(Runs(runs), "vgg11_group_report")
    (table,) = found.tables
    ddp = row(table, "vgg11, ddp, workers 4, global batch 256")
    assert {title: entry.text for title, entry in ddp.items()} == {
        "Iteration, % of base, theirs": "59.3",
        "Iteration, % of base, ours": "50.0",
        "Iteration (ms), theirs": "915",
        "Iteration (ms), ours": "200",
        "Test loss, theirs": "2.3030 / 2.3030 / 2.3030 / 2.3030",
        "Test loss, ours": "2.2000",
        "Accuracy (%), theirs": "13.00 / 13.00 / 13.00 / 13.00",
        "Accuracy (%), ours": "20.00",
    }
    alone = row(table, "vgg11, single, workers 1, global batch 256")
    assert alone["Iteration (ms), ours"].run_ids == ("id-ddp-1x1-seed0",)
    assert row(table, "vgg11, all_reduce, workers 4, global batch 256")["Iteration (ms), ours"].text == ""
    gathered = row(table, "vgg11, gather_scatter, workers 4, global batch 256")["Test loss, theirs"]
    assert (gathered.text, gathered.value) == ("2.2541 / 2.2344 / 2.1840 / 2.2267", pytest.approx(2.2248))


def test_strategies_by_images_per_second() -> None:
    runs = study(
        trial("1x1", 128, images_per_s=100.0),
        trial("1x2", 128, images_per_s=150.0, params={"strategy": "data_parallel"}),
        trial("1x2", 128, images_per_s=140.0, params={"strategy": "gpipe", "strategy_options.micro_batches": "8"}),
        axes=("topology", "strategy"),
    )
    found = papers.comparison(Runs(runs), "comparative_analysis_asu")
    parallel = row(found.tables[0], "data_parallel, workers 2, global batch 256")
    assert (parallel["Images/s, % of base, theirs"].text, parallel["Images/s, % of base, ours"].text) == (
        "130.5",
        "150.0",
    )
    memory = parallel["Peak memory (MiB), theirs"]
    assert (memory.text, memory.value) == ("1,144 / 1,049", pytest.approx(1096.7, abs=0.1))  # 1.2 and 1.1 GB
    pipeline = row(found.tables[0], "gpipe, workers 2, global batch 256, micro batches 4")
    assert pipeline["Images/s, ours"].text == ""  # cut into other parts
    assert pipeline["Peak memory (MiB), theirs"].text == "858 / 477"
    assert [table.title for table in found.folded] == []


def test_shares_are_of_runs_of_the_same_kind() -> None:
    gpu = {"device": "cuda"}
    runs = [trial(top, images_per_s=speed) for top, speed in (("1x1", 100.0), ("2x2", 400.0))]
    runs += [trial(top, images_per_s=speed, params=gpu) for top, speed in (("1x1", 1000.0), ("2x2", 2000.0))]
    (table,) = papers.comparison(Runs(study(*runs)), "rangoju_katneni_2025").tables
    ours = "Training, % of base, ours"
    assert row(table, "resnet, 2x2, batch 16 (ours: 2x2, cpu)")[ours].text == "25.0"
    assert row(table, "resnet, 2x2, batch 16 (ours: 2x2, cuda)")[ours].text == "50.0"
    assert row(table, "resnet, 2x2, batch 16 (ours: 2x2, cuda)")[ours].note == "by images/s, against 1x1, cuda"
    (table,) = papers.comparison(Runs(study(trial("1x1"), trial("2x2", params=gpu))), "rangoju_katneni_2025").tables
    assert row(table, "resnet, 2x2, batch 16")[ours] == Entry(note=ALONE)


@pytest.mark.parametrize("key", ["rangoju_katneni_2025", "vgg11_group_report", "comparative_analysis_asu"])
def test_nothing_in_common_is_said(key: str) -> None:
    found = papers.comparison(Runs(study(trial("3x1", 7))), key)
    assert not found.tables
    assert {table.title for table in found.folded} <= {"Cannot be right, and why"}
    assert found.title == f"Beside {papers.known()[key]['title']}"
    assert found.notes == (
        f"Theirs: {papers.known()[key]['hardware']}.",
        "None of their configurations is here.",
    )


def test_an_unknown_study_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        papers.comparison(Runs(grid()), "rangoju")
    assert caught.value.as_flag().startswith(
        "--baseline must be rangoju_katneni_2025, vgg11_group_report or comparative_analysis_asu"
    )
