"""``cifar-ray`` in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cifar_ray.cli import main


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """``said(words, status)`` is what a command prints to standard output and to standard error.

    What it refuses, it refuses in one sentence on standard error, and prints nothing else than that it loads libraries.
    """

    def run(words: str, status: int = 0) -> tuple[str, str]:
        assert main.main(words.split()) == status
        out, err = capsys.readouterr()
        if status == 2:
            assert out == "" or (out.endswith(": loading PyTorch and Ray\n") and out.count("\n") == 1)
            assert err.startswith("error: ")
            assert err.count("\n") == 1
            err = err.removeprefix("error: ").rstrip()
        return out, err

    return run
