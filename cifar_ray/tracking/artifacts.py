"""What a run leaves in MLflow beside figures: pictures, tables, and the model."""

from __future__ import annotations

import io
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric, Run
from PIL import Image

from cifar_ray.data import Dataset
from cifar_ray.tasks import TaskSpec
from cifar_ray.tasks.spec import IGNORED
from cifar_ray.tracking import drawing, mistakes, store
from cifar_ray.training import samples
from cifar_ray.training.predictor import Predictor

WHICH_TAG, WEIGHTS_TAG = "checkpoint", "weights_sha256"
_FINAL = "final"
_MOST_LABELS, _SHOWN = 20, 8
_one_at_a_time = threading.Lock()
"""Runs of a sweep end at their own times; torch's export and generator, and MLflow's loading of a file, are global."""


def log_confusion(
    client: MlflowClient,
    run_id: str,
    confusion: list[list[int]],
    names: Sequence[str],
    wrong: Sequence[mistakes.Record] = (),
    counted: str = "images",
) -> str:
    """``confusion_matrix.png`` and ``mistakes.png``, and the data of both as ``confusion_matrix.json``.

    Of texts, ``mistakes.json`` is a table in place of the picture.

    Returns:
        Why a picture cannot be drawn; empty when they are there.
    """
    counts = {"classes": list(names), "counts": confusion, **({"mistakes": list(wrong)} if wrong else {})}
    client.log_dict(run_id, counts, "confusion_matrix.json")
    pictures: dict[str, Callable[[], Any]] = {
        "confusion_matrix.png": lambda: confusion_figure(confusion, names, counted)
    }
    if wrong and "text" in wrong[0]:
        table = {name: [record[name] for record in wrong] for name in ("text", "true", "predicted", "probability")}
        client.log_table(run_id, table, "mistakes.json")
    elif wrong:
        pictures["mistakes.png"] = lambda: mistakes.picture(wrong)
    for name, draw in pictures.items():
        picture = io.BytesIO()
        try:
            with drawing.settings():
                draw().savefig(picture, format="png", bbox_inches="tight")
        except Exception as error:  # whatever matplotlib raises
            return store.reason(error)
        client.log_image(run_id, Image.open(picture), name)
    return ""


def confusion_figure(confusion: list[list[int]], names: Sequence[str], counted: str = "images") -> Any:
    """Draw a confusion matrix: true classes down, predicted classes across, share of each row as colour."""
    from matplotlib.figure import Figure  # without pyplot there is no global state and no window

    counts = np.array(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [drawing.plain(name) for name in names]
    few = len(names) <= _MOST_LABELS
    side = 2.5 + 0.55 * len(names) if few else 10.0
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="true class", title=f"Confusion matrix, {counted} of the test set")
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046)
    if few:
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names)
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count}", ha="center", va="center", color=colour, fontsize=8)
    return figure


def log_masks(
    client: MlflowClient, run_id: str, load: Callable[[], tuple[Predictor, str]], dataset: Dataset, column: str
) -> str:
    """``predicted_masks.png``: images of the test with their masks, and those that a checkpoint predicts.

    ``load`` is as of :func:`log_model`, ``column`` the data set's column of masks.

    Returns:
        Why the picture cannot be drawn; empty when it is there.
    """
    shown = dataset.tested_on(min(_SHOWN, len(dataset.test))).test
    picture = io.BytesIO()
    try:
        with torch.inference_mode():
            predicted = load()[0](torch.from_numpy(np.array(shown.inputs))).numpy()
        with drawing.settings():
            figure = masks_figure(shown.inputs, shown[column], predicted, dataset.spec.names)
            figure.savefig(picture, format="png", bbox_inches="tight")
    except Exception as error:
        return store.reason(error)
    client.log_image(run_id, Image.open(picture), "predicted_masks.png")
    return ""


