"""A report's page in a real browser, without a window."""

from __future__ import annotations

import html as entities
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cifar_ray.reporting import pages
from cifar_ray.reporting import report as reports
from cifar_ray.reporting.contents import Entry, Report, Section, Table
from tests.integration.test_charts import full
from tests.support.studies import grid

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync", "--allow-file-access-from-files"]
LONG = "a_name_without_any_place_to_break_" * 6

# The page lets no script run but its own, so what looks at it sits in a page around it.
AROUND = """<!DOCTYPE html><title>around</title><body>
<iframe src="page.html" style="width: %dpx; height: 800px; border: 0"></iframe>
<pre id="answer"></pre>
<script>
document.querySelector("iframe").addEventListener("load", () => {
  const view = document.querySelector("iframe").contentWindow;
  const page = view.document;
  document.getElementById("answer").textContent = JSON.stringify((() => { %s })());
});
</script>"""
ORDER = """
const table = page.querySelector("#table-1-1").parentElement.querySelector("table");
const heads = Array.from(table.tHead.rows[0].cells);
return %s.map((column) => {
  heads[column].querySelector("button").click();
  const rows = Array.from(table.tBodies[0].rows).map((row) => row.cells[0].textContent);
  return [rows, heads.map((head) => head.getAttribute("aria-sort"))];
});"""
SHOWN = """
return [".on-light", ".on-dark"].map((name) => page.querySelector(name).offsetParent !== null);"""


def report() -> Report:
    study = full()
    values = {"c10": 10.0, "none 1": None, "b9": 9.5, "c9": 100.0, "none 2": None}
    words = {"c10": "run 10", "none 1": "", "b9": "run 9", "c9": "Run 1", "none 2": "zebra"}
    rows = [
        (label, [Entry("" if value is None else f"{value} s", value, note="why"), Entry(words[label])])
        for label, value in values.items()
    ]
    table = Table("times", "Times (s)", ["Configuration", "Time (s)", "Words"], rows)
    wide = Table("wide", "Wide", [f"a long heading {n}" for n in range(20)], [(LONG, [Entry(LONG, note=LONG)] * 19)])
    runs = Table("runs", "Runs", ["Run", "Command"], [("one", [Entry(f"cifar-ray train --run-name {LONG}")])])
    study = type(study)(LONG, study.trials, f"file:///{LONG}", f"cifar-ray sweep --name {LONG}", study.hold, study.axes)
    sections = [Section(LONG, [table, wide], notes=[LONG])]
    whole = reports.build(study)
    return replace(whole, cautions=[LONG], sections=sections, runs=runs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page")
    (found / "page.html").write_text(pages.html(report()), encoding="utf-8")
    return found


def browse(path: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's elements after its scripts ran, and what it said on the console."""
    assert BROWSER is not None
    profile = path.parent / f"profile-{path.stem}"
    command = [BROWSER, "--headless", "--no-sandbox", *QUIET, f"--user-data-dir={profile}", "--enable-logging=stderr"]
    command += ["--v=0", "--virtual-time-budget=5000", "--dump-dom", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def ask(folder: Path, script: str, *flags: str, width: int = 420) -> Any:
    """What a script answers that sees the page, in a frame of some width, as ``page``."""
    around = folder / "around.html"
    around.write_text(AROUND % (width, script), encoding="utf-8")
    dom, said = browse(around, *flags)
    assert said == []
    answer = re.search(r'<pre id="answer">(.+?)</pre>', dom, re.DOTALL)
    assert answer is not None
    return json.loads(entities.unescape(answer[1]))


def test_the_page_says_nothing_on_the_console_where_a_fault_would_be_seen(folder: Path) -> None:
    assert browse(folder / "page.html")[1] == []
    text = (folder / "page.html").read_text(encoding="utf-8")
    fault = "<script>throw new Error('on purpose')</script></main>"  # the page's own rules forbid it
    (folder / "broken.html").write_text(text.replace("</main>", fault), encoding="utf-8")
    assert browse(folder / "broken.html")[1]


def test_a_click_sorts_numbers_and_words_as_people_count_and_leaves_empty_cells_last(folder: Path) -> None:
    up, down, labels, words = ask(folder, ORDER % "[1, 1, 0, 2]")
    assert up == [["b9", "c10", "c9", "none 1", "none 2"], [None, "ascending", None]]
    assert down == [["c9", "c10", "b9", "none 1", "none 2"], [None, "descending", None]]
    assert labels == [["b9", "c9", "c10", "none 1", "none 2"], ["ascending", None, None]]
    assert words == [["c9", "b9", "c10", "none 2", "none 1"], [None, None, "ascending"]]


DARK = "--blink-settings=preferredColorScheme=0"
FITS = """
const page_width = page.documentElement.clientWidth;
const tables = Array.from(page.querySelectorAll(".scroll")).filter((box) => box.offsetParent !== null);
const inside = (node) => tables.some((box) => box !== node && box.contains(node));
const seen = Array.from(page.querySelectorAll("main *")).filter((node) => !inside(node) && node.getClientRects().length);
const wide = seen.filter((node) => node.getBoundingClientRect().right > page_width + 1).map((node) => node.tagName);
const drawn = Array.from(page.querySelectorAll("figure svg")).filter((svg) => svg.getClientRects().length);
const first = drawn[0].getBoundingClientRect();
return [wide, tables.filter((box) => box.scrollWidth > box.clientWidth + 1).length, first.top,
        drawn.every((svg) => svg.getBoundingClientRect().width > 100), page.documentElement.scrollWidth];"""


@pytest.mark.parametrize("width", [1300, 420])
def test_a_whole_report_fits_the_page_and_begins_with_a_chart(tmp_path: Path, width: int) -> None:
    whole = reports.build(grid(), "rangoju_katneni_2025", 0.526)
    (tmp_path / "page.html").write_text(pages.html(whole), encoding="utf-8")
    wide, scrolling, top, drawn, whole_width = ask(tmp_path, FITS, width=width)
    assert wide == []
    assert whole_width <= width
    assert drawn
    if width == 1300:
        assert scrolling == 0
        assert top < 800  # the first screen


@pytest.mark.parametrize(("flags", "dark"), [((), False), ((DARK,), True)])
def test_charts_have_the_pages_theme(folder: Path, flags: tuple[str, ...], dark: bool) -> None:
    assert ask(folder, SHOWN, *flags) == [not dark, dark]
