"""How long a step of a pipeline takes: its stages, and the order in which micro-batches pass through them.

GPipe: Huang et al. 2019. One forward and one backward pass by turns, with a flush: Narayanan et al. 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cifar_ray.config.topology import Topology
from cifar_ray.planning.link import Route, Traffic
from cifar_ray.planning.span import Span

BY_TURNS = "one_f_one_b"
PIPELINES = ("gpipe", BY_TURNS, "model_parallel")


@dataclass(frozen=True)
class Stages:
    """A model that is cut into the stages of a pipeline.

    Attributes:
        shares: of a micro-batch's passes, of each stage.
        sent: bytes of an image that pass each cut.
        sizes: of the parameters, each stage's share.
    """

    shares: tuple[float, ...]
    sent: tuple[float, ...]
    sizes: tuple[float, ...]


@dataclass(frozen=True)
class Pipeline:
    """A training in which every worker computes a stage of the model.

    Attributes:
        units: what the model may be cut into; of each the seconds of both passes, the bytes that it hands on for each
            image, and those of its parameters.
        cut: where units of so many seconds are cut into so many stages.
        micro_batches: of a global batch.
        by_turns: whether a stage takes one micro-batch forward and one backward, as soon as it can.
    """

    units: tuple[tuple[float, float, int], ...]
    cut: Callable[[Sequence[float], int], Sequence[slice]]
    micro_batches: int
    by_turns: bool = False

    def stages(self, workers: int) -> Stages | str:
        """One for each worker, or why there are none."""
        if workers == 1:
            return "a pipeline of one worker is plain training"
        if workers > len(self.units):
            return f"the model has {len(self.units)} layers with parameters to cut into {workers} stages"
        if self.by_turns and self.micro_batches < workers:
            return f"one_f_one_b needs a micro-batch for each of {workers} workers, and there are {self.micro_batches}"
        seconds = [each for each, _, _ in self.units]
        parts = [self.units[part] for part in self.cut(seconds, workers)]
        took = [sum(each for each, _, _ in part) for part in parts]
        sizes = [sum(size for _, _, size in part) for part in parts]
        return Stages(
            tuple(each / sum(took) for each in took),
            tuple(part[-1][1] for part in parts[:-1]),
            tuple(size / sum(sizes) for size in sizes),
        )


def order(stage: int, stages: int, micro_batches: int, by_turns: bool) -> list[tuple[bool, int]]:
    """What a stage computes, in order: whether it is a backward pass, and of which micro-batch."""
    ahead = min(stages - stage, micro_batches) if by_turns else micro_batches
    passes = [(False, number) for number in range(ahead)]
    for number in range(micro_batches):
        passes.append((True, number))
        if ahead + number < micro_batches:
            passes.append((False, ahead + number))
    return passes


def timeline(
    passes: Sequence[tuple[float, float]],
    micro_batches: int,
    by_turns: bool,
    sending: Sequence[float],
    overlapped: bool = True,
) -> float:
    """Seconds from the first forward pass to the end of the last backward pass.

    Args:
        passes: of each stage, the forward and the backward pass of a micro-batch.
        micro_batches: of a step.
        by_turns: as of :class:`Pipeline`.
        sending: what passes each cut, forward as an activation and backward as its gradient.
        overlapped: whether stages compute meanwhile, and only what one of them sends goes one after the other; if not,
            a stage receives when it has nothing else to do, and waits for it.
    """
    last = len(passes) - 1
    pending = [order(stage, last + 1, micro_batches, by_turns) for stage in range(last + 1)]
    sent: dict[tuple[int, bool, int], float] = {}  # to a stage, of a pass: when it is there
    free, sending_until = [0.0] * (last + 1), [0.0] * (last + 1)
    while any(pending):
        for stage, left in enumerate(pending):
            while left:
                is_backward, number = left[0]
                begin = free[stage]
                if stage != (last if is_backward else 0):
                    if (stage, is_backward, number) not in sent:
                        break
                    begin = max(begin, sent[stage, is_backward, number])
                    begin += 0 if overlapped else sending[stage - (not is_backward)]
                left.pop(0)
                free[stage] = end = begin + passes[stage][is_backward]
                if stage != (0 if is_backward else last):
                    if overlapped:
                        end = max(end, sending_until[stage]) + sending[stage - is_backward]
                        sending_until[stage] = end
                    sent[stage + (-1 if is_backward else 1), is_backward, number] = end
    return max(free)


def seconds(
    pipeline: Pipeline, stages: Stages, topology: Topology, route: Route, images: int, forward: float, backward: float
) -> tuple[float, Span]:
    """A step's passes without what is sent, and what that adds: from beside the passes to by turns with them.

    Args:
        pipeline: the order of the passes.
        stages: one for each worker.
        topology: the workers; those of a node are neighbours.
        route: what is sent from node to node passes its network; within a node there is the host's work alone.
        images: of a micro-batch.
        forward: seconds of a micro-batch through the whole model.
        backward: likewise.
    """
    taken = []
    for worker, size in enumerate(stages.sent, start=1):
        way = Route(None, route.host) if worker % topology.workers_per_node else route
        taken.append(way.seconds(Traffic(1, images * size, images * size)))
    passes = [(share * forward, share * backward) for share in stages.shares]
    order = pipeline.micro_batches, pipeline.by_turns
    alone = timeline(passes, *order, [0.0] * len(taken))
    low = timeline(passes, *order, [each.low for each in taken])
    high = max(timeline(passes, *order, [each.high for each in taken], overlapped=False), low)
    return alone, Span(low - alone, (low + high) / 2 - alone, high - alone)
