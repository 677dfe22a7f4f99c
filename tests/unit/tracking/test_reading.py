"""Where a table places a cell that has no run."""

from __future__ import annotations

from cifar_ray.tracking import reading


def test_a_cell_that_cannot_share_the_held_batch_stands_in_the_column_of_the_others() -> None:
    shared = {"model": "resnet", "dataset": "digits"}
    ran = {**shared, "topology": "1x2", "batch_size": "64", "global_batch_size": "128"}
    skipped = reading._completed({**shared, "topology": "1x3"}, [ran, {**shared, "topology": "1x3"}], "global_batch")
    assert skipped["global_batch_size"] == "128"
