"""Tables of numbers, and of images with numbers, as CSV files: ``--dataset table:PATH``.

PATH is a folder with train.csv and test.csv, and perhaps val.csv, or one CSV file of which ``--test-share`` is kept for
the test. ``--target`` names the columns that are learned. The other columns are the features, or those of
``--features``; with ``--image-column`` that column has the paths of images, from the folder of the CSV file on, and no
other is used.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cifar_ray.config.errors import ConfigError, brief, first_line, some
from cifar_ray.config.sections import Images
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import arrays, decoded, folders, imagefiles, validation
from cifar_ray.data.datasets import Dataset, DatasetSpec, Split, unusable
from cifar_ray.tasks.regression import Regression

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 10_000
"""Rows that a request may have."""

_MOST_COLUMNS = 50_000
"""Columns that a table may have: the name of each is in a run's record, and 20,000 take seconds to read."""

_TEST, _VAL = "test.csv", "val.csv"


@dataclass(frozen=True)
class Table:
    """What there is to learn from.

    Attributes:
        parts: ``train``, ``test`` and perhaps ``val``: features, float32 or float64 (N, F), or the
            paths of images, text (N,), and targets, float64 (N, T).
        targets: their names.
        left_out: columns that are not used, in words.
        facts: of a table of features; None with images, which are to be decoded first.
    """

    parts: dict[str, Split]
    targets: tuple[str, ...]
    left_out: str = ""
    facts: Images | None = None


def look(config: TrainConfig, root: Path) -> Images:
    """What there is, as far as it can be told without decoding an image.

    Raises:
        ConfigError: when it cannot be learned from; the sentence says why.
    """
    table = _read(config, root)
    if table.facts is not None:
        return table.facts
    parts = table.parts
    mean, std = arrays.standard(parts["train"][Regression.target])
    counts = (len(table.targets), len(parts["train"]), len(parts["test"]), config.image_size)
    return Images(*counts, val=len(parts.get("val", ())), target_mean=mean, target_std=std)


def load(config: TrainConfig, root: Path, progress: decoded.Progress) -> Dataset:
    """Read the table; images are decoded when they have not been, or have changed.

    Raises:
        ConfigError: when it cannot be read; the sentence names the file.
    """
    table = _read(config, root)
    if table.facts is not None:
        made = arrays.made(config.dataset, table.parts, table.targets, table.facts)
        return replace(made, left_out="; ".join(filter(None, (table.left_out, made.left_out))))
    marks = (_marks(rows) for rows in table.parts.values())
    key = decoded.key(config.image_size, str(root), table.targets, marks)
    parts = {name: _part(rows, config.image_size) for name, rows in table.parts.items()}
    made = decoded.provide(config, root.name, key, parts, table.targets, progress)
    return replace(made, left_out=table.left_out)


def _marks(rows: Split) -> list[bytes]:
    pairs = zip(rows.images.tolist(), rows[Regression.target])
    return [decoded.mark(path, 0) + values.tobytes() for path, values in pairs]


def _part(rows: Split, side: int) -> decoded.Part:
    paths = rows.images.tolist()
    return decoded.Part(rows[Regression.target], lambda row: imagefiles.square(Path(paths[row]), side), paths)


def _read(config: TrainConfig, root: Path) -> Table:
    if config.image_column is None and (config.stream or config.image_size != type(config).image_size):
        option = "stream" if config.stream else "image_size"
        raise ConfigError(option, "is for images, and a table has some with --image-column")
    files = _files(root)
    stamps = tuple((path, path.stat().st_size, path.stat().st_ctime_ns) for path in files.values())
    shares = config.test_share, config.val_share or 0.0
    return _table(root, config.target, config.features, config.image_column, *shares, stamps)


def _files(root: Path) -> dict[str, Path]:
    if root.is_file():
        return {"train": root}
    if not root.is_dir():
        raise unusable(f"must name a CSV file or a folder that is there, and there is no {root}")
    files = {part: root / f"{part}.csv" for part in ("train", "test", "val")}
    if not files["train"].is_file():
        raise unusable(f"must have train.csv and {_TEST}, and {root} has no train.csv")
    return {part: path for part, path in files.items() if path.is_file()}


@functools.cache
def _table(
    root: Path,
    targets: tuple[str, ...],
    features: tuple[str, ...],
    image_column: str | None,
    test_share: float,
    val_share: float,
    stamps: tuple[tuple[Path, int, int], ...],
) -> Table:
    """The table at ``root``, read again when ``stamps`` are others."""
    files = _files(root)
    frames = {part: frame(path) for part, path in files.items()}
    columns = [*frames["train"].columns]
    are_chosen = bool(features) or image_column is not None
    targets, features = _chosen(files["train"], columns, targets, features, image_column)
    parts = {}
    for part, path in files.items():
        if not are_chosen and (odd := sorted(set(columns) ^ set(frames[part].columns))):
            raise unusable(f"must have the same columns in {files['train']} and {path}; {brief(odd[0])} is in one only")
        learned = numbers(frames[part], targets, path)
        if image_column is None:
            inputs = {"features": numbers(frames[part], features, path, " (--features names those to use)")}
        else:
            inputs = {"images": _images(frames[part], image_column, path)}
        parts[part] = Split({**inputs, Regression.target: learned})
    parts = dict(zip(parts, arrays.narrowed(*parts.values())))
    if "test" not in parts:
        if not test_share:
            raise ConfigError("test_share", f"must be given, such as 0.2, for {root}, which has no {_TEST}")
        parts["train"], parts["test"] = _split(parts["train"], test_share, "test_share")
    elif test_share:
        raise ConfigError("test_share", f"is for tables without test rows, and there is {files['test']}")
    if val_share:
        if "val" in parts:
            raise ConfigError("val_share", f"is for tables without validation rows, and there is {files['val']}")
        parts["train"], parts["val"] = _split(parts["train"], val_share, "val_share")
    for name, values in zip(targets, parts["train"][Regression.target].T):
        if not np.ptp(values):
            raise ConfigError("target", f"must vary over the training rows, and {name} is always {values[0]:g}")
    if "val" in parts and not np.ptp(parts["val"][Regression.target], axis=0).any():
        option, where = ("val_share", "") if val_share else ("dataset", f" in {files['val']}")
        raise ConfigError(option, f"must give validation rows whose targets vary{where}: without, they have no R2")
    used = {*features, *targets, image_column}
    unused = [column for column in columns if column not in used]
    left_out = f"columns not used: {some(unused)}" if unused else ""
    facts = arrays.facts_of(parts, len(targets), features) if image_column is None else None
    return Table(parts, targets, left_out, facts)


