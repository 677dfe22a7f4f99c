"""A report's tables as LaTeX."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.reporting import latex, report
from cifar_ray.reporting.contents import Entry
from cifar_ray.tracking.study import Sweep
from tests.support.studies import grid, of_strategies, of_strategy, skipped_strategy, study, trial, twice


def test_a_table_is_booktabs_with_its_caption_and_its_best() -> None:
    made = report.build(twice(grid()))
    text = latex.tables(made)["resnet_cifar10_main"]
    table = made.sections[0].tables[0]
    assert "\\caption{resnet on cifar10: Time, speed and accuracy.}" in text
    assert "\nn = 2, means $\\pm$ sample standard deviations over the seeds.\n" in text
    assert "\\label{tab:resnet_cifar10_main}" in text
    head, *rows = re.findall(r"^(.*) \\\\$", text, flags=re.M)
    assert head.split(" & ")[2] == "Training (s)"
    assert head.split(" & ")[6] == "Accuracy (\\%)"
    assert head.split(" & ")[4] == "Speed-up (times)"
    assert [row.split(" & ")[0] for row in rows] == [label for label, _ in table.rows]
    assert {row.count(" & ") for row in (head, *rows)} == {len(table.columns) - 1}
    assert text.count("\\textbf{") == sum(entry.best for _, entries in table.rows for entry in entries) > 0
    assert [text.count(rule) for rule in ("\\toprule", "\\midrule", "\\bottomrule")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ('a "b"', r"a \texttt{\symbol{34}}b\texttt{\symbol{34}}"),
        ("a--b---c-d", r"a-\/-b-\/-\/-c-d"),
        ("[a]*", "{[}a]{*}"),
    ],
)
def test_names_are_set_as_they_are(name: str, spelled: str) -> None:
    """No ligature makes other characters of them, and none is outside the default encoding of fonts, OT1."""
    runs = study(trial(params={"lr": name}), trial(params={"lr": "0.1"}, seed=1), axes=("lr",))
    assert f"lr={spelled} &" in latex.tables(report.build(runs))["resnet_cifar10_main"]


def test_names_are_text_in_latex() -> None:
    hostile = "a_b & 50 %\n{x} $\\input~^#<|\x07"
    runs = study(trial(params={"lr": hostile}), trial(params={"lr": "0.1"}, seed=1), axes=("lr",))
    text = latex.tables(report.build(replace(runs, store=f"{hostile}\\end")))["resnet_cifar10_main"]
    spelled = (
        r"lr=a\_b \& 50 \% \{x\} \$\textbackslash{}input\textasciitilde{}\textasciicircum{}\#\textless{}\textbar{} &"
    )
    assert spelled in text
    assert set(re.findall(r"[^\x20-\x7e]", text)) == {"\n"}
    table = text[: text.index("\\end{tabular}}")]
    assert all(line.startswith(("%", "\\", "Configuration", "1x1")) for line in table.splitlines())


def _ranks(count: int, rows: int = 1) -> Sweep:
    runs = [
        of_strategy(
            "ddp",
            "1x2",
            memory=[1000.0 + rank for rank in range(count)],
            params={"lr": f"0.{at}"},
            seed=at,
            losses=[2.0],
        )
        for at in range(rows)
    ]
    widened = [replace(run, params={**run.params, "topology": f"1x{count}"}) for run in runs]
    return of_strategies(*widened, axes=("strategy", "topology", "lr"))


def test_a_large_table_has_every_figure_once() -> None:
    text = latex.tables(report.build(_ranks(32, 50)))["vgg11_cifar10_memory"]
    assert text.count("\\begin{table}") == 1
    assert [len(re.findall(rf"lr=0\.{at} &", text)) for at in range(50)] == [1] * 50
    assert [text.count(f"1,{rank:03}") for rank in range(32)] == [50] * 32


def test_what_qualifies_a_figure_stands_below_the_table() -> None:
    skipped = skipped_strategy("gpipe", "1x2", "the model has too few layers")
    made = report.build(of_strategies(of_strategy("ddp"), of_strategy("ddp", "1x2", 0.3), skipped))
    notes = {"computed here": 1, "of CPUs": 2}
    section = made.sections[0]
    entries = [Entry("1", 1.0, note="computed here"), Entry("", note="of CPUs"), Entry("2", 2.0, note="computed here")]
    marked = replace(section.tables[0], columns=["Configuration", *"xyz"], rows=[("ddp", entries)])
    text = latex.tables(replace(made, sections=[replace(section, tables=[marked])]))[marked.key]
    row, below = text[text.index("ddp &") :].split("\\bottomrule")
    assert row.startswith(r"ddp & 1\textsuperscript{(1)} & \textsuperscript{(2)} & 2\textsuperscript{(1)} \\")
    assert all(rf"\textsuperscript{{({number})}}~{note}." in below for note, number in notes.items())
    assert "Target accuracy: 20" in below
    assert "Target accuracy" not in latex.tables(made)["vgg11_cifar10_phases"]  # once a section is enough


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_tables_fit_the_page(tmp_path: Path) -> None:
    long = {"lr": "0.05", "staleness_weighting": "inverse", "push_every": "16", "servers": "2"}
    runs = [
        of_strategy(
            "parameter_server", "1x2", 0.3, parts=[0.01, 0.1, 0.1, 0.05, 0.01], params={**long, "lr": f"0.{at}"}
        )
        for at in range(30)
    ]
    axes = ("strategy", "topology", "lr", "push_every", "servers", "staleness_weighting")
    for of in (grid(), of_strategies(*runs, axes=axes), _ranks(32, 3)):
        tex = "\n".join(latex.tables(report.build(of, "rangoju_katneni_2025")).values())
        packages = r"\documentclass{article}\usepackage{booktabs,adjustbox}"
        (tmp_path / "all.tex").write_text(f"{packages}\\begin{{document}}\n{tex}\n\\end{{document}}\n")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, done.stdout
        assert not re.findall(r"Overfull \\hbox \(\d{2,}.*|.*Float too large.*", done.stdout)
