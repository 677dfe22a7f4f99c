"""MLflow's pages as ``cifar-ray ui`` opens them, in a real browser."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cifar_ray.tracking import store
from cifar_ray.tracking.study import KEY_TAG
from tests.integration.test_report_page import BROWSER, QUIET
from tests.support import mlflow_store
from tests.support.person import Person, Started
from tests.support.ports import free_port

pytestmark = pytest.mark.extended


@pytest.fixture
def opened(person: Person) -> Iterator[tuple[Started, str]]:
    """``cifar-ray ui --open`` on a store with a sweep of one run, and the address that the person's browser was given."""
    folder = person.home / ".cifar_ray"
    folder.mkdir()
    client = mlflow_store.new_store(folder)
    experiment = store.experiment_id(client, "digits")
    sweep = client.create_run(experiment, tags={KEY_TAG: "s"}, run_name="the-sweep").info.run_id
    tags = {KEY_TAG: "k", "mlflow.parentRunId": sweep}
    run = client.create_run(experiment, tags=tags, run_name="the-one")
    client.log_metric(run.info.run_id, "test/accuracy", 0.875)
    client.log_param(run.info.run_id, "topology", "1x2")
    client.set_terminated(run.info.run_id)
    browser = person.home / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {person.home}/address\n')
    browser.chmod(0o755)
    with person.starts("ui", "--open", "--port", str(free_port()), BROWSER=f"{browser} %s") as started:
        (address,) = re.findall(
            r"^open (http://127\.0\.0\.1:\d+/#/experiments/1/runs\?.+)$", started.until("open "), re.M
        )
        yield started, address


def test_the_pages_open_with_the_runs_figures(opened: tuple[Started, str], person: Person) -> None:
    started, address = opened
    opening = person.home / "address"
    end = time.monotonic() + 30
    while not (opening.exists() and opening.read_text()):  # the browser is told after the terminal
        assert time.monotonic() < end
        time.sleep(0.1)
    assert opening.read_text() == f"{address}\n"
    if BROWSER is not None:
        page = seen(BROWSER, address, person.home)
        assert re.search(r"the-one.*0\.875.*1x2", page, re.DOTALL)
        assert all(name in page for name in ("test/accuracy", "topology", "Model registry"))
        assert "Evaluation runs" not in page  # a page for chat agents
    started.kill(signal.SIGINT)
    started.end()
    said = f"MLflow starts on {person.uri} within seconds; Ctrl-C ends it\nopen {address}\n"
    assert started.output.startswith(said)
    assert person.leftovers() == []


def seen(browser: str, address: str, home: Path) -> str:
    """The page's elements once its scripts have shown the runs."""
    command = [browser, "--headless", "--no-sandbox", *QUIET, f"--user-data-dir={home}/profile"]
    command += ["--window-size=2400,900", "--virtual-time-budget=30000", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
