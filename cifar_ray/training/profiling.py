"""Profile some steps of every rank: a trace for Perfetto, and a table of its operators.

``torch.profiler`` records them after one step in which it warms up itself. No rank waits for another here, so every
strategy can be profiled; what a rank computes stays the same to the last bit.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from cifar_ray.config import errors
from cifar_ray.training.observer import Observer, Traced
from cifar_ray.training.recipe import profiled_from
from cifar_ray.training.setup import TrainingState

FOLDER = "traces"
"""Name of the folder of traces, beside that of checkpoints."""

_COLUMNS = ("rank", "operator", "calls", "self_cpu_ms", "cpu_ms", "self_gpu_ms", "gpu_ms")


def profiled(state: TrainingState, observer: Observer, steps: range) -> Iterator[int]:
    """The steps of an epoch, or of what is left of it; those that ``--profile-steps`` asks for are profiled.

    A run that goes on after them has its traces already.
    """
    first = profiled_from(state.config, state.loader.steps_per_epoch)
    begin = -1 if first is None else first - (state.step - steps.start)
    if begin not in steps:
        yield from steps
        return
    end = begin + 1 + (state.config.profile_steps or 0)
    yield from range(steps.start, begin)
    with _recording(state, observer, end - begin - 1) as profiler:
        for step in range(begin, end):
            with record_function(f"step {state.step + 1}"):
                yield step
            profiler.step()
    yield from range(end, steps.stop)


@contextmanager
def _recording(state: TrainingState, observer: Observer, count: int) -> Iterator[profile]:
    """Context manager: a profiler that records after its first step; the trace goes to the observer afterwards.

    The iteration times have none of these steps, nor the next one, in which ranks may wait for one that still writes.
    """
    clock, worker = state.clock, state.worker
    clock.stop()
    clock.leave_out(count + 2)  # the warm-up and the next one, too
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if worker.device.type == "cuda" else [])]
    plan = schedule(wait=0, warmup=1, active=count, repeat=1)
    profiler = profile(activities=activities, schedule=plan, record_shapes=True)
    profiler.start()
    clock.start()
    try:
        yield profiler
    finally:
        profiler.stop()
    clock.stop()
    path, problem = state.folder.parent / FOLDER / f"rank{worker.rank}.json.gz", ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:  # the profiler's own is a RuntimeError
        problem = f"{path} cannot be written: {getattr(error, 'strerror', None) or errors.first_line(error)}"
        with suppress(OSError):
            path.unlink()  # where the disk is full, it has the beginning
    observer.traced(Traced(worker.rank, path, _operators(profiler, worker.rank, count), problem))
    clock.start()


def _operators(profiler: profile, rank: int, steps: int) -> str:
    """What each operator takes per step, as CSV with a header, the slowest first.

    ``self`` is without the operators that it calls.
    """
    found = [one for one in profiler.key_averages() if not re.match(r"ProfilerStep|step \d", one.key)]
    found.sort(key=lambda one: (one.self_device_time_total, one.self_cpu_time_total), reverse=True)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for one in found:
        times = (one.self_cpu_time_total, one.cpu_time_total, one.self_device_time_total, one.device_time_total)
        table.writerow((rank, one.key, f"{one.count / steps:g}", *(f"{us / steps / 1000:.3f}" for us in times)))
    return text.getvalue()


def together(tables: list[str]) -> str:
    """Tables of several ranks as one."""
    return "".join(table if number == 0 else table.partition("\n")[2] for number, table in enumerate(tables))
