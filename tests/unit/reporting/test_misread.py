"""The table of texts that the best run got wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cifar_ray.reporting import pages, report
from tests.support.studies import study, trial

EVIL = "<script>alert(1)</script> it's a | bar & *more*"


def misread(text: str, probability: float) -> dict[str, Any]:
    return {"index": 3, "true": "good", "predicted": "bad", "probability": probability, "text": text}


def test_texts_are_listed_as_text_whatever_is_in_them() -> None:
    confused = {"confusion": [[3, 1], [2, 4]], "class_names": ("bad", "good")}
    best = replace(trial(accuracies=(0.7,)), mistakes=[misread(EVIL, 0.9871), misread("dull", 0.75)], **confused)
    other = replace(trial(seed=1, accuracies=(0.5,)), mistakes=[misread("of another run", 0.9)], **confused)
    built = report.build(study(best, other))
    (table,) = [table for section in built.sections for table in section.tables if table.key == "misread"]
    assert [(number, *(entry.text for entry in row)) for number, row in table.rows] == [
        ("1", EVIL, "good", "bad", "98.71"),
        ("2", "dull", "good", "bad", "75.00"),
    ]
    html = pages.html(replace(built, charts=()))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; it&#39;s a | bar &amp; *more*" in html
    assert r"\<script\>alert(1)\</script\> it's a \| bar & \*more\*" in pages.markdown(built)
