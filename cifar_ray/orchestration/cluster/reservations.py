"""Placement groups of this job: what its runs hold, and what those that were killed have left behind."""

from __future__ import annotations

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from cifar_ray.orchestration.cluster import ray_internals


def remove_abandoned() -> None:
    """Remove the placement groups whose creator, an actor, has died: Ray keeps them until the job ends, too.

    A group that still waits for room counts as well, since it would take the next room there is.
    """
    for group in ray_internals.placement_groups():
        creator = ray.ActorID(group.creator_actor_id)
        if not creator.is_nil() and ray_internals.is_dead(creator.hex()):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


def held_by(actor_id: str) -> bool:
    """Whether an actor has placement groups, even if it has died."""
    return any(group.creator_actor_id.hex() == actor_id for group in ray_internals.placement_groups())


def holders(resource: str) -> str:
    """Who holds how much of a resource of the cluster, as ``2 of 3 CPUs are held by ...``."""
    total = ray.cluster_resources().get(resource, 0.0)
    held = total - ray.available_resources().get(resource, 0.0)
    placed = (group for group in ray_internals.placement_groups() if group.state == group.CREATED)
    own = sum(bundle.unit_resources.get(resource, 0.0) for group in placed for bundle in group.bundles)
    others = max(held - own, 0.0)
    return f"of {total:g} {resource}s, this program's own runs hold {own:g} and others {others:g}"
