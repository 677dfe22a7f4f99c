"""What a run leaves in MLflow beside figures: pictures, tables, and the model."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric, Run

from cifar_ray.data import Dataset, modality
from cifar_ray.tasks import TaskSpec
from cifar_ray.tracking import drawing
from cifar_ray.training.mistakes import Mistake
from cifar_ray.training.observer import Row
from cifar_ray.training.predictor import Predictor

WHICH_TAG, WEIGHTS_TAG = "checkpoint", "weights_sha256"
_FINAL = "final"


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


def log_matrix(
    client: MlflowClient, run_id: str, counts: Sequence[Sequence[int]], names: Sequence[str], unit: str
) -> None:
    """Log the picture of a confusion matrix; arguments as of :func:`drawing.matrix`."""
    with drawing.settings():
        figure = drawing.matrix(counts, names, unit)
        client.log_figure(run_id, figure, "confusion_matrix.png", save_kwargs={"bbox_inches": "tight"})


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

    ``which`` is ``final`` or ``best``; ``load`` gives what the checkpoint of the ``epoch`` has learned, and the SHA-256
    of its weights; ``rows`` are its figures, all finite.
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
    one_at_a_time = drawing.ONE_AT_A_TIME  # torch's export and generator, and MLflow's loading of a file, are global
    with one_at_a_time, torch.random.fork_rng(devices=[]), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
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
