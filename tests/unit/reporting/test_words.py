"""What a report says in words: its findings and its cautions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cifar_ray.reporting import cautions, compare, pages, report, scaling, words
from cifar_ray.reporting import figures as figures_module
from cifar_ray.reporting.frame import Runs
from cifar_ray.tracking.study import Sweep
from tests.support.studies import grid, of_strategies, of_strategy, study, trial, twice, validated, without_run
from tests.unit.reporting.test_tables import figures, sections, small

PRICE = 0.1785
TESTS = "Tests are Student's t at 5 %, with one standard deviation of the seeds for all"


def warnings(of: Sweep) -> list[str]:
    return cautions.cautions(Runs(of))


def said(of: Sweep, price: float | None = None) -> list[str]:
    (finding,) = words.findings(Runs(of), price)
    return list(finding.sentences)


def highlights(of: Sweep, price: float | None = None) -> list[tuple[str, str, str]]:
    (finding,) = words.findings(Runs(of), price)
    return [(one.title, one.figure, one.configuration) for one in finding.highlights]


def test_what_a_study_comes_to() -> None:
    assert said(twice(grid())) == [
        "Shortest training: 2x2 with batch 64 (60.00 s), 3.33 times as fast as 1x1 with batch 64 (200.00 s).",
        "Best accuracy: 1x1 with batch 16 (80.00 %), 15.0 points better than 2x2 with batch 64 (65.00 %).",
        "The best was chosen on the test set, among 6 configurations.",
        "Doubling batch per worker: 1.37 times as fast on average (95 % interval 1.26 to 1.49).",
        "Doubling workers: 1.89 times as fast on average (95 % interval 1.77 to 2.01).",
        "Doubling workers: 5.8 points worse in accuracy on average (95 % interval 4.3 to 7.2); the global batch differs, too.",
        f"{TESTS}: 0.0 % of speed and 0.0 points of accuracy.",
    ]
    # 110 s of training and 40 s of all else are 150 s; at 0.1785 USD an hour they cost 0.0074375 USD.
    assert [(figure, where.partition(";")[0]) for _, figure, where in highlights(twice(grid()), PRICE)] == [
        *(("60.00 s", "2x2 with batch 64"), ("80.00 %", "1x1 with batch 16"), ("1.80 times", "1x2 with batch 16")),
        ("0.00744 USD a run", "1x2 with batch 64"),
    ]


def test_times_of_runs_that_shared_gpus_are_in_no_figure_and_that_is_said() -> None:
    shared = {"tags": {"cifar_ray.measure": "accuracy"}, "params": {"device": "cuda", "gpus_per_worker": "0.25"}}
    alone = trial(seed=1, params={"device": "cuda"})
    of = study(trial(images_per_s=10.0, **shared), alone).meant  # type: ignore[arg-type]
    (config,) = Runs(of).configurations
    assert (len(config.trials), config.by_seed(config.runs.task.throughput)) == (2, {1: 1000.0})
    assert list(config.by_seed(config.runs.task.primary)) == [0, 1]
    costs = config.statistic(figures_module.cost_of_run(PRICE))
    assert costs is not None
    assert costs.run_ids == (alone.run_id,)
    assert warned(of, "shared GPUs").startswith("1 of 2 ")
    on_cpus = study(trial(params={"device": "cpu", "gpus_per_worker": "0.25"}))
    assert not [sentence for sentence in warnings(on_cpus) if "shared GPUs" in sentence]


def test_the_most_accurate_is_chosen_on_the_validation_images() -> None:
    """The one with the best test accuracy has the lowest validation accuracy here."""
    of = twice(validated(grid(), 0.6, 0.7, 0.71, 0.72, 0.73, 0.9))
    assert said(of)[1].startswith("Best validation accuracy: 2x2 with batch 64 (90.00 %), 30.0 points better than 1x1 ")
    assert "test set" not in " ".join(said(of))
    assert highlights(of)[1] == ("Best validation accuracy", "66.00 % in the test", "2x2 with batch 64")
    some = replace(of, trials=[*of.trials[:-1], grid().trials[5]])  # not all of them have validation images
    assert highlights(some)[1][0] == "Best accuracy"


def test_one_run_of_each_makes_nothing_the_best() -> None:
    assert all("(n = 1)" in title for title, *_ in highlights(grid(), PRICE))
    assert not [line for line in said(grid()) if line.startswith("Tests are")]


def test_a_tile_does_not_name_what_the_test_cannot_tell() -> None:
    """Two seeds of each, as in a small study on a busy machine."""
    runs = [
        trial(top, seed=seed, training_s=s + 8 * seed, accuracies=(a + 0.01 * seed,), images_per_s=speed - 9 * seed)
        for top, s, a, speed in (("1x1", 30.0, 0.556, 100.0), ("1x2", 32.0, 0.554, 83.0), ("2x2", 33.0, 0.555, 70.0))
        for seed in (0, 1)
    ]
    assert highlights(study(*runs)) == [
        ("No measurable difference in speed", "34.00 to 37.00 s", "3 configurations"),
        ("No measurable difference in accuracy", "55.90 to 56.10 %", "3 configurations"),
        ("No second worker paid off here", "0.82 times", "1x2, the highest"),
    ]
    assert said(study(*runs))[0].endswith("n = 2 can only reveal differences above 66 %.")
    near = [trial(t, seed=n, images_per_s=s + 20 * n) for t, s in (("1x1", 100.0), ("1x2", 105.0)) for n in (0, 1)]
    assert highlights(study(*near))[-1][:2] == ("No second worker paid off here", "1.05 times, within chance")
    one_ahead = [*runs, *(trial("1x4", seed=seed, training_s=1000.0 + seed, accuracies=(0.3,)) for seed in (0, 1))]
    assert highlights(study(*one_ahead))[0] == (
        *("Shortest training, not alone", "34.00 s", "1x1; not distinguishable from 2 others"),
    )


def test_names_have_the_digits_that_tell_values_apart_and_data_have_all() -> None:
    def names(param: str, *values: str) -> list[str]:
        runs = study(*(trial(params={param: value}) for value in values), axes=(param,))
        return [row.removeprefix(f"1x1, {param}=") for row, _ in sections(runs)[0].tables[0].rows]

    rates = ("0.06769478642833601", "0.06772478642833601", "0.2285004845526464", "0.05")
    assert names("lr", *rates) == ["0.067694786", "0.067724786", "0.22850048", "0.05"]
    runs = study(*(trial(params={"lr": lr}) for lr in rates), axes=("lr",))
    assert {row["lr"] for row in figures(runs)} == set(map(float, rates))
    assert names("ema", "0.99995", "0.9999", "none") == ["0.99995", "0.9999", "none"]
    assert names("model_source", "ab" * 32, "ab" * 4 + "cd" * 28) == ["abababababab", "ababababcdcd"]


def test_an_axis_of_numbers_has_a_line_of_what_doubling_it_does() -> None:
    def told(of: Sweep) -> list[str]:
        return [line for line in said(of) if line.startswith("Doubling") and "accuracy" in line]

    known = {("1x1", 16): 0.7, ("1x1", 64): 0.66, ("1x2", 16): 0.6, ("1x2", 64): 0.57}
    # Slopes of 10 and 9 points with one degree of freedom: 12.7 * 0.5 points. Of the batch, 2 and 1.5 are too few.
    (line,) = told(study(*(trial(top, batch, accuracies=(a,)) for (top, batch), a in known.items())))
    assert line.startswith("Doubling workers: 9.5 points worse in accuracy on average (95 % interval 3.1 to 15.9); ")

    def of_rates(*epochs: int) -> Sweep:
        rates = zip((0.01, 0.02, 0.04, 0.08), (0.2, 0.301, 0.399, 0.5), epochs)
        runs = [trial(params={"lr": str(lr)}, accuracies=(a,) * count) for lr, a, count in rates]
        return study(*runs, axes=("lr", "epochs"))

    assert told(of_rates(1, 1, 1, 1)) == [
        "Doubling lr: 10.0 points better in accuracy on average (95 % interval 9.8 to 10.2)."
    ]
    assert told(of_rates(1, 2, 3, 4)) == []  # unequal work


def test_a_learning_rate_that_stays_while_the_batch_grows_is_a_caution_with_the_flag() -> None:
    def told(*given: tuple[str, int, dict[str, str]]) -> int:
        runs = study(*(trial(top, batch, params=params) for top, batch, params in given))
        return sum("--lr-scaling" in line for line in warnings(runs))

    assert told(("1x1", 16, {}), ("1x2", 16, {}), ("1x1", 64, {}), ("1x2", 64, {})) == 1  # as README's sweep
    assert told(("1x1", 16, {}), ("1x2", 16, {})) == 0
    assert told(("1x1", 16, {"lr_scaling": "sqrt"}), ("1x1", 64, {"lr_scaling": "sqrt"})) == 0
    assert told(*(("1x1", batch, {"lr": lr}) for batch in (16, 64) for lr in ("0.1", "0.2"))) == 0


def pair(difference: float, seeds: int = 3, images: int = 0) -> Sweep:
    """1x1 and a faster 1x2, whose accuracy is lower by so much with each seed."""
    tested = {"test/images": float(images)} if images else {}
    runs = []
    for top, seconds, less in (("1x1", 100.0, 0.0), ("1x2", 50.0, difference)):
        for seed in range(seeds):
            one = trial(top, seed=seed, training_s=seconds + seed, accuracies=(0.6 + 0.01 * seed - less,))
            runs.append(replace(one, metrics={**one.metrics, **tested}))
    return study(*runs)


@pytest.mark.parametrize(
    ("of", "begins"),
    [
        (pair(0.005), "No measurable difference in accuracy: 60.50 to 61.00 % in 2"),
        (pair(0.05), "Best accuracy: 1x1 (61.00 %), 5.0 points better than 1x2 (56.00 %)."),
        (pair(0.05, images=500), "No measurable difference in accuracy: 56.00 to 61.00 % in 2"),
        (pair(-0.1), "Best accuracy: 1x2 (71.00 %), 10.0 points better than 1x1 (61.00 %)."),
    ],
)
def test_what_speed_costs_is_told_from_chance(of: Sweep, begins: str) -> None:
    speed, accuracy = said(of)[:2]
    assert speed == "Shortest training: 1x2 (51.00 s), 1.98 times as fast as 1x1 (101.00 s)."
    assert accuracy.startswith(begins)


def test_unequal_work_is_ranked_by_images_per_second() -> None:
    """A sweep of as many steps everywhere: the more workers, the more images, and so the more seconds."""
    unequal = study(
        trial("1x1", training_s=40.0, images=4800, images_per_s=120.0, accuracies=(0.3,)),
        trial("1x2", training_s=50.0, images=9600, images_per_s=200.0, accuracies=(0.35,)),
        trial("2x2", training_s=60.0, images=19200, images_per_s=320.0, accuracies=(0.4,)),
    )
    first, second, *_ = said(twice(unequal))
    assert "different numbers of images (4,800 to 19,200)" in first
    assert second == "Most images/s: 2x2 (320.0 images/s), 2.67 times as fast as 1x1 (120.0 images/s)."
    assert highlights(twice(unequal), PRICE)[:2] == [
        ("Most images/s", "320.0 images/s", "2x2"),
        ("Best accuracy, unequal training", "40.00 %", "2x2"),
    ]


def test_without_figures_there_is_nothing_to_compare() -> None:
    (failed,) = said(study(without_run("FAILED", "out of memory", "1x1", 16)))
    bare = study(replace(trial(), metrics={}, history={}))
    (recorded,) = said(bare)
    assert (failed[:19], recorded[:18], said(study(trial()))) == ("No run has finished", "Runs have finished", [])
    whole = report.build(bare, "rangoju_katneni_2025", PRICE)
    assert whole.sections[0].tables == whole.sections[0].folded == []
    assert "Runs have finished" in pages.html(whole)
    assert "Runs have finished" in str(compare.build(bare, PRICE, full=True))


def test_each_device_and_data_set_has_findings_of_its_own() -> None:
    known = (("cpu", "1x1", 100.0), ("cpu", "1x2", 50.0), ("cuda", "1x1", 10.0), ("cuda", "1x2", 4.0))
    runs = [trial(top, training_s=s, params={"device": device}) for device, top, s in known]
    found = words.findings(Runs(study(*runs, without_run("SKIPPED", "needs 4 GPUs", "1x4", 16))), None)
    assert [(one.title, "1x2 (50.00 s), 2.00 times" in one.sentences[0]) for one in found] == [
        *(("resnet, cpu", True), ("resnet, cuda", False)),
    ]
    sets = [trial(params={"dataset": name}) for name in ("cifar10", "mnist")]
    assert [one.title for one in words.findings(Runs(study(*sets)), None)] == ["resnet on cifar10", "resnet on mnist"]


def test_the_fastest_strategy_is_named_among_iterations_of_one_size() -> None:
    *_, line, _ = said(twice(small()))
    assert line == (
        "With 2 workers, shortest iteration: ddp on 1x2 (260 ms), 1.58 times as fast as gather_scatter on 1x2 (410 ms)."
    )
    both = [of_strategy(name, "1x2", s) for name, s in (("ddp", 0.3), ("hogwild", 0.2))]
    wide = [trial("1x2", 64, params={"model": "vgg11", "strategy": name}) for name in ("ddp", "all_reduce")]
    (line,) = (line for line in said(of_strategies(*both, *wide)) if "(n = 1)" in line and "shortest" in line)
    assert "hogwild on 1x2 with global batch 256 (200 ms), 1.50 times as fast as ddp on 1x2 with global" in line


def warned(of: Sweep, about: str) -> str:
    (found,) = (caution for caution in warnings(of) if about in caution)
    return found


def test_a_sweep_that_has_not_ended_well() -> None:
    some = study(
        trial("1x1"),
        without_run("FAILED", "out of memory.", "1x2", 16),
        without_run("SKIPPED", "needs 8 CPUs", "2x4", 16),
        without_run("PENDING", "", "2x2", 16),
        status="RUNNING",
        cautions=("half of it is missing.",),
    )
    first, second, third = warnings(some)[:3]
    assert (first, "1 of 3 runs" in second, "2 of 4 runs" in third) == ("half of it is missing.", True, True)
    assert "bs16 1x2 seed0 FAILED: out of memory; bs16 2x4 seed0 SKIPPED: needs 8 CPUs" in third
    many = study(*(without_run("FAILED", "", "1x2", size) for size in range(1, 8)))
    assert warned(many, "FAILED").endswith("bs5 1x2 seed0 FAILED; and 2 more.")


def test_times_that_are_not_what_they_seem() -> None:
    counted = trial("2x1", tags={"times_are_a_clusters": "false"})
    assert warned(study(counted), "cluster").startswith("All finished runs shared the cores")
    assert warned(study(counted, trial("1x1")), "cluster").startswith("1 of 2 finished runs shared the cores")
    assert warned(study(trial(), metrics={"sweep/concurrency": 2.0}), "same time").startswith("Up to 2 runs")
    earlier = {"cifar_ray.earlier.cifar_ray.topology": "2x2", "cifar_ray.earlier.cifar_ray.threads": "2"}
    assert "topology and number of threads" in warned(study(trial("1x1", tags=earlier)), "changed")


@pytest.mark.parametrize("tag", ["cifar_ray.topology", "cifar_ray.hardware", "cifar_ray.threads"])
def test_a_run_that_went_on_elsewhere_has_no_times_and_is_no_reference(tag: str) -> None:
    moved = trial("1x1", tags={tag: "one", f"cifar_ray.earlier.{tag}": "another"})
    both = study(moved, trial("1x2"))
    first = both.meant.trials[0]
    assert first.metrics["test/accuracy"] == moved.metrics["test/accuracy"]
    assert not {"images_per_s", "time/wall_s"} & first.metrics.keys()
    for one, references in ((both, ["1x1", "1x1"]), (both.meant, [None, "1x2"])):
        among = Runs(one).configurations
        found = [scaling.ratio(configuration, among) for configuration in among]
        assert [each and each.reference.trials[0].topology for each in found] == references


def test_figures_of_different_programs_and_machines_side_by_side() -> None:
    other = {"mlflow.source.git.commit": "d" * 40 + "-dirty", "cifar_ray.hardware": "NVIDIA H200"}
    mixed = study(trial("1x1"), trial("1x2", tags=other))
    assert "2 different commits" in warned(mixed, "commits")
    assert "AMD EPYC 9754; NVIDIA H200" in warned(mixed, "kinds of hardware")
    assert warned(mixed, "-dirty).")
