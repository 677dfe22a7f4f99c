"""Images: which there are, who sees which of them and when, and how they are varied."""

from cifar_ray.data.datasets import SPECS, Dataset, DatasetSpec, Split, folder, load, present

__all__ = ["SPECS", "Dataset", "DatasetSpec", "Split", "folder", "load", "present"]
