"""Names of a sweep's runs: the values that tell each from the others, the usual ones first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cifar_ray.config.train import TrainConfig

if TYPE_CHECKING:
    from cifar_ray.config.sweep import SweepConfig

SHORT = {"batch_size": "bs", "global_batch_size": "gbs", "topology": "", "model": "", "dataset": "", "strategy": ""}
"""Field -> what stands for its name."""


def names(sweep: SweepConfig, settings: Sequence[Mapping[str, Any]], whole: bool = False) -> list[str]:
    """A name for each of some runs of a sweep, by its values on top of what all runs share.

    ``whole``: no number is rounded and no path cut, even where that tells these runs apart.
    """
    axes, batches = sweep.axes, ("batch_size", "global_batch_size")
    order: list[str] = [name for name in ("model", "dataset", "strategy") if name in axes]
    order += [name for name in axes if name not in (*order, *batches, "topology", "seed")]
    batch = "global_batch_size" if sweep.held == "global_batch" else "batch_size"
    found = []
    for values in settings:
        parts = [_label(name, values[name], whole) for name in order if values.get(name) is not None]
        size = values.get(batch, values.get("batch_size", values.get("global_batch_size")))
        parts += [_label(batch, size, whole)] if size is not None else []
        parts += [str(values.get("topology", TrainConfig.topology)), f"seed{values['seed']}"]
        found.append(" ".join(parts))
    return found if whole or len(set(found)) == len(found) else names(sweep, settings, whole=True)


def _label(name: str, value: Any, whole: bool) -> str:
    text = f"{value:.3g}" if isinstance(value, float) and not whole else str(value)
    text = "+".join(map(str, value)) if isinstance(value, tuple) else text
    text = text.replace("e+", "e")
    if name in ("dataset", "weights") and not whole:  # of a path, its name
        text = text.rpartition("/")[2]
    mark = "-" if isinstance(value, str) else ""
    return SHORT.get(name, name.rsplit(".", 1)[-1].replace("_", "-") + mark) + text
