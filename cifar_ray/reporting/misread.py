"""The test texts that the best run got wrong most surely, as a table."""

from __future__ import annotations

from cifar_ray.reporting import charts
from cifar_ray.reporting.contents import Entry, Section, Table
from cifar_ray.reporting.frame import Runs


def sections(runs: Runs) -> list[Section]:
    """The section with the table; none where the runs' samples are no texts."""
    if (shown := charts.best(runs)) is None or not (texts := [one for one in shown[0].mistakes if "text" in one]):
        return []
    best, named = shown
    columns = ("text", "true", "predicted")
    rows = [
        (str(number), [*(Entry(str(one[name])) for name in columns), Entry(f"{100 * share:.2f}", share)])
        for number, one in enumerate(texts, 1)
        for share in [one["probability"]]
    ]
    note = (
        f"Test texts of {best.dataset} taken for another class with the highest probability: {named}. They are as the "
        "model sees them, and shortened."
    )
    titles = ("#", "text", "class", "taken for", "probability (%)")
    return [Section("Texts most surely wrong", [Table("misread", "Misread texts", titles, rows, (note,))])]
