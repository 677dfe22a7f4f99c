"""A report's tables as LaTeX, and the width of its charts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import latex, report
from tests.support.studies import grid, study, trial, twice


@pytest.mark.parametrize(
    ("given", "inches"),
    [
        (None, 84 / 25.4),
        ("84mm", 84 / 25.4),
        ("8.4 cm", 84 / 25.4),
        ("3.25in", 3.25),
        ("252pt", 252 / 72.27),
        ("6cm", 60 / 25.4),
        ("40cm", 400 / 25.4),
    ],
)
def test_a_width_is_a_length(given: str | None, inches: float) -> None:
    assert latex.chart_width("paper", given) == pytest.approx(inches)


@pytest.mark.parametrize("given", ["", "84", "wide", "-84mm", "59mm", "401mm", "1e2mm", "٨٤mm", "84mm "])
def test_what_is_no_width_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="width must be a length from 60mm to 400mm, such as 84mm"):
        latex.chart_width("paper", given)


def test_a_style_has_a_name() -> None:
    assert latex.chart_width("screen", None) is None
    with pytest.raises(ConfigError, match="style must be screen or paper, got 'papr'"):
        latex.chart_width("papr", None)  # type: ignore[arg-type]


def test_a_table_is_booktabs_with_its_caption_and_its_best() -> None:
    made = report.build(twice(grid()))
    text = latex.tables(made)["resnet_cifar10_main"]
    table = made.sections[0].tables[0]
    assert "\\caption{resnet on cifar10: Time, speed and accuracy. n = 2, means $\\pm$ sample" in text
    assert "\\label{tab:resnet_cifar10_main}" in text
    head, *rows = re.findall(r"^(.*) \\\\$", text, flags=re.M)
    assert head.split(" & ")[2] == "Training (s)"
    assert head.split(" & ")[6] == "Accuracy (\\%)"
    assert [row.split(" & ")[0] for row in rows] == [label for label, _ in table.rows]
    assert {row.count(" & ") for row in (head, *rows)} == {len(table.columns) - 1}
    assert text.count("\\textbf{") == sum(entry.best for _, entries in table.rows for entry in entries) > 0
    assert [text.count(rule) for rule in ("\\toprule", "\\midrule", "\\bottomrule")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ('a "b"', r"a \texttt{\symbol{34}}b\texttt{\symbol{34}}"),
        ("a--b---c-d,,", r"a-\/-b-\/-\/-c-d,\/,"),
        ("`b'' it's", r"\textasciigrave{}b\textquotesingle{}\textquotesingle{} it's"),
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
    assert all(line.startswith(("%", "\\", "Configuration", "1x1")) for line in text.splitlines())
