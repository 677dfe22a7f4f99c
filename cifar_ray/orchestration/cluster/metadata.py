"""What a cloud tells a machine of itself: whether it is about to be taken away."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException
from typing import Protocol

_ASK_S = 2.0
_AWS, _GCP = "http://169.254.169.254", "http://metadata.google.internal"
_TOKEN_TTL_S = 21_600
_GCP_LEFT_MS = 30_000
# The service is on the machine's own link, and never behind a proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Notice:
    """This machine will be taken away.

    Attributes:
        deadline_ms: when, in ms since 1970.
        reason: in the provider's words.
    """

    deadline_ms: int
    reason: str


class Provider(Protocol):
    """The metadata service of one cloud."""

    def answers(self) -> bool:
        """Whether it is there, so that this machine is one of that cloud's."""

    def notice(self) -> Notice | None:
        """The notice, once there is one.

        Raises:
            OSError: when the service does not answer as it is documented to.
        """


class Aws:
    """Amazon EC2 by IMDSv2, which has a notice two minutes before it takes a spot instance.

    A rebalance recommendation is no notice: the instance may run on for days after one.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = url or _AWS
        self._token = ""

    def answers(self) -> bool:
        try:
            self._renew()
        except OSError:
            return False
        return True

    def notice(self) -> Notice | None:
        try:
            told = self._told()
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            self._renew()  # there was no token yet, or it has run out
            told = self._told()
        if told is None:
            return None
        try:
            action = json.loads(told)
            moment = datetime.fromisoformat(action["time"].replace("Z", "+00:00"))
            return Notice(int(moment.timestamp() * 1000), f"AWS will {action['action']} this spot instance")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OSError(f"instance-action is {told[:100]!r}") from None

    def _told(self) -> str | None:
        try:
            path = "/latest/meta-data/spot/instance-action"
            return _ask(self._url + path, {"X-aws-ec2-metadata-token": self._token})[0]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _renew(self) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        self._token = _ask(f"{self._url}/latest/api/token", headers, "PUT")[0]


class Gcp:
    """Google Compute Engine, which has a notice 30 s before it takes a spot or preemptible instance."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url or _GCP

    def answers(self) -> bool:
        try:
            return self._told("") is not None
        except OSError:
            return False

    def notice(self) -> Notice | None:
        told = self._told("instance/preempted")
        if told not in ("TRUE", "FALSE"):
            raise OSError(f"instance/preempted is {told[:100]!r}")
        if told == "FALSE":
            return None
        return Notice(time.time_ns() // 1_000_000 + _GCP_LEFT_MS, "Google Cloud preempts this instance")

    def _told(self, name: str) -> str:
        flavor = {"Metadata-Flavor": "Google"}
        told, headers = _ask(f"{self._url}/computeMetadata/v1/{name}", flavor)
        if headers.get("Metadata-Flavor") != "Google":
            raise OSError("it is not Google's metadata service that answers")
        return told


def _ask(url: str, headers: Mapping[str, str], method: str = "GET") -> tuple[str, Mapping[str, str]]:
    """Body and headers of an answer.

    Raises:
        OSError: when there is none, or one with a status of 400 or more (``HTTPError``).
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310  the caller's own http://
    try:
        with _OPENER.open(request, timeout=_ASK_S) as answer:
            return answer.read().decode(errors="replace").strip(), answer.headers
    except HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from None
