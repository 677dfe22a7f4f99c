from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cifar_ray.reporting import data, pages
from cifar_ray.reporting.contents import Chart, Entry, Finding, Highlight, Report, Section, Table
from cifar_ray.reporting.report import build
from cifar_ray.tracking.study import Sweep
from tests.support.studies import study, trial

NASTY = "<script>alert(1)</script> it's a | bar & *more*"
EVIL = "<script>alert('x')</script>"
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text within each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.setdefault(self._open[-1] if self._open else "", []).append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def draw(theme: str) -> Figure:
    figure = Figure()
    figure.add_subplot().plot([1, 2], [3, 4], label=theme)
    return figure


def report() -> Report:
    rows = [
        ("1x1", [Entry("9.00", 9.0, n=1, run_ids=("a" * 32,)), Entry("", note="failed: out of memory")]),
        ("2x2", [Entry("3.00", 3.0, n=2, best=True, note="global batch 64"), Entry("", note="failed: out of memory")]),
    ]
    times = Table("times", "Training time", ["Configuration", "batch 16", "batch 64"], rows, ["Of training alone."])
    run = [Entry("b" * 32, link="http://mlflow:5000/#/runs/b"), Entry("cifar-ray train --run-name 'a b'")]
    charts = [Chart(key, f"{key} chart", "What it shows.", draw) for key in ("first", "second", "third")]
    return Report(
        study=Sweep(f"grid {EVIL}", [], "file:///store", "cifar-ray sweep --name grid"),
        findings=[Finding("resnet", [Highlight("Shortest training", "3.00 s", "2x2")], ["2x2 is the fastest."])],
        cautions=[f"{EVIL} failed"],
        sections=[Section("resnet on cifar10", [times], [dataclasses.replace(times, title="More")], ["All: sgd."])],
        runs=Table("runs", "Runs", ["Run", "Run id", "Command"], [(EVIL, run)], ["Runs in the grid's order."]),
        comparison=Section("Beside a study", [times], notes=["Other hardware."]),
        charts=charts,
        data={},
        version="1.2.3",
        written="2026-01-31 12:00 UTC",
    )


@pytest.fixture(scope="module")
def text() -> str:
    return pages.html(report())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_what_the_store_says_is_text(text: str, page: Page) -> None:
    assert "<script>alert" not in text
    assert text.count("<script") == 1
    assert page.words["title"] == [f"grid {EVIL}"]
    assert EVIL in page.words["th"]


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run(text: str, page: Page) -> None:
    assert not [found for _, found in page.elements if {"src", "srcset", "data"} & found.keys()]
    assert [found["href"] for found in page.all("link")] == ["data:,"]
    assert "@import" not in text
    assert all(address.startswith("#") for address in re.findall(r"url\(['\"]?([^)]*)\)", text))
    leading_away = {found["href"] for found in page.all("a") if not (found["href"] or "").startswith("#")}
    assert leading_away == {"http://mlflow:5000/#/runs/b"}
    (script,) = re.findall(r"<script>(.*)</script>", text, re.DOTALL)
    policy = next(found["content"] for found in page.all("meta") if found.get("http-equiv"))
    assert policy is not None
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy


def test_ids_are_unique_and_every_anchor_has_its_place(page: Page) -> None:
    ids = [found["id"] for _, found in page.elements if "id" in found]
    anchors = {(found["href"] or "")[1:] for found in page.all("a") if (found["href"] or "").startswith("#")}
    named = {found["aria-labelledby"] for _, found in page.elements if "aria-labelledby" in found}
    assert (len(ids), anchors | named - set(ids)) == (len(set(ids)), anchors & set(ids))


