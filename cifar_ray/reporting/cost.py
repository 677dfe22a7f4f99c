"""What runs cost, at a price of one's own or at those of rented machines in ``prices.yaml``; none is guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cifar_ray.config import errors, yaml
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.yaml import mapping

_PRICES = Path(__file__).with_name("prices.yaml")
_MARKETS = {"spot": True, "on-demand": False}


@dataclass(frozen=True)
class Price:
    """What one machine costs.

    ``machine`` is its type, or empty for a price of one's own, of which nothing else is known. ``date`` is the month in
    which it was noted, ``source`` the provider's pages, ``gpu`` its GPUs, such as ``4 T4``; with ``spot`` the machine
    may be taken away at any time.
    """

    machine: str
    usd_per_hour: float
    spot: bool = False
    provider: str = ""
    region: str = ""
    date: str = ""
    source: str = ""
    gpu: str = ""

    def suits(self, device: str) -> bool:
        """Whether it is a price for runs on ``cpu`` or ``cuda``; one's own is for all."""
        return not self.machine or device == ("cuda" if self.gpu else "cpu")

    @property
    def word(self) -> str:
        """What :func:`find` finds it by, wherever a cluster file is."""
        return f"{self.machine}{':spot' * self.spot}" if self.machine else repr(self.usd_per_hour)

    @property
    def at(self) -> str:
        """``on g4dn.xlarge``, or ``at your price``."""
        return f"on {self.machine}" if self.machine else "at your price"

    @property
    def gpus(self) -> int:
        count = self.gpu.split(" ")[0]
        return int(count) if count.isdecimal() else int(self.gpu != "")

    def paid(self, nodes: int, seconds: float | None, images: float | None = 1000.0) -> float | None:
        """US dollars for so many machines, for 1,000 of so many images; None where either is not known."""
        return self.paid_for(nodes * seconds) / images * 1000 if seconds is not None and images else None

    def paid_for(self, node_seconds: float) -> float:
        """US dollars for so many seconds, times machines."""
        return node_seconds / 3600 * self.usd_per_hour

    @property
    def words(self) -> str:
        """The price and where it comes from, in one sentence."""
        if not self.machine:
            return f"your price, {self.usd_per_hour:g} USD per node and hour"
        market = "spot, a typical value that moves" if self.spot else "on demand"
        return (
            f"{self.machine} at {self.usd_per_hour:g} USD per hour ({self.provider} {self.region}, {market}, "
            f"as of {self.date}; {self.source})"
        )


def checked(price: str | None) -> Price | None:
    """The price of a node, if one is asked for.

    Raises:
        ConfigError: when it is not known.
    """
    return find(price) if price is not None else None


def word(price: str | None) -> str | None:
    """A price, if one is asked for, as any process can look it up, wherever a cluster file that names it is.

    Raises:
        ConfigError: when it is not known.
    """
    found = checked(price)
    return None if found is None else found.word


def find(word: str) -> Price:
    """The price that ``--price`` gives or names.

    USD per hour, a type, ``TYPE:spot``, or a Ray cluster file, whose worker nodes count.

    Raises:
        ConfigError: when it has no price here, or is not more than zero.
    """
    try:
        usd = float(word)
    except ValueError:  # a name
        return _named(word)
    if not 0 < usd < math.inf:
        raise ConfigError("price", f"must be more than 0 USD per node and hour, got {word}")
    return Price("", usd)


def _named(word: str) -> Price:
    name, _, market = word.partition(":")
    if name.endswith((".yaml", ".yml")):
        name, spot = _machine_of(Path(name).expanduser())
    else:
        spot = False
    if market and market not in _MARKETS:
        raise ConfigError("price", f"must be TYPE, TYPE:spot or TYPE:on-demand, got {word!r}")
    return _look_up(name, _MARKETS.get(market, spot))


def of_node_type(kind: Mapping[str, Any]) -> Price:
    """The price of an entry of a Ray cluster file's ``available_node_types``, on demand or spot as it says.

    Raises:
        ConfigError: when its machine has no price here.
    """
    return _look_up(*_described(kind))


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
def _listed() -> Mapping[str, Any]:
    return yaml.read(_PRICES)


def _look_up(machine: str, spot: bool) -> Price:
    listed = _listed()
    types = listed["types"]
    if machine not in types:
        near = errors.suggestion(machine, types)
        raise ConfigError(
            "price", f"must be USD per hour, {errors.one_of(types)}, or a Ray cluster file, got {machine!r}{near}"
        )
    entry, kind = types[machine], "spot" if spot else "on_demand"
    provider, gpu = entry["provider"], str(entry.get("gpu", ""))
    pages = [listed["sources"][provider][page] for page in ([kind, "gpus"] if "+" in machine else [kind])]
    region, source = listed["regions"][provider], " and ".join(pages)
    return Price(machine, float(entry[kind]), spot, provider, region, listed["date"], source, gpu)


def _machine_of(path: Path) -> tuple[str, bool]:
    """The machine type of a Ray cluster file's worker nodes, and whether all of them are spot machines."""
    try:
        cluster = yaml.read(path)
    except ConfigError as error:
        raise ConfigError("price", f"must be a machine type or a Ray cluster file: {error.problem}") from None
    kinds = cluster.get("available_node_types")
    if not isinstance(kinds, dict) or not kinds:
        raise ConfigError("price", f"must be a Ray cluster file with available_node_types, and {path} has none")
    workers = {name: kind for name, kind in kinds.items() if name != cluster.get("head_node_type")} or kinds
    offers = {_described(kind) for kind in workers.values()}
    machines = {machine for machine, _ in offers}
    if len(machines) != 1 or not next(iter(machines)):
        names = ", ".join(sorted(machine or "none" for machine in machines))
        raise ConfigError("price", f"must be a cluster file with one machine type for its workers; {path} has {names}")
    # Where nodes may be of either market, the dearer price is one that no run exceeds.
    return machines.pop(), all(spot for _, spot in offers)


def _described(kind: Any) -> tuple[str, bool]:
    """Machine type (AWS: InstanceType; GCP: machineType with its accelerators) and whether it is spot."""
    config = mapping(mapping(kind).get("node_config"))
    scheduling = mapping(config.get("scheduling"))
    spot = mapping(config.get("InstanceMarketOptions")).get("MarketType") == "spot"
    spot = spot or bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT"
    machine = str(config.get("InstanceType") or config.get("machineType") or "").rsplit("/", 1)[-1]
    accelerators = config.get("guestAccelerators")
    for extra in map(mapping, accelerators if isinstance(accelerators, list) else ()):
        count = extra.get("acceleratorCount", 1)
        name = str(extra.get("acceleratorType", "")).rsplit("/", 1)[-1].removeprefix("nvidia-").removeprefix("tesla-")
        machine += f"+{f'{count}x' if count != 1 else ''}{name}"
    return machine, spot
