"""Profile some steps of every rank: a trace for Perfetto, and a table of its operators.

``torch.profiler`` records them after one step in which it warms up itself. No rank waits for another here, so every
strategy can be profiled; what a rank computes stays the same to the last bit.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from cifar_ray.config import errors
from cifar_ray.training.observer import Observer, Traced
from cifar_ray.training.recipe import profiled_from
from cifar_ray.training.setup import TrainingState

FOLDER = "traces"
"""Name of the folder of traces, beside that of checkpoints."""

LARGEST_MB = 50
_COMPRESSION = 6
_HEAD = 64 * 1024  # bytes of a trace in which its process has its name
_COLUMNS = ("rank", "operator", "calls", "self_cpu_ms", "cpu_ms", "self_gpu_ms", "gpu_ms")


def profiled(state: TrainingState, observer: Observer, steps: range) -> Iterator[int]:
    """The steps of an epoch, or of what is left of it; those that ``--profile.steps`` asks for are profiled.

    A run that goes on after them has its traces already.
    """
    first = profiled_from(state.config, state.loader.steps_per_epoch)
    begin = -1 if first is None else first - (state.step - steps.start)
    if begin not in steps:
        yield from steps
        return
    end = begin + 1 + (state.config.profile.steps or 0)
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
    clock.leaves_out = True
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
    clock.leaves_out = False
    clock.leave_out_next()
    path = state.folder.parent / FOLDER / f"rank{worker.rank}.json.gz"
    name = f"rank {worker.rank} of {worker.world_size}, {socket.gethostname()}"
    try:
        problem = _write(profiler, path, name)
    except (OSError, RuntimeError) as error:  # the profiler's own is a RuntimeError
        problem = f"{path} cannot be written: {getattr(error, 'strerror', None) or errors.first_line(error)}"
        with suppress(OSError):
            path.unlink()  # where the disk is full, it has the beginning
    observer.traced(Traced(worker.rank, path, _operators(profiler, worker.rank, count), problem))
    clock.start()


def _write(profiler: profile, path: Path, name: str) -> str:
    """Write a trace whose process has this name; why it is not kept, or empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(whole))
        with whole.open("rb") as trace, gzip.open(path, "wb", _COMPRESSION) as packed:
            packed.write(_named(trace.read(_HEAD), name))
            shutil.copyfileobj(trace, packed, 1 << 20)
    size = path.stat().st_size / 1e6
    if size <= LARGEST_MB:
        return ""
    path.unlink()
    return f"it has {size:.0f} MB, and {LARGEST_MB} MB is the most; profile fewer steps (--profile.steps)"


def _named(head: bytes, name: str) -> bytes:
    """The beginning of a trace, with the name of its process changed from that of its program."""
    event = rb'("name": "process_name",\s*"ts": [\d.]+,\s*"pid": %d,\s*"tid": 0,\s*"args": \{\s*"name": )"[^"]*"'
    return re.sub(event % os.getpid(), lambda found: found[1] + f'"{name}"'.encode(), head, count=1)


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
