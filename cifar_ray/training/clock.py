"""Where the time goes, on one rank.

Five phases are kept apart: start-up, data, training, evaluation, checkpoint. Training is the time in
which steps run, from the first batch to the end of the last optimizer step. On a GPU the ends of the
steps are recorded as CUDA events and read when the steps pause, so nothing waits inside a step.

A step is split further: data (the batch is taken and augmented), forward, backward, communication (waiting for
other ranks, as far as it is not hidden behind the backward pass), optimizer. What is in none of them, such as the
record of a logged iteration, counts to the iteration alone.

The wall clock runs from the start of the command. It continues over interruptions as the phases do.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cifar_ray.strategies.worker import moment, seconds_between
from cifar_ray.training import hardware
from cifar_ray.training.rank_times import PARTS, PHASES

_STEP, _OTHER = "step", "other"


class Clock:
    """Phase times and iteration times, continued over interruptions.

    Attributes:
        seconds: phase -> seconds so far, in this process and those that it continues.
        begun: ``time.time()`` at which the run would have begun had it never been interrupted.
    """

    def __init__(self, device: torch.device, begun: float) -> None:
        """Start the wall clock at ``begun``, when the command began."""
        self._device = device
        self.begun = begun
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._steps = array("d")  # of each iteration of this process: its seconds, and those of its parts
        self._earlier = self.steps()  # of earlier processes
        self._marks: list[tuple[str, Any]] = []
        self._cpu_wait_s = self._waited_before = self._ran_s = 0.0  # of this process, in every step
        self._pauses = 0.0  # seconds of training in which no steps run
        self._left_out = 1  # iterations that are still to come: the first of a process is not typical

    def leave_out(self, count: int = 1) -> None:
        """Leave the next iterations out of the iteration times, as those that are profiled."""
        self._left_out = max(count, self._left_out)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Context manager: add the block's time to a phase."""
        self._wait()
        begin = time.perf_counter()
        yield
        self._wait()
        elapsed = time.perf_counter() - begin
        self.seconds[name] += elapsed
        self._pauses += elapsed if name == "training" else 0.0

    def start(self) -> None:
        """Start timing steps."""
        self._waited_before = hardware.cpu_wait_s()
        self._marks = [(_OTHER, moment(self._device))]

    def mark(self, part: str) -> None:
        """Attribute the time since the last mark to this part of the step; on a GPU, the time of what was queued.

        A part marked twice in a row ends with the second mark.
        """
        if self._marks and self._marks[-1][0] == part:
            self._marks[-1] = (part, moment(self._device, self._marks[-1][1]))
        else:
            self._marks.append((part, moment(self._device)))

    def lap(self) -> None:
        """Mark the end of a step; on a GPU, the end of queueing it."""
        self._marks.append((_STEP, moment(self._device)))

    def stop(self) -> None:
        """Stop timing steps."""
        self._wait()
        self._cpu_wait_s += hardware.cpu_wait_s() - self._waited_before
        marks, self._marks = self._marks, []
        begin = before = marks[0][1]
        parts: dict[str, float] = {}  # of the step that has not ended yet
        for part, mark in marks[1:]:
            if part == _STEP:
                lap = seconds_between(begin, mark)
                self._ran_s += lap
                self.seconds["training"] += lap
                if self._left_out:
                    self._left_out -= 1
                else:
                    self._steps.extend((lap, *(parts.get(name, 0.0) for name in PARTS)))
                begin, parts = mark, {}
            elif part != _OTHER:
                parts[part] = parts.get(part, 0.0) + seconds_between(before, mark)
            before = mark

    def steps(self) -> Tensor:
        """Seconds of every iteration of this process, and of its parts in the order of :data:`PARTS`.

        Returns:
            float64, of shape (iterations, 1 + parts).
        """
        return torch.tensor(self._steps, dtype=torch.float64).view(-1, 1 + len(PARTS))

    def _every(self) -> Tensor:
        """As :meth:`steps`, of earlier processes, too."""
        return torch.cat([self._earlier, self.steps()])

    def parts(self) -> dict[str, float]:
        """Mean seconds of a step by part, over the iterations of :meth:`iterations`; empty when there are none."""
        means = self._every().mean(0).tolist()[1:]
        return {part: seconds for part, seconds in zip(PARTS, means) if seconds > 0}

    @property
    def cpu_wait(self) -> float:
        """For how much of the time of all steps of this process the thread that trains waited for a CPU.

        0 on a GPU: the thread queues work ahead of it, so that its waiting need not make a step longer.
        """
        return self._cpu_wait_s / self._ran_s if self._ran_s and self._device.type != "cuda" else 0.0

    def iterations(self) -> dict[str, float]:
        """Mean, median and 95th percentile of the iteration times in seconds.

        The first iteration of each process is left out, and so are that of a strategy that is built again and those
        that are profiled. Empty when there is no other.
        """
        times = self._every()[:, 0]
        if not len(times):
            return {}
        return {
            "iteration_mean_s": times.mean().item(),
            "iteration_median_s": times.quantile(0.5).item(),
            "iteration_p95_s": times.quantile(0.95).item(),
        }

    def pace(self) -> float:
        """Mean seconds of training per step, over the iterations of :meth:`iterations`.

        Unlike their mean it has the pauses in it, where asynchronous workers wait for the slowest.
        """
        times = self._every()[:, 0]
        return (times.sum().item() + self._pauses) / len(times)

    def state(self) -> dict[str, Any]:
        """The state that :meth:`restore` continues from."""
        return {
            "seconds": dict(self.seconds),
            "steps": self._every().float(),
            "pauses": self._pauses,
            "wall_s": time.time() - self.begun,
        }

    def restore(self, state: dict[str, Any], same_workers: bool) -> None:
        """Continue from an earlier process's :meth:`state`; what this one has measured so far is added.

        Iterations compare with those to come only where it ran on the ``same_workers``.
        """
        for phase, seconds in state["seconds"].items():
            self.seconds[phase] += seconds
        self.begun -= state["wall_s"]
        if same_workers:
            self._earlier = state["steps"].double()
            self._pauses += state["pauses"]

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
