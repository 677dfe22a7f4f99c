"""A figure as the least, the likely and the most that it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """``mid`` is the estimate; ``low`` and ``high`` are the ends of its range."""

    low: float
    mid: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Span:
        """A figure without a range."""
        return cls(value, value, value)

    @classmethod
    def of(cls, values: Sequence[float]) -> Span:
        """The mean of measured figures, with the least and the most of them."""
        return cls(min(values), sum(values) / len(values), max(values))

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def times(self, factor: float) -> Span:
        """Multiplied by a factor that is not negative."""
        return Span(self.low * factor, self.mid * factor, self.high * factor)

    def under(self, dividend: float) -> Span:
        """A number divided by it, as images per step by seconds per step."""
        return Span(dividend / self.high, dividend / self.mid, dividend / self.low)
