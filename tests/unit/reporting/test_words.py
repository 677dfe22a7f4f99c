from __future__ import annotations

from dataclasses import replace

from cifar_ray.reporting import aggregate, cost, words
from cifar_ray.tracking.study import Study
from tests.support.studies import grid, study, trial, without_run


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
    # 110 s of training and 40 s of all else are 150 s; at 0.1785 USD an hour they cost 0.0074375 USD.
    assert sentence.endswith(", with 0.00744 USD a run on c7i.xlarge.")


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


def unequal() -> Study:
    """A sweep of as many steps everywhere: the more workers, the more images, and so the more seconds."""
    return study(
        trial("1x1", training_s=40.0, images=4800, images_per_s=120.0, accuracies=(0.3,)),
        trial("1x2", training_s=50.0, images=9600, images_per_s=200.0, accuracies=(0.35,)),
        trial("2x2", training_s=60.0, images=19200, images_per_s=320.0, accuracies=(0.4,)),
    )


def test_unequal_work_is_ranked_by_images_per_second() -> None:
    assert said(unequal()) == [
        "resnet on cifar10: the runs trained on different numbers of images (4,800 to 19,200), so they are ranked by "
        "images/s, and a difference in accuracy may come from the amount of training.",
        "resnet on cifar10: fastest is 2x2 (4 CPU workers) with batch 16 per worker (global batch 64), with 320.0 "
        "images/s, 2.67 times as fast as the slowest, 1x1 (1 CPU worker) with batch 16 per worker (global batch 16).",
        "resnet on cifar10: most accurate is 2x2 (4 CPU workers) with batch 16 per worker (global batch 64), with "
        "40.00 % of the test images right.",
    ]


def test_unequal_work_is_cheapest_by_images() -> None:
    (line,) = (line for line in said(unequal(), cost.find("c7i.xlarge")) if "cheapest" in line)
    # 80 s for 4,800 images, 90 s for 9,600, and twice 100 s for 19,200, at 0.1785 USD an hour: 0.000465 USD for 9.4 s.
    assert line.endswith(
        "cheapest is 1x2 (2 CPU workers) with batch 16 per worker (global batch 32), with 0.000465 USD per 1,000 "
        "images on c7i.xlarge."
    )


def test_speed_in_fewer_epochs_is_no_speed_without_a_cost() -> None:
    long = trial("1x1", training_s=50.0, accuracies=(0.3, 0.4, 0.5, 0.5, 0.5), images_per_s=5000.0)
    short = trial("1x2", training_s=27.0, accuracies=(0.4, 0.5, 0.6), images_per_s=5600.0)
    lines = said(study(long, short, axes=(), hold=""))
    assert "different numbers of images (150,000 to 250,000)" in lines[0]
    assert "with 5,600.0 images/s, 1.12 times as fast as the slowest" in lines[1]
    assert not [line for line in lines if "cost no accuracy" in line or "gives up" in line]


def test_images_that_fill_no_global_batch_make_no_other_work() -> None:
    runs = study(trial("1x1", 64, training_s=100.0, images=49984), trial("2x2", 64, training_s=50.0, images=49152))
    assert "fastest is 2x2 (4 CPU workers) with batch 64 per worker (global batch 256), with 50.00 s" in said(runs)[0]
    runs = study(trial("1x1", 64, training_s=100.0, images=49984), trial("2x2", 64, training_s=50.0, images=48640))
    assert "different numbers of images (145,920 to 149,952)" in said(runs)[0]


def test_work_that_is_not_known_is_not_taken_for_equal() -> None:
    runs = [replace(one, metrics={**one.metrics, "epoch_images_per_s": None}) for one in unequal().trials]
    runs = [replace(one, metrics={k: v for k, v in one.metrics.items() if v is not None}) for one in runs]
    lines = said(study(*runs))
    assert "not every run has recorded how many images it trained on, so they are ranked by images/s" in lines[0]
    assert "fastest is 2x2" in lines[1]
    assert "not every run has recorded" in said(study(runs[0], *grid().trials))[0]


def test_a_run_that_was_ended_early_is_no_part_of_the_comparison() -> None:
    early = replace(trial("1x4", accuracies=(0.3,)), status="KILLED")
    assert said(replace(grid(), trials=(*grid().trials, early))) == said(grid())


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


def paper_grid() -> Study:
    """Six runs of a small model, of which one ended far below the others, as was once measured."""
    right = {"16 1x1": 0.5826, "16 1x2": 0.5859, "16 2x2": 0.5831, "64 1x1": 0.5869, "64 1x2": 0.5932, "64 2x2": 0.417}
    model = {"model": "simple_cnn"}
    cells = {name: (int(name[:2]), name[3:]) for name in right}
    return study(*(trial(top, batch, accuracies=(right[n],), params=model) for n, (batch, top) in cells.items()))


def outliers(*accuracies: float, images: int = 50000) -> list[str]:
    runs = [trial(seed=seed, accuracies=(one,), images=images) for seed, one in enumerate(accuracies)]
    return [warning.split(" ended at")[0] for warning in words.warnings(study(*runs)) if "below the median" in warning]


def test_an_outlier_is_named() -> None:
    assert warned(paper_grid(), "median") == (
        "bs64 2x2 seed0 ended at 41.7 % test accuracy, 17 points below the median of the 6 runs of simple_cnn on "
        "cifar10 that trained as much: look at its settings and its loss curve, and train more seeds."
    )


def test_an_outlier_is_far_from_a_group_that_is_close_together() -> None:
    assert outliers(0.6, 0.61, 0.5) == ["bs16 1x1 seed2"]
    assert outliers(0.6, 0.6, 0.5) == ["bs16 1x1 seed2"]
    assert outliers(0.6, 0.6, 0.551) == []  # not by 5 points
    assert outliers(0.6, 0.5) == []  # none of two can be the odd one
    assert outliers(0.6, 0.61, 0.9) == []  # nothing is wrong with a good one
    # The deviations of the others are 2 points, so that 10.4 points below are a modified z-score of 3.5.
    assert outliers(0.6, 0.62, 0.58, 0.62, 0.497) == []
    assert outliers(0.6, 0.62, 0.58, 0.62, 0.495) == ["bs16 1x1 seed4"]
    assert outliers(0.6, 0.6, 0.6, 0.1, 0.1, 0.1) == []  # two groups are no group with outliers


def test_an_outlier_is_one_of_runs_that_did_as_much() -> None:
    short = trial("1x2", accuracies=(0.3,), images=5000)
    other = trial("1x2", seed=1, accuracies=(0.3,), params={"model": "vit"})
    failed = replace(trial("1x2", seed=2, accuracies=(0.3,)), status="FAILED")
    alike = [trial(seed=seed, accuracies=(0.6,)) for seed in range(4)]
    assert not [line for line in words.warnings(study(*alike, short, other, failed)) if "below the median" in line]


def test_of_many_outliers_the_first_are_named() -> None:
    low = outliers(*[0.6] * 9, *[0.1] * 7)
    assert low == [*(f"bs16 1x1 seed{seed}" for seed in range(9, 14)), "2 more runs"]


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
