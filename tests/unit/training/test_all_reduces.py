"""All-reduces of several sizes, timed by two ranks."""

from __future__ import annotations

import pytest
import torch

from cifar_ray.training import all_reduces
from tests.support.threads import on_threads


def test_each_size_has_a_time_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduces, "SIZES", (2**12, 2**22))
    for found in on_threads(2, lambda _: all_reduces.seconds(torch.device("cpu"))):
        assert list(found) == [2**12, 2**22]
        assert min(found.values()) > 0
