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

from cifar_ray.data import Dataset, modality
from cifar_ray.tasks import TaskSpec
from cifar_ray.tasks.spec import IGNORED
from cifar_ray.tracking import drawing
from cifar_ray.training import samples
from cifar_ray.training.mistakes import Mistake
from cifar_ray.training.observer import Row
from cifar_ray.training.predictor import Predictor

WHICH_TAG, WEIGHTS_TAG = "checkpoint", "weights_sha256"
_FINAL = "final"
_SHOWN = 8  # images of masks
_one_at_a_time = threading.Lock()
"""Runs of a sweep end at their own times; torch's export and generator, and MLflow's loading of a file, are global."""


def mistakes(wrong: Sequence[Mistake], tested: Dataset) -> list[dict[str, Any]]:
    """What is kept of mistakes on the test samples of ``tested``, which may be some of all (``--test-images``).

    Nothing is kept of what cannot be shown: rows of numbers, and tokens of a function of the user's own.

    Returns:
        For each sample ``index`` in the test set, ``true`` and ``predicted`` class, ``probability``, and ``png`` in
        base64 or ``text``, as the model sees it and shortened.
    """
    shown, every, some = modality.of(tested.spec, tested.encoding), tested.spec.test_size, len(tested.test)
    if not shown.is_readable:
        return []
    return [
        {
            "index": mistake.position * every // some,  # as Dataset.tested_on takes them
            "true": tested.spec.names[mistake.label],
            "predicted": tested.spec.names[mistake.predicted],
            "probability": mistake.probability,
            **drawn,
        }
        for mistake in wrong
        if (drawn := shown.drawn(np.asarray(tested.test.inputs[mistake.position])))
    ]


def log_picture(client: MlflowClient, run_id: str, name: str, draw: Callable[[], Any]) -> None:
    """Log the figure that ``draw`` makes."""
    picture = io.BytesIO()
    with drawing.settings():
        draw().savefig(picture, format="png", bbox_inches="tight")
    client.log_image(run_id, Image.open(picture), name)


def predicted_masks(load: Callable[[], tuple[Predictor, str]], dataset: Dataset, column: str) -> Any:
    """A figure of images of the test, and below them their masks and those that a checkpoint predicts, in colours.

    ``load`` is as of :func:`log_model`, ``column`` the data set's column of masks.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown, names, colours = (
        dataset.tested_on(min(_SHOWN, len(dataset.test))).test,
        dataset.spec.names,
        samples.palette(),
    )
    with torch.inference_mode():
        predicted = load()[0](torch.from_numpy(np.array(shown.inputs))).numpy()
    count = len(predicted)
    figure = Figure(figsize=(1.2 * count + 1.5, 3.8), layout="constrained")
    axes = figure.subplots(3, count, squeeze=False)
    rows = {"image": shown.inputs, "mask": colours[shown[column]], "predicted": colours[predicted]}
    for line, (title, pictures) in zip(axes, rows.items()):
        line[0].set_ylabel(title)
        for place, pixels in zip(line, pictures):
            place.imshow(pixels, interpolation="nearest")
            place.set(xticks=[], yticks=[])
    if len(names) <= drawing.MOST_CLASSES:
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
    rows: Sequence[Row],
) -> None:
    """Log a model of the run, named after the run: the code of ``logged_model.py`` and the exported network.

    Args:
        client: of the store.
        run_id: the run.
        which: ``final`` or ``best``.
        load: gives what the checkpoint has learned, and the SHA-256 of its weights.
        dataset: what the model takes.
        task: what it gives.
        epoch: at whose end the checkpoint was written.
        rows: its figures, all finite.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType, Map

    run = client.get_run(run_id)
    steps = _steps(run)
    if (which, epoch) in [(model.tags.get(WHICH_TAG), steps[model.model_id]) for model in logged_models(client, run)]:
        return  # a repeated attempt, or a run that was complete before this process
    taken = modality.of(dataset.spec, dataset.encoding)
    example = taken.given(np.asarray(dataset.test.inputs[0]))
    model_type, outputs = {
        "masks": ("segmenter", {"mask": DataType.binary}),
        "classes": (
            "classifier",
            {"label": DataType.string, "probability": DataType.double, "probabilities": Map(DataType.double)},
        ),
        "values": ("regressor", dict.fromkeys(dataset.spec.names, DataType.double)),
    }[task.answer]
    # MLflow would refuse whole numbers in a column of doubles.
    kinds = {bytes: DataType.binary, str: DataType.string, float: AnyType()}
    signature = ModelSignature(
        inputs=Schema([ColSpec(kinds[type(value)], column) for column, value in example.items()]),
        outputs=Schema([ColSpec(kind, column) for column, kind in outputs.items()]),
    )
    labels = list(dataset.spec.names)
    config = {"inputs": dataset.spec.inputs, "answer": task.answer, "labels": labels, **taken.settings}
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
            model_type=model_type,
        )
        model_id = logged.model_id
        # mlflow.pyfunc.log_model would work on MLflow's own address, which is the user's, and load the model.
        status = LoggedModelStatus.FAILED
        try:
            client.log_outputs(run_id, [LoggedModelOutput(model_id, epoch)])
            figures = [(name, value, row.timestamp_ms) for row in rows for name, value in row.metrics.items()]
            client.log_batch(run_id, metrics=[Metric(*figure, epoch, model_id=model_id) for figure in figures])
            batch = {0: torch.export.Dim.AUTO}  # any number of samples
            program = torch.export.export(learned, (inputs,), dynamic_shapes=[batch])
            torch.export.save(program, f"{folder}/network.pt2")
            kept = {"network": f"{folder}/network.pt2"}
            if taken.encoding:
                kept["tokenizer"] = f"{folder}/tokenizer.json"
                Path(kept["tokenizer"]).write_text(taken.encoding, encoding="utf-8")
            mlflow.pyfunc.save_model(
                f"{folder}/model",
                mlflow_model=Model(logged.artifact_location, run_id, model_uuid=model_id, model_id=model_id),
                python_model=Path(__file__).with_name("logged_model.py"),
                artifacts=kept,
                model_config=config,
                signature=signature,
                input_example=pd.DataFrame([example]),
                pip_requirements=requirements,
                metadata={"dataset": dataset.name, "dataset_digest": dataset.spec.digest},
            )
            client.log_model_artifacts(model_id, f"{folder}/model")
            status = LoggedModelStatus.READY
        finally:
            client.finalize_logged_model(model_id, status)


def logged_models(client: MlflowClient, run: Run) -> list[LoggedModel]:
    """The models that the run has logged completely, the final one last; of several ends, that of the last one."""
    steps = _steps(run)
    models = [client.get_logged_model(model_id) for model_id in steps]
    ready = [model for model in models if model.status == LoggedModelStatus.READY]
    return sorted(ready, key=lambda model: (model.tags.get(WHICH_TAG) == _FINAL, steps[model.model_id]))


def _steps(run: Run) -> dict[str, int]:
    """Id of every model of the run -> the epoch whose checkpoint it is."""
    return {output.model_id: output.step for output in run.outputs.model_outputs} if run.outputs else {}
