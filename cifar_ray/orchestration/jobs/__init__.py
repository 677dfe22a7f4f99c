"""Commands submitted to a cluster as Ray jobs. Ray is not imported here: a mistake in the command is told at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Submission:
    """A command as a job.

    Attributes:
        name: of the job.
        words: of the command, without ``cifar-ray``.
        tracking_uri: the store that it names.
        file: the YAML file that it names.
    """

    name: str
    words: list[str]
    tracking_uri: str | None
    file: str | None