def test_cells_have_values_to_sort_by_and_the_best_is_marked_in_words(page: Page) -> None:
    cells = page.all("td")
    assert [found.get("data-value") for found in cells[:4]] == ["9.0", None, "3.0", None]
    assert (cells[0]["title"], "best" in (cells[2]["class"] or "").split()) == ("runs aaaaaaaa", True)
    assert page.words["span"].count("best:") == 3  # in each of the three tables
    assert page.words["code"] == ["cifar-ray sweep --name grid", "cifar-ray train --run-name 'a b'"]


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "file:///etc", "https://a) [c](javascript:alert(1)", "https://a|b", "https://a\nb"],
)
def test_only_web_addresses_become_links(address: str) -> None:
    entry = Entry("page", link=address)
    runs = Table("runs", "Runs", ["Run", "Page"], [("one", [entry])])
    hostile = dataclasses.replace(report(), runs=runs, charts=[])
    hostile = dataclasses.replace(hostile, study=dataclasses.replace(hostile.study, page=address))
    assert address not in pages.html(hostile)
    assert address not in pages.markdown(hostile)


def test_the_store_and_captions_are_text_in_markdown() -> None:
    link = "/my_runs [x](javascript:alert(1)) <javascript:alert(1)>"
    charts = [Chart("first", "First", link, draw)]
    shown = pages.markdown(dataclasses.replace(report(), study=Sweep("grid", [], link, ""), charts=charts))
    assert shown.count(r"/my_runs \[x\](javascript:alert(1)) \<javascript:alert(1)\>") == 2
    assert "<javascript" not in shown.replace(r"\<", "")


def test_characters_that_command_a_terminal_are_escapes_in_markdown_and_csv() -> None:
    evil = "a\x1b[2J\0\rb"
    table = Table("runs", "Runs", ["Run"], [(evil, [])])
    shown = pages.markdown(dataclasses.replace(report(), runs=table, study=Sweep(evil, [], evil, evil), charts=[]))
    assert not re.search("[\x1b\0\r]", shown)
    assert pages.lines(table)[-1] == r"a\x1b[2J\x00\rb"
    text = data.csv_text(pd.DataFrame({"name": [evil, "c\nd"], "seed": [1, 2]}))
    assert pd.read_csv(io.StringIO(text)).to_dict("list") == {"name": [r"a\x1b[2J\x00\rb", "c\nd"], "seed": [1, 2]}


def test_a_command_does_not_end_its_block_of_code() -> None:
    command = "a \n```\n[x](javascript:alert(1))"
    shown = pages.markdown(dataclasses.replace(report(), study=Sweep("grid", [], "", command), charts=[]))
    assert f"\n\n````\n{command}\n````\n\n" in shown


def test_charts_stand_in_it_for_both_themes(text: str, page: Page) -> None:
    drawings = [ElementTree.fromstring(drawing) for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    labels = [found["aria-label"] for found in page.all("div") if found.get("role") == "img"]
    assert (len(drawings), len(labels)) == (6, 3)
    assert "<?xml" not in text


def misread(text: str, probability: float) -> dict[str, Any]:
    return {"index": 3, "true": "good", "predicted": "bad", "probability": probability, "text": text}


def test_texts_are_listed_as_text_whatever_is_in_them() -> None:
    confused = {"confusion": [[3, 1], [2, 4]], "class_names": ("bad", "good")}
    best = dataclasses.replace(
        trial(accuracies=(0.7,)), mistakes=[misread(NASTY, 0.9871), misread("dull", 0.75)], **confused
    )
    other = dataclasses.replace(trial(seed=1, accuracies=(0.5,)), mistakes=[misread("of another run", 0.9)], **confused)
    built = build(study(best, other))
    (table,) = [table for section in built.sections for table in section.tables if table.key == "misread"]
    assert [(number, *(entry.text for entry in row)) for number, row in table.rows] == [
        ("1", NASTY, "good", "bad", "98.71"),
        ("2", "dull", "good", "bad", "75.00"),
    ]
    html = pages.html(dataclasses.replace(built, charts=()))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; it&#39;s a | bar &amp; *more*" in html
    assert r"\<script\>alert(1)\</script\> it's a \| bar & \*more\*" in pages.markdown(built)
