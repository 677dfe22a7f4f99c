"""Which configurations a chart shows in which panel, and what they are called there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate
from cifar_ray.reporting.aggregate import Configuration
from cifar_ray.reporting.study import Study


@dataclass(frozen=True)
class Panel:
    """One picture of a chart with several.

    Attributes:
        title: the model, and the data set and the device where the study has several.
        configurations: what is drawn in it, from few workers to many.
    """

    title: str
    configurations: tuple[Configuration, ...]


def panels(study: Study, shown: Callable[[Configuration], bool]) -> list[Panel]:
    """A panel for every model, data set and device with configurations that are ``shown``."""
    every = aggregate.configurations(study)
    datasets, devices = {one.dataset for one in every}, {one.device for one in every if one.finished}
    found: dict[str, list[Configuration]] = {}
    for one in every:
        if one.finished and shown(one):
            title = one.model + (f" on {one.dataset}" if len(datasets) > 1 else "")
            found.setdefault(title + (f", {one.device}" if len(devices) > 1 else ""), []).append(one)

    def size(one: Configuration) -> tuple[object, ...]:
        return one.world_size, one.nodes, place(one), aggregate.column(study, one)

    return [Panel(title, tuple(sorted(group, key=size))) for title, group in found.items()]


def place(configuration: Configuration) -> str:
    """What a configuration is called but for its batch size, such as ``2x2`` or ``2x2 lr=0.1``."""
    return " ".join([configuration.topology, *(f"{name}={value}" for name, value in configuration.others)])


def places(configurations: Sequence[Configuration]) -> list[str]:
    """The distinct places, in their order."""
    return list(dict.fromkeys(place(one) for one in configurations))


def all_places(panels: Sequence[Panel]) -> list[str]:
    """The distinct places of all panels, from few workers to many, so that each looks the same in every panel."""
    every = [one for panel in panels for one in panel.configurations]
    return places(sorted(every, key=lambda one: (one.world_size, one.nodes, place(one))))
