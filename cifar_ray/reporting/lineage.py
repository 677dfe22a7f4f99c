"""What the runs of a population have taken over from each other, as a table of a report."""

from __future__ import annotations

from collections.abc import Iterator

from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.tracking import lineage
from cifar_ray.tracking.study import Study, Trial

_NOTES = (
    "A run's values before are its own, those after it are near those of the run whose checkpoint it took over: "
    "weights, optimizer and step.",
    "The tables above name a run by the values with which it began; its command alone does not repeat it.",
)


def sections(study: Study) -> list[Section]:
    """The section of a population; none of a study whose runs have taken over nothing."""
    rows = [row for trial in study.trials for row in _rows(trial)]
    if not rows:
        return []
    columns = ["Run", "After epoch", "Step", "Takes over", "Values before", "Values after"]
    return [Section("Population", [Table("population", "Checkpoints taken over", columns, rows, _NOTES)])]


def _rows(trial: Trial) -> Iterator[tuple[str, list[Entry]]]:
    for takeover in lineage.read(trial.tags):
        changes = (
            ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            for values in (takeover.before, takeover.after)
        )
        texts = [f"{takeover.epoch}", f"{takeover.step:,}", takeover.source, *changes]
        yield trial.name, [Entry(text, run_ids=(trial.run_id,)) for text in texts]
