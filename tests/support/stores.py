"""Object stores on this machine: moto's server for S3, and an emulator of Google's where it is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest

from tests.support.ports import free_port

BUCKET = "runs"
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def serving(
    words: list[str], url: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, once it answers at ``url``, until the end."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            end = time.monotonic() + 300
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    pytest.fail(f"{words} does not answer: {output.read()[-2000:]}")
                time.sleep(0.2)
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextmanager
def s3(checks_keys: bool = False) -> Iterator[dict[str, str]]:
    """A server of S3 with a bucket; gives the variables that lead to it.

    Args:
        checks_keys: whether it refuses keys that it has not made; it has made none.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # The only request that needs no key makes the bucket.
    strict = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if checks_keys else {}
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(words, f"{url}/moto-api/", {**KEYS, **strict}):
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket=BUCKET)
        yield {**KEYS, "AWS_ENDPOINT_URL": url}


@contextmanager
def gs() -> Iterator[dict[str, str]]:
    """A server of Google's Cloud Storage with a bucket; gives the variables that lead to it."""
    emulator = shutil.which("gcp-storage-emulator")
    if emulator is None:
        pytest.skip("needs gcp-storage-emulator, a package on PyPI")
    port = free_port()
    words = [emulator, "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", f"--default-bucket={BUCKET}"]
    with serving(words, f"http://127.0.0.1:{port}/"):
        yield {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


def mountpoint(folder: Path, size: str) -> None:
    """Mount a disk of ``size`` there, or skip the test where that is not allowed."""
    folder.mkdir(parents=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]).returncode:
        pytest.skip("needs root and the right to mount a disk of its own")
