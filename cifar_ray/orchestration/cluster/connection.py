"""Ray for the time of one run: the one at ``--address``, or one started on this machine."""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._common.utils import get_default_ray_temp_dir, get_default_system_temp_dir, try_to_create_directory
from ray._private import parameter, ray_constants, services
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray._private.node import Node as RayNode
from ray._private.state import available_resources_per_node
from ray._private.state import state as global_state
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster

from cifar_ray.config import files
from cifar_ray.config import train as configs
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.topology import Node
from cifar_ray.config.train import TrainConfig
from cifar_ray.orchestration.cluster import fork_server
from cifar_ray.training import hardware

_CONNECT_TIMEOUT_S = 5.0
_GREETING_TIMEOUT_S = 20.0
_START_S = 120  # for each part of a Ray that is started here; Ray's own 30 s are too short for a busy machine
_STARTS = 2
_KILLED_S = 5.0
_AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
_LONGEST_REASON = 200
_OBJECT_STORE_BYTES = 1 << 30  # per started node; CIFAR-10 takes 185 MB of it


class NotStartedError(CommandFailedError):
    """Ray did not come up on this machine; the sentence says why."""


@contextmanager
def session(config: TrainConfig) -> Iterator[Callable[[], str]]:
    """A connection to Ray, closed at the end unless it was there before.

    Yields:
        What tells, now and then, which process of a Ray started here has ended; an empty string when none has. Ray
        itself waits for it, and ends this process after a minute.

    Raises:
        ConfigError: when no cluster answers at the address, or this machine has too few CPUs for the nodes.
        NotStartedError: when Ray does not come up here.
    """
    head = address(config)
    if is_made_up(config) and (head or ray.is_initialized()):
        there = f"RAY_ADDRESS names one to join ({head})" if head else "this process has one already"
        raise ConfigError(
            "local_nodes" if config.local_nodes > 1 else "oversubscribe", f"is for a Ray started here, and {there}"
        )
    with _signals_left_alone(), _notices_kept_back(config):
        yield from _session(config, head)


def _session(config: TrainConfig, head: str | None) -> Iterator[Callable[[], str]]:
    if ray.is_initialized():
        yield str
    elif head:
        with token():
            try:
                _join(head, config)
                yield str
            finally:
                ray.shutdown()
    else:
        with _settings(_settings_to_start()), _loopback(), _local(config) as ended:
            yield ended


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Within it, Ray sets no handler for SIGTERM: its own exits wherever the program is, in a lock or not."""
    before = ray_utils.set_sigterm_handler
    ray_utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler = before


@contextmanager
def _notices_kept_back(config: TrainConfig) -> Iterator[None]:
    """Within it, Ray's notices of dead workers and busy nodes are for --verbose; the run's own words tell of them."""
    before = ray_worker.print_to_stdstream
    if not config.verbose:
        ray_worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = before


def address(config: TrainConfig) -> str | None:
    """The Ray cluster to join; None when Ray is to be started here, which Ray calls ``local``."""
    chosen = config.address or os.environ.get("RAY_ADDRESS")
    configs.check_address("address", chosen)
    return None if chosen in (None, "", "local") else chosen


def draining() -> dict[str, int]:
    """Nodes that are about to leave the cluster: node id -> when, in ms since 1970, or 0 when that is not known."""
    return global_state.get_draining_nodes()


def nodes() -> list[Node]:
    """The live nodes that stay, those with the most free CPUs first, the driver's first of equals."""
    free = available_resources_per_node()
    here = ray.get_runtime_context().get_node_id()
    leaving = draining()
    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving]
    alive.sort(key=lambda node: (-free.get(node["NodeID"], {}).get("CPU", 0.0), node["NodeID"] != here))
    return [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
        )
        for node in alive
    ]


