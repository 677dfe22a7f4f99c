"""What an exception leaves of a trainer that is running: nothing, unless Ray itself is lost."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cifar_ray.config.errors import InterruptedRunError
from cifar_ray.orchestration.cluster import allocation
from cifar_ray.orchestration.run import attempt
from cifar_ray.orchestration.run.events import Joined, Mailbox
from cifar_ray.orchestration.run.interrupts import RayLostError
from cifar_ray.orchestration.run.workers import Workers


@pytest.mark.parametrize(
    ("raised", "done"),
    [
        (InterruptedRunError(2), ["asked to stop: True", "killed first", "killed second", "removed after fit: True"]),
        (RayLostError("Ray has ended"), []),
    ],
)
def test_an_exception_ends_the_workers_and_waits_for_the_trainer_before_it_frees_what_they_held(
    raised: BaseException, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    fitting: Future[Any] = Future()
    workers = Workers(60.0)
    for rank, actor in enumerate(("first", "second")):
        workers.hear(Joined(rank, actor, "node", 1, ""))

    def kill(actor: str) -> None:
        did.append(f"killed {actor}")
        if actor == "second":
            fitting.set_exception(RuntimeError("a worker has died"))

    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(allocation, "remove_abandoned", lambda: did.append(f"removed after fit: {fitting.done()}"))
    ask = SimpleNamespace(remote=lambda stop: did.append(f"asked to stop: {stop}"))
    with (
        pytest.raises(type(raised)) as caught,
        attempt.ending(fitting, workers, Mailbox(SimpleNamespace(ask_to_stop=ask))),
    ):
        raise raised
    assert caught.value is raised
    assert did == done
