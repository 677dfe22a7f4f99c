"""torchmetrics' confusion matrix, in a module of its own: its import takes seconds, and only an evaluation needs it."""

from importlib.util import find_spec

from cifar_ray.config import imports

if find_spec("matplotlib"):
    imports.matplotlib()  # torchmetrics imports it and would not bear a user's MPLBACKEND
from torchmetrics.functional.classification import multiclass_confusion_matrix

__all__ = ["multiclass_confusion_matrix"]
