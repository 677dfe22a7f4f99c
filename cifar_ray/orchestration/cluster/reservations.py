"""Placement groups of this job: what its runs hold, and what those that were killed have left behind."""

from __future__ import annotations

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from cifar_ray.orchestration.cluster import optional


def remove_abandoned() -> None:
    """Remove the placement groups whose creator, an actor, has died: Ray keeps them until the job ends, too.

    A group that still waits for room counts as well, since it would take the next room there is.
    """
    for group in optional.abandoned_groups():
        remove_placement_group(PlacementGroup(group))


def holders(resource: str) -> str:
    """How much of a resource of the cluster is in use, as ``2 of 3 CPUs are in use``."""
    total = ray.cluster_resources().get(resource, 0.0)
    held = total - ray.available_resources().get(resource, 0.0)
    return f"{held:g} of {total:g} {resource}s are in use"
