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
    last = row(main, "resnet, 2x2, batch 16")
    assert {title: entry.text for title, entry in last.items()} == {
        "Training, % of base, theirs": "25.2",  # 298.57 s of 1185.90 s
        "Training, % of base, ours": "33.3",  # 100 of 300 images/s
        "Training (s), theirs": "298.57",
        "Training (s), ours": "105.00",
        "Accuracy (%), theirs": "81.64",
        "Accuracy (%), ours": "70.00",
    }
    share = last["Training, % of base, ours"]
    assert (share.run_ids, share.value) == (("id-bs16-2x2-seed0", "id-bs16-1x1-seed0"), pytest.approx(100 / 3))
    assert share.note == "by images/s, against 1x1, batch 16"
    assert row(quality, "resnet, 1x2, batch 64")["F1 (%), theirs"].text == "80.44"
    assert [note.split(":")[0] for note in found.notes] == ["Theirs", "Comparable", "With caution", "Not comparable"]


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
    (table,) = papers.comparison(Runs(runs), "vgg11_group_report").tables
    ddp = row(table, "vgg11, ddp, workers 4, global batch 256")
    assert {title.removesuffix(", ours"): entry.text for title, entry in ddp.items() if "ours" in title} == {
        **{"Iteration, % of base": "50.0", "Iteration (ms)": "200", "Test loss": "2.2000", "Accuracy (%)": "20.00"}
    }
    assert (ddp["Iteration, % of base, theirs"].text, ddp["Iteration (ms), theirs"].text) == ("59.3", "915")
    alone = row(table, "vgg11, single, workers 1, global batch 256")
    assert alone["Iteration (ms), ours"].run_ids == ("id-ddp-1x1-seed0",)
    assert row(table, "vgg11, all_reduce, workers 4, global batch 256")["Iteration (ms), ours"].text == ""
    gathered = row(table, "vgg11, gather_scatter, workers 4, global batch 256")["Test loss, theirs"]
    assert (gathered.text, gathered.value) == ("2.2541 / 2.2344 / 2.1840 / 2.2267", pytest.approx(2.2248))


def test_a_pipeline_is_theirs_if_it_cuts_a_batch_as_they_do() -> None:
    cut = {number: {"strategy_options.micro_batches": number} for number in ("4", "8")}
    four, eight = (of_strategies(of_strategy("gpipe", "1x2", params=of), of_strategy("ddp")) for of in cut.values())
    (table,) = papers.comparison(Runs(four), "comparative_analysis_asu").tables
    found = row(table, "gpipe, workers 2, global batch 256, micro batches 4")
    assert (found["Images/s, theirs"].text, found["Images/s, ours"].text) == ("1,528.0", "512.0")
    assert papers.comparison(Runs(eight), "comparative_analysis_asu").tables == []


def test_shares_are_of_runs_of_the_same_kind() -> None:
    gpu, ours = {"device": "cuda"}, "Training, % of base, ours"
    runs = [trial(top, images_per_s=speed) for top, speed in (("1x1", 100.0), ("2x2", 400.0))]
    runs += [trial(top, images_per_s=speed, params=gpu) for top, speed in (("1x1", 1000.0), ("2x2", 2000.0))]
    (table,) = papers.comparison(Runs(study(*runs)), "rangoju_katneni_2025").tables
    for device, share in (("cpu", "25.0"), ("cuda", "50.0")):
        assert row(table, f"resnet, 2x2, batch 16 (ours: 2x2, {device})")[ours].text == share
    (table,) = papers.comparison(Runs(study(trial("1x1"), trial("2x2", params=gpu))), "rangoju_katneni_2025").tables
    assert row(table, "resnet, 2x2, batch 16")[ours] == Entry(note=ALONE)


def test_an_unknown_study_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^baseline must be "):
        papers.comparison(Runs(grid()), "rangoju")
