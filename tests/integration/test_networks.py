"""Unusual but legal networks under every strategy: right, or refused in a sentence; docs/own.md has the table."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

from cifar_ray import strategies
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from tests.support.helpers import AUTHKEY, Cell, ServerHost, cells_on_ranks, resolved
from tests.unit.test_docs import rows

pytestmark = pytest.mark.slow
KINDS = {
    "some steps leave out a parameter": "sometimes",
    "two layers share a weight": "tied",
    "two layers are one batch norm": "norm",
    "a parameter without dimensions": "scalar",
    "a complex parameter": "complex",
    "a buffer that a forward pass replaces": "buffer",
    "extra state (`get_extra_state`)": "state",
    "other layers in `stages()` than in the forward pass": "relu",
}
NAMES = [name for name in strategies.NAMES if name != "data_parallel"]  # which needs GPUs
CLOSE = 1e-5


def config(strategy: str, kind: str, **values: object) -> TrainConfig:
    usual = {"dataset": "digits", "model": "tests.support.networks:build", "model_options": {"kind": kind}}
    usual |= {"topology": "1x2", "global_batch_size": 16, "epochs": 1, "steps_per_epoch": 8, "precision": "fp32"}
    usual |= {"strategy_options": {"sync_every": 2}} if strategy == "local_sgd" else {}
    usual |= {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "test_images": 16}
    return resolved({**usual, "strategy": strategy}, **values)


def refused(strategy: str, kind: str) -> str:
    try:
        config(strategy, kind)
    except ConfigError as error:
        return error.as_flag()
    return ""


def difference(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> float:
    assert one.keys() == other.keys()
    return max(float(abs(one[name] - other[name]).max() / max(abs(other[name]).max(), 1e-3)) for name in one)


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str], Cell]:
    """(kind, strategy) -> what two workers come to, and one; all in the same two processes."""
    wanted = {
        (kind, name + suffix): config(name, kind, topology=topology)
        for names, suffix, topology in ((NAMES, "", "1x2"), (("ddp", "reproducible"), " alone", "1x1"))
        for kind in KINDS.values()
        for name in names
        if not refused(name, kind)
    }
    with tempfile.TemporaryDirectory() as folder, ServerHost(("127.0.0.1", 0), AUTHKEY) as host:
        found = cells_on_ranks(config("ddp", "plain"), list(wanted.values()), Path(folder), host.address)
    return dict(zip(wanted, found, strict=True))


def test_a_pipelines_ranks_agree_on_buffers_that_one_stage_alone_makes(tmp_path: Path) -> None:
    trained = config("gpipe", "early")
    (cell,) = cells_on_ranks(trained, [trained], tmp_path, None)
    assert (cell.error, len(set(cell.digests))) == ("", 1)


@pytest.mark.parametrize("network", KINDS)
def test_the_table_is_what_two_workers_come_to(network: str, cells: dict[tuple[str, str], Cell]) -> None:
    kind, table = KINDS[network], rows("own.md", "the network")
    said = table[network][0]
    for name in NAMES:
        if sentence := refused(name, kind):
            assert sentence.startswith(("--strategy must ", "--model must ")), sentence
            assert f"`{name}`" in said or said.startswith("all"), (name, sentence)
            continue
        assert f"`{name}`" not in said, name
        assert not said.startswith("all"), name
        cell = cells[kind, name]
        assert cell.error == "", (name, cell.error)
        assert len(set(cell.digests)) == 1, name
        label = strategies.about(name).label
        alone = cells[kind, "ddp alone"]
        if kind == "norm" and name in ("reproducible", "fsdp", "ddp", "all_reduce", "gather_scatter", "send_recv"):
            assert abs(cell.loss - alone.loss) < 0.1 * alone.loss, name  # each worker's own batch statistics
        elif name == "reproducible":
            assert difference(cell.weights, cells[kind, "reproducible alone"].weights) == 0
            assert difference(cell.weights, alone.weights) < CLOSE
        elif label in ("exact", "close") and kind != "buffer":
            assert difference(cell.weights, alone.weights) < CLOSE, name
        elif strategies.of(config(name, kind)).synchronous:
            assert abs(cell.loss - alone.loss) < 0.2 * alone.loss, name
        else:  # how far it comes depends on the order in which the workers' steps happen to be taken
            assert numpy.isfinite(cell.loss), name
            moved = [key for key in cell.begun if not numpy.array_equal(cell.weights[key], cell.begun[key])]
            assert {key for key in cell.begun if key.startswith("layers.1.")} <= {*moved}, name
        if kind == "sometimes":  # no image has moved it, and no decay of weights
            spare = [key for key in cell.weights if ".spare." in key]
            assert all(numpy.array_equal(cell.weights[key], cell.begun[key]) for key in spare), name


def test_stages_that_are_not_the_forward_pass_or_would_each_train_a_layer_are_refused() -> None:
    for kind in ("relu", "dropout"):
        assert refused("gpipe", kind).startswith("--strategy must be other than gpipe for tests.support.networks:build")
    for kind in ("tied", "norm"):
        assert "two of whose layers share weights" in refused("model_parallel", kind)


def test_ddp_trains_a_network_that_leaves_out_parameters_with_its_options(tmp_path: Path) -> None:
    options = ({"accumulate": 2}, {"strategy_options": {"comm_hook": "fp16"}}, {"bucket_cap_mb": 0.001})
    configs = [config("ddp", "sometimes", **values) for values in options]
    plain = config("ddp", "sometimes", topology="1x1")
    *cells, one = cells_on_ranks(configs[0], [*configs, plain], tmp_path, None)
    for cell, close in zip(cells, (CLOSE, 1e-2, CLOSE), strict=True):
        assert (cell.error, len(set(cell.digests))) == ("", 1)
        assert difference(cell.weights, one.weights) < close


def test_a_parameter_that_only_the_training_leaves_out_is_refused_at_its_first_step(tmp_path: Path) -> None:
    """The check before the start, with two images, sees nothing; both workers end with the sentence."""
    names = ("fsdp", "parameter_server", "ddp")
    configs = [config(name, "few") for name in names]
    with ServerHost(("127.0.0.1", 0), AUTHKEY) as host:
        sharded, served, plain = cells_on_ranks(configs[0], configs, tmp_path, host.address)
    sentence = "ConfigError: strategy must be other than {} where a step leaves out a parameter, "
    assert sharded.error.startswith(sentence.format("fsdp"))
    assert "layers.3.few.weight" in sharded.error
    assert served.error.startswith(sentence.format("parameter_server"))
    assert (plain.error, len(set(plain.digests))) == ("", 1)
