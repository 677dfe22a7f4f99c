"""What runs cost, at a price of one's own or at those of rented machines in ``prices.yaml``; none is guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.yaml import mapping

_PRICES = Path(__file__).with_name("prices.yaml")
_MARKETS = {"on-demand": "on demand", "spot": "spot, a typical value that moves"}


@dataclass(frozen=True)
class Price:
    """What one machine costs.

    Attributes:
        word: what :func:`find` finds it by, wherever a cluster file is.
        usd_per_hour: US dollars.
        words: the price and where it comes from, in one sentence.
        machine: its type; empty for a price of one's own, of which nothing else is known.
        gpu: its GPUs, such as ``4 T4``; empty without any.
    """

    word: str
    usd_per_hour: float
    words: str
    machine: str = ""
    gpu: str = ""

    def suits(self, device: str) -> bool:
        """Whether it is a price for runs on ``cpu`` or ``cuda``; one's own is for all."""
        return not self.machine or device == ("cuda" if self.gpu else "cpu")

    @property
    def at(self) -> str:
        """``on g4dn.xlarge``, or ``at your price``."""
        return f"on {self.machine}" if self.machine else "at your price"

    @property
    def gpus(self) -> int:
        """How many GPUs a machine has."""
        count = self.gpu.split(" ")[0]
        return int(count) if count.isdecimal() else int(self.gpu != "")

    def paid(self, nodes: int, seconds: float | None, images: float | None = 1000.0) -> float | None:
        """US dollars for so many machines, for 1,000 of so many images; None where either is not known."""
        return self.paid_for(nodes * seconds) / images * 1000 if seconds is not None and images else None

    def paid_for(self, node_seconds: float) -> float:
        """US dollars for so many seconds, times machines."""
        return node_seconds / 3600 * self.usd_per_hour


def checked(price: str | None) -> Price | None:
    """What :func:`find` says of a price, if one is asked for."""
    return None if price is None else find(price)


def word(price: str | None) -> str | None:
    """A price, if one is asked for, as any process can :func:`find` it, wherever a cluster file that names it is."""
    return None if price is None else find(price).word


def find(price: str) -> Price:
    """The price that ``--price`` gives or names.

    USD per hour, ``TYPE``, ``TYPE:spot``, ``TYPE:on-demand``, or a Ray cluster file, whose worker nodes count.

    Raises:
        ConfigError: when it has no price here, or is not more than zero.
    """
    try:
        usd = float(price)
    except ValueError:  # a name
        return _named(price)
    if not 0 < usd < math.inf:
        raise ConfigError("price", f"must be more than 0 USD per node and hour, got {price}")
    return Price(repr(usd), usd, f"your price, {usd:g} USD per node and hour")


def check_device(price: Price | None, device: str) -> None:
    """Refuse the price of a machine with another kind of device than a run uses.

    Raises:
        ConfigError: saying which.
    """
    if price is not None and not price.suits(device):
        used, has = ("GPUs", "no GPU") if device == "cuda" else ("CPUs", "a GPU")
        problem = f"must be of a machine for runs on {used}, and {price.machine} has {has}"
        raise ConfigError("price", f"{problem}; your own price per node and hour is a number, such as 2.49")


def assumption(price: Price) -> str:
    """What a figure in dollars rests on."""
    if not price.machine:
        return f"Cost: {price.words}, paid by the second."
    return (
        f"Cost: one such machine per node, paid by the second: {price.words}. "
        "The times are those of the hardware above, which may be slower or faster than that machine."
    )


@cache
def _listed() -> Any:
    return yaml.read(_PRICES)


def _named(price: str) -> Price:
    """The price of a machine type, or of a cluster file's."""
    machine, _, market = price.partition(":")
    if machine.endswith((".yaml", ".yml")):
        machine, _, of_file = _of_workers(Path(machine).expanduser()).partition(":")
        price, market = machine, market or of_file
    listed, market = _listed(), market or "on-demand"
    types = listed["types"]
    if machine not in types or market not in _MARKETS:
        known = f"{', '.join(types)}, one of these with :spot or :on-demand"
        near = "" if machine in types else errors.suggestion(machine, types)
        raise ConfigError("price", f"must be USD per hour, {known}, or a Ray cluster file, got {price!r}{near}")
    of_type, usd = types[machine], float(types[machine][market])
    provider = listed["providers"][of_type["provider"]]
    origin = f"{of_type['provider']} {provider['region']}, {_MARKETS[market]}, as of {listed['date']}"
    words = f"{machine} at {usd:g} USD per hour ({origin}; {provider[market]})"
    return Price(machine + ":spot" * (market == "spot"), usd, words, machine, of_type.get("gpu", ""))


def _of_workers(path: Path) -> str:
    """``TYPE`` or ``TYPE:spot`` of a Ray cluster file's worker nodes.

    Where nodes may be of either market, the dearer price is one that no run exceeds.
    """
    try:
        cluster = yaml.read(path)
    except ConfigError as error:
        raise ConfigError("price", f"must be a machine type or a Ray cluster file: {error.problem}") from None
    kinds = mapping(cluster.get("available_node_types"))
    workers = [kind for name, kind in kinds.items() if name != cluster.get("head_node_type")] or kinds.values()
    types = sorted(set(map(_described, workers)) - {""})
    machines = {each.partition(":")[0] for each in types}
    if len(machines) != 1:
        problem = "must be a Ray cluster file whose available_node_types have one machine type for its workers"
        raise ConfigError("price", f"{problem}; {path} has {', '.join(sorted(machines)) or 'none'}")
    return types[0]


def _described(kind: Any) -> str:
    """``TYPE`` or ``TYPE:spot``: of AWS its InstanceType, of GCP its machineType with its accelerators."""
    config = mapping(mapping(kind).get("node_config"))
    words = [str(config.get("InstanceType") or config.get("machineType") or "").rpartition("/")[2]]
    for extra in map(mapping, config.get("guestAccelerators") or ()):
        count = extra.get("acceleratorCount", 1)
        name = str(extra.get("acceleratorType", "")).rpartition("/")[2].removeprefix("nvidia-").removeprefix("tesla-")
        words.append(f"{count}x{name}" if count != 1 else name)
    scheduling = mapping(config.get("scheduling"))
    is_spot = (
        mapping(config.get("InstanceMarketOptions")).get("MarketType") == "spot"
        or scheduling.get("provisioningModel") == "SPOT"
        or bool(scheduling.get("preemptible"))
    )
    return "+".join(words) + ":spot" * (is_spot and words != [""])
