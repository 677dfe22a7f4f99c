"""Ways of keeping the replicas in step, by name.

The registry is ``StrategyName`` in ``config/strategy.py``: every name in it is a file here, whose ``STRATEGY`` is a
class with the methods of :class:`~cifar_ray.strategies.protocol.Strategy` and whose docstring opens with a sentence,
its label, its source and its cost per step.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifar_ray.config import keywords
from cifar_ray.config.strategy import NAMES

if TYPE_CHECKING:
    from cifar_ray.config.train import TrainConfig
    from cifar_ray.strategies.protocol import Strategy, StrategyContext

__all__ = ["CONTEXT", "NAMES", "About", "about", "build", "complete", "named", "of"]

CONTEXT = 1
"""Arguments of a strategy's class before its options: its context."""


@dataclass(frozen=True)
class About:
    """What a strategy's file says of it.

    Attributes:
        summary: one sentence.
        label: ``exact`` (bit-identical to one worker under a condition), ``close`` (the same mathematics in
            another order of additions) or ``different`` (another algorithm).
        condition: what the label means here.
        source: where it comes from.
        messages: what each rank exchanges in a step, as a formula; its variables are explained in ``cost``.
        bytes: likewise.
        cost: the formulas in words.
    """

    summary: str
    label: str
    condition: str
    source: str
    messages: str
    bytes: str
    cost: str


def of(config: TrainConfig) -> Any:
    """The class of the configured strategy."""
    return named(config.strategy)


def named(strategy: str) -> Any:
    """The class of a strategy; this loads torch."""
    return importlib.import_module(f"cifar_ray.strategies.{strategy}").STRATEGY


def complete(config: TrainConfig) -> dict[str, Any]:
    """The strategy's options: those that are given, checked, and the defaults of the others.

    Raises:
        ConfigError: naming an option that the strategy does not have, or a value that it cannot have.
    """
    return keywords.complete("strategy_options", config.strategy, of(config), CONTEXT, config.strategy_options)


def build(context: StrategyContext) -> Strategy:
    """The configured strategy, ready for the first step."""
    return of(context.config)(context, **context.config.strategy_options)


def about(name: str) -> About:
    """What the file of strategy ``name`` opens with; it is read, since its import would load torch."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    opening_paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[:2]
    text = " ".join(" ".join(opening_paragraphs).split())
    opening = re.match(
        r"(?P<summary>.*?) Label: (?P<label>exact|close|different)(?P<condition>.*?) Source: (?P<source>.*?) "
        r"Cost per step: messages ``(?P<messages>.*?)``, bytes ``(?P<bytes>.*?)``\. (?P<cost>.*)$",
        text,
    )
    assert opening is not None, f"strategies/{name}.py does not open with its label, source and cost"
    groups = opening.groupdict()
    return About(**{**groups, "condition": groups["condition"].strip(".:;, ")})
