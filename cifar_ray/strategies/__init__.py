"""Ways of keeping the replicas in step, by name.

The registry is ``StrategyName`` in ``config/strategy.py``: every name in it is a file here, whose ``STRATEGY`` is a
:class:`~cifar_ray.strategies.protocol.Strategy` and whose docstring opens with a sentence, its label, its source and
its cost per step. Strategies of one file are classes in it that :data:`_CLASSES` names, each with such a docstring.
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


_CLASSES = {"gpipe": "pipeline.GPipe", "one_f_one_b": "pipeline.OneFOneB", "model_parallel": "pipeline.ModelParallel"}
"""File and class of each strategy that shares its file with others."""


@dataclass(frozen=True)
class About:
    """What a strategy's docstring says of it.

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
    module, _, name = _CLASSES.get(strategy, f"{strategy}.STRATEGY").partition(".")
    return getattr(importlib.import_module(f"cifar_ray.strategies.{module}"), name)


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
    """What the docstring of strategy ``name`` opens with; its file is read, since an import would load torch."""
    module, _, shared = _CLASSES.get(name, name).partition(".")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    opening_paragraphs = (ast.get_docstring(classes[shared] if shared else tree) or "").split("\n\n")[:2]
    text = " ".join(" ".join(opening_paragraphs).split())
    opening = re.match(
        r"(?P<summary>.*?) Label: (?P<label>exact|close|different)(?P<condition>.*?) Source: (?P<source>.*?) "
        r"Cost per step: messages ``(?P<messages>.*?)``, bytes ``(?P<bytes>.*?)``\. (?P<cost>.*)$",
        text,
    )
    assert opening is not None, f"strategy {name} does not open with its label, source and cost"
    groups = opening.groupdict()
    return About(**{**groups, "condition": groups["condition"].strip(".:;, ")})
