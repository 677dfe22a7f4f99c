"""CSV files as data sets: what is read, which rows are kept for what, and what is refused."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from cifar_ray import data, tasks
from cifar_ray.config import flags, runfile, schema
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.runs import given
from cifar_ray.training import predictor, recipe
from cifar_ray.training.observer import Outcome
from tests.support.helpers import contents, resolved, train_here

USUAL: dict[str, object] = {"target": ("y",), "precision": "fp32", "epochs": 1, "global_batch_size": 16}


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    made = pd.DataFrame(
        {"age": random.integers(20, 80, count), "bmi": random.normal(25, 4, count).round(2), "sex": 0.1}
    )
    made["y"] = (3 * made["age"] - made["bmi"]).round(3)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows(80).to_csv(tmp_path / "train.csv", index=False)
    rows(20, 1)[["y", "sex", "bmi", "age"]].to_csv(tmp_path / "test.csv", index=False)  # in another order
    return tmp_path


def test_a_folder_has_features_by_name_and_targets(folder: Path) -> None:
    asked = resolved(USUAL, dataset=f"table:{folder}")
    dataset = data.read(asked)
    spec = dataset.spec
    assert (asked.model, asked.task, asked.augment) == ("mlp", None, "none")
    assert (spec.features, spec.names, data.facts(asked)) == (("age", "bmi", "sex"), ("y",), spec)
    assert dataset.test.inputs == pytest.approx(rows(20, 1)[["age", "bmi", "sex"]].to_numpy())
    assert dataset.test["targets"] == pytest.approx(rows(20, 1)[["y"]].to_numpy())
    assert dataset.train.inputs.dtype == np.float32  # which keeps these numbers apart, in half the memory
    assert (spec.std[2], spec.mean[2]) == (0.0, pytest.approx(0.1))  # a feature that is always the same
    assert spec.target_std == pytest.approx([rows(80)["y"].std(ddof=0)])
    assert contents(dataset, tasks.spec(asked, spec)).endswith("and 0 everywhere: sex")
    params = runfile.params(asked, Decided.asked(asked))  # type: ignore[arg-type]
    assert (params["target"], params["model_options.width"], "data.mean" in params) == ("['y']", "128", False)
    assert {f"table:{folder}", "--target"} <= set(recipe.command(asked).split())  # type: ignore[arg-type]
    kept = weakref.ref(dataset.train.inputs)
    del dataset
    assert kept() is None


def written(folder: Path, **columns: object) -> Path:
    """The columns as a table to train with, and its first half to test with."""
    made = pd.DataFrame(columns)
    made.to_csv(folder / "train.csv", index=False)
    made[: len(made) // 2].to_csv(folder / "test.csv", index=False)
    return folder


def test_times_and_ids_reach_the_model_apart_and_answers_keep_their_digits(tmp_path: Path) -> None:
    step = 2 * np.arange(60)
    written(tmp_path, time=1_700_000_000 + step, id=2**53 + step, bmi=24 + step / 100, y=1.7e9 + step)
    asked = resolved(USUAL, dataset=f"table:{tmp_path}", model_options={"depth": 0}, epochs=25, lr=0.4)
    dataset = data.read(asked)
    outcome = train_here(asked, dataset, tmp_path / "run")
    assert isinstance(outcome, Outcome)
    learned = predictor.of(Path(outcome.checkpoint))
    rows_given = torch.cat([part for _, part, _ in given.of(dataset.spec).batches([tmp_path / "train.csv"], (), print)])
    assert [len(column.unique()) for column in learned.normalise(rows_given).T] == [60, 60, 60]
    answers = learned(rows_given).detach()
    assert len(answers.unique()) == 60
    assert answers.numpy() == pytest.approx(dataset.train["targets"], rel=0, abs=20)
    body = json.dumps([dict(zip(dataset.spec.features, [*map(int, row[:2]), row[2]])) for row in rows_given.tolist()])
    assert np.array_equal(given.of(dataset.spec).read(body.encode())[0], rows_given)


def test_features_are_chosen_and_the_others_need_be_no_numbers(tmp_path: Path) -> None:
    written(tmp_path, **{"a": range(40), "b": range(40), "b, in m": range(40), "name": "x", "median price": range(40)})
    values = {"dataset": f"table:{tmp_path}", "target": "median price", "epochs": 1}
    with pytest.raises(ConfigError, match=r"of name, and .* has 'x' in row 1"):
        recipe.resolve(runfile.load(None, values))
    words = ["--dataset", f"table:{tmp_path}", "--target", "median price", "--features", "b, in m", "a,b"]
    for asked_for in ({**values, "features": ["b, in m", "a,b"]}, flags.parse(TrainConfig, words, "train")):
        asked = recipe.resolve(runfile.load(None, asked_for))
        dataset = data.read(asked)
        assert (dataset.spec.names, dataset.spec.features) == (("median price",), ("b, in m", "a", "b"))
        assert dataset.left_out == "columns not used: name"
        kept = schema.build(Decided, schema.to_plain(recipe.settle(asked, Decided.asked(asked), dataset)))
        assert kept.facts.features == ("b, in m", "a", "b")
    (tmp_path / "given.csv").write_text('b,name,a,"b, in m"\n1,y,2,3\n')
    ((_, rows, _),) = given.of(kept.facts).batches([tmp_path / "given.csv"], (), print)
    assert rows.tolist() == [[3, 2, 1]]


def test_rows_of_one_file_are_kept_for_the_test_and_for_validation(tmp_path: Path) -> None:
    made = rows(100)
    made.iloc[50:60, :3] = made.iloc[40:50, :3].to_numpy()  # equal features, whatever the target
    made.to_csv(tmp_path / "all.csv", index=False)
    asked = partial(resolved, USUAL, dataset=f"table:{tmp_path / 'all.csv'}", test_share=0.2)
    first, second = data.read(asked(val_share=0.1)), data.read(asked(seed=3))
    assert first.val is not None
    assert np.array_equal(first.test.inputs, second.test.inputs)
    assert len(first.train) + len(first.val) == len(second.train) == 100 - len(first.test)
    assert 20 <= len(first.test) <= 22
    sides = [{row.tobytes() for row in split.inputs} for split in (first.train, first.val, first.test)]
    assert not sides[0] & sides[1]
    assert not (sides[0] | sides[1]) & sides[2]
    pd.concat([made, rows(50, 5)]).to_csv(tmp_path / "more.csv", index=False)
    whole = data.read(resolved(USUAL, dataset=f"table:{tmp_path / 'more.csv'}", test_share=0.2))
    kept = {row.tobytes() for row in whole.test.inputs}
    assert len(sides[2] & kept) > 0.5 * len(sides[2])  # a share of more rows keeps most of what it kept


def test_a_validation_file_is_measured_after_every_epoch(folder: Path, tmp_path: Path) -> None:
    rows(10, 2).to_csv(folder / "val.csv", index=False)
    asked = resolved(USUAL, dataset=f"table:{folder}", epochs=2)
    assert data.facts(asked).val_size == 10
    outcome = train_here(asked, data.read(asked), tmp_path / "run")
    assert {"val/r2", "test/r2", "best/r2"} <= outcome.metrics.keys()
    with pytest.raises(ConfigError, match=r"^val_share is for data without validation samples"):
        data.read(replace(asked, val_share=0.1))
    rows(1, 3).to_csv(folder / "test.csv", index=False)  # a row alone has no r2
    asked = replace(asked, epochs=1)
    outcome = train_here(asked, data.read(asked), tmp_path / "of one")
    assert (np.isnan(outcome.metrics["test/r2"]), np.isfinite(outcome.metrics["test/mae"])) == (True, True)
    predictor.of(Path(outcome.checkpoint))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Grey squares of which the brightness is to be told, for training and for the test."""
    (tmp_path / "files").mkdir()
    for part, count in (("train", 40), ("test", 10)):
        values = np.random.default_rng(count).integers(0, 256, count)
        for row, value in enumerate(values):
            Image.new("L", (16, 16), int(value)).save(tmp_path / f"files/{part}{row}.png")
        files = [f"files/{part}{row}.png" for row in range(count)]
        made = pd.DataFrame({"file": files, "light": values, "dark": 255 - values, "by": "me"})
        made.to_csv(tmp_path / f"{part}.csv", index=False)
    return tmp_path


