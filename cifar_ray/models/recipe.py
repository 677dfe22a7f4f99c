"""How a model is trained with an optimizer when nothing else is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """Documented defaults of one model with one optimizer, each under the name of its ``TrainConfig`` field."""

    optimizer: Literal["sgd", "adamw"]
    lr: float
    weight_decay: float
    warmup_epochs: float
    base_batch: int = 128
    momentum: float = 0.9
    schedule: Literal["cosine", "constant"] = "cosine"
    label_smoothing: float = 0.0