@contextmanager
def token() -> Iterator[None]:
    """Within it, Ray has the token of a cluster that is there, as ``ray start`` would use it."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    has_one = named or (Path.home() / ".ray" / "auth_token").is_file()
    with _settings({"RAY_AUTH_MODE": "token"} if has_one and "RAY_AUTH_MODE" not in os.environ else {}):
        yield


def free_nodes(held_cpus: Mapping[str, float], held_gpus: Mapping[str, float]) -> list[Node]:
    """As :func:`nodes`, with what is free on each now or held, by node id, by the run that asks."""
    free = available_resources_per_node()
    return [
        replace(
            node,
            cpus=min(node.cpus, free.get(node.node_id, {}).get("CPU", 0.0) + held_cpus.get(node.node_id, 0.0)),
            gpus=min(node.gpus, free.get(node.node_id, {}).get("GPU", 0.0) + held_gpus.get(node.node_id, 0.0)),
        )
        for node in nodes()
    ]


def note(config: TrainConfig) -> str:
    """What is done to have Ray, in words."""
    return "joining Ray" if address(config) else "starting Ray"


def is_made_up(config: TrainConfig) -> bool:
    """Whether Ray is to count nodes or CPUs that are not there."""
    return config.local_nodes > 1 or config.oversubscribe


def shares_a_machine(config: TrainConfig) -> bool:
    """Whether the run itself uses what is only counted, so that its times are not those of a cluster."""
    crowded = config.oversubscribe and config.world_size * config.cpus_per_worker > hardware.allowed_cpus()
    return crowded or (config.local_nodes > 1 and config.placement.nodes > 1)


def _settings_to_start() -> dict[str, str]:
    """For a Ray started here.

    It has a token of its own, which by itself it would keep in a file for all to read.
    """
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
        "RAY_prestart_worker_first_driver": "0",  # a Python per CPU, none of which is a copy of the fork server
        "RAY_gcs_server_port_wait_time_s": str(_START_S),
        "RAY_agent_register_timeout_ms": str(1000 * _START_S),
    }
    if "RAY_AUTH_MODE" not in os.environ:
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return settings


@contextmanager
def _settings(values: Mapping[str, str]) -> Iterator[None]:
    """Within it, Ray has these variables; it has read its environment when it was imported."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _reread()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _reread()


