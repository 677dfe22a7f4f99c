"""Tables of numbers, and of images with numbers, as CSV files: ``--dataset table:PATH``.

PATH is a folder with train.csv, test.csv and perhaps val.csv, or one CSV file of which ``--test-share`` is kept for the
test. Columns beside ``--target`` are features; or ``--image-column`` has paths of images from the CSV file's folder on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, first_line, some
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Part
from cifar_ray.tasks.regression import Regression

if TYPE_CHECKING:  # it takes long to import
    import pandas as pd


class Table(Files):
    """CSV files with a line that names the columns."""

    column = Regression.target

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        paths, image = self.paths(".csv"), config.image_column
        tables = [(path, frame(path)) for path in paths.values()]  # that to train with is the first
        columns, asked = [*tables[0][1].columns], list[tuple[str, ...]]()
        for given in (config.target, config.features, () if image is None else (image,)):
            # A name with a comma in it is one where there is such a column.
            names = [part for name in given for part in ([name] if name in columns else name.split(","))]
            asked.append(tuple(map(str.strip, names)))
        used = Counter(name for names in asked for name in names)
        others = [name for name in columns if name not in used]
        self.classes, self.features = asked[0], asked[1] or tuple(others if image is None else ())
        wrong = [name for name in used if used[name] > 1 or name not in columns]
        if wrong or not self.classes or bool(self.features) == bool(asked[2]):
            has = f"{tables[0][0]} has {some(columns)}, got {brief(wrong or [*used])}"
            raise ConfigError("target", f"must name columns, each once, beside --features or one --image-column; {has}")
        if unused := [name for name in others if name not in self.features]:
            self.left_out = f"columns not used: {some(unused)}"
        learned, samples = [numbers(rows, self.classes, path) for path, rows in tables], list[Any]()
        if image is None:
            self.kind = "features"
            samples = arrays.narrowed([numbers(rows, self.features, path) for path, rows in tables])
        else:
            for path, rows in tables:
                samples.append([str(path.parent / str(name).strip()) for (name,) in cells(rows, [image], path)])
        self.parts = dict(zip(paths, map(Part, samples, learned)))

    def keys(self, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """The positions of the rows."""
        return [f"{position}".encode() for position in range(len(labels))]


SOURCE = Table


def frame(path: Path) -> pd.DataFrame:
    """The cells of a CSV or JSONL file by column, text in CSV; a ConfigError where it is no table with rows."""
    import pandas as pd

    try:
        if path.suffix == ".jsonl":
            # So that whole numbers stay such beside a row without one.
            rows = pd.read_json(path, lines=True, dtype=False, dtype_backend="numpy_nullable", encoding="utf-8-sig")
        else:
            rows = pd.read_csv(path, header=None, dtype=object, keep_default_na=False, encoding="utf-8-sig")
            rows = rows[1:].set_axis(rows.iloc[0].str.strip(), axis=1)
        if rows.empty:
            raise ValueError("there are no rows")
        return rows
    except ValueError as error:  # pandas' own errors are some
        raise unusable(f"must be CSV or JSONL in UTF-8, and {path} is not: {first_line(error)}") from None


def cells(rows: pd.DataFrame, columns: Sequence[str], path: Path) -> np.ndarray:
    """The cells of some columns, (N, C), each of which must have a name and be there once."""
    found = Counter(rows.columns)
    for name in columns:
        if found[name] != 1 or not name:
            raise unusable(f"must have each column once, with a name, and {path} has {found[name]} named {brief(name)}")
    return rows[[*columns]].to_numpy(dtype=object)


def numbers(rows: pd.DataFrame, columns: Sequence[str], path: Path) -> np.ndarray:
    """The numbers of some columns, float64 (N, C); a ConfigError names a cell without one that float32 can hold."""
    import pandas as pd

    texts = cells(rows, columns, path)
    read = pd.to_numeric(pd.Series(texts.ravel(), dtype=str).str.strip(), errors="coerce")  # at once: columns are slow
    values = np.array(read, np.float64).reshape(texts.shape)  # a copy, since tensors need one that can be written
    for column, row in np.argwhere(~(np.abs(values.T) <= np.finfo(np.float32).max))[:1]:
        has = f"{path} has {brief(texts[row, column])} in row {row + 1}"
        raise unusable(f"must have a finite number in every row of {columns[column]}, and {has}")
    return values