def _split(rows: Split, share: float, option: str) -> tuple[Split, Split]:
    """The rows without a share of them, and that share, drawn by position; equal inputs are on one side."""
    if rows.kind == "images":
        contents: Sequence[Any] = folders.contents(rows.images.tolist())
    else:
        contents = [row.tobytes() for row in rows.inputs]
    keys = [f"{position}".encode() for position in range(len(rows))]
    kept = validation.rows(keys, contents, np.zeros(len(rows), np.int64), ("",), share, option)
    return rows.at(~kept), rows.at(kept)


def _chosen(
    path: Path, columns: Sequence[str], targets: Sequence[str], features: Sequence[str], image_column: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are learned of a table, and those that are its features; none where it has images."""
    import pandas as pd

    if pd.to_numeric(pd.Series(columns), errors="coerce").notna().all():
        raise unusable(f"must begin with a line that names the columns, and {path} begins with numbers")
    if not targets:
        raise ConfigError("target", f"must name the columns to learn of {path}, which has {some(columns)}")
    # A name with a comma in it is one where there is such a column.
    targets, features = (
        [part.strip() for name in names for part in ([name] if name in columns else name.split(","))]
        for names in (targets, features)
    )
    named = {"target": targets, "features": features, "image_column": [image_column] if image_column else []}
    for option, names in named.items():
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(option, f"must name each column once, and names {twice} twice")
        if unknown := [name for name in names if name not in columns]:
            raise ConfigError(option, f"must be a column of {path}, which has {some(columns)}, got {brief(unknown[0])}")
    if image_column is not None:
        if image_column in targets:
            raise ConfigError("image_column", f"must be another column than those to learn, got {image_column}")
        if features:
            raise ConfigError("features", "is for tables of numbers, and with --image-column there are images")
        return tuple(targets), ()
    if learned := next((name for name in features if name in targets), None):
        raise ConfigError("features", f"must be other columns than those to learn, got {learned}")
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

    with path.open("rb") as file:
        commas = file.readline().count(b",")
    if commas >= _MOST_COLUMNS:
        raise unusable(f"must have at most {_MOST_COLUMNS:,} columns, and {path} has {commas + 1:,}")
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


def features_of(path: Path, spec: DatasetSpec) -> np.ndarray:
    """The features of a CSV file's rows, by their names: float64 (N, length). Other columns do not matter.

    Raises:
        ConfigError: as :func:`frame` and :func:`numbers`.
    """
    if path.is_dir():
        raise ConfigError("", f"{path} is a folder, and the model takes CSV files")
    try:
        return numbers(frame(path), spec.feature_names, path)
    except ConfigError as error:
        raise ConfigError("", f"a table {error.problem}") from None


def features_from_json(body: bytes, spec: DatasetSpec) -> tuple[np.ndarray, bool]:
    """The features, float64 (N, length), of a JSON object of numbers by name, or of a list of such; whether it is one.

    Raises:
        ValueError: saying what it must be.
    """
    try:
        given = json.loads(body, parse_int=float)  # which takes whole numbers of any length
    except (ValueError, RecursionError):
        raise ValueError("it must be JSON") from None
    rows = given if isinstance(given, list) else [given]
    names, values = spec.feature_names, np.empty((len(rows), spec.length))
    if not 0 < len(rows) <= MOST_ROWS:
        raise ValueError(f"it must have 1 to {MOST_ROWS:,} rows, and has {len(rows):,}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"it must be an object of numbers by name, or a list of such, and row {number} is none")
        for at, name in enumerate(names):
            value = row.get(name)
            values[number - 1, at] = value if isinstance(value, float) else np.nan
            if not np.abs(values[number - 1, at]) <= np.finfo(np.float32).max:
                has = f"has {brief(value)}" if name in row else "lacks it"
                raise ValueError(f"it must have a finite number as {name}, and row {number} {has}")
    return values, isinstance(given, list)


def _images(rows: pd.DataFrame, column: str, path: Path) -> np.ndarray:
    if column not in rows:
        raise unusable(f"must have the column {column}, and {path} has not")
    files = [path.parent / str(name).strip() for name in rows[column]]
    if missing := next((row for row, file in enumerate(files) if not file.is_file()), -1) + 1:
        raise unusable(
            f"must have an image for every row, and {path} names {files[missing - 1]} in row {missing}, "
            "which is not there"
        )
    return np.array([str(file) for file in files])
