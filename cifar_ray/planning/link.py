"""How long messages take between two machines, or between two workers of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from cifar_ray.planning.span import Span

_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit(?:[:/](\d+(?:\.\d+)?)(us|ms))?")


@dataclass(frozen=True)
class Link:
    """What messages take on one."""

    bytes_per_s: float  # in each direction
    latency_s: float = 0.0  # for each message, whatever its size

    def seconds(self, messages: float, size: float) -> float:
        """Of so many messages one after the other, with so many bytes in all."""
        return messages * self.latency_s + size / self.bytes_per_s

    @property
    def words(self) -> str:
        """``10 Gbit/s, 50 us for each message``."""
        return f"{8 * self.bytes_per_s / 1e9:.3g} Gbit/s, {1e6 * self.latency_s:.3g} us for each message"


def parse(text: str) -> Link:
    """Read ``RATE`` or ``RATE:LATENCY``, such as ``10gbit``, ``400mbit`` and ``10gbit:50us``.

    Raises:
        ValueError: saying what a link looks like.
    """
    match = _WRITTEN.fullmatch(text.lower())
    if match is None or not float(match[1]):
        raise ValueError(f"must be RATE or RATE:LATENCY, such as 10gbit, 400mbit or 10gbit:50us, got {text[:80]!r}")
    latency_s = float(match[3] or 0) * _SECONDS[match[4] or "us"]
    return Link(float(match[1]) * _BITS[match[2]] / 8, latency_s)


class Traffic(NamedTuple):
    """What an exchange takes: messages one after the other, bytes that one worker handles, and those of its node's
    link, the busiest worker's or node's."""

    messages: float
    size: float
    wire: float


@dataclass(frozen=True)
class Route:
    """What messages between workers pass: the ``network`` between nodes, and the work of the ``host`` itself.

    The host's work is copying, adding up and the backend's own; None where it is not known, and then none is assumed.
    """

    network: Link | None
    host: Link | None

    def network_s(self, traffic: Traffic) -> float:
        """Seconds on the link between nodes."""
        return self.network.seconds(traffic.messages, traffic.wire) if self.network else 0.0

    def host_s(self, traffic: Traffic) -> float:
        """Seconds of the host's work."""
        return self.host.seconds(traffic.messages, traffic.size) if self.host else 0.0

    def seconds(self, traffic: Traffic) -> Span:
        """From both side by side to one after the other; a backend sends one part while it adds up another."""
        wire, work = self.network_s(traffic), self.host_s(traffic)
        return Span(max(wire, work), (max(wire, work) + wire + work) / 2, wire + work)
