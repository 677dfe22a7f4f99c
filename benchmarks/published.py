"""How far `cifar-ray plan` is from scaling curves that others have published; nothing is trained.

    python benchmarks/published.py

``published.yaml`` names the curves, their sources and what is assumed where a source is silent. Each is predicted from
its row with the fewest workers alone: how long a step takes there, the model's own gradients, and the rate of the link.
The batch per worker stays, as it does in the curves. When each gradient is ready is measured by this script, in
backward passes of 16 images with one thread. Nothing was fitted to the other rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
from cifar_ray.reporting import papers
from cifar_ray.training import probe, recipe

GIVEN = yaml.read(Path(__file__).with_suffix(".yaml"))
ASSUMED = GIVEN["assumed"]
FARTHEST, FAR = "horovod_25gbit_vgg16", [Topology(2**power, 4) for power in range(2, 9)]
"""The curve that is carried on to 1,024 workers, and where."""


class Compared(NamedTuple):
    """A predicted and a published row, in seconds of a step or a training, and images/s where they were published."""

    topology: str
    low: float
    mid: float
    high: float
    took: float
    images_per_s: float = 0.0
    published: float = 0.0

    @property
    def error(self) -> float:
        """Of the seconds, in %."""
        return 100 * (self.mid / self.took - 1)

    @property
    def words(self) -> str:
        """``4x4: 1,900 against 1,787 images/s (-6 %)``."""
        if self.published:
            return f"{self.topology}: {self.images_per_s:,.0f} against {self.published:,.0f} images/s ({self.error:+.1f} %)"
        return f"{self.topology}: {self.mid:.4g} against {self.took:.4g} s ({self.error:+.1f} %)"


@cache
def gradients(name: str, side: int = 0) -> probe.Gradients:
    """The gradients of a network of torchvision for 1,000 classes, or of one of this package for CIFAR-10."""
    config = TrainConfig(dataset="folder:imagenet", model=f"torchvision:{name}")
    if side:
        data.keep(config, Facts(1000, 1_281_167, 50_000, shape=(3, side, side)))
    else:
        config = recipe.resolve(TrainConfig(model=name))
    return probe.readiness(config, "fp32", 16, 1)


def step(seconds: float, images: int, exchange: Exchange, topology: Topology, link: str) -> Row:
    """What the planner says of a topology, given how long a step with so many images takes one worker."""
    passes = {"forward": seconds * (1 - ASSUMED["backward"]), "backward": seconds * ASSUMED["backward"]}
    rest = dict.fromkeys(("data", "exchange", "optimizer", "jitter", "evaluation", "checkpoint", "once"), 0.0)
    alone = Sample("ddp", 1, 1, images, 1, **passes, **rest, iteration=seconds)
    work = Work(images * topology.world_size, 1, 1, 1, exchange)
    return model.plan(Measured((alone,), "", "", True), work, [topology], Means(links.parse(link))).rows[0]


def exchange_of(curve: dict[str, Any]) -> Exchange:
    """How the gradients of a curve are exchanged."""
    sent = gradients(curve["model"], curve["side"])
    return Exchange("ddp", sent, bucket_bytes=curve["bucket_mib"] * 2**20, has_trees=ASSUMED["trees"])


def compare(curve: dict[str, Any]) -> list[Compared]:
    """All rows of a curve but the one that they are predicted from."""
    (first, rate), *rest = curve["rows"].items()
    assert first == "1x1"
    rest += [(name, share * parse(name).world_size * rate) for name, share in curve.get("efficiency", {}).items()]
    compared = []
    for name, images_per_s in rest:
        topology = parse(name)
        row = step(curve["batch"] / rate, curve["batch"], exchange_of(curve), topology, curve["link"])
        span, took = row.step_s, curve["batch"] * topology.world_size / images_per_s
        compared.append(Compared(name, span.low, span.mid, span.high, took, row.images_per_s.mid, images_per_s))
    return compared


def published(key: str) -> list[dict[str, Any]]:
    """The rows of a study."""
    study = papers.known()[key]
    return [dict(zip(study["header"], values)) for values in study["rows"]]


def divided() -> Iterator[tuple[str, list[Compared]]]:
    """The study that states neither epochs nor networks: one worker's seconds, divided by the workers."""
    rows = published("rangoju_katneni_2025")
    alone = {(row["model"], row["batch_size"]): row["training_seconds"] for row in rows if row["topology"] == "1x1"}
    for (name, batch), seconds in alone.items():
        compared = []
        for row in rows:
            if (row["model"], row["batch_size"]) == (name, batch) and row["topology"] != "1x1":
                least = seconds / parse(row["topology"]).world_size
                compared.append(Compared(row["topology"], least, least, least, row["training_seconds"]))
        yield f"rangoju_katneni_2025, {name}, batch {batch}, without any exchange", compared


def nodes() -> Iterator[tuple[str, list[Compared]]]:
    """The study of four CPU nodes, over the rates that its unknown link may have."""
    one, *others = published("vgg11_group_report")
    for link in GIVEN["studies"]["vgg11_group_report"]["links"]:
        compared = []
        for row in others:
            topology, images = Topology(row["workers"], 1), row["global_batch_size"] // row["workers"]
            seconds = one["seconds_per_iteration"] * images / one["global_batch_size"]
            span = step(seconds, images, Exchange(row["strategy"], gradients("vgg11")), topology, link).step_s
            name = f"{topology} {row['strategy']}"
            compared.append(Compared(name, span.low, span.mid, span.high, row["seconds_per_iteration"]))
        yield f"vgg11_group_report, global batch 256, if its link has {link}", compared


def line(title: str, compared: list[Compared]) -> record.Row:
    """A curve as one line, with each of its rows."""
    errors = sorted(abs(each.error) for each in compared)
    found = f"median {statistics.median(errors):.1f} %, largest {errors[-1]:.1f} %"
    return record.Row(title, "", found, 1, "; ".join(each.words for each in compared))


def carried_on(curve: dict[str, Any], latency: str) -> record.Row:
    """A curve on paper: which share of a worker's images/s is left with how many of them."""
    rate = curve["rows"]["1x1"]
    words = []
    for topology in FAR:
        row = step(curve["batch"] / rate, curve["batch"], exchange_of(curve), topology, curve["link"] + latency)
        words.append(f"{topology.world_size:,}: {100 * row.images_per_s.mid / rate / topology.world_size:.0f} %")
    what = f"{latency[1:] or 'none'} for each message"
    title = f"{curve['title']}, on paper, latency: {what}"
    return record.Row(title, "", words[-1].split(": ")[1], 1, "efficiency with so many workers: " + ", ".join(words))


def main() -> None:
    """Predict, compare and save the rows."""
    given = record.parser(__doc__).parse_args()
    curves = GIVEN["curves"]
    raw = {curve["title"]: compare(curve) for curve in curves.values()} | dict(divided()) | dict(nodes())
    made = [line(title, compared) for title, compared in raw.items()]
    made += [carried_on(curves[FARTHEST], latency) for latency in ("", f":{ASSUMED['latency']}")]
    title = "A step as `cifar-ray plan` predicts it from one published row, and as others have published it"
    record.save("published", title, made, raw, dry=given.dry)


if __name__ == "__main__":
    main()
