"""How far `cifar-ray plan` is from scaling curves that others have published; nothing is trained.

    python benchmarks/published.py

Measured: every prediction is too fast, by 2.6 to 33 %; four of eight curves miss the aim of a median of 10 % (n = 1 for
each; gradients' readiness of an AMD EPYC, family 26, model 2).

``published.yaml`` names the curves, their sources and what is assumed where a source is silent. Each is predicted from
its row with the fewest workers alone: how long a step takes there, the model's own gradients, and the rate of the link.
The batch per worker stays, as it does in the curves. When each gradient is ready is measured by this script, in
backward passes of 16 images with one thread. Nothing was fitted to the other rows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import exchanged
import record

from cifar_ray import data
from cifar_ray.config import yaml
from cifar_ray.config.facts import Facts
from cifar_ray.config.topology import Topology, parse
from cifar_ray.config.train import TrainConfig
from cifar_ray.planning import link as links
from cifar_ray.planning import model
from cifar_ray.planning.exchange import Exchange
from cifar_ray.planning.measured import Measured, Sample
from cifar_ray.planning.model import Means, Row, Work
from cifar_ray.training import probe

GIVEN = yaml.read(Path(__file__).with_suffix(".yaml"))
ASSUMED = GIVEN["assumed"]


@cache
def gradients(name: str, side: int) -> probe.Gradients:
    """The gradients of a network of torchvision for 1,000 classes."""
    config = TrainConfig(dataset="folder:imagenet", model=f"torchvision:{name}")
    data.keep(config, Facts(1000, 1_281_167, 50_000, shape=(3, side, side)))
    return probe.readiness(config, "fp32", 16, 1)


def step(curve: dict[str, Any], topology: Topology) -> Row:
    """What the planner says of a topology, from how long a step takes one worker of a curve."""
    images, seconds = curve["batch"], curve["batch"] / curve["rows"]["1x1"]
    sent = gradients(curve["model"], curve["side"])
    exchange = Exchange("ddp", sent, bucket_bytes=curve["bucket_mib"] * 2**20, has_trees=ASSUMED["trees"])
    computing = {"forward": seconds * (1 - ASSUMED["backward"]), "backward": seconds * ASSUMED["backward"]}
    rest = dict.fromkeys(("data", "exchange", "optimizer", "jitter", "evaluation", "checkpoint", "once"), 0.0)
    alone = Measured((Sample("ddp", 1, 1, images, 1, **computing, **rest, iteration=seconds),), "", "", True)
    work = Work(images * topology.world_size, 1, 1, 1, exchange)
    return model.plan(alone, work, [topology], Means(links.parse(curve["link"]))).rows[0]


def compare(curve: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row of a curve but the one that it is predicted from, with the error of the seconds in %."""
    rates, rows = dict(curve["rows"]), []
    alone = rates.pop("1x1")
    rates |= {name: share * parse(name).world_size * alone for name, share in curve.get("efficiency", {}).items()}
    for name, published in rates.items():
        row = step(curve, parse(name))
        took = curve["batch"] * parse(name).world_size / published
        error, predicted = 100 * (row.step_s.mid / took - 1), row.images_per_s.mid
        rows.append({"topology": name, "images_per_s": predicted, "published": published, "error": error})
    return rows


def main() -> None:
    """Predict, compare and save the rows."""
    given = record.parser(__doc__).parse_args()
    raw = {curve["title"]: compare(curve) for curve in GIVEN["curves"].values()}
    made = []
    for title, rows in raw.items():
        words = "{topology}: {images_per_s:,.0f} against {published:,.0f} images/s ({error:+.1f} %)"
        note = "; ".join(words.format(**row) for row in rows)
        made.append(record.Row(title, "", exchanged.errors(row["error"] for row in rows), 1, note))
    title = "A step as `cifar-ray plan` predicts it from one published row, and as others have published it"
    record.save("published", title, made, raw, dry=given.dry)


if __name__ == "__main__":
    main()
