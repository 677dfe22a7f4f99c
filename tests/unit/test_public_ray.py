"""What this program uses of Ray that Ray does not promise to keep: it is all in optional.py, and only read there.

Public is what the installed Ray marks as PublicAPI or DeveloperAPI, a module without an underscore in its path, and what
has a page in Ray's documentation without a mark (``DOCUMENTED``, with the page). All else is private: names with an
underscore, methods of Ray's classes that begin with one, unmarked classes and functions, undocumented variables of the
environment. Nothing of Ray's is assigned, nor is an unmarked class subclassed; ``optional.lean`` overrides two methods
of a public one.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "cifar_ray"
OPTIONAL = PACKAGE / "orchestration" / "cluster" / "optional.py"

DOCUMENTED = {
    *("ray.ActorID", "ray.JobID", "ray.NodeID", "ray.ObjectRef", "ray.PlacementGroupID", "ray.__version__"),  # core API
    "ray.util.get_node_ip_address",  # core API: utilities
    *(f"ray.job_submission.Job{part}" for part in ("SubmissionClient", "Status", "Details")),  # jobs: Python SDK
    "ray.tune.search.optuna.OptunaSearch",  # tune: search algorithms
}
"""Parts without a mark that have a page in Ray's documentation."""

VARIABLES = {
    *("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_JOB_STOP_WAIT_TIME_S"),  # core API: ray.init; jobs
    "RAY_AIR_NEW_OUTPUT",  # tune: console output
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),  # security: token authentication
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV",  # no page, and read at import only: without it, Ray starts workers by `uv run`
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # clusters: getting started
    *("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"),  # train: debug failures and hangs
    *("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"),
    "RAY_USAGE_STATS_ENABLED",  # usage statistics
}
"""Variables of Ray's with a page in its documentation."""

INSIDE = ("ray.core.generated", "ray.experimental", "ray.cluster_utils")
"""Modules that have neither a page nor an underscore."""

_UNDER = re.compile(r"_[a-z]\w*", re.IGNORECASE)
_IN_TEXT = re.compile(r"\bray(?:\.\w+)+")
_VARIABLE = re.compile(r"\bRAY_[A-Za-z][A-Za-z_]*\b")


