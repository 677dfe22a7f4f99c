"""Where runs are kept: folders and buckets alike, through PyArrow. Nothing here knows Ray or MLflow."""

from __future__ import annotations

from cifar_ray.storage.folder import Folder, StorageError, at, persistently, reason, refusing
from cifar_ray.storage.lock import Lock, claim
from cifar_ray.storage.temporary import scratch

__all__ = ["Folder", "Lock", "StorageError", "at", "claim", "persistently", "reason", "refusing", "scratch"]
