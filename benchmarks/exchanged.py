"""What the exchanges of measured runs cost their workers, fitted: `--host` of `cifar-ray plan`.

Nothing is measured here: validated.py uses it, and shares :func:`errors` with published.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cifar_ray.config.topology import Topology
from cifar_ray.planning import exchange as exchanges
from cifar_ray.planning.exchange import AFTER, STAR
from cifar_ray.planning.link import Link, Route, Traffic
from cifar_ray.planning.measured import Measured
from cifar_ray.planning.model import Work, slowest

AIM = "median <= 10 %, largest <= 25 %"


def errors(values: Iterable[float]) -> str:
    """The median and the largest of errors in %, whatever their signs."""
    ordered = sorted(map(abs, values))
    return f"median {statistics.median(ordered):.1f} %, largest {ordered[-1]:.1f} %"


def host(measured: Measured, work: Work, link: Link | None = None) -> Link | None:
    """What the exchanges of the runs cost their workers.

    Runs of strategies whose messages differ in size tell what a message costs from what its bytes cost. What passes
    through rank 0 and what goes around a ring cost different times, so runs of the other kind count only where there
    are none of the planned one's own.

    Args:
        measured: the runs; those count whose exchange no pass hides.
        work: what they exchanged.
        link: between the nodes of the runs; None counts runs on one node alone.
    """
    open_ones = [sample for sample in measured.samples if sample.world_size > 1 and sample.strategy in AFTER]
    open_ones = [sample for sample in open_ones if sample.nodes == 1 or link is not None]
    is_star = work.exchange.strategy == STAR
    open_ones = [sample for sample in open_ones if (sample.strategy == STAR) == is_star] or open_ones
    points: list[tuple[Traffic, float]] = []
    for sample in open_ones:
        topology = Topology(sample.nodes, sample.workers)
        of_run = replace(work.exchange, strategy=sample.strategy)
        route = Route(link if sample.nodes > 1 else None, None)
        traffic = exchanges.traffic(of_run, topology, route)
        waited = slowest(sample.world_size) * measured.jitter(sample.workers) * sample.computing * sample.micro_batches
        points.append((traffic, sample.exchange - waited - route.network_s(traffic)))
    return fitted(points)


def fitted(measured: Sequence[tuple[Traffic, float]]) -> Link | None:
    """The latency and rate that come nearest to measured exchanges (least squares, neither below zero).

    With exchanges of one kind, whose messages are all as large, the rate alone is fitted.
    """
    points = [(traffic.messages, traffic.size, seconds) for traffic, seconds in measured if seconds > 0]
    if not points:
        return None
    mm = sum(m * m for m, _, _ in points)
    ss = sum(s * s for _, s, _ in points)
    ms = sum(m * s for m, s, _ in points)
    mt = sum(m * t for m, _, t in points)
    st = sum(s * t for _, s, t in points)
    determinant = mm * ss - ms * ms
    latency, per_byte = 0.0, st / ss
    if determinant > 1e-6 * mm * ss:
        latency, per_byte = (mt * ss - st * ms) / determinant, (st * mm - mt * ms) / determinant
        if latency < 0:
            latency, per_byte = 0.0, st / ss
        elif per_byte < 0:
            latency, per_byte = mt / mm, 0.0
    return Link(1 / per_byte if per_byte else math.inf, latency)
