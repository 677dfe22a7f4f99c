"""Where runs are kept: folders and buckets alike, through PyArrow. Nothing here knows Ray or MLflow."""

from __future__ import annotations

from cifar_ray.storage.errors import StorageError, persistently, reason
from cifar_ray.storage.folder import Folder, at, refusal, refusing
from cifar_ray.storage.lock import Lock, claim
from cifar_ray.storage.temporary import scratch

__all__ = ["Folder", "Lock", "StorageError", "at", "claim", "persistently", "reason", "refusal", "refusing", "scratch"]
