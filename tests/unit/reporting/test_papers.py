from __future__ import annotations

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import papers
from cifar_ray.reporting.table import Entry, Table
from tests.support.studies import grid, study, trial

ALONE = "no finished run on 1x1 with the same batch that trained on as many images"


def by_column(table: Table, label: str) -> dict[str, Entry]:
    entries = dict(table.rows)[label]
    return dict(zip(table.columns[1:], entries, strict=True))


def test_topologies_beside_ours() -> None:
    found = papers.comparison(grid(), "rangoju_katneni_2025")
    share, accuracy, seconds = found.tables
    assert [label for label, _ in share.rows] == ["1x1", "1x2", "2x2"]
    row = by_column(share, "2x2")
    assert row["batch 16 per worker, theirs"].text == "25.2 %"  # 298.57 s of 1185.90 s
    assert row["batch 16 per worker, ours"].text == "26.2 %"  # 105 s of 400 s
    assert row["batch 16 per worker, ours"].run_ids == ("id-bs16-2x2-seed0", "id-bs16-1x1-seed0")
    assert by_column(accuracy, "1x2")["batch 64 per worker, theirs"].text == "80.47 %"
    assert by_column(accuracy, "1x2")["batch 64 per worker, ours"].text == "72.00 %"
    assert by_column(seconds, "1x1")["batch 16 per worker, theirs"].text == "1,185.90 s"
    assert "not comparable" in seconds.title
    assert found.notes[:2] == (
        "Theirs: NVIDIA Quadro P4000 (8 GB); multi-node is two nodes with two GPUs each, private network.",
        "Ours: AMD EPYC 9754.",
    )
    assert [note.split(":")[0] for note in found.notes[2:]] == ["Comparable", "With caution", "Not comparable"]


def test_shares_are_of_runs_that_did_as_much() -> None:
    runs = study(trial("1x1", training_s=400.0, images=50000), trial("2x2", training_s=100.0, images=12500))
    row = by_column(papers.comparison(runs, "rangoju_katneni_2025").tables[0], "2x2")
    assert row["batch 16 per worker, ours"] == Entry(note=ALONE)


def test_what_we_have_not_run_stays_empty() -> None:
    found = papers.comparison(study(trial("1x2", 16)), "rangoju_katneni_2025")
    row = by_column(found.tables[0], "1x2")
    assert row["batch 16 per worker, ours"] == Entry(note=ALONE)
    assert row["batch 64 per worker, ours"] == Entry(note="no finished run")
    assert row["batch 64 per worker, theirs"].text == "54.7 %"


def test_strategies_of_vgg11_by_time_per_iteration() -> None:
    vgg = {"model": "vgg11"}
    runs = study(trial("1x1", 256, params=vgg), trial("4x1", 64, params=vgg), trial("2x1", 64, params=vgg))
    table, *_ = papers.comparison(runs, "vgg11_group_report").tables
    row = by_column(table, "ddp (4 workers)")
    assert row["share of single, theirs"].text == "59.3 %"
    assert row["share of single, ours"].text == "100.0 %"
    assert row["per iteration, ours"].text == "0.125 s"
    assert row["test accuracy, theirs"].text == "13 %"
    assert by_column(table, "single")["per iteration, ours"].run_ids == ("id-bs256-1x1-seed0",)
    assert by_column(table, "all_reduce (4 workers)")["per iteration, ours"].text == ""


def test_strategies_by_images_per_second() -> None:
    parallel = {"strategy": "data_parallel"}
    runs = study(
        trial("1x1", 128, images_per_s=100.0),
        trial("1x2", 128, images_per_s=150.0, params=parallel),
        axes=("topology", "strategy"),
    )
    table, _ = papers.comparison(runs, "comparative_analysis_asu").tables
    row = by_column(table, "data_parallel (batch 256)")
    assert (row["share of single, theirs"].text, row["share of single, ours"].text) == ("130.5 %", "150.0 %")
    assert by_column(table, "gpipe (batch 256)")["images/s, ours"].text == ""


def test_shares_are_of_runs_on_the_same_device() -> None:
    gpu = {"device": "cuda"}
    both = study(
        trial("1x1", training_s=400.0),
        trial("2x2", training_s=100.0),
        trial("1x1", training_s=40.0, params=gpu),
        trial("2x2", training_s=20.0, params=gpu),
        trial("1x2", training_s=30.0, params=gpu),
    )
    share = papers.comparison(both, "rangoju_katneni_2025").tables[0]
    ours = "batch 16 per worker, ours"
    assert by_column(share, "2x2, cpu")[ours].text == "25.0 %"
    assert by_column(share, "2x2, cuda")[ours].text == "50.0 %"
    assert by_column(share, "2x2, cuda")[ours].note == "against 1x1 (1 GPU); global batch 64"
    assert by_column(share, "1x2, cpu")[ours] == Entry(note="no finished run")
    alone = study(trial("1x1"), trial("2x2", params=gpu))
    share = papers.comparison(alone, "rangoju_katneni_2025").tables[0]
    assert by_column(share, "2x2, cuda")[ours] == Entry(note=ALONE)


def test_strategies_are_compared_where_all_else_is_the_same() -> None:
    vgg = {"model": "vgg11"}
    runs = study(
        trial("1x1", 256, params={**vgg, "precision": "fp32"}),
        trial("4x1", 64, params={**vgg, "precision": "fp32"}),
        trial("2x2", 64, params={**vgg, "precision": "fp32"}),
        trial("4x1", 64, params={**vgg, "precision": "bf16"}),
        axes=("topology", "precision"),
    )
    table, *_ = papers.comparison(runs, "vgg11_group_report").tables
    same = by_column(table, "ddp (4 workers), precision=fp32")
    assert same["share of single, ours"].note == (
        "4x1 (4 CPU workers), precision=fp32, the first of 2 that fit, against 1x1 (1 CPU worker), precision=fp32"
    )
    assert same["per iteration, ours"].note.startswith("4x1 (4 CPU workers), precision=fp32, the first of 2 that fit; ")
    other = by_column(table, "ddp (4 workers), precision=bf16")
    assert (other["share of single, ours"].text, other["per iteration, ours"].text) == ("", "0.125 s")


@pytest.mark.parametrize("key", ["rangoju_katneni_2025", "vgg11_group_report", "comparative_analysis_asu"])
def test_nothing_in_common_is_said(key: str) -> None:
    found = papers.comparison(study(trial("3x1", 7)), key)
    assert not found.tables
    assert found.notes[-1].startswith("None of the finished runs has a configuration that they measured")


def test_a_study_without_figures_is_one_sentence() -> None:
    found = papers.comparison(grid(), "resnet50_multi_gpu")
    assert (len(found.tables), len(found.notes)) == (0, 1)
    assert "has printed no figures" in found.notes[0]


def test_an_unknown_study_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        papers.comparison(grid(), "rangoju")
    assert caught.value.as_flag().startswith(
        "--baseline must be rangoju_katneni_2025, vgg11_group_report, comparative_analysis_asu or resnet50_multi_gpu"
    )
