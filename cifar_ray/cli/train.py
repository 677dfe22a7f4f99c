"""``cifar-ray train`` and ``cifar-ray resume``."""

from __future__ import annotations

import shlex
from typing import Any

from cifar_ray import IMPORTED_AT, tracking
from cifar_ray.cli import early, output
from cifar_ray.config import command_line, flags
from cifar_ray.config.flags import AsJson, RunName
from cifar_ray.config.keywords import passes_to
from cifar_ray.config.limits import DurationText, PriceText
from cifar_ray.config.schema import Count, Positive
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import servers
from cifar_ray.reporting import cost

LIBRARIES = "loading PyTorch and Ray"


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
    early.check_training(config)
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


def resume(
    run: RunName,
    *,
    topology: str | None = None,
    data_dir: str | None = None,
    address: str | None = None,
    local_nodes: int | None = None,
    price: PriceText | None = None,
    max_time: DurationText | None = None,
    max_cost: Positive | None = None,
    patience: Count | None = None,
    max_failures: int | None = None,
    hang_timeout_s: float | None = None,
    tracking_uri: str | None = None,
    verbose: bool = False,
) -> int:
    """Continue a run after its newest usable checkpoint, in the same MLflow run.

    The training itself stays as it was; these options say where it continues.

    Args:
        topology: NODESxWORKERS, if it changes. The global batch stays the same.
        max_time: Larger than what the run has taken, to go on after a stop by --max-time.
        max_cost: Larger than what the run has cost, to go on after a stop by --max-cost.
        patience: More epochs than before, to go on after a stop by --patience.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    del given["run"]
    cost.checked(price)
    early.check_names([run], tracking_uri)
    servers.reach_chosen(address)
    before = early.known_config(run)
    with early.loading(f"run {run}: {LIBRARIES}", always=True), servers.before_ray(before, given):
        from cifar_ray.orchestration.run import driver

    if driver.resume(run, given, begun=IMPORTED_AT) is None:
        words = shlex.quote(run) + (f" --tracking-uri {shlex.quote(tracking_uri)}" if tracking_uri else "")
        print(f"run {run} is finished; `cifar-ray train --weights {words}` starts another from its weights")
    return 0
