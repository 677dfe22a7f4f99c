"""Whether runs have become slower: the verdict, the exit status, and what counts as a step."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from scipy import stats

from cifar_ray.cli import main
from cifar_ray.reporting import exported, slowdown
from cifar_ray.tracking import parent, reading
from cifar_ray.tracking.study import KEY_TAG, SWEEP_TAG, Run
from tests.support import mlflow_store
from tests.support.studies import study, trial

QUICK, SLOW = (0.100, 0.101, 0.099), (0.120, 0.121, 0.119)


def timed(name: str, step_s: float, seed: int = 0, **changes: object) -> Run:
    """A run whose mean step in steady state takes so long, and whose epochs say ten times that."""
    made = trial("1x1", seed=seed, **changes)  # type: ignore[arg-type]
    metrics = {**made.metrics, "time/iteration_mean_s": step_s, "epoch_s": 10 * step_s * 50000 / 16}
    return Run(name, f"id-{name}", "FINISHED", params=made.params, tags=made.tags, metrics=metrics)


@pytest.fixture
def client(tmp_path: Path, home: Path) -> MlflowClient:
    return mlflow_store.new_store(tmp_path)


def record(client: MlflowClient, *trials: Run, sweep: str = "") -> None:
    """Write runs to the store, below a sweep if it is named."""
    above = {}
    if sweep:
        tags = {parent.KIND_TAG: parent.KIND, SWEEP_TAG: sweep}
        above[parent.PARENT_TAG] = client.create_run("0", tags=tags, run_name=sweep).info.run_id
    for one in trials:
        tags = {KEY_TAG: one.name, **above, **one.tags}
        run = client.create_run("0", run_name=one.name).info.run_id
        client.log_batch(
            run,
            metrics=[Metric(name, value, 9000, 1) for name, value in one.metrics.items()],
            params=[Param(*pair) for pair in one.params.items()],
            tags=[RunTag(*pair) for pair in tags.items()],
        )
        client.set_terminated(run, one.status)


def several(name: str, steps: Sequence[float], **changes: object) -> list[Run]:
    """Runs with these steps."""
    return [timed(f"{name}{seed}", step, seed, **changes) for seed, step in enumerate(steps)]


def side(client: MlflowClient, name: str, steps: Sequence[float], **changes: object) -> str:
    """Record runs with these steps; what names them on the command line."""
    runs = several(name, steps, **changes)
    record(client, *runs)
    return ",".join(run.name for run in runs)


def judged(a: Sequence[Run], b: Sequence[Run], percent: float = 5) -> slowdown.Slowdown:
    """What the command says of these runs, without a store."""
    return slowdown.judge([(",".join(run.name for run in runs), [study(*runs)]) for runs in (a, b)], percent)


def outcome(
    client: MlflowClient, capsys: pytest.CaptureFixture[str], *words: str, percent: str = "5"
) -> tuple[int, str]:
    """The exit status, and what is printed on standard output, or standard error if that is empty."""
    capsys.readouterr()
    status = main.main(["compare", *words, "--max-slowdown", percent, "--tracking-uri", client.tracking_uri])
    out, err = capsys.readouterr()
    return status, out or err


def test_the_command_ends_with_1_for_a_slower_step_and_with_3_without_evidence(
    client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = side(client, "a", QUICK), side(client, "b", SLOW, tags={"mlflow.source.git.commit": "d" * 40})
    status, sentence = outcome(client, capsys, a, b)
    assert (status, sentence.startswith("'b0,b1,b2' is too slow: its step takes 1.200 times")) == (1, True)
    status, out = outcome(client, capsys, a, b, "--json")
    told = json.loads(out)
    ratio = math.exp(sum(map(math.log, SLOW)) / 3 - sum(map(math.log, QUICK)) / 3)
    assert (status, told["verdict"], told["ratio"], told["max_slowdown_percent"]) == (
        *(1, "slower", pytest.approx(ratio), 5),
    )
    assert (told["sentence"] + "\n", 0 < told["chance"] < 0.001) == (sentence, True)
    for one, steps in (("a", QUICK), ("b", SLOW)):
        assert [*told[one].values()] == pytest.approx([1000 * step for step in steps])
    moved = side(client, "c", SLOW, tags={"cifar_ray.earlier.cifar_ray.topology": "1x2"})
    assert outcome(client, capsys, a, moved)[0] == 3


@pytest.mark.parametrize(
    ("steps", "percent", "lead"),
    [
        (QUICK, 0, "is not too slow: its step takes 1.000 times"),
        (QUICK, 50, "and 1.5 is allowed (Welch's test: p = 1)"),
        (SLOW, 25, "is not too slow: its step takes 1.200 times"),
        ((0.090, 0.150, 0.110), 5, "may be too slow, but the runs differ too much to tell: its step takes 1.14"),
    ],
)
def test_what_is_within_the_limit_or_chance_ends_with_0(steps: Sequence[float], percent: float, lead: str) -> None:
    told = judged(several("a", QUICK), several("b", steps), percent)
    assert (told.status, lead in told.sentence) == (0, True), told


@pytest.mark.parametrize(
    ("steps", "tags", "reason"),
    [
        (SLOW[:1], {}, "'b0' has 1 finished run with step times, and it takes 2 or more"),
        (SLOW, {"cifar_ray.hardware": "Intel"}, "the runs have different hardware (AMD EPYC 9754; Intel)"),
        (SLOW, {"cifar_ray.threads": "4"}, "the runs have different CPU threads per worker (2; 4)"),
        (SLOW, {"cifar_ray.earlier.cifar_ray.topology": "1x2"}, "'b0,b1,b2' has 0 finished runs with step times"),
        (SLOW, {"cifar_ray.measure": "accuracy"}, "'b0,b1,b2' has 0 finished runs with step times"),
    ],
)
def test_without_enough_evidence_it_ends_with_3(steps: Sequence[float], tags: dict[str, str], reason: str) -> None:
    a = several("a", QUICK, tags={"cifar_ray.threads": "2"})
    told = judged(a, several("b", steps, tags={"cifar_ray.threads": "2", **tags}))
    said = told.sentence
    assert (told.status, said.startswith("Not enough evidence: "), reason in said) == (3, True, True), said
    assert (told.verdict, told.chance, told.ratio) == ("unknown", None, None)


def test_mistakes_end_with_2(client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(client, "a", QUICK), side(client, "b", SLOW[:2])
    other = side(client, "model", SLOW[:1], params={"model": "vit"})
    for words, told in (
        ((a,), "two sides"),
        ((a, b, "c"), "two sides"),
        ((a, "b0,nobody"), "no run or sweep 'nobody'"),
        ((a, "nowhere.json"), "nowhere.json"),
        ((a, f"{b},a1"), "'a1' is on both sides"),
        ((a, f"{b},{other}"), "differ in model"),
        ((a, other), "model is resnet in A and vit in B"),
    ):
        status, err = outcome(client, capsys, *words)
        assert (status, err.startswith("error: "), told in err) == (2, True, True), err
    status, err = outcome(client, capsys, a, b, percent="-1")
    assert (status, err) == (2, "error: --max-slowdown must be at least 0, got -1\n")


def test_a_side_is_a_sweep_or_an_exported_file_and_unfinished_runs_do_not_count(
    client: MlflowClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(client, *several("a", QUICK), sweep="before")
    record(client, *several("b", SLOW), replace(timed("b3", 99.0, 3), status="FAILED"), sweep="after")
    (before,) = reading.sweeps_or_runs(client.tracking_uri, ["before"])
    file = tmp_path / "baseline.json"
    file.write_text(exported.text(before))
    status, out = outcome(client, capsys, str(file), "after")
    assert (status, "'after' is too slow: its step takes 1.200 times" in out) == (1, True)
    assert outcome(client, capsys, "after", "before")[0] == 0


def test_the_chance_is_welchs_on_logarithms() -> None:
    first, second = (1.0, 1.1, 0.9, 1.05), (1.2, 1.5)
    logs = [[math.log(time) for time in times] for times in (first, second)]
    means = [statistics.fmean(of) for of in logs]
    errors = [statistics.variance(of) / len(of) for of in logs]
    t = (means[1] - means[0] - math.log(1.05)) / math.sqrt(sum(errors))
    freedom = sum(errors) ** 2 / sum(error**2 / (len(of) - 1) for error, of in zip(errors, logs))
    assert slowdown.probability(first, second, 1.05) == pytest.approx(stats.t.sf(t, freedom))
    assert slowdown.probability((2.0, 2.0), (2.0, 2.0), 1.0) == 1.0
    assert slowdown.probability((2.0, 2.0), (2.1, 2.1), 1.05) == 1.0
    assert slowdown.probability((2.0, 2.0), (2.2, 2.2), 1.05) == 0.0
