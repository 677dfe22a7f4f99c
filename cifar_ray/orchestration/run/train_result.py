"""A run that has ended, for those who train from Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from cifar_ray import storage, tasks
from cifar_ray.config import limits
from cifar_ray.runs import checkpoints
from cifar_ray.tasks import TaskSpec
from cifar_ray.tracking import pages
from cifar_ray.training.predictor import Predictor


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A run that has finished, or was stopped by a limit.

    Attributes:
        name: the run's name.
        run_id: MLflow's id of it.
        tracking_uri: the store that has it.
        page: address of its page in MLflow, when the store is a server that has pages.
        folder: address of its folder, with the config and the checkpoints.
        metrics: the last epoch's figures. With validation images (``val_share``), ``val/NAME`` are theirs,
            ``best/NAME`` is the best epoch's primary figure, ``chosen/epoch`` is that epoch, and ``chosen/test/NAME``
            are its test figures. Of a run that was stopped, those of its last whole epoch, if any.
        times: seconds by phase (``time/...``) and steady-state ``images_per_s``.
        history: every epoch's figures and its number, ``epoch``; ``pandas.DataFrame(history)`` is a table of them.
        weights_sha256: SHA-256 of the final weights file.
        checkpoint: address of the final checkpoint.
        task: what it learns.
        cost_usd: what it has cost over all attempts; None without a price.
        stopped_by: the limit that has stopped it, such as ``max_time``; ``patience`` when that has ended it, with its
            test figures; empty after its last epoch.
    """

    name: str
    run_id: str
    tracking_uri: str
    page: str | None
    folder: str
    metrics: dict[str, float]
    times: dict[str, float]
    history: list[dict[str, float]]
    weights_sha256: str
    checkpoint: str
    task: TaskSpec = tasks.USUAL
    cost_usd: float | None = None
    stopped_by: str = ""

    def load_model(self, best: bool = False) -> Predictor:
        """The trained model on the CPU: uint8 images (B, 32, 32, C) to answers (B, names).

        Those of image classification are probabilities.

        Args:
            best: take the checkpoint with the best validation figure, and not the final one.

        Raises:
            CheckpointError: when the checkpoint cannot be used, or none is the best, for want of validation images.
            ConfigError: when the run's folder is gone.
        """
        name = "best" if best else PurePosixPath(self.checkpoint).name
        return checkpoints.load(storage.at(self.folder), name)[0]

    def __repr__(self) -> str:
        if limits.is_halted(self.stopped_by):
            return f"<run {self.name}: stopped by {limits.named(self.stopped_by)}; checkpoint: {self.checkpoint}>"
        primary, seconds = self.task.primary, self.times["time/training_s"]
        score, way = primary.named(self.metrics[primary.result(self.metrics)]), pages.way(self.tracking_uri, self.page)
        return f"<run {self.name}: test {score}, training {seconds:.1f} s; open in MLflow: {way}>"
