"""What bounds a run, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["slow rank", "slow data", "slow link", "too few CPUs", "overhead", "balanced", "not enough evidence"]


@dataclass(frozen=True)
class Verdict:
    """What bounds a run.

    Attributes:
        kind: in two or three words.
        sentence: with the numbers.
        advice: what to try.
        share: of the time of the steps that it costs, 0 to 1; None where nothing is to be gained or known.
        ranks: the slow ones.
    """

    kind: Kind
    sentence: str
    advice: tuple[str, ...] = ()
    share: float | None = None
    ranks: tuple[int, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether something stands in the way that can be named."""
        return self.share is not None


def percent(share: float) -> str:
    """``21 %``."""
    return f"{100 * share:.0f} %"


def ms(seconds: float) -> str:
    """``92 ms``, ``8.3 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.{0 if milliseconds >= 10 else 1}f} ms"
