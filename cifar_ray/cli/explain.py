"""``cifar-ray explain``: what bounds a run."""

from __future__ import annotations

from collections.abc import Iterator

from cifar_ray.cli import early, output
from cifar_ray.config.commands import ExplainCommand
from cifar_ray.display.run import Console
from cifar_ray.tracking import uri as stores
from cifar_ray.training import bottleneck
from cifar_ray.training.rank_times import PARTS, RankTimes, StepTimes
from cifar_ray.training.verdict import Verdict


def show(command: ExplainCommand) -> int:
    """Print the verdict with the times of every rank."""
    early.check_runs([command.run], command.tracking_uri)
    with output.progress(command.json):
        with early.loading("loading MLflow"):
            from cifar_ray.tracking import step_times

        name, times = step_times.read(stores.resolve_uri(command.tracking_uri), command.run)
    verdict = bottleneck.explain(times)
    result = {"run": name, "verdict": verdict, "times": times}
    output.show(result, command.json, lambda: _print(name, verdict, times))
    return 0


def _print(name: str, verdict: Verdict, times: StepTimes) -> None:
    console = Console()
    console.line(f"run {name}: {verdict.kind}: {verdict.sentence}")
    for advice in verdict.advice:
        console.line(f"  try: {advice}")
    if times.ranks:
        console.line("")
        parts = [part for part in PARTS if any(part in rank.parts for rank in times.ranks)]
        console.columns(("rank", "node", "steps", "iteration", *parts), _rows(times, parts))
        console.line("milliseconds of a step: mean, median and 95th percentile")


def _rows(times: StepTimes, parts: list[str]) -> Iterator[tuple[str, ...]]:
    for rank in times.ranks:
        node = f"{rank.node} ({rank.host})" if rank.host else str(rank.node)
        yield (str(rank.rank), node, f"{rank.steps:,}", *(_cell(rank, part) for part in ("iteration", *parts)))


def _cell(rank: RankTimes, part: str) -> str:
    of = rank.iteration if part == "iteration" else rank.parts.get(part)
    return "" if of is None else " ".join(f"{1000 * seconds:.1f}" for seconds in (of.mean, of.median, of.p95))
