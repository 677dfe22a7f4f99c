"""What joining a cluster leaves as it was, and how a program of its own shows its token."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.config.errors import InterruptedRunError
from cifar_ray.orchestration.cluster import connection, servers


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    def handle(signum: int, _: object) -> None:
        raise AssertionError(signum)

    before = signal.signal(signal.SIGTERM, handle)
    yield handle
    signal.signal(signal.SIGTERM, before)


def ray_starts(until: int = 0) -> None:
    """As Ray does, which exits on a signal."""
    signal.signal(signal.SIGTERM, lambda signum, _: exit(signum))
    if until:
        os.kill(os.getpid(), until)


def test_the_handler_of_sigterm_is_kept(handler: Any) -> None:
    with connection._same_sigterm_handler():
        ray_starts()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_sigterm_while_ray_starts_is_told_as_one(handler: Any) -> None:
    with pytest.raises(InterruptedRunError, match="Stopped by SIGTERM"), connection._same_sigterm_handler():
        ray_starts(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("variables", "file", "mode"),
    [
        ({}, False, {}),
        ({}, True, {"RAY_AUTH_MODE": "token"}),
        ({"RAY_AUTH_TOKEN": "secret"}, False, {"RAY_AUTH_MODE": "token"}),
        ({"RAY_AUTH_TOKEN_PATH": "missing"}, True, {}),
        ({"RAY_AUTH_MODE": "disabled"}, True, {}),
    ],
)
def test_a_token_that_is_there_is_shown_unless_the_environment_says_otherwise(
    variables: dict[str, str], file: bool, mode: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    if file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert servers.token_mode() == mode
