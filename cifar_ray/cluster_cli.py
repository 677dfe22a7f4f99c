"""The commands for a cluster and for a trained model. Each subcommand reads its words and calls one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {}
