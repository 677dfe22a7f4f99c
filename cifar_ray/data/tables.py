"""Tables of numbers, and of images with numbers, as CSV files: ``--dataset table:PATH``.

PATH is a folder with train.csv and test.csv, and perhaps val.csv, or one CSV file of which ``--test-share`` is kept for
the test. ``--target`` names the columns that are learned. The other columns are the features, or those of
``--features``; with ``--image-column`` that column has the paths of images, from the folder of the CSV file on, and no
other is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, first_line, some
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays
from cifar_ray.data.datasets import unusable
from cifar_ray.data.source import Files, Found, Part
from cifar_ray.tasks.regression import Regression

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table(Files):
    """CSV files with a line that names the columns."""

    targets: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    image_column: str | None = None

    @classmethod
    def of(cls, config: TrainConfig) -> Table:
        if config.image_column is None and (config.stream or config.image_size != type(config).image_size):
            option = "stream" if config.stream else "image_size"
            raise ConfigError(option, "is for images, and a table has some with --image-column")
        return cls(super().of(config).root, config.target, config.features, config.image_column)

    def find(self) -> Found:
        paths = self.parts(".csv")
        frames = {part: frame(path) for part, path in paths.items()}
        columns = [*frames["train"].columns]
        targets, features = self._chosen(paths["train"], columns)
        learned = [numbers(frames[part], targets, path) for part, path in paths.items()]
        used = {*features, *targets, self.image_column}
        unused = [column for column in columns if column not in used]
        given: Sequence[Any]
        if self.image_column is None:
            advice = " (--features names those to use)"
            given = arrays.narrowed([numbers(frames[part], features, path, advice) for part, path in paths.items()])
        else:
            given = [_images(frames[part], self.image_column, path) for part, path in paths.items()]
        return Found(
            targets,
            dict(zip(paths, map(Part, given, learned))),
            Regression.target,
            "features" if self.image_column is None else "images",
            f"columns not used: {some(unused)}" if unused else "",
            features,
        )

    def keys(self, part: Part, labels: np.ndarray, option: str) -> Sequence[bytes | int]:
        return [f"{position}".encode() for position in range(len(part))]

    def check(self, found: Found) -> None:
        for name, values in zip(found.classes, found.parts["train"].targets.T):
            if not np.ptp(values):
                raise ConfigError("target", f"must vary over the training rows, and {name} is always {values[0]:g}")
        if "val" in found.parts and not np.ptp(found.parts["val"].targets, axis=0).any():
            raise ConfigError("target", "must vary over the validation rows: without, they have no R2")

    def _chosen(self, path: Path, columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns that are learned of a table, and those that are its features; none where it has images."""
        import pandas as pd

        if pd.to_numeric(pd.Series(columns), errors="coerce").notna().all():
            raise unusable(f"must begin with a line that names the columns, and {path} begins with numbers")
        if not self.targets:
            raise ConfigError("target", f"must name the columns to learn of {path}, which has {some(columns)}")
        # A name with a comma in it is one where there is such a column.
        targets, features = (
            [part.strip() for name in names for part in ([name] if name in columns else name.split(","))]
            for names in (self.targets, self.features)
        )
        image = [] if self.image_column is None else [self.image_column]
        named: list[str] = []
        for option, names in (("target", targets), ("features", features), ("image_column", image)):
            for name in names:
                if name in named:
                    raise ConfigError(option, f"must name other columns than those named already, got {brief(name)}")
                if name not in columns:
                    raise ConfigError(
                        option, f"must be a column of {path}, which has {some(columns)}, got {brief(name)}"
                    )
                named.append(name)
        if image:
            if features:
                raise ConfigError("features", "is for tables of numbers, and with --image-column there are images")
            return tuple(targets), ()
        features = features or [name for name in columns if name not in targets]
        if not features:
            raise ConfigError("target", f"must leave a column of {path} to learn from, which has {some(columns)}")
        return tuple(targets), tuple(features)


def frame(path: Path, only: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV file's cells as text, by column; missing ones at the end of a line are NaN.

    ``only``: names of columns if no other matters, nor how it is named.

    Raises:
        ConfigError: when it is no table with a line that names the columns, and at least one row.
    """
    import pandas as pd

    try:
        cells = pd.read_csv(
            path, header=None, dtype=object, keep_default_na=False, encoding="utf-8-sig", index_col=False
        )
    except UnicodeDecodeError:
        raise unusable(f"must have CSV files in UTF-8, and {path} is not") from None
    except pd.errors.EmptyDataError:
        raise unusable(f"must have rows, and {path} is empty") from None
    except pd.errors.ParserError as error:
        raise unusable(f"must have as many cells in every line, and {path} has not ({first_line(error)})") from None
    names = [str(name).strip() for name in cells.iloc[0]]
    twice = [f"{name} twice" for name, count in Counter(names).items() if count > 1 and (name in only or not only)]
    if wrong := ["a column without a name"] * (not only and not all(names)) + twice:
        raise unusable(f"must name each column once in its first line, and {path} has {wrong[0]}")
    if len(cells) == 1:
        raise unusable(f"must have rows, and {path} has only a line that names the columns")
    return cells[1:].reset_index(drop=True).set_axis(names, axis=1)


def numbers(rows: pd.DataFrame, columns: Sequence[str], path: Path, advice: str = "") -> np.ndarray:
    """The numbers of some columns, float64 (N, C).

    Raises:
        ConfigError: naming the first cell without a finite number that float32 can hold, with ``advice``, or a column
            that is missing.
    """
    import pandas as pd

    if missing := next((name for name in columns if name not in rows), None):
        raise unusable(f"must have the column {missing}, and {path} has not")
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
    if column not in rows:
        raise unusable(f"must have the column {column}, and {path} has not")
    files = [path.parent / str(name).strip() for name in rows[column]]
    if missing := next((row for row, file in enumerate(files, 1) if not file.is_file()), 0):
        where = f"{path} names {files[missing - 1]} in row {missing}"
        raise unusable(f"must have an image for every row, and {where}, which is not there")
    return list(map(str, files))
