"""Errors of a user's own code, from a worker's process to the terminal: one attempt each, or two where they can pass."""

from __future__ import annotations

import re

import pytest

from tests.support.person import Person

NET = """
import pathlib
import torch

class NoPickle(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.keep = lambda: code

class NoText(Exception):
    def __str__(self):
        raise RuntimeError

def fail(kind):
    passed = pathlib.Path(__file__).with_name("passed")
    if kind == "value":
        raise ValueError("wrong")
    if kind == "pickle":
        raise NoPickle(7, "wrong")
    if kind == "text":
        raise NoText
    if kind == "exit":
        raise SystemExit("wrong")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "passing" and not passed.exists():
        passed.touch()
        raise OSError(5, "Input/output error")
    if kind == "loader":
        loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=1, timeout=120)
        assert sum(map(int, loader)) == 28

class Net(torch.nn.Module):
    def __init__(self, pixels, classes, kind):
        super().__init__()
        self.layer, self.kind = torch.nn.Linear(pixels, classes), kind

    def forward(self, images):
        if self.training and len(images) > 2:
            fail(self.kind)
        return self.layer(images.flatten(1))

def build(side, channels, classes, kind="value"):
    return Net(side**2 * channels, classes, kind)
"""
WORDS = ["sweep", "--name", "kinds", "--dataset", "digits", "--model", "failing:build", "--precision", "fp32"]
WORDS += ["--epochs", "1", "--steps-per-epoch", "2", "--max-concurrent", "2"]
FAILED = {
    "value": "ValueError: wrong",
    "pickle": "failing.NoPickle: wrong",
    "text": "failing.NoText: <exception str() failed>",
    "exit": "SystemExit: wrong",
    "interrupt": "KeyboardInterrupt",
}


@pytest.mark.slow
@pytest.mark.fault
def test_an_error_is_told_as_it_is_and_tried_again_only_where_it_can_pass(person: Person) -> None:
    (person.home / "failing.py").write_text(NET)
    kinds = ",".join([*FAILED, "passing", "loader"])
    done = person.runs(*WORDS, "--grid", f"model_options.kind={kinds}")
    lines = done.stdout.splitlines()
    told = [line for line in lines if ": failed, " in line]
    assert len(told) == len(FAILED), done
    for sentence in FAILED.values():
        where = f": failed, rank 0: {sentence} (before the first step, fail in failing.py, line "
        assert sum(where in line for line in told) == 1, done
    (again,) = (line for line in lines if "workers failed" in line)
    assert "workers failed (rank 0: OSError: [Errno 5] Input/output error (before the first step" in again
    assert re.search("2 finished, 5 failed|5 failed, 2 finished", done.stdout), done
