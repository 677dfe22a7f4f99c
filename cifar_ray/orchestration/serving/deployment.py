"""Serving a run's model over HTTP: from the command to a running Ray Serve application, and to its end.

Ray Serve, and not MLflow's scoring server, since it takes an image as it is (MLflow's takes JSON, CSV or Parquet, so
that whoever asks must decode and scale the image, and send 3,072 numbers in text), runs requests that arrive
together as one forward pass, spreads replicas over the nodes of a cluster and replaces those that fail, and comes
with the Ray that is there anyway. `cifar-ray register` makes the same model known to those who want MLflow's.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cifar_ray import tracking
from cifar_ray.config import ports
from cifar_ray.config.errors import CommandFailedError, ConfigError, InterruptedRunError
from cifar_ray.config.train import TrainConfig, WhichCheckpoint
from cifar_ray.data import SPECS
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import connection, ray_internals
from cifar_ray.orchestration.run import results
from cifar_ray.orchestration.run.interrupts import connected, signals
from cifar_ray.training import classifier

_APPLICATION = "cifar_ray"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REQUEST_TIMEOUT_S = 70.0  # Ray Serve's own, in plain text; the endpoint's, which is shorter, is told in JSON
_START_TIMEOUT_S = 300.0
_LOOK_S = 0.2


class ServingFailedError(CommandFailedError):
    """The model cannot be served, or cannot be any longer; the sentence says why."""


def serve(
    run: str,
    which: WhichCheckpoint,
    host: str,
    port: int,
    replicas: int,
    address: str | None,
    tracking_uri: str | None,
    note: results.Note,
) -> None:
    """Serve a run's model until SIGINT or SIGTERM, and leave nothing of it running.

    Args:
        run: its name, MLflow id or folder.
        which: the newest checkpoint, or the one with the highest test accuracy.
        host: where to listen: an address of this machine or, on a cluster, of its head.
        port: from 1 to 65535.
        replicas: copies of the model, of one CPU each.
        address: Ray cluster to run on; without it and RAY_ADDRESS, Ray is started here.
        tracking_uri: MLflow store that has the run.
        note: is told what a person should know beside the rest.

    Raises:
        CheckpointError: when the run has no usable checkpoint.
        ConfigError: on a user's mistake, before anything listens.
        InterruptedRunError: on SIGINT or SIGTERM before the model is served.
        ServingFailedError: when it cannot be served, or cannot be any longer.
    """
    if replicas < 1:
        raise ConfigError("replicas", f"must be at least 1, got {replicas}")
    endpoint = _endpoint()
    config = TrainConfig(address=address)
    joined = connection.address(config)
    if joined is None:
        ports.check(host, port)
    ready = False
    with signals(), Console() as console:
        console.doing(f"reading the model of {run}")
        served, model = _load(endpoint, run, which, tracking_uri, note)
        console.doing(connection.note(config))
        try:
            with connected(config, console.line) as check:
                head = _check_cluster(replicas, host, port)
                console.doing("starting Ray Serve")
                application = endpoint.Endpoint.options(num_replicas=replicas).bind(served, [ray.put(model)])
                with _running(application, host, port, check):
                    ready = True
                    for line in _instructions(served, host, port, head if joined else None):
                        console.line(line)
                    with console.aside("serving"):
                        _watch(check)
        except InterruptedRunError:
            if not ready:
                raise
        console.line("ended; the model is not served any more")


def _endpoint() -> Any:
    """The module of the application, which needs what ``ray[serve]`` brings."""
    try:
        return importlib.import_module("cifar_ray.orchestration.serving.endpoint")
    except ModuleNotFoundError as error:
        missing = str(error).split(". You can run")[0]
        raise ConfigError(
            "", f"cifar-ray serve needs Ray Serve ({missing}); `pip install 'cifar-ray[cluster]'` installs it"
        ) from None


def _load(
    endpoint: Any, run: str, which: WhichCheckpoint, tracking_uri: str | None, note: results.Note
) -> tuple[Any, classifier.Classifier]:
    """What is told of the model, and the model."""
    tracking.quieten(verbose=False)
    found = results.find_checkpoint(run, which, tracking_uri, note)
    snapshot = found.snapshot
    config = snapshot.config
    served = endpoint.Served(
        run=found.run.name,
        run_id=found.run.run_id,
        model=config.model,
        dataset=config.dataset,
        checkpoint=found.address.rpartition("/")[2],
        step=snapshot.step,
        test_accuracy=snapshot.accuracy,
        weights_sha256=found.weights_sha256,
        classes=snapshot.class_names,
    )
    return served, classifier.Classifier(classifier.restore(found.address, snapshot), SPECS[config.dataset]).eval()


def _check_cluster(replicas: int, host: str, port: int) -> str:
    """Refuse what would be waited for without an end, or would take over what others serve.

    Returns:
        The address of the head's node, which is the one that listens.
    """
    if _client() is not None:
        raise ConfigError("address", "must be a cluster where Ray Serve does not run yet; `serve shutdown` ends it")
    free = sum(int(resources.get("CPU", 0)) for resources in ray_internals.available_resources_per_node().values())
    if replicas > free:
        raise ConfigError("replicas", f"must be at most the CPUs that are free, {free}, got {replicas}")
    head = next(node for node in ray.nodes() if node["Alive"] and "node:__internal_head__" in node["Resources"])
    on_head = NodeAffinitySchedulingStrategy(head["NodeID"], soft=False)
    try:
        ray.get(ray.remote(ports.check).options(num_cpus=0, scheduling_strategy=on_head).remote(host, port))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return head["NodeManagerAddress"]


@contextmanager
def _running(application: Any, host: str, port: int, check: Callable[[], None]) -> Iterator[None]:
    """The application, answering; within it and at its end."""
    from ray import serve as ray_serve

    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # what goes wrong is said below
    try:
        ray_serve.start(
            proxy_location="HeadOnly",
            http_options={"host": host, "port": port, "request_timeout_s": _REQUEST_TIMEOUT_S},
        )
        check()
        target = ray_serve.RunTarget(application, name=_APPLICATION)
        ray_serve.run_many([target], wait_for_applications_running=False)
        end = time.monotonic() + _START_TIMEOUT_S
        while _state(("NOT_STARTED", "DEPLOYING", "RUNNING")) != "RUNNING":
            check()
            if time.monotonic() > end:
                raise ServingFailedError(f"the model was not ready within {_START_TIMEOUT_S:g} s")
            time.sleep(_LOOK_S)
        _client().wait_for_proxies_serving()
        try:
            yield
        except InterruptedRunError:
            ray_serve.delete(_APPLICATION)  # answers what has been asked, which `shutdown` alone does not
            raise
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ServingFailedError(f"Ray Serve: {' '.join(str(error).split())[:300]}") from None
    finally:
        ray_serve.shutdown()


def _watch(check: Callable[[], None]) -> None:
    """Wait for the end, whatever brings it."""
    while True:
        check()
        _state(("RUNNING", "DEPLOYING", "UNHEALTHY"))  # a replica that fails is replaced
        time.sleep(_LOOK_S)


def _state(good: tuple[str, ...]) -> str:
    """The application's state.

    Raises:
        ServingFailedError: when it is not a good one.
    """
    from ray import serve as ray_serve

    application = ray_serve.status().applications.get(_APPLICATION)
    if application is None:
        raise ServingFailedError("somebody else has ended the application")
    if application.status not in good:
        reason = " ".join(application.message.split())[:300]
        raise ServingFailedError(f"the application is {application.status.value}: {reason}")
    return application.status.value


def _client() -> Any:
    """Ray Serve's own client of the cluster; None when Ray Serve does not run there."""
    return ray_internals._get_global_client(raise_if_no_controller_running=False)


def _instructions(served: Any, host: str, port: int, head: str | None) -> Iterator[str]:
    """Where the model is, and how to use it."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    accuracy = "" if served.test_accuracy is None else f", test accuracy {served.test_accuracy:.2%}"
    yield f"{served.model} of run {served.run}, {served.checkpoint}{accuracy}"
    yield f"ready at {url}" + (f" on the head, {head}" if head else "") + "; Ctrl-C ends it"
    if host not in _LOOPBACK:
        yield f"caution: whoever reaches port {port} of this address may use it; there is no password"
    yield f"  curl --data-binary @IMAGE '{url}/predict?top=3'"
