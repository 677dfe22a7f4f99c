"""How many small mistakes the fast tests notice: mutants of the code, made by mutmut, against tests/unit.

    make mutants                                             all mutants of all modules named in pyproject.toml
    make mutants MUTANTS='--sample 20 config/* data/*'       at most 20 of each module, drawn with --seed

Measured: 232 of 259 mutants of a sample, 90 % (docs/measurements/mutants.md; two cores of an AMD EPYC).

They are tried in a random order. Ctrl-C (SIGINT to this process) ends that, and what was decided by then is a fair
sample of the whole. mutmut's own `mutmut run` finds the same and starts pytest anew for every mutant; here one session
of pytest has collected the tests, and every mutant is a fork of it that runs only the tests that reach the changed
function, the quickest first, until one fails. Pytest is started anew, with every test, for what no test of this process
reaches, as it runs at an import, and at the end for what has survived: a test may start other processes that reach it.
The first Ctrl-C leads there, the second to the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mutmut.__main__ import create_mutants
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths, walk_mutatable_files

MUTANTS = Path("mutants")
PACKAGE = "cifar_ray"
FACTOR, LEAST_S = 10, 30
"""A mutant that takes longer than this many times its tests, and this many seconds, runs for ever."""
ALL_S = 3600
"""Likewise, with all tests in a pytest of its own."""


@dataclass(eq=False)  # pytest keeps plugins in sets
class Session:
    """A plugin of pytest: has it collect the tests, and runs them in forks.

    Attributes:
        wanted: the mutants of each module.
        found: mutant -> ``killed``, ``survived`` or ``timeout``.
        selection: pytest's arguments that name the tests; those that fail without any mutant are left out.
    """

    wanted: dict[str, list[str]]
    processes: int
    seed: int
    selection: list[str]
    found: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    reached: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def pytest_runtest_teardown(self) -> None:
        self.reached = sorted(state()._stats)
        state()._stats.clear()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from sklearn import datasets  # noqa: F401  # once, and not in every fork

        from tests.support import mlflow_store

        mlflow_store.empty_database()
        tests = self._tests(session)
        mutants = [mutant for module in self.wanted.values() for mutant in module]
        random.Random(self.seed).shuffle(mutants)  # stopped by Ctrl-C, what was decided is a fair sample
        with contextlib.suppress(KeyboardInterrupt):
            self._try(mutants, tests)
        with contextlib.suppress(KeyboardInterrupt):  # by processes that a test starts, and not here
            self._try([mutant for mutant, verdict in self.found.items() if verdict == "survived"], {})
        return True

    def _try(self, mutants: list[str], tests: dict[str, list[tuple[float, pytest.Item]]]) -> None:
        running: dict[int, str] = {}
        try:
            for number, mutant in enumerate(mutants):
                items = tests.get(mutant.rpartition("__mutmut_")[0], [])
                while len(running) >= self.processes:
                    self._finish(running)
                seconds = LEAST_S + FACTOR * sum(seconds for seconds, _ in items) if items else ALL_S
                running[self._fork(mutant, [item for _, item in items], int(seconds))] = mutant
                if number % 20 == 0:
                    print(f"{number} of {len(mutants)}", dict(Counter(self.found.values())), file=sys.stderr)
            while running:
                self._finish(running)
        finally:
            for process in running:  # of a run that was interrupted
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)

    def _tests(self, session: pytest.Session) -> dict[str, list[tuple[float, pytest.Item]]]:
        """The tests that reach each function, with how long they take, the quickest first."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "reached.json"
            process = os.fork()
            if process == 0:
                set_mutant_under_test("stats")
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                rows, begin = [], time.perf_counter()
                for item in self._run(session.items):
                    if self.failed:
                        print(f"left out, as it fails without any mutant: {item.nodeid}", file=sys.stderr)
                    rows.append((time.perf_counter() - begin, None if self.failed else self.reached))
                    begin = time.perf_counter()
                file.write_text(json.dumps(rows))
                os._exit(0)
            if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
                pytest.exit("the tests must pass without a mutant", 1)
            rows = json.loads(file.read_text())
        self.selection += [f"--deselect={item.nodeid}" for item, row in zip(session.items, rows) if row[1] is None]
        found: dict[str, list[tuple[float, pytest.Item]]] = {}
        for item, (seconds, functions) in sorted(zip(session.items, rows), key=lambda pair: pair[1][0]):
            for function in functions or ():
                found.setdefault(function, []).append((seconds, item))
        return found

    def _run(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        """Run tests one after the other; each is yielded when it is over, and :attr:`failed` says how."""
        for item, following in zip(items, [*items[1:], None]):
            self.failed = False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item

    def _fork(self, mutant: str, items: list[pytest.Item], seconds: int) -> int:
        sys.stderr.flush()
        process = os.fork()
        if process:
            return process
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        (folder := self._folder(os.getpid())).mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        set_mutant_under_test(mutant)
        if not items:
            os.execv(sys.executable, [sys.executable, "-m", "pytest", "-x", *self.selection])
        try:
            os._exit(1 if any(self.failed for _ in self._run(items)) else os.EX_OK)
        except BaseException:  # whatever a mutant does to pytest itself is noticed
            os._exit(1)

    def _finish(self, running: dict[int, str]) -> None:
        process, status = os.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what its tests have left running
        shutil.rmtree(self._folder(process), ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        mutant = running.pop(process)
        self.found[mutant] = "timeout" if code == -signal.SIGALRM else "killed" if code else "survived"
        if code == os.EX_OK:
            print(mutant, "survived", file=sys.stderr)

    @staticmethod
    def _folder(process: int) -> Path:
        return Path(tempfile.gettempdir()) / f"mutant-{process}"


def main() -> None:
    """Make the mutants, run them, and print a row for each module and the changes that survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", help="files or patterns below cifar_ray/; all of pyproject.toml if none")
    parser.add_argument("--sample", type=int, help="at most as many mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the order")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    os.environ["OMP_NUM_THREADS"] = "1"  # the threads of a pool do not live on in a fork
    os.environ["PY_IGNORE_IMPORTMISMATCH"] = "1"
    os.environ["PYTHONPATH"] = str(MUTANTS.absolute())  # processes that a test starts have the mutant, too
    if given.modules:
        config().only_mutate = [f"{PACKAGE}/{module}" for module in given.modules]
    shutil.rmtree(MUTANTS, ignore_errors=True)
    MUTANTS.mkdir()
    set_mutant_under_test("mutant_generation")
    copy_src_dir()
    copy_also_copy_files()
    create_mutants(given.processes)
    setup_source_paths()
    set_mutant_under_test("")

    every: dict[str, list[str]] = {}
    wanted: dict[str, list[str]] = {}
    for path in sorted(walk_mutatable_files()):
        data = SourceFileMutationData(path=path)
        data.load()
        names = sorted(data.exit_code_by_key)
        if names:
            every[str(path)] = names
            size = len(names) if given.sample is None else min(given.sample, len(names))
            wanted[str(path)] = sorted(random.Random(f"{given.seed}{path}").sample(names, size))
    selection = ["-q", "-p", "no:cacheprovider", *config().pytest_add_cli_args_test_selection]
    session = Session(wanted, given.processes, given.seed, selection)
    os.chdir(MUTANTS)
    begin = time.perf_counter()
    code = pytest.main([*selection], plugins=[session])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(code)
    os.chdir("..")
    _print(every, session, time.perf_counter() - begin)


def _print(every: dict[str, list[str]], session: Session, seconds: float) -> None:
    print("\n| module | mutants | tried | killed | survived | killed (%) |\n|---|---|---|---|---|---|")
    counts: dict[str, Counter[str]] = {}
    for path, names in every.items():
        found = Counter(session.found[mutant] for mutant in session.wanted[path] if mutant in session.found)
        found["killed"] += found.pop("timeout", 0)
        found["mutants"] = len(names)
        counts[path.removeprefix(f"{PACKAGE}/")] = found
    counts["all"] = sum(counts.values(), Counter())
    for name, found in counts.items():
        tried = found["killed"] + found["survived"]
        cells = [found["mutants"], tried, found["killed"], found["survived"]]
        print(f"| {name} | {' | '.join(map(str, cells))} | {100 * found['killed'] / tried if tried else 0:.0f} |")
    print(f"\n{seconds:.0f} s")
    for mutant, verdict in session.found.items():
        if verdict == "survived":
            print()
            subprocess.run([Path(sys.executable).with_name("mutmut"), "show", mutant], check=False)


if __name__ == "__main__":
    main()
