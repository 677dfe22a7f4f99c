"""A search that stops runs early, or whose runs Optuna proposes: its winner, and what a kill leaves of it."""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.test_sweep import SMALL, children
from tests.support import typed
from tests.support.person import Person

PROPOSED = ["--search", "optuna", "--epochs", "2", "--steps-per-epoch", "10", "--max-concurrent", "1"]


def cells(person: Person, name: str) -> list[dict[str, object]]:
    return json.loads((person.home / ".cifar_ray/runs" / name / "cells.json").read_text())


@pytest.mark.slow
def test_a_search_by_optuna_trains_what_it_proposes_and_names_the_best_run(person: Person) -> None:
    pytest.importorskip("optuna", reason="needs the extra `optuna`")
    axes = ["--grid", "lr=loguniform:0.0001:0.3", "global_batch_size=32,2000"]
    words = ["--dataset", "digits", "--model", "simple_cnn", *PROPOSED, "--samples", "5", *axes]
    words += ["--scheduler", "asha", "--asha-grace", "2"]  # which stops none before its end
    output = person.succeeds("sweep", "--name", "tpe", *words).stdout
    runs = children(person, "tpe")
    planned = {cell["name"]: cell for cell in cells(person, "tpe")}
    assert len(planned) == 5
    assert set(runs) == {name for name, cell in planned.items() if cell["state"] == "RUN"}
    for name, cell in planned.items():
        if name in runs:
            assert runs[name].info.status == "FINISHED"
            assert float(runs[name].data.params["lr"]) == cell["proposal"]["lr"]
        else:
            assert f"{name}: skipped, global_batch_size must leave at least one step per epoch" in output
    values = {name: run.data.metrics["best/accuracy"] for name, run in runs.items()}
    top = max(values.values())
    best, longer = output.splitlines()[-2:]
    named = re.match(rf"best run +(.*): validation accuracy {top:.2%}, ", best)
    assert named
    winner = named[1]
    assert values[winner] == top  # of few validation images, several may be equal
    command = re.sub("^train it longer +cifar-ray train ", "", longer)
    config = typed.run(*command.split())
    assert (config.epochs, config.lr) == (4, float(runs[winner].data.params["lr"]))
    assert f"The best run is {winner}: " in person.run_named("tpe").data.tags["mlflow.note.content"]


@pytest.mark.fault
@pytest.mark.extended
def test_a_search_that_is_killed_goes_on_and_trains_nothing_twice(person: Person) -> None:
    pytest.importorskip("optuna", reason="needs the extra `optuna`")
    axes = ["--grid", "lr=loguniform:0.001:0.3", "weight_decay=0,0.001"]
    words = ["--name", "victim", *SMALL, *PROPOSED, "--checkpoint-every", "3", "--samples", "4", *axes]
    before: dict[str, object] = {}
    for moment in (" of 4, 1 at once", "epoch 1/2", ": finished"):
        with person.starts("sweep", *words) as driver:
            driver.until(moment)
            driver.kill()
            driver.end()
        words = ["--resume", "victim"]
        now = {cell["name"]: cell for cell in cells(person, "victim") if cell["state"] == "RUN"}
        assert before.items() <= now.items()
        before = now
    ended = {
        name: run.info.end_time for name, run in children(person, "victim").items() if run.info.status == "FINISHED"
    }
    person.succeeds("sweep", *words)
    planned = {cell["name"]: cell for cell in cells(person, "victim")}
    assert before.items() <= planned.items()
    assert len({json.dumps(cell["proposal"]) for cell in planned.values()}) == 4
    runs = children(person, "victim")
    assert set(runs) == set(planned)
    for name, run in runs.items():
        assert run.info.status == "FINISHED"
        assert person.steps(name, "val/accuracy") == [1, 2]
    assert {name: runs[name].info.end_time for name in ended} == ended
