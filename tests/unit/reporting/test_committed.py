"""The reports in docs/studies are those that its exported files make."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.reporting import data, exported, pages, papers, report

STUDIES = Path(__file__).parents[3] / "docs" / "studies"
FOLDERS = sorted(path.parent for path in STUDIES.glob("*/report.md"))
EXPORTED = {path.name: path for path in STUDIES.glob("*/*.json")}


def test_there_are_some() -> None:
    assert FOLDERS
    assert len(EXPORTED) == len(list(STUDIES.glob("*/*.json")))  # a report names its files without their folders


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_files_make_the_report_again(folder: Path) -> None:
    committed = (folder / "report.md").read_text()
    written = re.search(r"^Written (.*) by cifar-ray (\S+) from", committed, flags=re.MULTILINE)
    assert written is not None
    baseline = next((key for key in papers.known() if folder.name.startswith(key)), None)
    asked = re.findall(r"^- Target accuracy: (.*) %; as asked for", committed, flags=re.MULTILINE)
    targets = [float(one) / 100 for one in asked[0].split(" %, ")] if asked else []
    files = re.findall(r"[^ ,]+\.json", committed[written.end() :].split("\n\n")[0])
    hold = "global_batch" if "- Scaling is strong" in committed else None
    study = exported.together([exported.read(EXPORTED[name]) for name in files], hold)
    made = replace(report.build(study, baseline, targets=targets), written=written[1], version=written[2])
    assert pages.markdown(made) == committed
    assert sorted(chart.key for chart in made.charts) == sorted(path.stem for path in folder.glob("charts/*.png"))
    assert data.csv_text(made.data["figures"]) == (folder / "figures.csv").read_text()
    assert data.csv_text(made.data["runs"]) == (folder / "runs.csv").read_text()
