"""What a report says in words: its findings and its cautions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.reporting import cautions, compare, cost, html, report, words
from cifar_ray.tracking.study import Study
from tests.support.studies import grid, of_strategies, of_strategy, study, trial, without_run
from tests.unit.reporting.test_tables import small

PRICE = cost.find("c7i.xlarge")


def said(of: Study, price: cost.Price | None = None) -> list[str]:
    (finding,) = words.findings(of, price)
    return list(finding.sentences)


def highlights(of: Study, price: cost.Price | None = None) -> list[tuple[str, str, str]]:
    (finding,) = words.findings(of, price)
    return [(one.title, one.figure, one.configuration) for one in finding.highlights]


def test_what_a_study_comes_to() -> None:
    assert said(grid()) == [
        "2x2 with batch 64 is 3.33 times as fast as 1x1 with batch 64 (60.00 against 200.00 s).",
        "It loses 15.0 points of accuracy against 1x1 with batch 16: 65.00 against 80.00 %. One run of each (n = 1) "
        "cannot tell that from chance. The global batch is 256 there and 16 here.",
        "With 2 workers the efficiency is 90 %, with 4 it is 75 to 80 %.",
    ]
    # 110 s of training and 40 s of all else are 150 s; at 0.1785 USD an hour they cost 0.0074375 USD.
    assert highlights(grid(), PRICE) == [
        ("Fastest", "60.00 s", "2x2 with batch 64"),
        ("Most accurate", "80.00 %", "1x1 with batch 16"),
        ("Best speed-up for its workers", "1.80 times", "1x2 with batch 16"),
        ("Cheapest on c7i.xlarge", "0.00744 USD a run", "1x2 with batch 64"),
    ]


def pair(difference: float, seeds: int = 3, images: int = 0) -> Study:
    """1x1 and a faster 1x2, whose accuracy is lower by so much with each seed."""
    tested = {"test/images": float(images)} if images else {}
    runs = []
    for top, seconds, less in (("1x1", 100.0, 0.0), ("1x2", 50.0, difference)):
        for seed in range(seeds):
            one = trial(top, seed=seed, training_s=seconds + seed, accuracies=(0.6 + 0.01 * seed - less,))
            runs.append(replace(one, metrics={**one.metrics, **tested}))
    return study(*runs)


@pytest.mark.parametrize(
    ("of", "sentence"),
    [
        (
            pair(0.005),
            "Its accuracy is not distinguishable from the best, that of 1x1: 60.50 against 61.00 % "
            "(Student's t-test over the seeds and the size of the test set, 5 %).",
        ),
        (
            pair(0.05),
            "It loses 5.0 points of accuracy against 1x1: 56.00 against 61.00 %. The global batch is 32 there and 16 "
            "here.",
        ),
        (
            pair(0.05, images=500),
            "Its accuracy is not distinguishable from the best, that of 1x1: 56.00 against 61.00 % "
            "(Student's t-test over the seeds and the size of the test set, 5 %).",
        ),
        (pair(-0.1), "No other is more accurate."),
        (pair(0.0), "No other is more accurate."),
    ],
)
def test_what_speed_costs_is_told_from_chance(of: Study, sentence: str) -> None:
    assert said(of)[:2] == ["1x2 is 1.98 times as fast as 1x1 (51.00 against 101.00 s).", sentence]


def test_speeds_that_chance_does_not_tell_apart_are_no_finding() -> None:
    runs = [
        trial(top, seed=seed, training_s=s + 5 * seed) for top, s in (("1x1", 101.0), ("1x2", 100.0)) for seed in (0, 1)
    ]
    assert said(study(*runs))[0] == (
        "1x2 is 1.01 times as fast as 1x1 (102.50 against 103.50 s). Its speed is not distinguishable from that of "
        "1x1 (Student's t-test over the seeds, 5 %)."
    )


def unequal() -> Study:
    """A sweep of as many steps everywhere: the more workers, the more images, and so the more seconds."""
    return study(
        trial("1x1", training_s=40.0, images=4800, images_per_s=120.0, accuracies=(0.3,)),
        trial("1x2", training_s=50.0, images=9600, images_per_s=200.0, accuracies=(0.35,)),
        trial("2x2", training_s=60.0, images=19200, images_per_s=320.0, accuracies=(0.4,)),
    )


def test_unequal_work_is_ranked_by_images_per_second() -> None:
    assert said(unequal()) == [
        "The runs trained on different numbers of images (4,800 to 19,200), so they are ranked by images/s, and a "
        "difference in accuracy may come from the amount of training.",
        "2x2 is 2.67 times as fast as 1x1 (320.0 against 120.0 images/s).",
        "With 2 workers the efficiency is 83 %, with 4 it is 67 %.",
    ]
    # 80 s for 4,800 images, 90 s for 9,600, and twice 100 s for 19,200, at 0.1785 USD an hour: 0.000465 USD for 9.4 s.
    assert highlights(unequal(), PRICE) == [
        ("Fastest", "320.0 images/s", "2x2"),
        ("Most accurate", "40.00 %", "2x2"),
        ("Best speed-up for its workers", "1.67 times", "1x2"),
        ("Cheapest on c7i.xlarge", "0.000465 USD per 1,000 images", "1x2"),
    ]


def test_of_equally_accurate_ones_the_fastest_is_named() -> None:
    runs = study(trial("1x1", training_s=100.0), trial("1x2", training_s=50.0))
    assert highlights(runs)[1] == ("Most accurate", "60.00 %", "1x2")


def test_a_run_that_was_ended_early_is_no_part_of_the_comparison() -> None:
    early = replace(trial("1x4", accuracies=(0.3,)), status="KILLED")
    assert said(replace(grid(), trials=(*grid().trials, early))) == said(grid())


def test_without_figures_there_is_nothing_to_compare() -> None:
    failed = study(without_run("FAILED", "out of memory", "1x1", 16))
    assert said(failed) == ["No run has finished, so there is nothing to compare yet."]
    bare = study(replace(trial(), metrics={}, history={}))
    assert said(bare) == ["Runs have finished, but recorded neither training times nor accuracies."]
    whole = report.build(bare, "rangoju_katneni_2025", PRICE)
    assert whole.sections[0].tables == whole.sections[0].folded == []
    assert "Runs have finished" in html.page(whole)
    assert list(compare.terminal(bare, PRICE, [], full=True))
    assert said(study(trial())) == []


def test_each_device_and_data_set_has_findings_of_its_own() -> None:
    gpu = {"device": "cuda"}
    runs = [trial(top, training_s=s) for top, s in (("1x1", 100.0), ("1x2", 50.0))]
    runs += [trial(top, training_s=s, params=gpu) for top, s in (("1x1", 10.0), ("1x2", 4.0))]
    found = words.findings(study(*runs, without_run("SKIPPED", "needs 4 GPUs", "1x4", 16)), None)
    assert [(one.title, one.sentences[0]) for one in found] == [
        ("resnet, cpu", "1x2 is 2.00 times as fast as 1x1 (50.00 against 100.00 s)."),
        ("resnet, cuda", "1x2 is 2.50 times as fast as 1x1 (4.00 against 10.00 s)."),
    ]
    sets = [trial(params={"dataset": name}) for name in ("cifar10", "mnist")]
    assert [one.title for one in words.findings(study(*sets), None)] == ["resnet on cifar10", "resnet on mnist"]


def test_the_fastest_strategy_is_named_and_where_the_others_lose_their_time() -> None:
    *_, line = said(small())
    assert line == (
        "With 2 workers, ddp on 1x2 has the shortest iteration (260 ms), 1.15 times as fast as gpipe on 1x2 (300 ms) "
        "and 1.58 times as fast as the slowest, gather_scatter on 1x2 (410 ms). Exposed communication takes 150 ms "
        "longer with gather_scatter on 1x2 than with ddp on 1x2."
    )


def test_where_time_goes_is_not_said_without_a_split_that_tells() -> None:
    def last(*parts: float) -> str:
        fast = of_strategy("ddp", "1x2", 0.3, parts=(0.1, 0.1))
        return said(of_strategies(fast, of_strategy("fsdp", "1x2", 0.4, parts=parts)))[-1]

    assert last(0.15, 0.15).endswith(
        "fsdp on 1x2 (400 ms). Data takes 50.0 ms longer with fsdp on 1x2 than with ddp on 1x2."
    )
    assert last(0.12, 0.12).endswith("fsdp on 1x2 (400 ms).")  # most is not split
    assert last().endswith("fsdp on 1x2 (400 ms).")


def test_iterations_of_different_sizes_are_no_rivals_and_asynchronous_ones_say_what_they_are() -> None:
    both = [of_strategy(name, "1x2", s) for name, s in (("ddp", 0.3), ("hogwild", 0.2))]
    wide = [trial("1x2", 64, params={"model": "vgg11", "strategy": name}) for name in ("ddp", "all_reduce")]
    lines = [line for line in said(of_strategies(*both, *wide)) if "shortest" in line]
    assert lines[0].startswith("With 2 workers and global batch 128, ddp on 1x2 with global batch 128 has")
    assert (
        "hogwild on 1x2 with global batch 256 has the shortest iteration (200 ms, by images/s of all ranks" in lines[1]
    )
    one = of_strategies(*(of_strategy(name, "1x1") for name in ("ddp", "all_reduce")))
    assert not [line for line in said(one) if "shortest" in line]


def warned(of: Study, about: str) -> str:
    (found,) = (caution for caution in cautions.cautions(of) if about in caution)
    return found


def test_a_whole_study_has_one_reservation() -> None:
    assert cautions.cautions(grid()) == [
        "Every configuration was run once (n=1): small differences may be chance, and there is no standard deviation."
    ]
    assert cautions.cautions(pair(0.1, 2)) == []
    assert warned(study(trial(), *(trial("1x2", seed=n) for n in (0, 1))), "n=1").startswith("1 of 2 configurations")


def test_a_sweep_that_has_not_ended_well() -> None:
    some = study(
        trial("1x1"),
        without_run("FAILED", "out of memory.", "1x2", 16),
        without_run("SKIPPED", "needs 8 CPUs", "2x4", 16),
        without_run("PENDING", "", "2x2", 16),
        status="RUNNING",
        cautions=("half of it is missing.",),
    )
    assert cautions.cautions(some)[:4] == [
        "half of it is missing.",
        "The sweep still runs: 1 of 3 runs are finished.",
        "1 of 4 runs failed: bs16 1x2 seed0 FAILED: out of memory.",
        "1 of 4 runs were skipped: bs16 2x4 seed0 SKIPPED: needs 8 CPUs.",
    ]
    killed = replace(some, status="KILLED")
    assert warned(killed, "ended as") == "The sweep has ended as KILLED: 1 of 3 runs are finished."
    assert warned(replace(some, run_id=""), "Not everything") == "Not everything is done: 1 of 3 runs are finished."
    many = study(*(without_run("FAILED", "", "1x2", size) for size in range(1, 8)))
    assert warned(many, "failed").endswith("bs5 1x2 seed0 FAILED; and 2 more.")


def test_times_that_are_not_what_they_seem() -> None:
    counted = trial("2x1", tags={"times_are_a_clusters": "false"})
    assert warned(study(counted), "cluster").startswith("All times are not a cluster's: nodes or CPUs were only")
    assert warned(study(counted, trial("1x1")), "cluster").startswith(
        "Times of 1 of 2 finished runs are not a cluster's"
    )
    assert warned(study(trial(), metrics={"sweep/concurrency": 2.0}), "same time").startswith("Up to 2 runs")
    moved = trial("1x1", tags={"cifar_ray.earlier.topology": "2x2"})
    assert "bs16 1x1 seed0" in warned(study(moved), "another topology")


def test_figures_of_different_programs_and_machines_side_by_side() -> None:
    other = {"mlflow.source.git.commit": "d" * 40 + "-dirty", "cifar_ray.hardware": "NVIDIA H200"}
    mixed = study(trial("1x1"), trial("1x2", tags=other))
    assert warned(mixed, "commits").startswith("Runs of 2 different commits of the program stand side by side: ccc")
    assert "AMD EPYC 9754; NVIDIA H200" in warned(mixed, "kinds of hardware")
    assert warned(mixed, "(-dirty)")


def test_outliers_are_named_and_of_many_the_first() -> None:
    """Six runs of a small model, of which one ended far below the others, as was once measured."""
    right = {"16 1x1": 0.5826, "16 1x2": 0.5859, "16 2x2": 0.5831, "64 1x1": 0.5869, "64 1x2": 0.5932, "64 2x2": 0.417}
    runs = [trial(name[3:], int(name[:2]), accuracies=(accuracy,)) for name, accuracy in right.items()]
    assert warned(study(*runs), "below the median") == (
        "bs64 2x2 seed0 ended at 41.7 % test accuracy, 17 points below the median of the 6 runs of resnet on cifar10 "
        "that trained as much: look at its settings and its loss curve, and train more seeds."
    )
    many = [trial(seed=seed, accuracies=(0.6 if seed < 9 else 0.1,)) for seed in range(16)]
    found = [caution for caution in cautions.cautions(study(*many)) if "below the median" in caution]
    assert [line.split()[2] for line in found[:5]] == [f"seed{n}" for n in range(9, 14)]
    assert found[5].startswith("2 more runs")
