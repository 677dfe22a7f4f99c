"""How a program of its own shows a cluster its token."""

from __future__ import annotations

from pathlib import Path

import pytest

from cifar_ray.orchestration.cluster import servers


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
