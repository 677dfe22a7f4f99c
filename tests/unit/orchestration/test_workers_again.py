"""What workers that are started again have from those before them."""

from __future__ import annotations

from typing import Any

import pytest

from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.run import events
from cifar_ray.orchestration.run.events import Mailbox
from cifar_ray.orchestration.run.worker import _as_before
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import recipe
from cifar_ray.training.observer import Started

ASKED = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn"))


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The actor of a mailbox, in this process."""

    class Here(events._MailboxActor):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            return type("Method", (), {"remote": staticmethod(found)}) if name == "precision" else found

    monkeypatch.setattr(events.ray, "get", lambda answer: answer)
    return Here(None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_workers_that_start_again_train_in_the_precision_that_was_measured(actor: Any, precision: str) -> None:
    mailbox, alone = Mailbox(actor), Worker(0, 1, 0)
    assert _as_before(ASKED, mailbox, alone) == ASKED, "the first ones measure"
    actor.post(Started(recipe.with_precision(ASKED, precision), 0, 10))
    assert _as_before(ASKED, mailbox, alone).precision == precision
    given = recipe.with_precision(ASKED, "fp32")
    assert _as_before(given, mailbox, alone) == given
