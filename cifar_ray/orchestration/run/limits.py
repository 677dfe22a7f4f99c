"""What a run has used so far, over all attempts and drivers, and whether that reaches one of its limits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from cifar_ray import data, tasks
from cifar_ray.config import limits
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.storage import Folder
from cifar_ray.tasks import choosing
from cifar_ray.training.observer import Row

_FILE = "spent.json"
_TICK_S, _WRITE_S = 1.0, 30.0

Limit = Callable[["Spent"], str]
"""What stops a run that has used so much, such as ``max_time``; empty while it may go on."""


@dataclass(frozen=True)
class Spent:
    """Event: what a run has used so far.

    Attributes:
        placed_s: seconds that its workers have been placed, from placement to the end of each attempt.
        node_s: the same, times the nodes.
        waiting_s: seconds of waiting for nodes and room, and for workers to start.
        nodes: nodes that it holds now.
    """

    placed_s: float = 0.0
    node_s: float = 0.0
    waiting_s: float = 0.0
    nodes: int = 0

    def usd(self, price: float | None) -> float | None:
        """What it has cost in US dollars; None without a price."""
        return None if price is None else limits.cost(price, self.node_s)

    def figures(self, price: float | None) -> dict[str, float]:
        """As metrics of the run."""
        figures = {"time/placed_s": self.placed_s, "time/waiting_s": self.waiting_s}
        return figures if price is None else {**figures, "cost/usd": limits.cost(price, self.node_s)}

    def rows(self, price: float | None) -> list[tuple[str, str]]:
        """As rows of a table."""
        placed, waiting = limits.duration(self.placed_s), limits.duration(self.waiting_s)
        rows = [("on nodes, all attempts", placed), ("waiting", waiting)]
        if price is not None:
            usd = limits.dollars(limits.cost(price, self.node_s))
            rows.append(("cost", f"{usd} (at {price:g} USD per node and hour)"))
        return rows


@dataclass(frozen=True)
class LimitReached:
    """Event: the run should stop, by a limit as :mod:`cifar_ray.config.limits` names it."""

    by: str


class Meter:
    """Counts what a run uses, and keeps it in the run's folder for the next driver."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._before = recorded(folder)
        self._since = self._ticked = self._written = time.monotonic()

    @property
    def spent(self) -> Spent:
        """What the run has used until now."""
        before, seconds = self._before, time.monotonic() - self._since
        if not before.nodes:
            return replace(before, waiting_s=before.waiting_s + seconds)
        return replace(before, placed_s=before.placed_s + seconds, node_s=before.node_s + before.nodes * seconds)

    def place(self, nodes: int, ago_s: float = 0.0) -> None:
        """Count these nodes as held since ``ago_s`` seconds ago, when the attempt's first worker was placed.

        The driver learns of a worker late, in a short run after its end, hence ``ago_s``. It compares clocks of two
        machines, which may differ, so it counts from the start of the attempt at most.
        """
        if not self._before.nodes:
            self._hold(nodes, min(max(ago_s, 0.0), time.monotonic() - self._since))

    def release(self) -> Spent:
        """The attempt has ended."""
        self._hold(0)
        self._write()
        return self._before

    def _hold(self, nodes: int, ago_s: float = 0.0) -> None:
        self._since += ago_s  # of what was held until now
        self._before, self._since = replace(self.spent, nodes=nodes), time.monotonic() - ago_s

    def tick(self) -> Spent | None:
        """What the run has used, about once a second; kept in the folder now and then."""
        now = time.monotonic()
        if now - self._ticked < _TICK_S:
            return None
        self._ticked = now
        if now - self._written >= _WRITE_S:
            self._write()
        return self.spent

    def _write(self) -> None:
        self._written = time.monotonic()
        with suppress(OSError):  # the next one may succeed
            self._folder.write(_FILE, json.dumps(asdict(replace(self.spent, nodes=0))))


def recorded(folder: Folder) -> Spent:
    """What a run had used when its last driver wrote it into its folder."""
    try:
        return Spent(**json.loads(folder.read(_FILE)))
    except (OSError, TypeError, ValueError):  # nothing was trained yet, or the file is damaged
        return Spent()


def of_run(config: TrainConfig) -> Limit:
    """The limits of one run."""

    def reached(spent: Spent) -> str:
        if config.max_time is not None and spent.placed_s >= limits.seconds(config.max_time):
            return "max_time"
        usd = spent.usd(config.price)
        return "max_cost" if config.max_cost is not None and usd is not None and usd >= config.max_cost else ""

    return reached


def refuse_reached(config: TrainConfig, folder: Folder) -> None:
    """Refuse to go on with a run that has reached its limits.

    Raises:
        ConfigError: naming the limit, and what the run has used.
    """
    spent = recorded(folder)
    if key := of_run(config)(spent):
        usd = spent.usd(config.price) or 0.0
        used = limits.duration(spent.placed_s) if key == "max_time" else limits.dollars(usd)
        raise ConfigError(key, f"must be more than the {used} of run {folder.name} so far, got {getattr(config, key)}")


def refuse_exhausted(config: TrainConfig, history: Sequence[Row], name: str) -> None:
    """Refuse to go on with a run that ``--patience`` has ended, unless it is larger now.

    Raises:
        ConfigError: naming the option.
    """
    epochs = [row.metrics for row in history if row.kind == "epoch"]
    facts = data.facts(config)
    task = tasks.spec(config, facts)
    if choosing.is_exhausted(config, task, facts, epochs):
        rule = f"must be more than the epochs without a better {task.primary.on(facts.measured)}"
        raise ConfigError("patience", f"{rule} after which run {name} has ended, got {config.patience}")
