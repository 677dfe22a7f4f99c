"""Whether runs have become slower: the verdict, the exit status, and what counts as a step."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
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


def test_a_slower_step_ends_with_1_and_its_sentence(client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(client, "a", QUICK), side(client, "b", SLOW, tags={"mlflow.source.git.commit": "d" * 40})
    status, out = outcome(client, capsys, a, b)
    (sentence,) = out.splitlines()
    assert status == 1
    logs = [[math.log(step) for step in steps] for steps in (QUICK, SLOW)]
    ratio = math.exp(statistics.fmean(logs[1]) - statistics.fmean(logs[0]))
    assert sentence == (
        f"'b0,b1,b2' is too slow: its step takes {ratio:.3f} times that of 'a0,a1,a2' (120 ms +- 0.8 %, n = 3, against "
        f"100 ms +- 1.0 %, n = 3), and 1.05 is allowed (Welch's test: p = {slowdown.probability(QUICK, SLOW, 1.05):.2g})."
    )
    status, out = outcome(client, capsys, a, b, "--json")
    told = json.loads(out)
    assert status == 1
    assert (told["verdict"], told["ratio"], told["max_slowdown_percent"]) == ("slower", pytest.approx(ratio), 5)
    assert 0 < told["chance"] < 0.001
    assert told["sentence"] == sentence
    assert [[*told[one].values()] for one in ("a", "b")] == [pytest.approx([1000 * s for s in steps]) for steps in (QUICK, SLOW)]  # fmt: skip


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


def test_without_enough_evidence_the_command_ends_with_3(
    client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    a = side(client, "a", QUICK)
    b = side(client, "b", SLOW, tags={"cifar_ray.earlier.cifar_ray.topology": "1x2"})
    status, out = outcome(client, capsys, a, b)
    assert (status, out.startswith("Not enough evidence: "), "'b0,b1,b2' has 0 finished runs" in out) == (3, True, True)
    told = json.loads(outcome(client, capsys, a, b, "--json")[1])
    assert (told["verdict"], told["chance"], told["ratio"]) == ("unknown", None, None)


def test_mistakes_end_with_2(client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = side(client, "a", QUICK), side(client, "b", SLOW)
    other = {name: side(client, name, SLOW, params={name: value}) for name, value in (("global_batch_size", "32"), ("model", "vit"))}  # fmt: skip
    for words, sentence in (
        ((a,), "--max-slowdown compares two sides, A and B, of names separated by commas, got 1"),
        ((a, b, "c"), "--max-slowdown compares two sides, A and B, of names separated by commas, got 3"),
        (
            (a, "b0,nobody"),
            f"there is no run or sweep 'nobody' in {client.tracking_uri}; give its name or MLflow id",
        ),
        ((a, "nowhere.json"), f"cannot read {Path.cwd()}/nowhere.json: No such file or directory"),
        ((a, f"{b},a1"), "run 'a1' is on both sides, which must have different runs"),
        ((a, f"{b},model0"), f"the runs of '{b},model0' differ in model; those of one side may differ in the seed"),
        ((a, other["model"]), "a step of A and of B must be the same work: model is resnet in A and vit in B"),
        (
            (a, other["global_batch_size"]),
            "a step of A and of B must be the same work: global_batch_size is 16 in A and 32 in B",
        ),
    ):
        status, err = outcome(client, capsys, *words)
        assert (status, err.split("; did you mean")[0]) == (2, f"error: {sentence}\n"), words
    status, err = outcome(client, capsys, a, b, percent="-1")
    assert (status, err) == (2, "error: --max-slowdown must be at least 0, got -1\n")


def test_a_side_is_a_sweep_or_an_exported_file_and_unfinished_runs_do_not_count(
    client: MlflowClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(client, *(timed(f"a{n}", step, n) for n, step in enumerate(QUICK)), sweep="before")
    broken = timed("b3", 99.0, 3)
    failed = Run(broken.name, broken.run_id, "FAILED", params=broken.params, tags=broken.tags, metrics=broken.metrics)
    record(client, *(timed(f"b{n}", step, n) for n, step in enumerate(SLOW)), failed, sweep="after")
    status, out = outcome(client, capsys, "before", "after")
    assert status == 1
    assert "'after' is too slow: its step takes 1.200 times that of 'before'" in out
    (before,) = reading.sweeps_or_runs(client.tracking_uri, ["before"])
    file = tmp_path / "baseline.json"
    file.write_text(exported.text(before))
    assert outcome(client, capsys, str(file), "after")[0] == 1
    assert outcome(client, capsys, "after", str(file))[0] == 0


def test_asynchronous_workers_are_timed_by_the_global_batch(client: MlflowClient) -> None:
    """Rank 0's own step says nothing of the others': the wait for the slowest is in the throughput alone."""
    made = [trial("1x2", seed=seed, images_per_s=320.0, params={"strategy": "hogwild"}) for seed in range(2)]
    runs = [Run(f"a{n}", f"a{n}", "FINISHED", params=one.params, tags=one.tags, metrics=one.metrics) for n, one in enumerate(made)]  # fmt: skip
    others = [Run(f"b{n}", f"b{n}", "FINISHED", params=one.params, tags=one.tags, metrics=one.metrics) for n, one in enumerate(made)]  # fmt: skip
    told = slowdown.judge([("a", [study(*runs)]), ("b", [study(*others)])], 5)
    assert (told.verdict, [*told.a.values()]) == ("within", [100.0, 100.0])  # 32 images at 320 images/s


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
