"""Which configurations a chart shows in which panel, and what they are called there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cifar_ray.reporting import aggregate, peers, strategies
from cifar_ray.reporting.aggregate import Configuration, Measure
from cifar_ray.tracking.study import Study


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
        return one.devices, one.nodes, place(one), aggregate.column(study, one)

    return [Panel(title, tuple(sorted(group, key=size))) for title, group in found.items()]


def having(measure: Measure) -> Callable[[Configuration], bool]:
    """Whether a configuration has a figure."""
    return lambda one: one.statistic(measure) is not None


def over_seeds(among: Iterable[Configuration]) -> str:
    """What a caption says of several seeds, where a configuration has them."""
    several = any(len(one.finished) > 1 for one in among)
    return " Means over the seeds; error bars show one sample standard deviation." if several else ""


def of_unequal_work(panels: Iterable[Panel]) -> str:
    """What a caption says of figures that grow with the work, where that of a panel's runs is not equal."""
    for panel in panels:
        if unequal := peers.difference(panel.configurations):
            return f" {unequal[0].upper()}{unequal[1:]}, so these are not figures of equal work."
    return ""


def line_panels(study: Study, shown: Callable[[Configuration], bool]) -> list[Panel]:
    """The panels of a chart with a line for every configuration: one for each topology too, where lines are many."""
    found = panels(study, shown)
    if not strategies.compared(aggregate.configurations(study)):
        return found
    return [
        Panel(f"{panel.title}, {top}", tuple(one for one in panel.configurations if one.topology == top))
        for panel in found
        for top in dict.fromkeys(one.topology for one in panel.configurations)
    ]


def line_names(study: Study, panels: Sequence[Panel]) -> tuple[Callable[[Configuration], str], list[str]]:
    """What tells lines apart in such panels, and all of it in order, so that each looks the same in every panel."""
    every = aggregate.configurations(study)
    if not strategies.compared(every):
        return place, all_places(panels)
    called = strategies.names(study, every)
    return called.of, called.among(one for panel in panels for one in panel.configurations)


def place(configuration: Configuration) -> str:
    """What a configuration is called but for its batch size, such as ``2x2`` or ``2x2 lr=0.1``."""
    return " ".join([configuration.topology, *(f"{name}={value}" for name, value in configuration.others)])


def places(configurations: Sequence[Configuration]) -> list[str]:
    """The distinct places, in their order."""
    return list(dict.fromkeys(place(one) for one in configurations))


def all_places(panels: Sequence[Panel]) -> list[str]:
    """The distinct places of all panels, from few workers to many, so that each looks the same in every panel."""
    every = [one for panel in panels for one in panel.configurations]
    return places(sorted(every, key=lambda one: (one.devices, one.nodes, place(one))))
