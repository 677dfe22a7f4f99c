"""A cluster that tests of several nodes join."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.nodes import Head
from tests.support.person import Person


@pytest.fixture
def head(person: Person) -> Iterator[Head]:
    person.environment |= Head.VARIABLES
    with contextlib.closing(Head(person)) as running:
        running.until_nodes(1)
        yield running
