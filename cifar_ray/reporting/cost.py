"""What runs cost on rented machines, at prices that are looked up in ``prices.yaml`` and never guessed."""

from __future__ import annotations

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

    ``date`` is the month in which it was noted, ``source`` the provider's pages, ``gpu`` its GPUs, such as ``4 T4``;
    with ``spot`` the machine may be taken away at any time.
    """

    machine: str
    usd_per_hour: float
    spot: bool
    provider: str
    region: str
    date: str
    source: str
    gpu: str = ""

    @property
    def device(self) -> str:
        """What runs on it are computed on, ``cpu`` or ``cuda``."""
        return "cuda" if self.gpu else "cpu"

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        count = self.gpu.split(" ")[0]
        return int(count) if count.isdecimal() else int(self.gpu != "")

    def paid(self, nodes: int, seconds: float | None, images: float | None = 1000.0) -> float | None:
        """US dollars for so many machines, for 1,000 of so many images; None where either is not known."""
        return nodes * seconds / 3600 * self.usd_per_hour / images * 1000 if seconds is not None and images else None

    @property
    def words(self) -> str:
        """The price and where it comes from, in one sentence."""
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


def find(word: str) -> Price:
    """The price that ``--price`` names: a type, ``TYPE:spot``, or a Ray cluster file, whose worker nodes count.

    Raises:
        ConfigError: when it has no price here.
    """
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


def assumption(price: Price) -> str:
    """What a figure in dollars rests on."""
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
        raise ConfigError("price", f"must be {errors.one_of(types)}, or a Ray cluster file, got {machine!r}{near}")
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
