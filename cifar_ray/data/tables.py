"""Tables of numbers, and of images with numbers, as CSV files: ``--dataset table:PATH``.

PATH is a folder with train.csv and test.csv, and perhaps val.csv, or one CSV file of which ``--test-share`` is kept for
the test. ``--target`` names the columns that are learned. The other columns are the features, or those of
``--features``; with ``--image-column`` that column has the paths of images, from the folder of the CSV file on, and no
other is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, first_line, some
from cifar_ray.config.facts import Facts
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Part, Source
from cifar_ray.tasks.regression import Regression

if TYPE_CHECKING:
    import pandas as pd


class Table(Files):
    """CSV files with a line that names the columns."""

    column = Regression.target

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        paths, image = self.paths(".csv"), config.image_column
        frames = {part: frame(path) for part, path in paths.items()}
        columns = [*frames["train"].columns]
        self.classes, self.features = _chosen(config, paths["train"], columns)
        if unused := [name for name in columns if name not in {*self.features, *self.classes, image}]:
            self.left_out = f"columns not used: {some(unused)}"
        learned = [numbers(frames[part], self.classes, path) for part, path in paths.items()]
        given: Sequence[Any]
        if image is None:
            self.kind, advice = "features", " (--features names those to use)"
            given = arrays.narrowed([numbers(frames[part], self.features, at, advice) for part, at in paths.items()])
        else:
            given = [_images(frames[part], image, path) for part, path in paths.items()]
        self.parts = dict(zip(paths, map(Part, given, learned)))

    def keys(self, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        """The positions of the rows."""
        return [f"{position}".encode() for position in range(len(labels))]

    def split(self, config: TrainConfig) -> Source:
        """See :class:`Source`; it also refuses targets that are the same for all rows."""
        made = super().split(config)
        for name, values in zip(made.classes, made.parts["train"].targets.T):
            if not np.ptp(values):
                raise ConfigError("target", f"must vary over the training rows, and {name} is always {values[0]:g}")
        if "val" in made.parts and not np.ptp(made.parts["val"].targets, axis=0).any():
            raise ConfigError("target", "must vary over the validation rows: without, they have no R2")
        return made

    def look(self, config: TrainConfig) -> Facts:
        """See :class:`Source`; it also refuses options for images that there are not."""
        if self.kind != "images" and (config.stream or config.image_size != type(config).image_size):
            option = "stream" if config.stream else "image_size"
            raise ConfigError(option, "is for images, and a table has some with --image-column")
        return super().look(config)


SOURCE = Table


def _chosen(config: TrainConfig, path: Path, columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are learned of a table, and those that are its features; none where it has images."""
    import pandas as pd

    if pd.to_numeric(pd.Series(columns), errors="coerce").notna().all():
        raise unusable(f"must begin with a line that names the columns, and {path} begins with numbers")
    if not config.target:
        raise ConfigError("target", f"must name the columns to learn of {path}, which has {some(columns)}")
    image = (config.image_column,) if config.image_column is not None else ()
    asked, named = {"target": config.target, "features": config.features, "image_column": image}, []
    for option, given in asked.items():
        # A name with a comma in it is one where there is such a column.
        asked[option] = tuple(
            part.strip() for name in given for part in ([name] if name in columns else name.split(","))
        )
        for name in asked[option]:
            if name in named:
                raise ConfigError(option, f"must name other columns than those named already, got {brief(name)}")
            if name not in columns:
                raise ConfigError(option, f"must be a column of {path}, which has {some(columns)}, got {brief(name)}")
            named.append(name)
    if image and asked["features"]:
        raise ConfigError("features", "is for tables of numbers, and with --image-column there are images")
    features = asked["features"] or tuple(name for name in columns if name not in named)
    if not features and not image:
        raise ConfigError("target", f"must leave a column of {path} to learn from, which has {some(columns)}")
    return asked["target"], () if image else features


def frame(path: Path, only: Sequence[str] = ()) -> pd.DataFrame:
    """The cells of a CSV or JSONL file by column: text in CSV, where missing ones at the end of a line are NaN.

    ``only``: names of columns if no other matters, nor how it is named.

    Raises:
        ConfigError: when it is no table with names of the columns, and at least one row.
    """
    import pandas as pd

    try:
        if path.suffix == ".jsonl":
            # So that whole numbers stay such beside a row without one.
            cells = pd.read_json(path, lines=True, dtype=False, dtype_backend="numpy_nullable", encoding="utf-8-sig")
        else:
            options: dict[str, Any] = {"dtype": object, "keep_default_na": False, "index_col": False}
            cells = pd.read_csv(path, header=None, encoding="utf-8-sig", **options)
            names = [str(name).strip() for name in cells.iloc[0]]
            cells = cells[1:].reset_index(drop=True).set_axis(names, axis=1)
    except ValueError as error:  # pandas' own errors are some
        kind = "a JSON object on each line" if path.suffix == ".jsonl" else "as many cells in every line"
        raise unusable(f"must be in UTF-8, with {kind}, and {path} is not ({first_line(error)})") from None
    counts = Counter(cells.columns)
    twice = [f"{name} twice" for name, count in counts.items() if count > 1 and (name in only or not only)]
    if wrong := ["a column without a name"] * ("" in counts and not only) + twice:
        raise unusable(f"must name each column once, and {path} has {wrong[0]}")
    if cells.empty:
        raise unusable(f"must have rows, and {path} has none")
    return cells


def check_columns(rows: pd.DataFrame, columns: Sequence[str], path: Path) -> None:
    """Refuse a file that lacks one of these columns."""
    if missing := next((name for name in columns if name not in rows), None):
        raise unusable(f"must have the column {missing}, and {path} has not")


def numbers(rows: pd.DataFrame, columns: Sequence[str], path: Path, advice: str = "") -> np.ndarray:
    """The numbers of some columns, float64 (N, C).

    Raises:
        ConfigError: naming the first cell without a finite number that float32 can hold, with ``advice``, or a column
            that is missing.
    """
    import pandas as pd

    check_columns(rows, columns, path)
    cells = rows[[*columns]].to_numpy(dtype=object)
    read = pd.to_numeric(pd.Series(cells.ravel(), dtype=str).str.strip(), errors="coerce")  # at once: columns are slow
    values = np.array(read, np.float64).reshape(cells.shape)  # a copy, since tensors need one that can be written
    wrong = ~(np.abs(values.T) <= np.finfo(np.float32).max)
    if wrong.any():
        column, row = np.argwhere(wrong)[0]
        cell = cells[row, column]
        has = brief(cell) if isinstance(cell, str) and cell.strip() else "nothing"
        where = f"and {path} has {has} in row {row + 1}{advice}"
        raise unusable(f"must have a finite number in every row of {columns[column]}, {where}")
    return values


def _images(rows: pd.DataFrame, column: str, path: Path) -> list[str]:
    """The paths of a part's images."""
    check_columns(rows, [column], path)
    files = [path.parent / str(name).strip() for name in rows[column]]
    if missing := next((row for row, file in enumerate(files, 1) if not file.is_file()), 0):
        where = f"{path} names {files[missing - 1]} in row {missing}"
        raise unusable(f"must have an image for every row, and {where}, which is not there")
    return list(map(str, files))
