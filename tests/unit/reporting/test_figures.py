"""Figures of runs and configurations, each beside a value that was reckoned by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cifar_ray.reporting import cautions, cells, chance, figures, scaling, task
from cifar_ray.reporting.audit import faults, too_fast
from cifar_ray.reporting.figures import Statistic
from cifar_ray.reporting.frame import Runs
from cifar_ray.reporting.names import Names
from cifar_ray.reporting.task import TaskFigures
from cifar_ray.tasks import USUAL
from cifar_ray.tracking.study import Point, Sweep
from tests.support.studies import grid, of_strategies, of_strategy, study, trial
from tests.unit.reporting.test_tables import sections


def test_a_statistic_is_over_the_finished_runs_that_have_the_figure() -> None:
    runs = [trial(seed=n, training_s=10.0 * n) for n in (1, 2, 3)]
    failed = replace(trial(seed=4, training_s=1.0), status="FAILED")
    bare = replace(trial(seed=5), metrics={})
    (one,) = Runs(study(*runs, failed, bare)).configurations
    ids = tuple(f"id-bs16-1x1-seed{n}" for n in (1, 2, 3))
    assert one.statistic(figures.TRAINING_TIME) == Statistic(20.0, 10.0, 3, ids)  # the sample's: n - 1
    assert one.statistic(figures.BUBBLE[0]) is None
    (alone,) = Runs(study(runs[0])).configurations
    assert alone.statistic(figures.TRAINING_TIME) == Statistic(10.0, None, 1, ids[:1])
    assert math.isnan(Statistic.of([math.inf, 1.0]).std or 0.0)


def test_a_share_in_percent_has_the_digits_of_the_share() -> None:
    percent = figures.metric("x", 100)
    images = [*range(0, 10001, 7)]
    run = trial()
    assert [percent(replace(run, metrics={"x": count / 10000})) for count in images] == [n / 100 for n in images]
    assert percent(replace(run, metrics={"x": float("inf")})) == float("inf")


def others(of: Sweep) -> list[tuple[tuple[str, str], ...]]:
    return [one.others for one in Runs(of).configurations]


def test_compared_runs_differ_by_whatever_they_differ_in_but_not_by_where_they_are_kept() -> None:
    one, other = (trial(params={"local_nodes": n, "strategy": name}) for n, name in (("1", "ddp"), ("2", "other")))
    assert others(study(one, other, axes=(), hold="")) == [(("strategy", "ddp"),), (("strategy", "other"),)]
    machines = study(trial(), trial(tags={"cifar_ray.hardware": "NVIDIA H200"}), axes=(), hold="")
    assert others(machines) == [(("hardware", "AMD EPYC 9754"),), (("hardware", "NVIDIA H200"),)]
    computed = "products4"  # as was measured to be faster, at one of two times
    assert others(study(trial(seed=0), trial(seed=1, params={"convolutions": computed}))) == [()]
    swept = study(*(trial(params={"log_every": n}) for n in ("1", "50")), axes=("log_every", "seed"))
    assert others(swept) == [(("log_every", "1"),), (("log_every", "50"),)]
    twins = (trial(name="a", run_id="1" * 32), trial(name="b", run_id="2" * 32))
    assert others(study(*twins, axes=(), hold="")) == [(("run", "a"),), (("run", "b"),)]
    of_one_name = study(*(replace(one, name="a") for one in twins), axes=(), hold="")
    assert others(of_one_name) == [(("run", "a 11111111"),), (("run", "a 22222222"),)]
    assert others(study(trial(seed=0), trial(seed=1), axes=(), hold="")) == [()]


def test_a_models_own_options_tell_runs_of_a_sweep_apart_where_another_axis_would_do() -> None:
    stems = (
        trial("1x1", 16, params={"model_options.width": "16"}),
        trial("1x1", 64, params={"model_options.width": "32", "lr": "0.2"}),
    )
    assert others(study(*stems)) == [(("model_options.width", "16"),), (("model_options.width", "32"),)]
    wide = trial("2x2", 16, images_per_s=4000.0, params={"model_options.width": "32"})  # no multiple of the narrow one
    assert ratios(study(stems[0], wide))["ddp 2x2"] == ("2x2", 1.0, 100.0)


def test_a_device_that_is_not_known_is_that_of_the_runs_beside_it() -> None:
    unknown = replace(trial("1x2"), params={**trial("1x2").params, "device": "auto"})
    found = Runs(study(trial("1x1", params={"device": "cuda"}), unknown)).configurations
    assert [(one.device, one.devices) for one in found] == [("cuda", 1), ("cuda", 2)]
    mixed = study(trial("1x1", params={"device": "cuda"}), trial("1x1", 64), unknown)
    assert [one.device for one in Runs(mixed).configurations] == ["cuda", "cpu", ""]
    many = trial("1x2", params={"device": "cuda", "gpus_per_worker": "4"})
    assert Runs(study(many)).configurations[0].devices == 8


def test_the_way_to_a_target_ends_with_the_first_epoch_that_has_it() -> None:
    run = trial(training_s=90.0, accuracies=(0.3, 0.5999999, 0.5))  # a store keeps 0.6 in 32 bits
    assert task.epochs_to(run, 0.6) == 2
    assert task.seconds_to(run, 0.6) == pytest.approx(60.0)
    assert figures.trained(run) == 150000
    assert task.seconds_to(run, 0.7) is None


def test_an_epoch_recorded_twice_counts_once_and_one_that_was_lost_leaves_no_time() -> None:
    run = trial(training_s=90.0)
    first, *rest = run.history["epoch_s"]
    for epochs, seconds in (([first, first, *rest], pytest.approx(60.0)), (rest, None)):
        assert task.seconds_to(replace(run, history={**run.history, "epoch_s": epochs}), 0.5) == seconds


@pytest.mark.parametrize(("bests", "target"), [((0.8, 0.649), 0.6), ((0.65, 0.7), 0.65), ((0.9, 0.04), None)])
def test_the_default_target_is_one_that_all_reach(bests: tuple[float, float], target: float | None) -> None:
    runs = study(trial(accuracies=(bests[0], 0.1)), trial("1x2", accuracies=(bests[1],)))
    lost = replace(trial(accuracies=(0.5,)), metrics={"best/accuracy": 0.9, "test/accuracy": 0.4})
    assert task.best(lost) == 0.9
    nan = trial("2x2", accuracies=(float("nan"),))
    assert TaskFigures(USUAL).default_target([*runs.trials, nan]) == target


def test_utilisation_is_the_mean_of_the_samples_within_the_training() -> None:
    run = trial()  # its epochs end after 1, 2 and 3 s
    samples = [Point(0, 500, 1.0), Point(1, 1000, 40.0), Point(2, 2500, 60.0), Point(3, 3000, 50.0), Point(4, 9000, 2)]
    of_gpus = {f"system/0123abcd/gpu_{n}_utilization_percentage": [Point(1, 1500, 10.0 + n)] for n in (0, 1)}
    history = {**run.history, "system/0123abcd/cpu_utilization_percentage": samples, **of_gpus}
    assert figures.load("cpu").measure(replace(run, history=history)) == pytest.approx(50.0)
    assert figures.load("gpu").measure(replace(run, history=history)) == pytest.approx(10.5)
    assert figures.load("gpu").measure(run) is None
    without = {name: points for name, points in history.items() if name != "epoch_s"}
    assert figures.load("cpu").measure(replace(run, history=without)) is None


@pytest.mark.parametrize(
    ("parts", "rest"),
    [
        *(((0.1, 0.1, 0.1, 0.1, 0.05), 50.0), ((0.1, 0.2, 0.1, 0.1, 0.0), 0.0), ((0.1, 0.1), 300.0), ((0.6,), None)),
        *(((0.5000005,), 0.0), ((0.500002,), None)),  # rounding
    ],
)
def test_what_is_not_split_is_the_iteration_without_its_parts(parts: tuple[float, ...], rest: float | None) -> None:
    found = figures.NOT_SPLIT.measure(of_strategy("ddp", "1x2", 0.5, parts=parts))
    assert found == (None if rest is None else pytest.approx(rest, abs=1e-9))


@pytest.mark.parametrize(
    ("strategy", "topology", "own"),
    [("hogwild", "1x2", True), ("hogwild", "1x1", False), ("parameter_server", "1x4", True), ("ddp", "1x2", False)],
)
def test_ranks_with_a_pace_each_have_the_iteration_of_all(strategy: str, topology: str, own: bool) -> None:
    run = of_strategy(strategy, topology, 0.5, parts=(0.4,), images_per_s=1024.0)
    found = (figures.own_paces(run), figures.iteration_ms(run), figures.ITERATION_P95.measure(run))
    assert found == ((True, 250.0, None) if own else (False, 500.0, 250.0))  # 256 images at 1,024 a second
    assert (figures.NOT_SPLIT.measure(run) is None) is own


def ratios(of: Sweep) -> dict[str, tuple[str, float, float]]:
    every = Runs(of).configurations
    found = {f"{one.strategy} {one.topology}": scaling.ratio(one, every) for one in every}
    return {
        name: (ratio.reference.topology, round(ratio.speed_up.mean, 6), round(ratio.efficiency.mean, 6))
        for name, ratio in found.items()
        if ratio is not None
    }


def test_a_speed_up_is_held_against_the_fewest_workers_on_the_fewest_nodes() -> None:
    runs = [trial("2x1", images_per_s=100.0), trial("1x2", images_per_s=160.0), trial("2x2", images_per_s=240.0)]
    found = {"ddp 2x1": ("1x2", 0.625, 62.5), "ddp 1x2": ("1x2", 1.0, 100.0), "ddp 2x2": ("1x2", 1.5, 75.0)}
    assert ratios(study(*runs)) == found
    unlike = study(trial("1x1", 64, images_per_s=10.0), replace(runs[0], metrics={}), trial("2x2", images_per_s=0.0))
    assert ratios(unlike) == {"ddp 1x1": ("1x1", 1.0, 100.0)}
    buckets = {size: {"bucket_cap_mb": size} for size in ("1", "25")}
    own, other, pair = (
        trial(topology, images_per_s=speed, params=buckets[size])
        for topology, size, speed in (("1x1", "25", 80.0), ("1x1", "1", 100.0), ("1x2", "25", 160.0))
    )
    every = Runs(study(other, own, pair, axes=("bucket_cap_mb", "topology"))).configurations
    alike = scaling.ratio(every[-1], every)
    assert alike is not None
    assert (alike.reference.trials[0].params["bucket_cap_mb"], alike.speed_up.mean) == ("25", 2.0)
    gpus = [trial(images_per_s=s, params={"device": "cuda", "gpus_per_worker": n}) for s, n in ((100, "1"), (300, "4"))]
    among = Runs(study(*gpus, axes=("gpus_per_worker",))).configurations
    several = scaling.ratio(among[1], among)
    assert several is not None
    assert (several.speed_up.mean, several.efficiency.mean) == (3.0, 75.0)


def test_a_speed_up_is_held_against_a_worker_of_the_same_strategy_where_there_is_one() -> None:
    runs = [("ddp", "1x1", 0.5), ("all_reduce", "1x1", 0.4), ("ddp", "1x2", 0.2), ("all_reduce", "1x2", 0.2)]
    found = ratios(of_strategies(*(of_strategy(*run) for run in runs)))
    assert (found["ddp 1x2"], found["all_reduce 1x2"]) == (("1x1", 2.5, 125.0), ("1x1", 2.0, 100.0))
    alone = of_strategies(*(of_strategy(*run) for run in (runs[0], runs[3])))
    assert ratios(alone)["all_reduce 1x2"] == ("1x1", 2.5, 125.0)
    pipeline = of_strategies(of_strategy("gpipe", "1x2", 0.4), of_strategy("reproducible", "1x1", 0.4))
    assert ratios(pipeline)["gpipe 1x2"] == ("1x2", 1.0, 100.0)  # a single worker that does not train plainly
    compiled = trial("1x2", images_per_s=150.0, params={"compile": "true"})
    plain = trial("1x1", images_per_s=100.0, params={"compile": "false"})
    assert ratios(study(plain, compiled, axes=("topology", "compile")))["ddp 1x2"] == ("1x2", 1.0, 100.0)


def test_a_plain_single_worker_is_the_base_of_every_option_of_a_strategy() -> None:
    accumulating = {"accumulate": "4", "bucket_cap_mb": "1.0"}
    runs = [
        trial("1x1", images_per_s=100.0, params={"accumulate": "1", "bucket_cap_mb": "25.0"}),
        trial("2x2", images_per_s=300.0, params=accumulating),
        trial("1x2", images_per_s=120.0, params={"strategy": "gather_scatter", "accumulate": "1"}),
    ]
    found = ratios(study(*runs, axes=("topology", "strategy", "accumulate", "bucket_cap_mb")))
    assert (found["ddp 2x2"], found["gather_scatter 1x2"]) == (("1x1", 3.0, 75.0), ("1x1", 1.2, 60.0))


def test_speed_ups_over_seeds_have_a_spread() -> None:
    slow = [trial("1x1", seed=n, images_per_s=100.0 + n) for n in (-1, 0, 1)]
    fast = [trial("1x2", seed=n, images_per_s=150.0 + 3 * n) for n in (-1, 0, 1)]
    among = Runs(study(*slow, *fast)).configurations
    base, ratio = (scaling.ratio(one, among) for one in among)
    assert ratio is not None
    assert base is not None
    spread = 0.015  # 150 + 3n against 1.5 times 100 + n, for the same seeds n
    ids = tuple(one.run_id for one in (*fast, *slow))
    assert ratio.speed_up == Statistic(1.5, pytest.approx(spread), 3, ids)
    assert ratio.efficiency == Statistic(75.0, pytest.approx(50 * spread), 3, ids)
    assert (base.speed_up.std, base.speed_up.n) == (None, 3)


def test_a_speed_up_is_of_the_seeds_that_both_have() -> None:
    """Seed 1 was slow all through; without it of one worker, two workers would seem 1.5 times as fast."""
    known = {("1x1", 0): 100.0, ("1x2", 0): 81.0, ("1x2", 1): 219.0, ("1x4", 2): 400.0}
    runs = study(*(trial(top, seed=seed, images_per_s=speed) for (top, seed), speed in known.items()))
    found = ratios(runs)
    assert (found["ddp 1x2"], found["ddp 1x4"]) == (("1x1", 0.81, 40.5), ("1x4", 1.0, 100.0))  # no seed in common
    one, two, _ = Runs(runs).configurations
    ratio = scaling.ratio(two, (one, two))
    assert ratio is not None
    assert ratio.speed_up == Statistic(0.81, None, 1, ("id-bs16-1x2-seed0", "id-bs16-1x1-seed0"))
    entry = cells.entry(cells.SPEED_UP, two, cells.Group((one, two), Names((one, two))))
    assert (entry.text, entry.note) == ("0.81 (n=1 of 2)", "")


def noise(*accuracies: tuple[float, ...], images: int = 0) -> tuple[chance.Noise, list[chance.Measured]]:
    """That of configurations, each with an accuracy in percent for every seed."""
    runs = [
        trial(f"1x{at}", seed=seed, accuracies=(value / 100,))
        for at, values in enumerate(accuracies, 1)
        for seed, value in enumerate(values)
    ]
    counted = {"test/images": float(images)} if images else {}
    among = Runs(study(*(replace(run, metrics={**run.metrics, **counted}) for run in runs))).configurations
    figure = among[0].runs.task.primary
    cells = [chance.Measured(each, value) for each in among if (value := each.statistic(figure)) is not None]
    return chance.Noise.of(figure, cells), cells


def told(*accuracies: tuple[float, ...], images: int = 0) -> bool | None:
    """Whether the first two configurations are told apart."""
    of_seeds, cells = noise(*accuracies, images=images)
    return of_seeds.distinct(cells[0].value, cells[1].value)


@pytest.mark.parametrize(
    ("other", "images", "distinct"),
    [
        ((49.5, 50.5, 51.5), 0, False),  # t = 0.61
        ((52.0, 53.0, 54.0), 0, True),  # t = 3.67 with 4 degrees of freedom: p = 0.021
        ((53.0,), 0, False),  # 4.97 points with 2 degrees of freedom
        ((52.0, 53.0, 54.0), 1000, False),  # two standard errors are 4.5 points
        ((52.0, 53.0, 54.0), 10000, True),  # 1.4 points
        ((52.0, 55.0, 58.0), 0, False),  # t = 2.74: p = 0.052
    ],
)
def test_a_difference_is_told_from_chance(other: tuple[float, ...], images: int, distinct: bool) -> None:
    assert told((49.0, 50.0, 51.0), other, images=images) is distinct
    assert told(other, (49.0, 50.0, 51.0), images=images) is distinct


def test_equal_seeds_do_not_make_the_test_set_larger() -> None:
    """Two of 360 images, twice."""
    assert told((98.0, 98.0), (99.17, 99.17), images=360) is False
    assert told((98.0, 98.0), (99.17, 99.17)) is True
    assert told((98.0, 98.0), (98.0, 98.0)) is False
    assert told((50.0, 50.1), (52.0, 52.1), images=10000) is True  # two standard errors are 1.41 points
    assert told((50.0, 50.1), (52.0, 52.1), images=4900) is False  # 2.02 points


def test_amounts_show_three_digits_and_spreads_those_of_their_mean() -> None:
    figure = figures.Figure("k", "K", lambda _: None, " USD", None, "low")
    texts = {0.00012345: "0.000123", 12.345: "12.3", 1234.5: "1,234", 0.0: "0.00"}
    assert {value: figure.number(value) for value in texts} == texts
    assert figure.text(12.345) == "12.3 USD"
    assert figure.cell(Statistic(12.345, 0.0123, 3, ())) == "12.3 ± 0.0"
    alone = Statistic(12.345, None, 1, ())
    assert (figure.cell(alone, 3), figure.cell(alone, 1)) == ("12.3 (n=1 of 3)", "12.3")


def outliers(*accuracies: float) -> list[str]:
    runs = [trial(seed=seed, accuracies=(one,)) for seed, one in enumerate(accuracies)]
    return [one.name for one in cautions.outliers(Runs(study(*runs))).itertuples()]


def test_an_outlier_is_far_below_a_group_that_is_close_together() -> None:
    runs = study(*(trial(seed=n, accuracies=(a,)) for n, a in enumerate((0.6, 0.59, 0.58, 0.4))))
    (found,) = cautions.outliers(Runs(runs)).itertuples()
    assert (found.seed, found.peers, found.value, found.by) == (3, 4, pytest.approx(40.0), pytest.approx(18.5))
    assert outliers(0.6, 0.6, 0.6, 0.54) == ["bs16 1x1 seed3"]
    for none in ((0.6, 0.59, 0.58, 0.56), (0.6, 0.5), (0.6, 0.6, 0.6, 0.56), (0.6, 0.5, 0.4, 0.3)):
        assert outliers(*none) == []  # near; of two; fewer than 5 points; wide apart as they are


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ((49984, 49152), ""),  # what does not fill a global batch is left out
        ((50000, 48000), "the runs trained on different numbers of images (144,000 to 150,000)"),
        ((50000, None), "not every run has recorded how many images it trained on"),
    ],
)
def test_work_is_equal_but_for_two_percent(images: tuple[int, int | None], told: str) -> None:
    runs = [trial(top, images=count or 1) for top, count in zip(("1x1", "1x2"), images)]
    for run, count in zip(runs, images):
        if count is None:
            del run.metrics["epoch_images_per_s"]  # type: ignore[attr-defined]
    assert chance.unequal_work(Runs(study(*runs)).configurations, figures.TRAINING_TIME) == told


def test_a_base_without_a_deviation_does_not_make_the_test_sharper() -> None:
    """The speed-up of a reference is 1 with every seed, and says nothing of the spread."""
    two = Runs(of_strategies(of_strategy("ddp", "1x1", 0.4), of_strategy("ddp", "1x2", 0.3))).configurations
    figure = cells.SPEED_UP
    spread = [chance.Measured(config, Statistic(mean, 0.05, 3)) for config, mean in zip(two, (1.9, 1.8))]
    base = chance.Measured(two[0], Statistic(1.0, None, 3))
    assert chance.Noise.of(figure, [*spread, base]) == chance.Noise.of(figure, spread)
    assert chance.Noise.of(figure, spread).difference(Statistic(1.0, None, 1), Statistic(0.0, None, 1)) == 0.0


def test_a_run_costs_its_nodes_for_all_its_phases() -> None:
    run = trial("2x2", training_s=3560.0)  # and 4 x 10 s
    assert figures.cost_of_run(3.0).measure(run) == pytest.approx(6.0)
    assert "3 USD per node and hour" in figures.cost_of_run(3.0).note
    timed = replace(run, metrics={**run.metrics, "time/wall_s": 5400.0})
    assert figures.cost_of_run(3.0).measure(timed) == pytest.approx(9.0)
    partly = replace(run, metrics={k: v for k, v in run.metrics.items() if k != "time/startup_s"})
    assert figures.cost_of_run(3.0).measure(partly) is None


@pytest.mark.parametrize(("price", "titles"), [(None, set()), (1.0, {"Cost (USD)"})])
def test_there_are_no_costs_without_a_price(price: float | None, titles: set[str]) -> None:
    (section,) = sections(grid(), (), price)
    headings = {title for table in (*section.tables, *section.folded) for title in table.columns}
    assert {title for title in headings if "USD" in title} == titles


RIGHT = {"accuracy": [0.55], "precision": [0.6], "recall": [0.55], "f1": [0.57], "specificity": [0.95]}


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"recall": [0.56]}, "accuracy 0.5500 beside macro recall 0.5600: "),
        ({"specificity": [0.951]}, "macro specificity 0.9510: "),
        ({"f1": [0.58]}, "macro F1 0.5800: it is at most the mean of macro precision and recall, 0.5750"),
        ({"test_loss": [2.0, 2.1]}, "test losses 2.0000 to 2.1000 on 2 ranks: "),
    ],
)
def test_each_fault_is_told(changes: dict[str, list[float]], begins: str) -> None:
    assert not list(faults({**RIGHT, "strategy": "ddp"}, "cifar10"))
    (told,) = faults({**RIGHT, **changes, "strategy": "ddp"}, "cifar10")
    assert told.startswith(begins)


def test_what_may_be_is_not_told() -> None:
    rounded = {"accuracy": [0.3981], "recall": [0.3981], "specificity": [0.93313]}
    assert not [
        *faults(rounded, "cifar10"),
        *faults({"accuracy": [0.9], "recall": [0.91], "specificity": [0.98]}, "digits"),
        *faults({"test_loss": [2.0, 2.1], "strategy": "local_sgd"}, "cifar10"),
        *too_fast(4.0, 4),
    ]
    (told,) = too_fast(4.3, 4)
    assert told.startswith("4.30 times as fast with 4 workers")


def test_our_own_speed_ups_are_looked_at_as_well() -> None:
    def impossible(fast: float) -> list[str]:
        of = study(trial("1x1", images_per_s=100.0), trial("1x2", images_per_s=fast))
        return [line for line in cautions.cautions(Runs(of)) if "cannot be right" in line]

    assert ([line[:18] for line in impossible(900.0)], impossible(204.0)) == (["bs16 1x2 seed0 can"], [])