class Reader(ast.NodeVisitor):
    """Finds what a module uses of Ray's private parts: ``found`` has (line, what)."""

    def __init__(self, source: str) -> None:
        self.found: list[tuple[int, str]] = []
        self._names: dict[str, str] = {}  # of this module -> dotted name in Ray
        self._tree = ast.parse(source)
        self._docstrings = {
            id(node.value)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }

    def read(self) -> list[tuple[int, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        self.visit(self._tree)
        return self.found

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "ray":
                    self._names[alias.asname or "ray"] = alias.name if alias.asname else "ray"
                    self._judge(node, alias.name)
        elif (node.module or "").split(".")[0] == "ray":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                self._names[alias.asname or alias.name] = name
                self._judge(node, name)

    def _judge(self, node: Any, name: str) -> None:
        if is_private(name):
            self.found.append((node.lineno, name))

    def _dotted(self, node: ast.AST) -> str | None:
        """The name in Ray of an attribute of a module of Ray's."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in self._names:
            return ".".join([self._names[node.id], *reversed(words)])
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if isinstance(node.ctx, ast.Store | ast.Del):
            if name:
                self.found.append((node.lineno, f"assigned: {name}"))
        elif name:
            self._judge(node, name)
            if node.attr in ("__file__", "__path__"):
                self.found.append((node.lineno, f"files of {name}"))
            return  # its beginning is no other part
        # Ray's objects cannot be told from others: no attribute of another object begins with an underscore here.
        if _UNDER.fullmatch(node.attr) and not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            self.found.append((node.lineno, f".{node.attr}"))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("setattr", "delattr"):
            self.found.append((node.lineno, f"assigned: {ast.unparse(node.args[0])}"))
        if name in ("getattr", "hasattr") and _UNDER.fullmatch(str(getattr(node.args[1], "value", ""))):
            self.found.append((node.lineno, f".{ast.literal_eval(node.args[1])}"))
        for keyword in node.keywords:
            if keyword.arg and _UNDER.fullmatch(keyword.arg):
                self.found.append((node.lineno, f"{keyword.arg}="))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = self._dotted(base) or (self._names.get(base.id) if isinstance(base, ast.Name) else None)
            if name is None:
                continue
            kind = resolve(name)
            if is_private(name):
                self.found.append((node.lineno, f"subclassed: {name}"))
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and _UNDER.fullmatch(part.name) and hasattr(kind, part.name):
                    self.found.append((part.lineno, f"overridden: {name}.{part.name}"))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Private modules that are named in words, such as those of another process, and variables."""
        if not isinstance(node.value, str) or id(node) in self._docstrings:
            return
        for match in _IN_TEXT.findall(node.value):
            if any(part[0] == "_" for part in match.split(".")) or match.startswith(INSIDE):
                self.found.append((node.lineno, match))
        if "__internal" in node.value:  # a resource of nodes
            self.found.append((node.lineno, node.value))
        for match in _VARIABLE.findall(node.value):
            if match not in VARIABLES:
                self.found.append((node.lineno, f"variable {match}"))


OWN = {"self", "cls", "os", "sys"}  # os._exit, sys._MEIPASS and their like are not Ray's


def resolve(name: str) -> Any:
    """The part of the installed Ray with this dotted name; None when nothing can be said of it."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:length]))
        except ImportError:
            continue
        for word in words[length:]:
            if not hasattr(found, word):
                return None
            found = getattr(found, word)
        return found
    return None


def is_private(name: str) -> bool:
    """Whether Ray does not promise to keep a part with this dotted name."""
    if name in DOCUMENTED or name == "ray":
        return False
    words = name.split(".")
    if name.startswith(INSIDE) or any(_UNDER.fullmatch(word) for word in words):
        return True
    found = resolve(name)
    if isinstance(found, ModuleType):
        return False
    if not (inspect.isclass(found) or callable(found)):
        return False  # a value, or an attribute of an object
    if getattr(found, "_annotated", None) == getattr(found, "__name__", ""):
        return False
    owner = ".".join(words[:-1])
    return not inspect.isclass(resolve(owner)) or is_private(owner)  # a method of a public class


def knows_ray(path: Path) -> bool:
    return "orchestration" in path.relative_to(PACKAGE).parts or "RAY_" in path.read_text()


def test_private_parts_of_ray_are_in_one_module() -> None:
    others = [path for path in sorted(PACKAGE.rglob("*.py")) if path != OPTIONAL and knows_ray(path)]
    assert {str(path): found for path in others if (found := Reader(path.read_text()).read())} == {}


PARTS = {
    "ray._private.state",  # free_resources, draining_nodes, abandoned_groups
    "ray._common.constants",  # head_resource
    *(
        "ray._private.gcs_utils",
        "ray.core.generated.gcs_service_pb2_grpc",
        "ray.core.generated.gcs_service_pb2",
    ),  # greeting
    "ray._private.services",  # latest_head
    *("ray.experimental.internal_kv", "ray.core.generated.autoscaler_pb2"),  # refused_bundles
    *("ray.core.generated.gcs_pb2", "._connect_and_get_accessor"),  # abandoned_groups
    "ray.train.v2._internal.callbacks.datasets",  # lean, whose class overrides the methods
    "ray.train.v2._internal.callbacks.placement_group_callback",
    "ray.train.v2._internal.execution.controller",
    *("._create_default_callbacks", "._initialize_and_run_controller"),
    "ray._raylet",  # reread_environment
    *("variable RAY_TMPDIR", "variable RAY_enable_metrics_collection", "variable RAY_prestart_worker_first_driver"),
    *("variable RAY_gcs_server_port_wait_time_s", "variable RAY_agent_register_timeout_ms"),  # start_variables
    "variable RAY_gcs_rpc_server_reconnect_timeout_s",
}
"""All that is private and used."""


def test_what_is_optional_is_read_in_parts_with_a_fallback() -> None:
    inside = {
        line
        for node in ast.parse(OPTIONAL.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(call, ast.Call) and ast.unparse(call.func) == "part" for call in node.decorator_list)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    found = Reader(OPTIONAL.read_text()).read()
    assert {what for line, what in found if line not in inside} == set()
    assert {what for _, what in found} == PARTS  # and so nothing is assigned, subclassed or overridden


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from ray.train import ScalingConfig, UserCallback\nclass A(UserCallback): ...", set()),
        ("import ray\nray.init(num_cpus=1)\nray.util.get_node_ip_address()\nray.exceptions.RayError", set()),
        ("import ray\nray._private.state.state", {"ray._private.state.state"}),
        ("from ray.util import _private as there", {"ray.util._private"}),
        ("from ray.cluster_utils import Cluster", {"ray.cluster_utils.Cluster"}),
        ("import ray\nray.init(_temp_dir='/tmp')", {"_temp_dir="}),
        ("import ray\nray.remote = print", {"assigned: ray.remote"}),
        ("import ray\nsetattr(ray, 'remote', print)", {"assigned: ray"}),
        ("actor = 1\nactor._actor_id", {"._actor_id"}),
        ("getattr(error, '_base_exc', error)", {"._base_exc"}),
        ("code = 'import ray._private.workers.default_worker'", {"ray._private.workers.default_worker"}),
        ("os.environ['RAY_TMPDIR'], 'CIFAR_RAY_DATA_DIR', 'RAY_ADDRESS'", {"variable RAY_TMPDIR"}),
        (
            "from ray.train.torch import TorchTrainer as T\nclass A(T):\n def _create_default_callbacks(self): ...",
            {"overridden: ray.train.torch.TorchTrainer._create_default_callbacks"},
        ),
        ("import ray\nray.autoscaler.__file__", {"files of ray.autoscaler.__file__"}),
        ("{'node:__internal_head__': 0.001}", {"node:__internal_head__"}),
    ],
)
def test_every_kind_of_private_part_is_seen(source: str, found: set[str]) -> None:
    assert {what for _, what in Reader(source).read()} == found