def test_images_may_have_numbers_to_learn(pictures: Path, tmp_path: Path) -> None:
    values: dict[str, object] = {"dataset": f"table:{pictures}", "image_column": "file", "target": ("light", "dark")}
    without = runfile.merge(values, {"image_column": None})
    assert [runfile.load(None, each).model for each in (values, without)] == ["resnet", "mlp"]
    values |= {"model": "simple_cnn", "image_size": 16, "data_dir": str(tmp_path / "cache"), "epochs": 2}
    asked = resolved({**USUAL, **values}, val_share=0.25)
    dataset = data.read(asked)
    assert (dataset.spec.inputs, dataset.train.inputs.shape) == ("images", (30, 16, 16, 3))
    assert dataset.left_out == "columns not used: by"
    assert dataset.train["targets"][:, 0] == pytest.approx(dataset.train.inputs[:, 8, 8, 0])
    for wrong in ({"augment": "mixup"}, {"image_size": 2}):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} must "):
            resolved({**USUAL, **values}, **wrong)
    assert data.read(replace(asked, stream=True)).spec == dataset.spec
    (pictures / "files/test9.png").unlink()
    with pytest.raises(ConfigError, match=r"^dataset .*files/test9.png cannot be"):
        data.read(asked)


GOOD, TARGET = "a,b,y\n1,2,3\n2,3,5\n4,4,4\n", "^target must name columns"
CSV, NUMBER = "^dataset must be CSV", "a finite number in "
BAD: list[tuple[dict[str, str | bytes | None], dict[str, object], str]] = [
    ({"train.csv": "a,b\n1,2\n"}, {}, f"{TARGET}, .*train.csv has a and b, got"),
    ({"test.csv": "a,y\n1,2\n"}, {}, "test.csv has 0 named 'b'"),
    ({"train.csv": b"a,b,y\n1,2,\xe9\n"}, {}, f"{CSV} .*train.csv is not: .*codec can't decode"),
    ({"train.csv": "a,b,y\n1,2,3\n1,much,4\n"}, {}, f"{NUMBER}every row of b, and .* has 'much' in row 2"),
    ({"test.csv": "a,b,y\n1,,3\n"}, {}, f"{NUMBER}.*test.csv has '' in row 1"),
    ({"test.csv": "a,b,y\n1,1e60,0\n"}, {}, NUMBER),
    ({"train.csv": "a,b,y\n"}, {}, f"{CSV} .* there are no rows"),
    ({"train.csv": ",a,y\n0,1,2\n1,2,3\n"}, {}, "has 1 named ''"),
    ({"train.csv": "a,a,y\n0,1,2\n1,2,3\n"}, {}, "has 2 named 'a'"),
    ({"train.csv": "a,b,y\n1,2,3\n1,2,3,4\n"}, {}, f"{CSV} .*line 3"),
    ({"train.csv": "a,b,y\n1,2,3\n1,2\n"}, {}, f"{NUMBER}every row of y, and .*train.csv has '' in row 2"),
    ({"train.csv": "y\n1\n2\n"}, {}, f"{TARGET}, .* has y, got"),
    ({}, {"stream": True}, "^stream is for images"),
    ({}, {"target": ()}, TARGET),
    ({}, {"target": ("y", "y")}, f"{TARGET}, .* got .'y'"),
    ({"test.csv": None}, {"test_share": 0.99}, "^test_share must leave .*, got 0.99 of 3"),
    ({"train.csv": None}, {}, "^dataset must be a file, or have train.csv"),
    ({}, {"model": "resnet"}, "^model must be mlp or one of your own"),
    ({}, {"features": ("b,c",)}, f"{TARGET}, .* got .'c'"),
    ({}, {"features": ("b", "y")}, f"{TARGET}, .* got .'y'"),
    ({}, {"features": ("b",), "image_column": "a"}, TARGET),
    ({}, {"dataset": "table:/no/such"}, "^dataset must be a file, .* /no/such is not there"),
    ({}, {"dataset": "digits"}, "^target is for --dataset table:PATH only"),
    ({}, {"global_batch_size": 4}, "^global_batch_size .* 3 training rows"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "values", "sentence"), BAD)
