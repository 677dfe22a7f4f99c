from __future__ import annotations

from dataclasses import replace

from cifar_ray.reporting import aggregate, cost, words
from cifar_ray.reporting.study import Study
from tests.studies import grid, study, trial, without_run


def said(of: Study, price: cost.Price | None = None) -> list[str]:
    return words.summary(of, aggregate.configurations(of), price)


def test_what_a_study_comes_to() -> None:
    assert said(grid()) == [
        "resnet on cifar10: fastest is 2x2 (4 CPU workers) with batch 64 per worker (global batch 256), with 60.00 s "
        "of training, 6.67 times as fast as the slowest, 1x1 (1 CPU worker) with batch 16 per worker (global batch "
        "16), and 3.33 times as fast as 1x1 with the same batch.",
        "resnet on cifar10: most accurate is 1x1 (1 CPU worker) with batch 16 per worker (global batch 16), with "
        "80.00 % of the test images right.",
        "resnet on cifar10: for its speed the fastest gives up 15.00 percentage points of accuracy (65.00 % against "
        "80.00 % of 1x1 (1 CPU worker) with batch 16 per worker (global batch 16)); with one run of a configuration "
        "(n=1) that cannot be told from noise.",
        "resnet on cifar10: the global batch is 256 images for the fastest and 16 for the most accurate "
        "(lr 0.1, lr_scaling none for both).",
    ]


def test_the_cheapest_is_named_when_there_is_a_price() -> None:
    (sentence,) = (line for line in said(grid(), cost.find("c7i.xlarge")) if "cheapest" in line)
    # Two nodes for 100 s cost more than one for 150 s.
    assert "cheapest is 1x2 (2 CPU workers) with batch 64 per worker" in sentence
    assert sentence.endswith("USD a run on c7i.xlarge.")


def pair(*differences: float) -> Study:
    """1x1 and a faster 1x2, whose accuracies are lower by so much, seed by seed."""
    slow = [trial("1x1", seed=n, training_s=100.0, accuracies=(0.6 + 0.01 * n,)) for n in range(len(differences))]
    fast = [
        trial("1x2", seed=n, training_s=50.0, accuracies=(0.6 + 0.01 * n - less,)) for n, less in enumerate(differences)
    ]
    return study(*slow, *fast)


def test_a_difference_is_held_against_the_deviation_over_the_seeds() -> None:
    (line,) = (line for line in said(pair(0.005, 0.005, 0.005)) if "gives up" in line)
    assert "gives up 0.50 percentage points of accuracy (60.50 % ± 1.00 (n=3) against 61.00 % ± 1.00 (n=3)" in line
    assert line.endswith("that lies within one standard deviation over the seeds (1.00), and may be noise.")
    (line,) = (line for line in said(pair(0.05, 0.05, 0.05)) if "gives up" in line)
    assert line.endswith("that is more than one standard deviation over the seeds (1.00).")


def test_speed_may_cost_nothing() -> None:
    assert said(pair(-0.1))[-1] == (
        "resnet on cifar10: the fastest is also the most accurate: its speed cost no accuracy."
    )


def test_a_study_without_a_finished_run_says_so() -> None:
    failed = study(without_run("FAILED", "out of memory", "1x1", 16))
    assert said(failed) == ["resnet on cifar10: no run has finished, so there is nothing to compare yet."]


def test_runs_that_tell_nothing_have_finished_all_the_same() -> None:
    assert said(study(replace(trial(), metrics={}, history={}))) == [
        "resnet on cifar10: runs have finished, but recorded neither training times nor accuracies."
    ]


def test_of_equally_accurate_ones_the_fastest_is_named() -> None:
    lines = said(study(trial("1x1", training_s=100.0), trial("1x2", training_s=50.0)))
    assert "most accurate is 1x2 (2 CPU workers)" in lines[1]
    assert lines[-1].endswith("the fastest is also the most accurate: its speed cost no accuracy.")


def test_each_device_has_a_fastest_of_its_own() -> None:
    gpu = {"device": "cuda"}
    runs = study(
        trial("1x1", training_s=100.0),
        trial("1x2", training_s=50.0),
        trial("1x1", training_s=10.0, params=gpu),
        trial("1x2", training_s=4.0, params=gpu),
        without_run("SKIPPED", "needs 4 GPUs", "1x4", 16),
    )
    fastest = [line for line in said(runs) if "fastest is 1x2" in line]
    assert [line.split(":")[0] for line in fastest] == ["resnet on cifar10, cpu", "resnet on cifar10, cuda"]
    assert "2.00 times as fast as the slowest, 1x1 (1 CPU worker)" in fastest[0]
    assert "2.50 times as fast as the slowest, 1x1 (1 GPU)" in fastest[1]


def warned(of: Study, about: str) -> str:
    (found,) = (warning for warning in words.warnings(of) if about in warning)
    return found


def test_a_whole_study_has_one_reservation() -> None:
    assert words.warnings(grid()) == [
        "Every configuration was run once (n=1): small differences may be chance, and there is no standard deviation."
    ]
    assert words.warnings(pair(0.1, 0.1)) == []


def test_a_sweep_that_has_not_ended_well() -> None:
    some = study(
        trial("1x1"),
        without_run("FAILED", "out of memory.", "1x2", 16),
        without_run("SKIPPED", "needs 8 CPUs", "2x4", 16),
        without_run("PENDING", "", "2x2", 16),
        status="RUNNING",
    )
    assert warned(some, "still runs") == "The sweep still runs: 1 of 3 runs are finished."
    assert warned(some, "failed") == "1 of 4 runs failed: bs16 1x2 seed0 FAILED: out of memory."
    assert warned(some, "skipped") == "1 of 4 runs were skipped: bs16 2x4 seed0 SKIPPED: needs 8 CPUs."
    killed = replace(some, status="KILLED")
    assert warned(killed, "ended as") == "The sweep has ended as KILLED: 1 of 3 runs are finished."


def test_what_could_not_be_read_is_told_first() -> None:
    assert words.warnings(study(trial(), cautions=("half of it is missing.",)))[0] == "half of it is missing."


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
