"""Seconds, dollars and what bounds them, for each number of machines: the model itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from cifar_ray.config import limits
from cifar_ray.config.errors import counted
from cifar_ray.config.topology import Topology
from cifar_ray.planning import exchange as exchanges
from cifar_ray.planning.exchange import Exchange
from cifar_ray.planning.link import Link, Route
from cifar_ray.planning.measured import Measured
from cifar_ray.planning.span import Span

KNEE = 1.2
"""Times as many images per second that twice the workers must bring to be before the knee."""

TOO_FAST = 0.33
"""Share of its true time by which a step of several workers may be predicted too fast where the host's work is not
known: the largest error of ``benchmarks/published.py`` (VGG-16 with 64 workers)."""


@dataclass(frozen=True)
class Work:
    """The training to plan."""

    global_batch_size: int  # images of a step, at any number of workers
    micro_batches: int  # of a worker in a step
    steps: int  # in an epoch
    epochs: int  # in all
    exchange: Exchange  # how gradients are exchanged


@dataclass(frozen=True)
class Means:
    """What the training may run on; None where that is not known."""

    link: Link | None = None  # between nodes
    host: Link | None = None  # the work of an exchange on the workers themselves
    price: float | None = None  # USD per node and hour


@dataclass(frozen=True)
class Row:
    """A topology with what it takes."""

    topology: str  # NODESxWORKERS
    workers: int  # in all
    images: int  # of a worker in a micro-batch
    step_s: Span  # seconds of a step
    images_per_s: Span  # in steady state
    efficiency: float  # images per second and worker, as a share of those of the row with the fewest workers
    total_s: Span  # seconds of the whole run, with start-up and evaluation
    usd: Span | None  # dollars of the whole run; None without a price
    parts: dict[str, float]  # seconds of the whole run by what they go to
    bound: str  # the part that takes longest


@dataclass(frozen=True)
class Plan:
    """A plan."""

    rows: tuple[Row, ...]  # by workers
    skipped: dict[str, str]  # topology -> why nothing is said of it
    # the workers from which on twice as many bring less than a fifth more images per second; None where they always
    # bring more
    knee: int | None
    fastest: tuple[str, ...]  # the topology with the shortest run, then those that its range does not tell from it
    cheapest: tuple[str, ...]  # as much of the lowest cost; empty without a price
    unit: str = "images"  # what the task calls its samples
    notes: tuple[str, ...] = ()  # what the figures rest on, in sentences


def plan(measured: Measured, work: Work, topologies: Sequence[Topology], means: Means) -> Plan:
    """What the training takes on each topology."""
    rows: list[Row] = []
    skipped = {}
    for topology in sorted(set(topologies), key=lambda each: (each.world_size, each.nodes)):
        row = _row(measured, work, topology, means)
        if isinstance(row, str):
            skipped[str(topology)] = row
        else:
            rows.append(row)
    if rows:
        least = rows[0].images_per_s.mid / rows[0].workers
        rows = [replace(row, efficiency=row.images_per_s.mid / row.workers / least) for row in rows]
    fastest = _best({row.topology: row.total_s for row in rows})
    cheapest = _best({row.topology: row.usd for row in rows if row.usd})
    return Plan(tuple(rows), skipped, knee(rows), fastest, cheapest)


def _best(spans: Mapping[str, Span]) -> tuple[str, ...]:
    """The name of the lowest, then those whose ranges reach down into its own."""
    if not spans:
        return ()
    best = min(spans, key=lambda name: spans[name].mid)
    alike = [name for name, of in spans.items() if name != best and of.low <= spans[best].high]
    return (best, *alike)


def _row(measured: Measured, work: Work, topology: Topology, means: Means) -> Row | str:
    """A topology's row, or why it has none."""
    world, per_node = topology.world_size, topology.workers_per_node
    if work.global_batch_size % (world * work.micro_batches):
        ways = counted(world, "worker") + f" x {work.micro_batches} micro-batches" * (work.micro_batches > 1)
        return f"the global batch of {work.global_batch_size} is no multiple of {ways}"
    images = work.global_batch_size // (work.micro_batches * world)
    if topology.nodes > 1 and means.link is None:
        return "needs --link, the rate between nodes"
    passes = measured.passes(images, per_node)
    if isinstance(passes, str):
        return passes
    route = Route(means.link if topology.nodes > 1 else None, means.host)
    one, backward = passes
    computing, optimizer = one.times(work.micro_batches), measured.optimizer(per_node)
    exchange = exchanges.exposed(work.exchange, topology, route, one.times(backward))
    # For the slowest worker: from not at all, where they are slow together, to twice the mean where each varies by
    # itself as one was measured to. With local SGD they meet every N-th step.
    every = work.exchange.sync_every if work.exchange.strategy == "local_sgd" else 1
    likely = slowest(world) * measured.jitter(per_node) * computing.mid / math.sqrt(every)
    waiting = Span(0.0, likely, 2 * likely)

    steps = work.steps * work.epochs
    evaluation = measured.evaluation(per_node, world).times(work.epochs)
    checkpoint, once = measured.checkpoint().times(work.epochs), measured.once()
    whole = computing + exchange + waiting + optimizer
    if world > 1 and means.host is None:
        whole = replace(whole, high=whole.high / (1 - TOO_FAST))
    total = whole.times(steps) + evaluation + checkpoint + once
    parts = {
        "computing": steps * (computing.mid + optimizer.mid),
        "exchange": steps * exchange.mid,
        "waiting": steps * waiting.mid,
        "evaluation": evaluation.mid,
        "checkpoints": checkpoint.mid,
        "start-up": once.mid,
    }
    usd = None if means.price is None else total.times(limits.cost(means.price, topology.nodes))
    bound = max(parts, key=lambda name: parts[name])
    rate = whole.under(work.global_batch_size)
    return Row(str(topology), world, images, whole, rate, 1.0, total, usd, parts, bound)


def slowest(workers: int) -> float:
    """The expected largest of so many standard normal values (Blom 1958, to 5 % of the exact one)."""
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25)) if workers > 1 else 0.0


def knee(rows: Sequence[Row]) -> int | None:
    """The workers from which on twice as many bring less than a fifth more images per second."""
    best: dict[int, float] = {}
    for row in rows:
        best[row.workers] = max(best.get(row.workers, 0.0), row.images_per_s.mid)
    counts = sorted(best)
    for few, many in itertools.pairwise(counts):
        if (best[many] / best[few]) ** (1 / math.log2(many / few)) < KNEE:
            return few
    return None