def test_no_table(
    files: dict[str, str | bytes | None], values: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    for name, text in {"train.csv": GOOD, "test.csv": "a,b,y\n1,2,3\n", **files}.items():
        if text is not None:
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=sentence):
        resolved({**USUAL, "global_batch_size": 2}, **{"dataset": f"table:{tmp_path}", **values})


def test_quotes_blank_lines_and_marks_of_editors_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b'\xef\xbb\xbf"a, in m", y\r\n 1 ,2\r\n\r\n"1e-3",3\r\n')
    (tmp_path / "test.csv").write_text('y,"a, in m"\n1,2\n')
    dataset = data.read(resolved({**USUAL, "global_batch_size": 2}, dataset=f"table:{tmp_path}"))
    assert dataset.spec.features == ("a, in m",)
    assert dataset.train.inputs.tolist() == [[1.0], [pytest.approx(1e-3)]]
    assert dataset.test["targets"].tolist() == [[1.0]]


def test_a_model_of_rows_without_names_answers_for_columns_by_their_numbers(tmp_path: Path) -> None:
    spec = replace(data.SPECS["digits"], inputs="features", shape=(2,))
    path = tmp_path / "rows.csv"
    path.write_text("1,0\n5,6\n")
    ((_, rows, _),) = given.of(spec).batches([path], (), print)
    assert rows.tolist() == [[6, 5]]
    path.write_text("5,6\n7,8\n")
    with pytest.raises(ConfigError, match=r"^a table must have each column once, .*rows.csv has 0 named '0'"):
        list(given.of(spec).batches([path], (), print))
    with pytest.raises(ConfigError, match=r"is no file, and the model takes CSV files"):
        list(given.of(spec).batches([tmp_path], (), print))
