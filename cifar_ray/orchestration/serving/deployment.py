"""Serve a run's model over HTTP with Ray Serve, until Ctrl-C.

Why Ray Serve and not MLflow's scoring server: docs/serving.md.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import ray
from ray import serve as ray_serve

from cifar_ray import data
from cifar_ray.config import ports
from cifar_ray.config.cluster_commands import ServeCommand
from cifar_ray.config.errors import CommandFailedError, ConfigError, InterruptedRunError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import DatasetSpec
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import connection, ray_internals
from cifar_ray.orchestration.run import results
from cifar_ray.orchestration.run.interrupts import connected, signals
from cifar_ray.orchestration.serving.endpoint import Endpoint, Served
from cifar_ray.training import classifier

_APPLICATION = "cifar_ray"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REQUEST_TIMEOUT_S = 70.0  # longer than the endpoint's own timeout, whose error is JSON
_START_TIMEOUT_S = 300.0
_POLL_S = 0.2
_HEAD = "node:__internal_head__"


class ServingFailedError(CommandFailedError):
    """The model cannot be served, or no longer."""


def serve(command: ServeCommand, note: results.Note) -> None:
    """Serve a run's model until SIGINT or SIGTERM, and leave nothing of it running.

    Args:
        command: its options.
        note: called with what is worth telling beside the output.

    Raises:
        CheckpointError: the run has no usable checkpoint.
        ConfigError: an option is wrong; nothing listens yet.
        InterruptedRunError: SIGINT or SIGTERM came before the model was served.
        ServingFailedError: the model cannot be served, or no longer.
    """
    config = TrainConfig(address=command.address)
    joined = connection.address(config) is not None
    with signals(), Console() as console:
        console.doing(f"reading the model of {command.run}")
        served, spec, model = _load(command, note)
        with connected(config, console, functions=[served.model]) as check:
            head = _check_cluster(command)
            console.doing("starting Ray Serve")
            deployment = Endpoint.options(num_replicas=command.replicas)  # type: ignore[attr-defined]
            application = deployment.bind(served, spec, [ray.put(model)])
            with _running(application, command, check):
                for line in _instructions(served, command, head if joined else None):
                    console.line(line)
                with console.aside("serving"), contextlib.suppress(InterruptedRunError):
                    while True:
                        check()
                        _status()
                        time.sleep(_POLL_S)
                ray_serve.delete(_APPLICATION)  # unlike `shutdown`, it waits for requests under way
        console.line("ended; the model is not served any more")


def _load(command: ServeCommand, note: results.Note) -> tuple[Served, DatasetSpec, classifier.Classifier]:
    """Return the model with its description and that of its images."""
    found = results.find_checkpoint(command.run, command.checkpoint, command.tracking_uri, note)
    snapshot = found.snapshot
    served = Served(
        run=found.run.name,
        run_id=found.run.run_id,
        model=snapshot.config.model,
        dataset=snapshot.config.dataset,
        checkpoint=found.address.rpartition("/")[2],
        step=snapshot.step,
        test_accuracy=snapshot.accuracy,
        weights_sha256=found.weights_sha256,
        classes=snapshot.class_names,
    )
    return served, data.spec(snapshot.config), classifier.of(found.address, snapshot)


def _check_cluster(command: ServeCommand) -> str:
    """Return the address of the head node, which listens; raise ConfigError if the cluster cannot serve."""
    status = ray_serve.status()
    if status.proxies or status.applications:
        raise ConfigError("address", "must be a cluster where Ray Serve does not run yet; `serve shutdown` ends it")
    free = int(ray.available_resources().get("CPU", 0))
    if command.replicas > free:
        raise ConfigError("replicas", f"must be at most the CPUs that are free, {free}, got {command.replicas}")
    check = ray.remote(ports.check).options(num_cpus=0, resources={_HEAD: 0.001})
    try:
        ray.get(check.remote(command.host, command.port))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and _HEAD in node["Resources"])


@contextlib.contextmanager
def _running(application: ray_serve.Application, command: ServeCommand, check: Callable[[], None]) -> Iterator[None]:
    """Context manager: start the application and wait until it answers; shut Ray Serve down at the end."""
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # errors are reported below
    http = {"host": command.host, "port": command.port, "request_timeout_s": _REQUEST_TIMEOUT_S}
    try:
        ray_serve.start(proxy_location="HeadOnly", http_options=http)
        check()
        # Without waiting, since Ray's own wait cannot be interrupted.
        ray_serve.run_many([ray_serve.RunTarget(application, _APPLICATION)], wait_for_applications_running=False)
        end = time.monotonic() + _START_TIMEOUT_S
        while _status() != "RUNNING":
            check()
            if time.monotonic() > end:
                raise ServingFailedError(f"the model was not ready within {_START_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        ray_internals._get_global_client().wait_for_proxies_serving()
        yield
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ServingFailedError(f"Ray Serve: {' '.join(str(error).split())[:300]}") from None
    finally:
        ray_serve.shutdown()


def _status() -> str:
    """Return the application's status; raise ServingFailedError when it has failed or was deleted."""
    application = ray_serve.status().applications.get(_APPLICATION)
    if application is None or application.status == "DELETING":
        raise ServingFailedError("the application was deleted by another program")
    if application.status == "DEPLOY_FAILED":  # an unhealthy replica is replaced
        raise ServingFailedError(f"Ray Serve: {' '.join(application.message.split())[:300]}")
    return application.status.value


def _instructions(served: Served, command: ServeCommand, head: str | None) -> Iterator[str]:
    """Yield lines on where the model is and how to use it."""
    url = f"http://{f'[{command.host}]' if ':' in command.host else command.host}:{command.port}"
    accuracy = "" if served.test_accuracy is None else f", test accuracy {served.test_accuracy:.2%}"
    yield f"{served.model} of run {served.run}, {served.checkpoint}{accuracy}"
    yield f"ready at {url}" + (f" on the head, {head}" if head else "") + "; Ctrl-C ends it"
    if command.host not in _LOOPBACK:
        yield f"caution: anyone who reaches port {command.port} of this address can use it; there is no password"
    yield f"  curl --data-binary @IMAGE '{url}/predict?top=3'"
