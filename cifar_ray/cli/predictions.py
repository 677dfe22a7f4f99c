"""The ``cifar-ray predict`` command."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cifar_ray.cli import early, output
from cifar_ray.config import files, flags
from cifar_ray.config.commands import PredictCommand
from cifar_ray.config.errors import ConfigError, counted, printable
from cifar_ray.display.run import Console

if TYPE_CHECKING:
    from cifar_ray.orchestration.run.results import Prediction
    from cifar_ray.tasks import TaskSpec


def show(command: PredictCommand) -> int:
    """``cifar-ray predict``."""
    from cifar_ray.orchestration.run import given

    if command.csv and command.json:
        raise ConfigError("csv", "is another form than --json; give one of the two")
    table = None if command.csv in (None, "-") else files.output("csv", command.csv, command.overwrite, command.images)
    out = None if command.out is None else files.folder("out", command.out)
    if not command.images and not command.text:
        raise ConfigError("", "images must be given, or --text; `cifar-ray predict --help` tells what it takes")
    given.check(command.images)
    early.check_runs([command.run], command.tracking_uri)

    with output.progress(command.json or command.csv == "-"), early.loading("loading PyTorch and MLflow"):
        from cifar_ray.orchestration.run import results

    task, predictions = results.predict(
        command.run,
        command.images,
        command.checkpoint,
        command.tracking_uri,
        flags.note,
        command.top,
        out,
        command.text,
        command.overwrite,
    )
    if command.csv == "-":
        print(as_csv(task, predictions), end="")
    elif table is not None:
        files.write_whole(table, as_csv(task, predictions))
        print(f"{table}: {counted(len(predictions), predictions[0].title)}")
    else:
        output.show(
            [
                {**each.named, task.names: each.answers, **({"mask": each.mask} if each.mask else {})}
                for each in predictions
            ],
            command.json,
            lambda: Console().predictions(task, [(each.shown, each.answers, each.mask) for each in predictions]),
        )
    return 0


def as_csv(task: TaskSpec, predictions: Sequence[Prediction]) -> str:
    """A header, and a row for each image: ``image,class,probability,class_2,...``, or values by name.

    With masks, ``image,mask,class,share,class_2,...``; of texts ``text``, of tables ``table,row``.
    """
    names = [name for name, _ in predictions[0].answers]
    classes, masks = task.names == "classes", ["mask"] if task.answer == "masks" else []
    ranks = ["", *(f"_{rank}" for rank in range(2, len(names) + 1))]
    head = [f"{title}{rank}" for rank in ranks for title in ("class", task.number)] if classes else names
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*predictions[0].named, *masks, *head])
    for prediction in predictions:
        cells = [*prediction.named.values(), *([prediction.mask] if prediction.mask else [])]
        pairs = [cell for pair in prediction.answers for cell in pair]
        writer.writerow([*cells, *(pairs if classes else [number for _, number in prediction.answers])])
    return printable(text.getvalue())  # a name need not be UTF-8
