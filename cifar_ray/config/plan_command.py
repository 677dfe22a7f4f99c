"""The options of ``cifar-ray plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from cifar_ray.config.commands import ResultAsJson
from cifar_ray.config.limits import DurationText, PriceText
from cifar_ray.config.schema import Count, Counts, Positive

PlannedName = Literal[
    "ddp",
    "all_reduce",
    "gather_scatter",
    "send_recv",
    "local_sgd",
    "fsdp",
    "gpipe",
    "one_f_one_b",
    "model_parallel",
]
"""The strategies that can be planned."""


def _commas(value: Any) -> Any:
    """Words such as ``1,2,4`` and ``1 2 4`` as one text."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class PlanCommand(ResultAsJson):
    """Say what a training would take on other machines, from what finished runs have measured.

    A run tells how long its passes take with as many images per worker and micro-batch as it had. With fewer, as more
    workers have of one global batch, it takes runs of two sizes at least.
    """

    EXAMPLES = (
        "  cifar-ray plan --from sizes --nodes 1,2,4,8 --link 10gbit --price 0.80\n"
        "  cifar-ray plan --from sizes --nodes 1,2,4,8 --link 10gbit --price 0.80 --deadline 1h --budget 2",
    )

    from_: tuple[str, ...]
    """Names of finished runs or sweeps of one model on one kind of machine, or .json files of cifar-ray export."""

    model: str | None = None
    """Which of their models to plan. Default: the one that they have."""

    strategy: PlannedName | None = None
    """Default: that of the first run."""

    global_batch_size: Count | None = None
    """Images per step over all workers. Default: that of the first run."""

    epochs: Count | None = None
    """Epochs to train. Default: those of the first run."""

    nodes: Annotated[Counts, BeforeValidator(_commas)] = (1, 2, 4, 8)
    """Numbers of machines, such as 1,2,4."""

    workers: Annotated[Counts, BeforeValidator(_commas)] = (1,)
    """Numbers of workers on each, such as 1,2."""

    link: str | None = None
    """Network between machines, in each direction, RATE or RATE:LATENCY such as 10gbit or 400mbit:100us. Needed for
    more than one node."""

    host: str | None = None
    """What an exchange costs the workers themselves, whatever the network: copying, adding up and the backend's own
    work, as RATE:LATENCY. Default: that of those runs that wait for all of their exchange on one node (strategy
    all_reduce, gather_scatter or send_recv); without such a run, none."""

    price: PriceText | None = None
    """Price of a node: your own in USD per hour, such as 2.49, a machine type such as g4dn.xlarge, TYPE:spot, or a Ray
    cluster file."""

    speed_factor: Positive | None = None
    """How many times as fast as in the runs a worker computes on the machine of --price."""

    deadline: DurationText | None = None
    """What the whole run may take, with start-up and evaluation: 90s, 10m, 2h or 1h30m."""

    budget: Positive | None = None
    """What the whole run may cost in USD, at --price."""

    tracking_uri: str | None = None
