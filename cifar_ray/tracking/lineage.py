"""The lineage of a run of a population: which runs' checkpoints it has gone on from, and with which values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

LINEAGE_TAG = "cifar_ray.lineage"
"""Tag of a run that has gone on from another's checkpoint: the newest of its :class:`Takeover`, as JSON."""

FILE = "lineage.json"
"""Artifact of such a run with all of them."""

METRIC = "population/"
"""How metrics begin that say, by epoch, from which value of an option on a run went on; 0 is its start."""

_LONGEST_TAG = 8000


@dataclass(frozen=True)
class Takeover:
    """After an epoch, a run has gone on from another run's checkpoint, with values near that run's.

    Attributes:
        epoch: after which.
        step: optimizer steps in the checkpoint.
        source: name of the other run.
        weights_sha256: SHA-256 of the checkpoint's weights file.
        before: the run's own values until then, by option.
        theirs: those of the other run.
        after: those with which it went on.
    """

    epoch: int
    step: int
    source: str
    weights_sha256: str
    before: Mapping[str, float]
    theirs: Mapping[str, float]
    after: Mapping[str, float]


_TAKEOVERS = TypeAdapter(tuple[Takeover, ...])


def tag(lineage: Sequence[Takeover]) -> str:
    """The newest takeovers, as many as a tag has room for."""
    for first in range(len(lineage)):
        text = json.dumps([asdict(takeover) for takeover in lineage[first:]], separators=(",", ":"))
        if len(text) <= _LONGEST_TAG:
            return text
    return "[]"


def read(tags: Mapping[str, str]) -> tuple[Takeover, ...]:
    """What :func:`tag` has written, in order; nothing of a run without, or of a tag that somebody has changed."""
    try:
        return _TAKEOVERS.validate_json(tags.get(LINEAGE_TAG, "[]"))
    except ValidationError:
        return ()
