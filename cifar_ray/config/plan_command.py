"""The options of ``cifar-ray plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from cifar_ray.config.commands import ResultAsJson
from cifar_ray.config.limits import DurationText, PriceText
from cifar_ray.config.schema import Count, Counts, Positive
from cifar_ray.config.sections import Name
from cifar_ray.config.train import TrainConfig

PlannedName = Literal["ddp", "all_reduce", "gather_scatter", "send_recv", "local_sgd"]
"""The strategies that can be planned."""


def _commas(value: Any) -> Any:
    """Words such as ``1,2,4`` and ``1 2 4`` as one text."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ResultAsJson):
    """What to plan, for which machines, and from which runs."""

    from_: tuple[str, ...] = ()
    """Plan from these instead of training: names of finished runs or sweeps of one model on one kind of machine, or
    .json files of cifar-ray export."""

    name: Name | None = None
    """Name of the sweep that is trained here, to plan from again with --from. Default: one made from the model and the
    time."""

    model: str | None = None
    """Model to plan. Default: as cifar-ray train has it; with --from, the one that the runs have."""

    strategy: PlannedName | None = None
    """Strategy to plan. Default: as cifar-ray train has it; with --from, that of the first run."""

    global_batch_size: Count | None = None
    """Images per step over all workers. Default: as cifar-ray train has it; with --from, that of the first run."""

    epochs: Count | None = None
    """Epochs to train. Default: as cifar-ray train has it; with --from, those of the first run."""

    nodes: Annotated[Counts, BeforeValidator(_commas)] = (1, 2, 4, 8)
    """Numbers of machines, such as 1,2,4."""

    workers: Annotated[Counts, BeforeValidator(_commas)] = (1,)
    """Numbers of workers on each, such as 1,2."""

    link: str | None = None
    """Network between machines, in each direction: RATE or RATE:LATENCY such as 10gbit or 400mbit:100us; iperf3 and
    ping measure them. Needed for more than one node."""

    host: str | None = None
    """What an exchange costs the workers themselves, whatever the network: copying, adding up and the backend's own
    work, as RATE:LATENCY. Default: that of those runs that wait for all of their exchange on one node (strategy
    all_reduce, gather_scatter or send_recv); without such a run, none."""

    price: PriceText | None = None
    """Price of a node: your own in USD per hour, such as 2.49, a machine type such as g4dn.xlarge, TYPE:spot, or a Ray
    cluster file."""

    speed_factor: Positive | None = None
    """Speed of a worker on the machine of --price, as a multiple of the measured one."""

    deadline: DurationText | None = None
    """What the whole run may take, with start-up and evaluation: 90s, 10m, 2h or 1h30m."""

    budget: Positive | None = None
    """What the whole run may cost in USD, at --price."""

    tracking_uri: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlanCommand(PlanOptions, TrainConfig):  # type: ignore[misc]  # here, what is not given is not the usual
    """Say what a training would take on other machines: train a few short runs on this one, or take finished ones.

    Without --from, options of cifar-ray train say what to train. Each size of a worker's batch that the plan needs is
    measured by itself, in some 40 steps. With --from, only --bucket-cap-mb and --strategy-options.* of them can
    be given.
    """

    USUAL = (
        *("model", "dataset", "global_batch_size", "epochs", "strategy", "nodes", "workers", "link", "host", "price"),
        *("speed_factor", "deadline", "budget", "from_", "name", "json"),
    )
    EXAMPLES = (
        "  cifar-ray plan --model vit --global-batch-size 512 --nodes 1,2,4,8 --link 10gbit --price 0.80\n"
        "  cifar-ray plan --from sizes --nodes 1,2,4,8 --link 10gbit --price 0.80 --deadline 1h --budget 2",
    )
