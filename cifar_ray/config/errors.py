"""What ends a command with one sentence, and the words that such sentences are made of."""

from __future__ import annotations

import difflib
import re
import reprlib
import signal
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST = 80
"""Characters of a value that an error repeats."""


class ConfigError(ValueError):
    """A user's mistake in one field.

    Attributes:
        key: dotted field name (``vit.depth``), or an empty string when no single field is at fault.
        problem: what is wrong and what the value may be, without the key.
    """

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        self.problem = problem
        super().__init__(f"{key} {problem}" if key else problem)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str]]:
        return ConfigError, (self.key, self.problem)  # it travels between processes

    def as_flag(self) -> str:
        """The sentence with the field spelled as a command-line flag."""
        return f"{flag_of(self.key)} {self.problem}" if self.key else self.problem


class CommandFailedError(RuntimeError):
    """A run, a job or a service has failed; the sentence says why. Exit status 1."""


class RunFailedError(CommandFailedError):
    """A run has ended without its outcome; the sentence says why."""


class InterruptedRunError(BaseException):
    """A signal has ended the run; like KeyboardInterrupt, it is not for ``except Exception``.

    Attributes:
        signum: the signal.
        advice: how far the run or sweep had come and what continues it; empty when nothing had begun.
    """

    def __init__(self, signum: int, advice: str = "") -> None:
        self.signum = signum
        self.advice = advice
        super().__init__(advice or f"Stopped by {signal.Signals(signum).name} before training began.")


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = LONGEST


def brief(value: Any) -> str:
    """A value as Python writes it, in a line of 80 characters at most: what somebody else has made has any size."""
    try:
        text = " ".join(_BRIEF.repr(value).split())
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


_UNPRINTABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")


def printable(text: str) -> str:
    r"""What others have named, to be shown: a character that commands a terminal, or is none, as ``\x1b``.

    Those that turn the direction of a text count, too; line breaks and tabs stay.
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1].replace(r"\udc", r"\x"), text)


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its type when it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]


def flag_of(key: str) -> str:
    """``model_options.depth`` -> ``--model-options.depth``; ``from_``, which Python keeps for itself, -> ``--from``."""
    return "--" + key.rstrip("_").replace("_", "-")


def one_of(options: Iterable[Any]) -> str:
    """``a``, ``b`` or ``c`` as words."""
    words = [str(option) for option in options]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def some(names: Sequence[str]) -> str:
    """``a, b and c`` as words; of more than 20, the first ones and how many others there are."""
    shown = [*names[:20], *([f"{len(names) - 20:,} more"] if len(names) > 20 else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def counted(number: int, noun: str) -> str:
    """``1 epoch``, ``1,024 images``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean x?`` when something known is close, else an empty string."""
    near = difflib.get_close_matches(word[:LONGEST], list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
