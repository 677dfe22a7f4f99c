"""Moments on a CPU or a GPU; and when one rank of a pipeline computes, and when it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def moment(device: torch.device, again: Any = None) -> Any:
    """This moment: on a GPU, when it has come to what is queued; its event is used ``again`` where there is one."""
    if device.type != "cuda":
        return time.perf_counter()
    event = again or torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(begin: Any, end: Any) -> float:
    """From one moment to another, both of the same device."""
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1000


class Stopwatch:
    """Marks the parts of a step, and adds up how long this rank computes.

    On a GPU the times are those of events, which are read between steps, so that nothing waits inside one.
    """

    def __init__(self, mark: Callable[[str], None], device: torch.device) -> None:
        self._mark, self._device = mark, device
        self.restart()

    def restart(self) -> None:
        """Forget what was measured; the step that comes next is not typical and does not count."""
        self._steps: list[list[tuple[Any, Any]]] = []
        self._fresh = True
        self._busy = self._took = 0.0

    def step(self) -> None:
        """A step begins."""
        self._steps.append([])

    @contextmanager
    def computing(self, part: str) -> Iterator[None]:
        """Context manager: this rank computes a ``part`` of the step; the time before it was waiting."""
        self._mark("communication")
        begin = moment(self._device)
        yield
        self._mark(part)
        self._steps[-1].append((begin, moment(self._device)))

    def read(self) -> tuple[float, float]:
        """Seconds of computing, and from the first to the last of it in each step; no step is running."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        steps, self._steps = self._steps, []
        if self._fresh and steps:
            steps, self._fresh = steps[1:], False
        for spans in steps:
            self._busy += sum(seconds_between(begin, end) for begin, end in spans)
            self._took += seconds_between(spans[0][0], spans[-1][1])
        return self._busy, self._took
