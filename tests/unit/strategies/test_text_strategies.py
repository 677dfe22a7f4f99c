"""Every strategy on networks of texts: the losses of one worker, and in ``reproducible`` mode its bits."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from cifar_ray.config.errors import ConfigError
from tests.support.helpers import digest, resolved
from tests.support.threads import losses_of_steps, train_everywhere

pytestmark = pytest.mark.slow

USUAL: dict[str, object] = {
    **{"dataset": f"{__name__}:texts", "precision": "fp32", "optimizer": "sgd", "lr": 0.2, "weight_decay": 0.0},
    **{"epochs": 1, "steps_per_epoch": 6, "global_batch_size": 16, "warmup_epochs": 0.0, "log_every": 1},
}
MODELS: dict[str, dict[str, object]] = {
    "textcnn": {"dim": 8, "filters": 6, "widths": (2, 3), "dropout": 0.0},
    "lstm": {"dim": 8, "hidden": 6, "layers": 2, "dropout": 0.0},
    "text_transformer": {"dim": 8, "heads": 2},
}


def texts() -> object:
    """Texts of 2 to 12 tokens; a 1 before a 2 is another class than after it."""
    random, labels = np.random.default_rng(0), np.arange(120) % 2
    inputs = random.integers(3, 20, (120, 12))
    for row, label in zip(inputs, labels):
        length = random.integers(2, 13)
        row[length:] = 0
        first, second = sorted(random.choice(length, 2, replace=False))
        row[[first, second]] = (1, 2) if label else (2, 1)
    return (inputs[:96], labels[:96]), (inputs[96:], labels[96:])


def config(model: str, **values: object) -> dict[str, object]:
    return {**USUAL, "model": model, "model_options": MODELS[model], **values}


@cache
def alone(model: str) -> list[float]:
    return losses_of_steps(resolved(config(model)), Path(mkdtemp()))


LSTM = ("ddp", "fsdp", "all_reduce", "gpipe", "local_sgd")
OTHERS = [("textcnn", "one_f_one_b"), ("text_transformer", "model_parallel"), ("text_transformer", "send_recv")]


@pytest.mark.parametrize(
    ("model", "strategy"), [*(("lstm", name) for name in LSTM), *OTHERS, ("textcnn", "gather_scatter")]
)
def test_the_losses_are_those_of_one_worker(model: str, strategy: str, tmp_path: Path) -> None:
    values = {"ddp": {"accumulate": 2}, "local_sgd": {"strategy_options": {"sync_every": 1}}}.get(strategy, {})
    asked = resolved(config(model, strategy=strategy, **values), topology="1x2")
    assert losses_of_steps(asked, tmp_path) == pytest.approx(alone(model), rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_weights_are_the_same_at_any_number_of_workers_and_after_a_stop(model: str, tmp_path: Path) -> None:
    reproducible = partial(resolved, config(model), strategy="reproducible", ema=0.9)
    snapshots = train_everywhere(reproducible, tmp_path, stop_after=3)
    assert len({digest(snapshot) for snapshot in snapshots}) == 1


def test_a_pipeline_has_at_most_as_many_workers_as_layers() -> None:
    with pytest.raises(ConfigError, match=r"topology must have at most 3 workers .* with this textcnn"):
        resolved(config("textcnn"), strategy="gpipe", topology="1x4")
