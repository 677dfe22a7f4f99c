"""Private parts of Ray that pay: read here, never assigned, and each with a fallback that is right without it.

One class overrides methods, of a class of its own.

Ray promises to keep none of them. A part that the installed Ray lacks is logged at INFO, and the fallback takes its
place; ``CIFAR_RAY_PLAIN_RAY=1`` switches all of them off.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import ray

from cifar_ray.tracking.background import within

PLAIN = "CIFAR_RAY_PLAIN_RAY"
_ANSWER_S = 10

_logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def part(fallback: Callable[..., Any]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorator: call ``fallback`` in place of a function whose private parts of Ray are missing or switched off.

    What Ray's public errors say of the cluster is passed on.
    """

    def decorate(read: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(read)
        def reading(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if os.environ.get(PLAIN) != "1":
                try:
                    return read(*args, **kwargs)
                except ray.exceptions.RayError:
                    raise
                except Exception as error:
                    _logger.info("Ray %s has no %s for this program: %r", ray.__version__, read.__name__, error)
            return fallback(*args, **kwargs)

        return reading

    return decorate


def find(path: str) -> Any:
    """A private part of Ray, by ``module:name``; raises ImportError or AttributeError without it."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@part(lambda folder: {})
def start_variables(folder: str) -> dict[str, str]:
    """Undocumented variables for a Ray started here, whose files are to be in ``folder``.

    Without them they are in Ray's own folder and stay there, and Ray starts slower, waits less for its parts, and ends
    a process whose Ray has ended.
    """
    return {
        "RAY_TMPDIR": folder,  # where Ray writes the address of its head, too, over that of another Ray
        "RAY_enable_metrics_collection": "0",  # nobody reads them without a dashboard
        "RAY_prestart_worker_first_driver": "0",  # a Python per CPU, none of them a copy of the fork server
        "RAY_gcs_server_port_wait_time_s": "120",
        "RAY_agent_register_timeout_ms": "120000",
        # Else Ray's compiled part ends this process a minute after its head has ended; ours notices, and says so.
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(10 * 86400),
    }


@part(lambda trainer: trainer)
def lean(trainer: type[Any]) -> type[Any]:
    """Ray Train's ``trainer`` without the process that cleans up after it and the one for Ray Data.

    In an actor its controller runs there, and not in a process of its own. Without it a run of several workers starts
    two processes more, or three.
    """
    unused = (
        find("ray.train.v2._internal.callbacks.datasets:DatasetsCallback"),
        find("ray.train.v2._internal.callbacks.placement_group_callback:PlacementGroupCleanerCallback"),
    )
    controller = find("ray.train.v2._internal.execution.controller:TrainController")

    made_of = inspect.signature(controller).parameters.keys()

    class Lean(trainer):
        def _create_default_callbacks(self) -> list[Any]:
            return [each for each in super()._create_default_callbacks() if not isinstance(each, unused)]

        def _initialize_and_run_controller(self, **given: Any) -> Any:
            if ray.get_runtime_context().get_actor_id() is None or given.keys() - made_of:
                return super()._initialize_and_run_controller(**given)
            running = controller(**given)
            asyncio.run(running.run())
            return running.get_result()

    return Lean


@part(lambda: False)
def reread_environment() -> bool:
    """Have this process's Ray read its variables again. Without it, they count if set before Ray was imported."""
    find("ray._raylet:Config").initialize("")
    find("ray._raylet:AuthenticationTokenLoader").instance().reset_cache()
    return True


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set environment variables for Ray; at the end they and Ray's other ones are as before."""
    before = dict(os.environ)
    os.environ.update(values)
    reread_environment()
    try:
        yield
    finally:
        for name in {*before, *os.environ}:
            if name in values or name.startswith("RAY_"):
                os.environ.pop(name, None)
                os.environ.update({name: before[name]} if name in before else {})
        reread_environment()


def _most_free() -> dict[str, dict[str, float]]:
    """At most what a node has, and at most what is free in the whole cluster: exact for one node, or a free cluster."""
    free = ray.available_resources()
    return {
        node["NodeID"]: {name: min(amount, free.get(name, 0.0)) for name, amount in node["Resources"].items()}
        for node in ray.nodes()
        if node["Alive"]
    }


@part(_most_free)
def free_resources() -> dict[str, dict[str, float]]:
    """What is free on each node, by node id. Without it a run may choose a node that is in use, and waits for it."""
    return find("ray._private.state:available_resources_per_node")()


@part(dict)
def draining_nodes() -> dict[str, int]:
    """Nodes about to leave the cluster: node id -> when, in ms since 1970, or 0 when not known.

    Without it a run notices a node that leaves when its workers die.
    """
    return find("ray._private.state:state").get_draining_nodes()


@part(dict)
def head_resource() -> dict[str, float]:
    """A little of the resource that only the head has, of which nodes on one machine do not share the address.

    Without it a sweep's cells find their node by its address.
    """
    return {find("ray._common.constants:HEAD_NODE_RESOURCE_NAME"): 0.001}


@part(lambda: "auto")
def latest_head() -> str:
    """The head that Ray finds on this machine for ``auto``. Without it Ray tries one that has ended for a minute."""
    return find("ray._private.services:canonicalize_bootstrap_address")("auto")


@part(lambda head, timeout_s: "OK")
def greeting(head: str, timeout_s: float) -> str:
    """gRPC's code of a head's answer, such as ``UNAUTHENTICATED``. Without it Ray tries a wrong token for 20 s."""
    import grpc

    try:
        with find("ray._private.gcs_utils:create_gcs_channel")(head) as channel:
            stub = find("ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceStub")(channel)
            stub.CheckAlive(find("ray.core.generated.gcs_service_pb2:CheckAliveRequest")(), timeout=timeout_s)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


@part(list)
def refused_bundles() -> list[dict[str, float]] | None:
    """Bundles of the request for nodes that the autoscaler cannot meet; None when it has never reported.

    Without it a run waits for them as long as for any others.
    """
    client = find("ray.experimental.internal_kv:internal_kv_get_gcs_client")()
    reply = find("ray.core.generated.autoscaler_pb2:GetClusterStatusReply").FromString(
        client.get_cluster_status(timeout_s=_ANSWER_S)
    )
    if not reply.autoscaling_state.autoscaler_state_version:
        return None
    return [
        dict(group.request.resources_bundle)
        for constraint in reply.autoscaling_state.infeasible_cluster_resource_constraints
        for group in constraint.resource_requests
        for _ in range(group.count)
    ]


@part(list)
def abandoned_groups() -> list[ray.PlacementGroupID]:
    """This job's placement groups whose creator, an actor, has died; also those that still wait for room.

    Without it they are free when the job ends.
    """
    kind, state = find("ray.core.generated.gcs_pb2:PlacementGroupTableData"), find("ray._private.state:state")

    def read() -> tuple[list[bytes], dict[str, Any]]:
        return state._connect_and_get_accessor().get_placement_group_table(), state.actor_table(None, None, "DEAD")

    groups, dead = within(_ANSWER_S, read)  # Ray's head may have ended, whose answer would be waited for without end
    return [
        ray.PlacementGroupID(group.placement_group_id)
        for group in map(kind.FromString, groups)
        if group.creator_job_id.hex() == ray.get_runtime_context().get_job_id()
        and group.creator_actor_id.hex() in dead
        and group.state != kind.REMOVED
    ]
