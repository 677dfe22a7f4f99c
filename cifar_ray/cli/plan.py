"""``cifar-ray plan``: what a training would take, from short runs of it, a link and a price."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated

from cifar_ray import IMPORTED_AT, tracking
from cifar_ray.cli import output
from cifar_ray.config import errors, flags, runfile
from cifar_ray.config.errors import CommandFailedError, ConfigError
from cifar_ray.config.flags import AsJson, Given, Of
from cifar_ray.config.schema import Counts, Positive, fits
from cifar_ray.config.sections import Name
from cifar_ray.config.topology import Topology
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.display.sweep import FINISHED
from cifar_ray.orchestration.cluster import servers
from cifar_ray.planning import exchange, probing
from cifar_ray.planning import link as links
from cifar_ray.planning import words as words_of
from cifar_ray.planning.model import Means, Plan

LinkText = Annotated[str, fits(links.parse)]
_NOT_PLANNED = (
    *("topology", "elastic", "batch_size", "steps_per_epoch", "run_name", "max_time", "max_cost"),
    "local_nodes",  # nodes and CPUs that do not exist tell no times
)


@flags.usual(
    *("model", "dataset", "global_batch_size", "epochs", "strategy", "nodes", "workers", "link", "host", "price"),
    *("speed_factor", "name", "json"),
)
def plan(
    *,
    name: Name | None = None,
    nodes: Counts = (1, 2, 4, 8),
    workers: Counts = (1,),
    link: LinkText | None = None,
    host: LinkText | None = None,
    speed_factor: Positive | None = None,
    json: AsJson = False,
    options: Annotated[Given, Of(TrainConfig, without=_NOT_PLANNED)],
) -> int:
    """Say what a training would take on other machines, by a few short runs of it on this one, or on a cluster.

    Options of cifar-ray train say what to train. Each size of a worker's batch that the plan needs is measured by
    itself, in some 40 steps.

    Examples:
        cifar-ray plan --model vit --global-batch-size 512 --nodes 1,2,4,8 --link 10gbit --price 0.80

    Args:
        name: Name of the sweep of short runs. Default: one made from the model and the time.
        nodes: Numbers of machines, such as 1,2,4.
        workers: Numbers of workers on each, such as 1,2.
        link: Network between machines, in each direction: RATE or RATE:LATENCY such as 10gbit or 400mbit:100us; iperf3
            and ping measure them. Needed for more than one node.
        host: What an exchange costs the workers themselves, whatever the network: copying, adding up and the backend's
            own work, as RATE:LATENCY. Default: none.
        speed_factor: Speed of a worker on the planned machines, as a multiple of the measured one.
    """
    asked = runfile.load(None, options)
    means = Means(links.parse(link) if link else None, links.parse(host) if host else None, asked.price)
    if asked.strategy not in exchange.PLANNED:
        raise ConfigError(
            "strategy", f"must be {errors.one_of(exchange.PLANNED)} to be planned, got {asked.strategy!r}"
        )
    if link is None and max(nodes) > 1:
        raise ConfigError("link", "must be given for --nodes of more than 1, such as --link 10gbit")
    servers.reach_chosen(asked.address)
    name = name or f"plan-{asked.model_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    topologies = [Topology(each, beside) for each in nodes for beside in workers]
    with output.progress(json):
        with output.loading(f"sweep {name}: loading PyTorch and Ray", always=True), servers.before_ray(asked):
            from cifar_ray import data
            from cifar_ray.training import recipe

            with tracking.unchanged():
                planned = recipe.resolve(asked)
            if has := exchange.unknown(planned):
                raise ConfigError("", f"{has} cannot be planned: what is exchanged with it is not in the model")
            images = data.facts(planned).train_size
            from cifar_ray.orchestration.run import machine
            from cifar_ray.orchestration.sweep import driver
            from cifar_ray.tracking import reading

        is_here = servers.ray_head(asked.address) is None
        on = probing.this_machine(planned) if is_here else probing.Machine(*machine.ask(planned))
        if asked.device != "auto":
            on = dataclasses.replace(on, device=asked.device)
        cells = probing.cells(planned, on.device, topologies, images)
        runs = probing.sweep(name, {**options, "device": on.device, "price": None}, cells)
        result = driver.sweep(runs, output.typed(), begun=IMPORTED_AT)
        if FINISHED not in result.states.values():
            raise CommandFailedError(f"sweep {name}: no run has finished, so there is nothing to plan from")
        (study,) = reading.sweeps_or_runs(result.tracking_uri, [name])
        made = probing.plan(planned, study.trials, topologies, means, speed_factor)
    output.show(made, json, lambda: _print(made))
    return 0 if made.rows else 1


def _print(plan: Plan) -> None:
    console = Console()
    for line in words_of.findings(plan):
        console.line(line)
    if plan.rows:
        console.columns(*words_of.table(plan))
    for name, reason in plan.skipped.items():
        console.line(f"{name}: not planned, {reason}")
    for note in plan.notes:
        console.line(note)
