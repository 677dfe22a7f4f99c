"""Drain this machine's Ray node when the cloud announces that it takes the machine away.

Run it beside `ray start` on every spot or preemptible machine, as cifar-ray-drain@.service does:

    python drain_on_notice.py aws        # or gcp

It asks the metadata service every 2 s: AWS (IMDSv2) announces an interruption two minutes ahead, Google Cloud 30 s.
Then it runs `ray drain-node`, and ends with its exit status. Further options go to that command, such as --node-id
where several nodes run on one machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from datetime import datetime, timezone
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the service is never behind a proxy


def aws(url: str) -> float | None:
    """Return the seconds that are left to a spot instance, or None without a notice."""
    token = ask(f"{url}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        action = ask(f"{url}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    end = datetime.strptime(json.loads(action)["time"], "%Y-%m-%dT%H:%M:%S%z")
    return (end - datetime.now(timezone.utc)).total_seconds()


def gcp(url: str) -> float | None:
    """Return the seconds that are left to a preempted instance, or None without a notice."""
    preempted = ask(f"{url}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return {"TRUE": 30.0, "FALSE": None}[preempted]


def ask(url: str, headers: dict[str, str], method: str = "GET") -> str:
    """Return the body of an answer."""
    with OPENER.open(urllib.request.Request(url, headers=headers, method=method), timeout=2) as answer:  # noqa: S310
        return answer.read().decode().strip()


def main() -> None:
    """Wait for the notice, and drain the node."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cloud", choices=["aws", "gcp"])
    parser.add_argument("--metadata-url", default="http://169.254.169.254", help="default: %(default)s")
    options, to_ray = parser.parse_known_args()
    url, seconds = options.metadata_url, None
    print(f"waiting for a notice by {options.cloud} from {url}", flush=True)
    while seconds is None:
        time.sleep(2)
        try:
            seconds = {"aws": aws, "gcp": gcp}[options.cloud](url)
        except (OSError, HTTPException, ValueError, TypeError, KeyError) as error:
            print(f"{url} does not answer as {options.cloud} does: {error!r}", flush=True)
    left, why = max(int(seconds), 0), f"{options.cloud} takes this machine away"
    print(f"{why} in {left} s: draining its Ray node", flush=True)
    words = [Path(sys.executable).with_name("ray"), "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    words += ["--reason-message", why, "--deadline-remaining-seconds", str(left), *to_ray]
    status = subprocess.run(words).returncode
    print(f"Ray does not drain the node: exit status {status}" if status else "the node is drained", flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
