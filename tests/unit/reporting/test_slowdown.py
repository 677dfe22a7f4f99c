"""Whether runs have become slower: the verdict, the exit status, and what counts as a step."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from cifar_ray.cli import main
from cifar_ray.reporting import exported, slowdown
from cifar_ray.tracking.study import Run
from tests.support.studies import study, trial

QUICK, SLOW = (0.100, 0.101, 0.099), (0.120, 0.121, 0.119)


def timed(name: str, step_s: float, seed: int = 0, **changes: object) -> Run:
    """A run whose mean step in steady state takes so long, and whose epochs say ten times that."""
    made = trial("1x1", seed=seed, **changes)  # type: ignore[arg-type]
    metrics = {**made.metrics, "time/iteration_mean_s": step_s, "epoch_s": 10 * step_s * 50000 / 16}
    return Run(name, f"id-{name}", "FINISHED", params=made.params, tags=made.tags, metrics=metrics)


def several(name: str, steps: Sequence[float], **changes: object) -> list[Run]:
    """Runs with these steps."""
    return [timed(f"{name}{seed}", step, seed, **changes) for seed, step in enumerate(steps)]


def judged(a: Sequence[Run], b: Sequence[Run], percent: float = 5) -> slowdown.Slowdown:
    """What the command says of these runs, without a store."""
    return slowdown.judge([(",".join(run.name for run in runs), [study(*runs)]) for runs in (a, b)], percent)


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Compares files of runs; gives the exit status, and what is printed as the answer or as a refusal."""
    monkeypatch.chdir(tmp_path)
    files = {"a": several("a", QUICK), "b": [*several("b", SLOW), replace(timed("b3", 99.0, 3), status="FAILED")]}
    files["vit"] = several("vit", SLOW, params={"model": "vit"})
    files["moved"] = several("moved", SLOW, tags={"cifar_ray.earlier.cifar_ray.topology": "1x2"})
    for name, runs in files.items():
        Path(f"{name}.json").write_text(exported.text(study(*runs, name=name)))

    def outcome(*words: str, percent: str = "5") -> tuple[int, str]:
        status = main.main(["compare", *words, "--max-slowdown", percent])
        out, err = capsys.readouterr()
        return status, out or err

    return outcome


def test_the_command_ends_with_1_for_a_slower_step_and_with_3_without_evidence(ask: Ask) -> None:
    status, sentence = ask("a.json", "b.json")
    assert (status, sentence.startswith("'b.json' is too slow: its step takes 1.200 times")) == (1, True)
    status, out = ask("a.json", "b.json", "--json")
    told = json.loads(out)
    ratio = math.exp(sum(map(math.log, SLOW)) / 3 - sum(map(math.log, QUICK)) / 3)
    assert (status, told["verdict"], told["ratio"]) == (1, "slower", pytest.approx(ratio))
    assert (told["sentence"] + "\n", 0 < told["chance"] < 0.001) == (sentence, True)
    for one, steps in (("a", QUICK), ("b", SLOW)):
        assert [*told[one].values()] == pytest.approx([1000 * step for step in steps])
    assert [ask(*words)[0] for words in (("b.json", "a.json"), ("a.json", "moved.json"))] == [0, 3]


@pytest.mark.parametrize(
    ("steps", "percent", "lead"),
    [
        (QUICK, 0, "is not too slow: its step takes 1.000 times"),
        (SLOW, 25, "is not too slow: its step takes 1.200 times"),
        ((0.090, 0.150, 0.110), 5, "may be too slow, but the runs differ too much to tell: its step takes 1.14"),
    ],
)
def test_what_is_within_the_limit_or_chance_ends_with_0(steps: Sequence[float], percent: float, lead: str) -> None:
    told = judged(several("a", QUICK), several("b", steps), percent)
    assert (told.status, lead in told.sentence) == (0, True), told
    # Rank 0's own step says nothing of asynchronous others: the wait for the slowest is in the throughput alone.
    sides = [
        several(name, (0.1, 0.2), images_per_s=160.0, params={"strategy": "hogwild", "topology": "1x2"})
        for name in "ab"
    ]
    assert [*judged(*sides).a.values()] == [100.0, 100.0]  # 16 images at 160 images/s


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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a.json",), "two sides"),
        (("a.json", "b.json", "c"), "two sides"),
        (("a.json", "b.json,nobody"), "no run or sweep 'nobody'"),
        (("a.json", "nowhere.json"), "nowhere.json"),
        (("a.json", "b.json,a.json"), "is on both sides"),
        (("a.json", "b.json,vit.json"), "differ in model"),
        (("a.json", "vit.json"), "model is resnet in A and vit in B"),
    ],
)
def test_mistakes_end_with_2(words: tuple[str, ...], told: str, ask: Ask) -> None:
    status, err = ask(*words)
    assert (status, err.startswith("error: "), told in err) == (2, True, True), err
    assert ask("a.json", "b.json", percent="-1") == (2, "error: --max-slowdown must be at least 0, got -1\n")


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
