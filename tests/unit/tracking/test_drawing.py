"""The picture of a confusion matrix, by what matplotlib is to draw."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from cifar_ray.tracking import drawing


def test_a_matrix_shows_shares_as_colours_and_counts_as_numbers() -> None:
    with drawing.settings():
        figure = drawing.matrix([[3, 1], [0, 0]], ("_bad", "good"), "masks", "#ffffff", "#000080", "#101010")
        axes, scale = figure.axes
        mesh = axes.collections[0]
        assert mesh.get_array().tolist() == [[0.75, 0.25], [0, 0]]  # of no images, no share
        assert mesh.get_clim() == (0, 1)
        assert (mesh.cmap(0.0), mesh.cmap(1.0)) == (to_rgba("#ffffff"), to_rgba("#000080"))
        assert [(text.get_position(), text.get_text(), text.get_color()) for text in axes.texts] == [
            ((0.5, 0.5), "3", "#ffffff"),
            ((1.5, 0.5), "1", "#101010"),
            ((0.5, 1.5), "0", "#101010"),
            ((1.5, 1.5), "0", "#101010"),
        ]
        across, down = axes.get_xticklabels(), axes.get_yticklabels()
        assert [[label.get_text() for label in labels] for labels in (across, down)] == [[" _bad", "good"]] * 2
        assert [label.get_rotation() for label in across] == [45, 45]
        assert (axes.get_xticks().tolist(), axes.get_yticks().tolist()) == ([0.5, 1.5], [0.5, 1.5])
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
        assert (axes.yaxis_inverted(), axes.get_aspect(), mesh.get_rasterized()) == (True, 1, False)
        assert scale.get_ylabel() == "share of the true class's masks"
        assert figure.get_size_inches().tolist() == pytest.approx([4.76, 3.56])


def test_a_matrix_of_more_than_20_classes_has_no_numbers() -> None:
    with drawing.settings():
        few, many = (drawing.matrix(np.eye(classes, dtype=int).tolist(), (), "images") for classes in (20, 21))
        assert [label.get_text() for label in few.axes[0].get_yticklabels()] == [str(number) for number in range(20)]
        for figure, numbers, rasterized in ((few, 400, False), (many, 0, True)):
            axes = figure.axes[0]
            assert (len(axes.texts), axes.collections[0].get_rasterized()) == (numbers, rasterized)
        assert many.get_size_inches().tolist() == pytest.approx([10.2, 9.0])
