"""What a terminal shows of a plan: what is best, the table, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cifar_ray.config import topology
from cifar_ray.config.errors import counted, one_of
from cifar_ray.config.limits import dollars, duration
from cifar_ray.planning.measured import Measured
from cifar_ray.planning.model import TOO_FAST, Means, Plan, Row, Work
from cifar_ray.planning.span import Span


def findings(plan: Plan) -> Iterator[str]:
    """What is fastest and cheapest, unless ranges overlap so that the plan does not tell, and the knee."""
    whole = {row.topology: f"{row.topology}, {ranged(row.total_s, duration)}" for row in plan.rows}
    whole |= {row.topology: f"{whole[row.topology]}, {ranged(row.usd, dollars)}" for row in plan.rows if row.usd}
    for what, names in (("Fastest", plan.fastest), ("Cheapest", plan.cheapest)):
        if names:
            best, *alike = names
            others = f", or {one_of(alike)}: the ranges overlap" if alike else ""
            yield f"{what}: {whole[best]}{others}."
    if plan.knee is not None:
        yield f"Beyond {counted(plan.knee, 'worker')}, twice as many bring less than 20 % more {plan.unit} per second."


def ranged(span: Span, write: Callable[[float], str]) -> str:
    """A figure with its range, unless both ends of that print alike."""
    low, mid, high = map(write, (span.low, span.mid, span.high))
    return mid + (f" ({low} to {high})" if low != high else "")


def table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """The header and a line for each topology."""
    header = ["topology", plan.unit, "step", f"{plan.unit}/s", "efficiency", "whole run"]
    header += ["cost"] * any(row.usd for row in plan.rows)
    lines = []
    for row in plan.rows:
        line = [row.topology, str(row.images)]
        line += [ranged(row.step_s, "{:.3g} s".format), ranged(row.images_per_s, "{:,.0f}".format)]
        line += [f"{100 * row.efficiency:.0f} %", ranged(row.total_s, duration)]
        line += [ranged(row.usd, dollars)] if row.usd else []
        lines.append([*line, row.bound])
    return [*header, "bound by"], lines


def notes(runs: Measured, work: Work, means: Means, rows: Sequence[Row], of: str, unit: str) -> list[str]:
    """What the figures of a plan's rows rest on; ``of`` is the model and its data set."""
    speed = f", taken as {runs.speed:g} times as fast (--speed-factor)" if runs.speed != 1 else ""
    sentences = [
        f"{of}, {counted(work.epochs, 'epoch')} of {counted(work.steps, 'step')} with "
        f"{work.global_batch_size:,} {unit}, {work.exchange.strategy}; measured in {counted(len(runs.samples), 'run')} "
        f"on {runs.hardware or 'unknown hardware'}{speed}. The global batch is held; accuracy is not predicted.",
        "Ranges are those of the runs and of what passes may hide, not of a network or machine that is not as stated.",
    ]
    if means.link:
        sentences.append(f"Link between nodes: {means.link.words}.")
    if means.host:
        sentences.append(f"Exchanges cost the workers themselves: {means.host.words}.")
    elif any(row.workers > 1 for row in rows):
        sentences.append(
            "The workers' own communication cost is unknown and ignored; plans for several are optimistic: give "
            f"--host. The far end of their ranges allows for steps {100 * TOO_FAST:.0f} % too fast, the most by which "
            "published ones were missed."
        )
    if work.exchange.strategy == "ddp":
        sentences.append("When each gradient is ready within the backward pass was measured on this machine's CPU.")
    if any(topology.parse(row.topology).nodes > 1 for row in rows):
        sentences.append("Start-up is as measured on one node; on more it takes longer, which is left out.")
    if means.price is not None:
        sentences.append(f"Cost: every node for the whole run, at {means.price:g} USD per node and hour.")
    return sentences