def _reread() -> None:
    """Have Ray's compiled part take its settings and its token from the environment again."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _loopback() -> Iterator[None]:
    """Within it, Ray listens on the loopback interface alone, by its switch for machines without clusters."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _local(config: TrainConfig) -> Iterator[Callable[[], str]]:
    """Ray on this machine, for this process alone; it ends with the process, however that ends."""
    with files.scratch(get_default_system_temp_dir()) as folder, fork_server.running(folder) as runtime_env:
        sizes: dict[str, Any] = {
            "num_cpus": cpus_per_node(config),
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        with _patience():
            head, stop = _started(config, sizes, folder, runtime_env)
        try:
            yield partial(_ended, head)
        finally:
            left = _using(folder)
            if _ended(head):
                atexit.unregister(ray.shutdown)  # it would wait for what has ended, and end this process after a minute
            else:
                stop()
            _kill(left)  # Ray's agents end later, and would make their folders again


def _started(
    config: TrainConfig, sizes: dict[str, Any], folder: Path, runtime_env: dict[str, str]
) -> tuple[RayNode, Callable[[], None]]:
    """Start Ray and connect to it, and once more if that fails.

    Returns:
        Its head, and what ends it.

    Raises:
        NotStartedError: when it fails again.
    """
    for left in reversed(range(_STARTS)):
        before = set(psutil.Process().children(recursive=True))
        try:
            return _start(config, sizes, folder, runtime_env)
        except BaseException as error:
            # Ray keeps no account of what a start that failed has brought up.
            ray.shutdown()
            _kill(set(psutil.Process().children(recursive=True)) - before)
            if not isinstance(error, Exception):
                raise
            if not left:
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                raise NotStartedError(
                    f"Ray did not start on this machine, {_STARTS} times in a row; it may be too busy, "
                    f"or short of memory. Ray says: {reason}"
                ) from error
    raise AssertionError("the last failure was raised")


def _start(
    config: TrainConfig, sizes: dict[str, Any], folder: Path, runtime_env: dict[str, str]
) -> tuple[RayNode, Callable[[], None]]:
    if config.local_nodes == 1:
        ray.init(address="local", **sizes, **_quiet(config), runtime_env=runtime_env, _temp_dir=str(folder))
        return ray_worker._global_node, ray.shutdown
    logging.getLogger("ray").setLevel(logging.INFO if config.verbose else logging.ERROR)
    try_to_create_directory(get_default_ray_temp_dir())  # Cluster notes its address there
    cluster = Cluster(initialize_head=True, head_node_args={**sizes, "temp_dir": str(folder)})
    for _ in range(config.local_nodes - 1):
        cluster.add_node(**sizes)
    ray.init(address=cluster.address, **_quiet(config), runtime_env=runtime_env)

    def stop() -> None:
        ray.shutdown()
        cluster.shutdown()

    return cluster.head_node, stop


def _using(folder: Path) -> list[psutil.Process]:
    """The processes below this one that were started with a path in ``folder``: Ray's own, not the caller's."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found


def _kill(processes: Iterable[psutil.Process]) -> None:
    """End processes, and wait a moment until they have ended."""
    processes = list(processes)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILLED_S)


def _ended(head: RayNode) -> str:
    """Which process the cluster cannot be without has ended, in words."""
    for kind in (ray_constants.PROCESS_TYPE_GCS_SERVER, ray_constants.PROCESS_TYPE_RAYLET):
        if any(info.process.poll() is not None for info in head.all_processes.get(kind, ())):
            return f"Ray's {kind} process on this machine"
    return ""


@contextmanager
def _patience() -> Iterator[None]:
    """Context manager: have Ray wait longer for a node that it starts; no setting says how long.

    The node itself waits 15 s for its agents, two more Pythons, to tell their ports, and dies; it does not wait for
    agents whose ports it is told.
    """
    before, params, start = services.get_node, parameter.RayParams, services.start_ray_process

    def get_node(address: str, node_id: str) -> Any:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return before(address, node_id)
            except RuntimeError:  # it is not there yet, or never will be
                ended = any(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children())
                if ended or time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def with_ports(**given: Any) -> parameter.RayParams:
        with ExitStack() as held:
            taken = [held.enter_context(socket.create_server(("", 0))) for _ in _AGENT_PORTS]
            ports = {name: each.getsockname()[1] for name, each in zip(_AGENT_PORTS, taken, strict=True)}
        return params(**{**given, **ports})

    def start_process(command: list[str], kind: str, **rest: Any) -> Any:
        if kind == ray_constants.PROCESS_TYPE_RAYLET:  # Ray tells this port to the agent alone
            told = re.search(r"--listen-port=(\d+)", " ".join(command))
            command = [*command, f"--dashboard_agent_listen_port={told[1]}"] if told else command
        return start(command, kind, **rest)

    services.get_node, parameter.RayParams, services.start_ray_process = get_node, with_ports, start_process
    try:
        yield
    finally:
        services.get_node, parameter.RayParams, services.start_ray_process = before, params, start


def cpus_per_node(config: TrainConfig) -> int:
    """CPUs that each node started here counts: those that this process may use, shared by the nodes.

    Raises:
        ConfigError: when there are fewer of them than nodes.
    """
    needed = config.placement.workers_per_node * config.cpus_per_worker
    there = hardware.allowed_cpus()
    if config.oversubscribe:
        return max(needed, there // config.local_nodes)
    if there < config.local_nodes:
        raise ConfigError(
            "local_nodes",
            f"must be at most the CPUs that may be used ({there}) without --oversubscribe, got {config.local_nodes}",
        )
    return there // config.local_nodes


def _join(head: str, config: TrainConfig) -> None:
    if head != "auto":
        reach(head)
    found = head if head != "auto" else services.canonicalize_bootstrap_address(head)
    if found is not None:
        _greet(found)
    try:
        ray.init(address=head, **_quiet(config))
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError("address", f"must be that of a running Ray head; {head!r}: {reason}") from None


def _greet(head: str) -> None:
    """Ask the head for its version; Ray itself tries a wrong token for 20 s, and then does not speak of it."""
    try:
        import grpc
    except ImportError:  # comes with ray[default]
        return
    # These need it.
    from ray._private.gcs_utils import create_gcs_channel
    from ray.core.generated.gcs_service_pb2 import CheckAliveRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    try:
        with create_gcs_channel(head) as channel:
            there = NodeInfoGcsServiceStub(channel).CheckAlive(CheckAliveRequest(), timeout=_GREETING_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise ConfigError("", wrong_token(head)) from None
        raise ConfigError("address", f"must be that of a running Ray head; {head!r} does not answer as one") from None
    if there.ray_version != ray.__version__:
        raise ConfigError("", other_version(head, "Ray", there.ray_version, ray.__version__))


def wrong_token(address: str) -> str:
    """What to do when a cluster does not take the token."""
    return (
        f"the Ray cluster at {address} does not take the token given here, if any; put its own into "
        "~/.ray/auth_token, or RAY_AUTH_TOKEN"
    )


def other_version(address: str, what: str, there: str, here: str) -> str:
    """What to do when a cluster has another version than this machine."""
    return f"the Ray cluster at {address} has {what} {there}, and this machine {here}; install the same on both"


def reach(head: str) -> None:
    """Find out at once whether anything listens there; Ray itself would try for a minute.

    Raises:
        ConfigError: when it is no address, or nothing does.
    """
    host, _, port = head.rpartition(":")
    if "://" in head or not host or not port.isdecimal():
        raise ConfigError("address", f"must be HOST:PORT of a Ray head, or auto, got {head!r}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError("address", f"must be that of a running Ray head; {head!r}: {error}") from None


def _quiet(config: TrainConfig) -> dict[str, Any]:
    level = logging.INFO if config.verbose else logging.ERROR
    return {"log_to_driver": config.verbose, "logging_level": level}
