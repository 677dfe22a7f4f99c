"""A report's tables as LaTeX."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cifar_ray.reporting import latex, report
from tests.support.studies import grid, study, trial, twice


def test_a_table_has_every_row_and_its_best() -> None:
    made = report.build(twice(grid()))
    text = latex.tables(made)["resnet_cifar10_main"]
    table = made.sections[0].tables[0]
    assert {"\\toprule", "\\bottomrule", "\\label{tab:resnet_cifar10_main}"} <= set(text.splitlines())
    head, *rows = re.findall(r"^(.*) \\\\$", text, flags=re.M)
    assert (head.split(" & ")[6], len(head.split(" & "))) == ("Accuracy (\\%)", len(table.columns))
    assert [row.split(" & ")[0] for row in rows] == [label for label, _ in table.rows]
    assert {row.count(" & ") for row in (head, *rows)} == {len(table.columns) - 1}
    assert text.count("\\textbf{") == sum(entry.best for _, entries in table.rows for entry in entries) > 0


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ('a "b"', r"a \texttt{\symbol{34}}b\texttt{\symbol{34}}"),
        ("a--b---c-d", r"a-\/-b-\/-\/-c-d"),
        ("[a]*", "{[}a]{*}"),
        (
            "a_b & 50 %\n{x} $\\input~^#<|\x07",
            r"a\_b \& 50 \% \{x\} \$\textbackslash{}input\textasciitilde{}\textasciicircum{}\#\textless{}\textbar{}",
        ),
    ],
)
def test_names_are_set_as_they_are(name: str, spelled: str) -> None:
    """No ligature makes other characters of them, and none is outside the default encoding of fonts, OT1."""
    runs = study(trial(params={"lr": name}), trial(params={"lr": "0.1"}, seed=1), axes=("lr",))
    text = latex.tables(report.build(replace(runs, store=f"{name}\\end")))["resnet_cifar10_main"]
    assert f"lr={spelled} &" in text
    assert set(re.findall(r"[^\x20-\x7e]", text)) == {"\n"}
    table = text[: text.index("\\end{tabular}}")]
    assert all(line.startswith(("%", "\\", "Configuration", "1x1")) for line in table.splitlines())
