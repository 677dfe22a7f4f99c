"""Commands that use a run's model: ``cifar-ray evaluate``, ``predict`` and ``serve``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cifar_ray.cli import output
from cifar_ray.config import files, flags
from cifar_ray.config.errors import ConfigError, counted, printable
from cifar_ray.config.flags import AsJson, Overwrite, Port, RunName
from cifar_ray.config.schema import Count
from cifar_ray.config.sections import WhichCheckpoint
from cifar_ray.display.run import Console, metric_rows
from cifar_ray.display.terminal import tilde

if TYPE_CHECKING:
    from cifar_ray.runs.use import Prediction, Scored
    from cifar_ray.tasks import TaskSpec

_TEXT = 60  # characters of a text in a line about it

Checkpoint = Annotated[WhichCheckpoint, "The newest one, or that with the best validation figure (--val-share)."]


def evaluate(
    run: RunName,
    *,
    checkpoint: Checkpoint = "last",
    data_dir: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    tracking_uri: str | None = None,
    json: AsJson = False,
) -> None:
    """Evaluate a run's model on every test image.

    Args:
        device: Where to compute; 'auto' takes the first GPU, if there is one.
    """
    with output.progress(json):
        with output.loading("loading PyTorch and MLflow"):
            from cifar_ray.runs import use

        scored = use.evaluate(run, checkpoint, data_dir, tracking_uri, flags.note, device)
    output.show(scored, json, lambda: _print_scores(scored))


def _print_scores(scored: Scored) -> None:
    """Print an evaluation, with the primary figure recorded with the checkpoint."""
    task = scored.task
    rows = metric_rows(task, scored.metrics)
    rows.append((f"{task.unit} evaluated", f"{scored.images:,}"))
    rows.append(("checkpoint", f"{tilde(scored.checkpoint)} (step {scored.step:,})"))
    if scored.recorded_score is not None:
        title = f"{scored.recorded_on} {task.primary.name} when written"
        rows.append((title, task.primary.text(scored.recorded_score)))
    Console().table(rows)


def predict(
    run: RunName,
    *images: Path,
    text: tuple[str, ...] = (),
    csv: str | None = None,
    top: Count = 3,
    out: str | None = None,
    checkpoint: Checkpoint = "last",
    tracking_uri: str | None = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Answer for image files, texts, or the rows of CSV files, with a run's model.

    Args:
        images: Image files of any size and common format, or folders: all images below them, sorted by name; a damaged
            one is named and left out. For a model of texts, files with a column 'text' (.csv, .jsonl) or a text on each
            line (.txt); for a model of table:PATH, CSV files with its features.
        text: Texts, for a model of texts.
        csv: File for the answers as CSV: a row for each image with its path, or for each text, and the likeliest
            classes with their probabilities or, of a task that answers values, each value by name.
        top: Classes to show per image or text, most likely first.
        out: Folder for predicted masks, of a model that predicts them: PNG files with the number of each pixel's class,
            named as the images and as large. It must be new or empty, without --overwrite. Default: predicted_masks.
    """
    table = None if csv is None else files.output("csv", csv, overwrite)
    masks = None if out is None else files.folder("out", out)
    if not images and not text:
        raise ConfigError("", "images must be given, or --text; `cifar-ray predict --help` tells what it takes")

    with output.progress(json), output.loading("loading PyTorch and MLflow"):
        from cifar_ray.runs import use

    task, predictions = use.predict(run, images, checkpoint, tracking_uri, flags.note, top, masks, text, overwrite)
    if table is not None:
        files.write_whole(table, as_csv(task, predictions))
        flags.note(f"{table} has the answers for {counted(len(predictions), [*predictions[0].sample][-1])}")
    if table is None or json:
        documents = [{**_sample(each), task.names: each.answers} for each in predictions]
        output.show(documents, json, lambda: _print_answers(task, predictions))


def _sample(each: Prediction) -> dict[str, object]:
    """What a prediction is of, and the file of its mask."""
    return {**each.sample, **({"mask": each.mask} if each.mask else {})}


def _print_answers(task: TaskSpec, predictions: Sequence[Prediction]) -> None:
    """Print a line per sample: its likeliest classes with their probabilities, or its values, and its mask's file."""
    console = Console()
    for each in predictions:
        shown = " row ".join(map(str, each.sample.values()))
        if "text" in each.sample:
            shown = textwrap.shorten(shown, _TEXT, placeholder="...")
        place = f" -> {each.mask}" if each.mask else ""
        form = "{} {:.1%}" if task.has_classes else "{} {:.5g}"
        console.line(f"{shown}{place}: {', '.join(form.format(*answer) for answer in each.answers)}")


def as_csv(task: TaskSpec, predictions: Sequence[Prediction]) -> str:
    """A header, and a row for each image: ``image,class,probability,class_2,...``, or values by name.

    With masks, ``image,mask,class,share,class_2,...``; of texts ``text``, of tables ``table,row``.
    """
    import pandas as pd

    rows = []
    for each in predictions:
        row = _sample(each)
        for rank, (name, number) in enumerate(each.answers, 1):
            end = f"_{rank}" * (rank > 1)
            if task.has_classes:
                row |= {f"class{end}": name, f"{task.number}{end}": number}
            else:
                row[f"{name}_predicted" if name in each.sample else name] = number
        rows.append(row)
    return printable(pd.DataFrame(rows, dtype=object).to_csv(index=False))  # a name need not be UTF-8


def serve(
    run: RunName,
    *,
    checkpoint: Checkpoint = "last",
    tracking_uri: str | None = None,
    host: str = "127.0.0.1",
    port: Port = 8000,
) -> None:
    """Answer for images, or rows of numbers, sent over HTTP with a run's model, until Ctrl-C.

    Examples:
        curl --data-binary @IMAGE http://127.0.0.1:8000/predict

    Args:
        host: Address to listen on. 0.0.0.0 admits other machines; there is no password.
        port: Port to listen on.
    """
    with output.listen(host, port) as listener:
        with output.loading("loading PyTorch and MLflow", always=True):
            from cifar_ray.serving import server
        server.serve(run, checkpoint, tracking_uri, listener, Console().line, flags.note)