def masks_figure(images: np.ndarray, true: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Any:
    """Draw images (N, side, side, 3), and below them their masks (N, side, side) and the predicted ones, in colours."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colours, count = samples.palette(), len(images)
    figure = Figure(figsize=(1.2 * count + 1.5, 3.8), layout="constrained")
    axes = figure.subplots(3, count, squeeze=False)
    rows = {"image": images, "mask": colours[true], "predicted": colours[predicted]}
    for line, (title, pictures) in zip(axes, rows.items()):
        line[0].set_ylabel(title)
        for place, pixels in zip(line, pictures):
            place.imshow(pixels, interpolation="nearest")
            place.set(xticks=[], yticks=[])
    if len(names) <= _MOST_LABELS:
        labels = {**dict(enumerate(names)), IGNORED: "does not count"}
        patches = [Patch(color=tuple(colours[at] / 255), label=drawing.plain(name)) for at, name in labels.items()]
        figure.legend(handles=patches, loc="outside right center", fontsize=8)
    return figure


def log_model(
    client: MlflowClient,
    run_id: str,
    which: str,
    load: Callable[[], tuple[Predictor, str]],
    dataset: Dataset,
    task: TaskSpec,
    epoch: int,
) -> None:
    """Log a model of the run, named after the run: the code of ``logged_model.py`` and the exported network.

    Args:
        client: of the store.
        run_id: the run.
        which: ``final`` or ``best``.
        load: gives what the checkpoint has learned, and the SHA-256 of its weights.
        dataset: says what the model takes.
        task: says what it gives.
        epoch: at whose end the checkpoint was written.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType, Map

    run = client.get_run(run_id)
    steps = _steps(run)
    known = ((model.tags.get(WHICH_TAG), steps[model.model_id]) for model in logged_models(client, run))
    if (which, epoch) in known:
        return  # a repeated attempt, or a run that was complete before this process
    taken = samples.of(dataset.spec, dataset.encoding)
    example = taken.given(np.asarray(dataset.test.inputs[0]))
    of_answers: dict[str, dict[str, Any]] = {
        "masks": {"mask": DataType.binary},
        "classes": {
            "label": DataType.string,
            "probability": DataType.double,
            "probabilities": Map(DataType.double),
        },
        "values": dict.fromkeys(dataset.spec.names, DataType.double),
    }
    outputs = of_answers[task.answer]
    # MLflow would refuse whole numbers in a column of doubles.
    kinds = {bytes: DataType.binary, str: DataType.string, float: AnyType()}
    signature = ModelSignature(
        inputs=Schema([ColSpec(kinds[type(value)], column) for column, value in example.items()]),
        outputs=Schema([ColSpec(kind, column) for column, kind in outputs.items()]),
    )
    config = {
        "inputs": dataset.spec.inputs,
        "answer": task.answer,
        "labels": list(dataset.spec.names),
        **taken.settings,
    }
    inputs = torch.from_numpy(np.resize(dataset.test.inputs[:2], (2, *dataset.test.inputs.shape[1:])))
    inputs = inputs.double() if inputs.is_floating_point() else inputs  # as the table's model gives them
    requirements = [
        f"{package}=={metadata.version(package).partition('+')[0]}"  # without +cpu, which PyPI does not have
        for package in ("torch", "mlflow", "numpy", taken.package)
    ]
    name = re.sub("[/:.%\"']", "_", run.info.run_name)  # MLflow takes none of these here
    with _one_at_a_time, torch.random.fork_rng(devices=[]), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        learned, weights = load()
        logged = client.create_logged_model(
            run.info.experiment_id,
            name=name if which == _FINAL else f"{name}-{which}",
            source_run_id=run_id,
            params=run.data.params,
            tags={WHICH_TAG: which, WEIGHTS_TAG: weights},
            model_type={"classes": "classifier", "values": "regressor", "masks": "segmenter"}[task.answer],
        )
        # mlflow.pyfunc.log_model would work on MLflow's own address, which is the user's, and load the model.
        status = LoggedModelStatus.FAILED
        try:
            client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, epoch)])
            histories = (client.get_metric_history(run_id, name) for name in run.data.metrics)
            points = [point for history in histories for point in history if point.step == epoch and not point.model_id]
            metrics = [Metric(p.key, p.value, p.timestamp, p.step, model_id=logged.model_id) for p in points]
            client.log_batch(run_id, metrics=metrics)
            batch = {0: torch.export.Dim.AUTO}  # any number of samples
            program = torch.export.export(learned, (inputs,), dynamic_shapes=[batch])
            torch.export.save(program, f"{folder}/network.pt2")
            kept = {"network": f"{folder}/network.pt2"}
            if taken.encoding:
                kept["tokenizer"] = f"{folder}/tokenizer.json"
                Path(kept["tokenizer"]).write_text(taken.encoding, encoding="utf-8")
            mlflow.pyfunc.save_model(
                f"{folder}/model",
                mlflow_model=Model(
                    logged.artifact_location, run_id, model_uuid=logged.model_id, model_id=logged.model_id
                ),
                python_model=Path(__file__).with_name("logged_model.py"),
                artifacts=kept,
                model_config=config,
                signature=signature,
                input_example=pd.DataFrame([example]),
                pip_requirements=requirements,
                metadata={"dataset": dataset.name, "dataset_digest": dataset.spec.digest},
            )
            client.log_model_artifacts(logged.model_id, f"{folder}/model")
            status = LoggedModelStatus.READY
        finally:
            client.finalize_logged_model(logged.model_id, status)


def logged_models(client: MlflowClient, run: Run) -> list[LoggedModel]:
    """The models that the run has logged completely, the final one last; of several ends, that of the last one."""
    steps = _steps(run)
    models = [client.get_logged_model(model_id) for model_id in steps]
    ready = [model for model in models if model.status == LoggedModelStatus.READY]
    return sorted(ready, key=lambda model: (model.tags.get(WHICH_TAG) == _FINAL, steps[model.model_id]))


def _steps(run: Run) -> dict[str, int]:
    """Id of every model of the run -> the epoch whose checkpoint it is."""
    return {output.model_id: output.step for output in run.outputs.model_outputs} if run.outputs else {}
