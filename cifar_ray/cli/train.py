"""``cifar-ray train`` and ``cifar-ray resume``."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from cifar_ray import IMPORTED_AT, tracking
from cifar_ray.cli import early, output
from cifar_ray.config import command_line, flags, schema
from cifar_ray.config.flags import AsJson, Given, Of, RunName
from cifar_ray.config.keywords import passes_to
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import servers
from cifar_ray.reporting import cost
from cifar_ray.runs.folder import check_free
from cifar_ray.tracking import uri as stores

LIBRARIES = "loading PyTorch and Ray"
_ANEW = (
    *("topology", "data_dir", "address", "local_nodes", "price", "max_time", "max_cost", "patience", "max_failures"),
    *("hang_timeout_s", "tracking_uri", "verbose"),
)


@flags.usual(
    *("dataset", "model", "epochs", "seed", "lr"),
    *("global_batch_size", "topology", "strategy", "run_name", "config"),
)
@passes_to(command_line.train)
def train(*, json: AsJson = False, **run: Any) -> int:
    """Train one model on one topology, and record it in MLflow.

    Examples:
        cifar-ray train --dataset digits --epochs 3
        cifar-ray train --model vit --model-options.depth 4 --topology 1x2
        cifar-ray train --config run.yaml --seed 1
    """
    config = command_line.train(**run)
    price = cost.word(config.price)
    servers.reach_chosen(config.address)
    stores.resolve_uri(config.tracking_uri)
    check_free(config)
    named = f"run {config.run_name}: " if config.run_name else ""
    what = f"{config.model} on {config.dataset}, {config.elastic or config.topology}, {config.strategy}"
    with output.progress(json):
        with early.loading(f"{named}{what}: {LIBRARIES}", always=True):
            from cifar_ray.training import recipe

            with tracking.unchanged():  # a module of the user's may set MLflow's address when it is imported
                resolved = recipe.resolve(config, price=price)  # what is refused here need not wait for Ray and MLflow
            with servers.before_ray(config):
                from cifar_ray.orchestration.run import driver

        for note in recipe.notes(resolved, config):
            Console().line(note)
        result = driver.train(resolved, begun=IMPORTED_AT)
    output.show(result, json)
    return 0


def resume(run: RunName, *, options: Annotated[Given, Of(TrainConfig, only=_ANEW)]) -> int:
    """Continue a run after its newest usable checkpoint, in the same MLflow run.

    The training stays as it was, with its global batch; these options say where it continues. What has stopped the run,
    a limit or its patience, must be larger.
    """
    given = {name: schema.field(TrainConfig, name, value) for name, value in options.items()}
    tracking_uri = given.get("tracking_uri")
    cost.checked(given.get("price"))
    servers.reach_chosen(given.get("address"))
    before = early.known_config(run)
    with early.loading(f"run {run}: {LIBRARIES}", always=True), servers.before_ray(before, given):
        from cifar_ray.orchestration.run import driver

    if driver.resume(run, given, begun=IMPORTED_AT) is None:
        words = shlex.quote(run) + stores.flag(stores.resolve_uri(tracking_uri))
        print(f"run {run} is finished; `cifar-ray train --weights {words}` starts another from its weights")
    return 0
