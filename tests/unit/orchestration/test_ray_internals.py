"""Every private part of Ray that is used is there in the installed Ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cifar_ray
from cifar_ray.orchestration.cluster import ray_internals
from cifar_ray.orchestration.cluster.ray_internals import INTERNALS, MEMBERS

USED = "\n".join(path.read_text() for path in Path(cifar_ray.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("name", [*INTERNALS, *MEMBERS])
def test_the_installed_ray_has_it_and_it_is_used(name: str) -> None:
    (ray_internals.find if name in INTERNALS else ray_internals.check_member)(name)
    assert len(re.findall(rf"\b{name}\b", USED)) > 1, f"{name} can leave ray_internals"


def test_one_that_is_gone_is_named_with_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INTERNALS, "gone", ("ray._private.services", "nothing would work"))
    with pytest.raises(ImportError, match=r"Ray \d.* has no ray._private.services.gone; without it, nothing would wo"):
        ray_internals.gone  # noqa: B018
    monkeypatch.setitem(MEMBERS, "never_there", ("ray._private.node", "Node", "nothing would work"))
    with pytest.raises(ImportError, match=r"has no never_there in ray._private.node.Node; without it, nothing would"):
        ray_internals.check_member("never_there")


def test_what_is_replaced_comes_back() -> None:
    before = ray_internals.ENABLE_RAY_CLUSTER
    with ray_internals.on_loopback():
        assert ray_internals.ENABLE_RAY_CLUSTER is False
    assert ray_internals.ENABLE_RAY_CLUSTER is before
