from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cifar_ray import strategies
from cifar_ray.cli import main
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.loader import DataShard
from cifar_ray.reporting import figures
from cifar_ray.reporting import scaling as reported
from cifar_ray.strategies import reproducible
from cifar_ray.strategies.worker import Worker, seed
from cifar_ray.training import clock, recipe
from tests.support.helpers import built, resolved


def test_every_file_opens_with_what_it_promises() -> None:
    labels = dict.fromkeys(strategies.NAMES, "close") | dict.fromkeys(("model_parallel", "reproducible"), "exact")
    labels |= dict.fromkeys(("local_sgd", "parameter_server", "hogwild"), "different")
    for name in strategies.NAMES:
        about = strategies.about(name)
        assert (about.label, bool(about.condition and about.source)) == (labels[name], True)
        assert (about.summary[-1], about.cost[-1], "``" in about.messages + about.bytes) == (".", ".", False)
    about = strategies.about("local_sgd")
    assert (about.messages, about.bytes) == ("1 / N", "(G + O + B) / N")


FIRST, LATER = DataShard(one_shape=True), DataShard(inputs=False, one_shape=True)


@pytest.mark.parametrize(
    ("strategy", "topology", "values", "at_once", "shards"),
    [
        ("all_reduce", "1x2", {"accumulate": 2}, 12, [DataShard(0, 2, 2), DataShard(1, 2, 2)]),
        ("hogwild", "1x2", {}, 24, [DataShard(0, 2), DataShard(1, 2)]),
        ("reproducible", "1x2", {"strategy_options": {"shards": 8}}, 6, [DataShard(0, 2, 4), DataShard(1, 2, 4)]),
        ("data_parallel", "1x1", {"gpus_per_worker": 3}, 16, [DataShard()]),
        ("model_parallel", "1x2", {}, 48, [FIRST, LATER]),
        ("gpipe", "1x4", {"strategy_options": {"micro_batches": 3}}, 16, [FIRST, *[LATER] * 3]),
        ("one_f_one_b", "1x3", {"strategy_options": {"micro_batches": 3}}, 16, [FIRST, *[LATER] * 2]),
    ],
)
def test_each_rank_is_given_its_share_of_a_global_batch(
    strategy: str, topology: str, values: dict[str, object], at_once: int, shards: list[DataShard]
) -> None:
    """Of 48 images; ``at_once`` pass through the model together."""
    usual = {"dataset": "digits", "model": "simple_cnn", "global_batch_size": 48}
    config = resolved(usual, strategy=strategy, topology=topology, **values)
    found = strategies.of(config)
    assert found.at_once(config) == at_once
    assert [found.data_shard(config, Worker(rank, len(shards), rank)) for rank in range(len(shards))] == shards


def test_the_list_shows_every_strategy_and_one_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["gpipe"], ["all_reduce"]):
        assert main.main(["strategies", *words]) == 0
        shown = capsys.readouterr().out
        for name in words or strategies.NAMES:
            assert f"{name}: {strategies.about(name).label}\n" in shown
        assert ("--strategy-options.micro-batches INT" in shown) == (words == ["gpipe"])


def test_the_reports_lists_are_those_of_the_program() -> None:
    """Reports know no torch, and so have lists of their own."""
    classes = {name: strategies.named(name) for name in strategies.NAMES}
    assert {name for name, one in classes.items() if not one.synchronous} == set(figures.ASYNCHRONOUS)
    assert set(reported.PLAIN_ALONE) < set(strategies.NAMES)
    assert figures.STEP_PARTS == clock.PARTS


PIPELINE = {"strategy": "gpipe", "topology": "1x2"}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"strategy": "data_parallel", "device": "cpu"}, "strategy"),
        ({"strategy": "data_parallel", "topology": "1x2"}, "topology"),
        ({"strategy": "data_parallel"}, "gpus_per_worker"),
        ({"strategy": "data_parallel", "gpus_per_worker": 3, "batch_size": 50, "accumulate": 2}, "global_batch_size"),
        ({"strategy": "reproducible", "strategy_options": {"shards": 6}}, "strategy_options.shards"),
        ({"strategy": "reproducible", "topology": "1x3", "batch_size": 16}, "strategy_options.shards"),
        ({"strategy": "reproducible", "topology": "2x4"}, "strategy_options.shards"),
        ({"strategy": "reproducible", "global_batch_size": 90, "topology": "1x2"}, "strategy_options.shards"),
        ({"strategy": "reproducible", "accumulate": 2}, "accumulate"),
        ({"strategy": "all_reduce", "strategy_options": {"model": 1}}, "strategy_options.model"),
        ({"strategy": "ddp", "strategy_options": {"shards": 8}}, "strategy_options.shards"),
        ({"strategy": "hogwild", "topology": "2x1"}, "topology"),
        ({"strategy": "hogwild", "device": "cuda"}, "device"),
        ({"strategy": "gpipe"}, "topology"),
        ({"strategy": "model_parallel", "topology": "1x5", "batch_size": 8}, "topology"),
        (
            PIPELINE | {"strategy_options": {"micro_batches": 3}, "global_batch_size": 64},
            "strategy_options.micro_batches",
        ),
        (PIPELINE | {"strategy_options": {"micro_batches": "many"}}, "strategy_options.micro_batches"),
        (PIPELINE | {"accumulate": 2}, "accumulate"),
        (
            {"strategy": "one_f_one_b", "topology": "1x4", "strategy_options": {"micro_batches": 2}},
            "strategy_options.micro_batches",
        ),
        ({"strategy": "ring"}, "strategy"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolved({"dataset": "digits", "model": "simple_cnn"}, **values)
    assert refusal.value.key == key
    assert "None" not in str(refusal.value)


def test_data_parallel_is_refused_where_only_cpus_are_found() -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", strategy="data_parallel", gpus_per_worker=2))
    with pytest.raises(ConfigError, match="strategy data_parallel needs several GPUs in one process"):
        recipe.check_place(config, replace(Decided.asked(config), device="cpu"))


def test_shards_are_added_up_in_one_tree_however_they_are_dealt_out() -> None:
    """Numbers of very different size, for which every other order of additions gives another sum."""
    torch.manual_seed(0)
    shards = list(torch.randn(8, 1000) * 10.0 ** torch.randint(-6, 6, (8, 1000)))
    whole = reproducible._tree(shards)
    for share in (1, 2, 4):
        parts = [reproducible._tree(shards[begin : begin + share]) for begin in range(0, 8, share)]
        while len(parts) > 1:
            parts = [one + other for one, other in zip(parts[::2], parts[1::2])]
        assert torch.equal(parts[0], whole)
    assert not torch.equal(torch.stack(shards).sum(0), whole)


def test_data_parallel_spreads_the_model_over_all_gpus_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []

    def replicas(module: torch.nn.Module, device_ids: list[int]) -> torch.nn.Module:
        made.append(device_ids)
        return module

    monkeypatch.setattr(torch.nn, "DataParallel", replicas)
    usual = {"dataset": "digits", "strategy": "data_parallel", "gpus_per_worker": 3, "batch_size": 48}
    worker = Worker(gpus=(1, 0, 2))  # in the order in which Ray has given them
    strategy = built(resolved(usual, precision="bf16"), torch.nn.Sequential(torch.nn.Linear(4, 2)), worker)
    assert made == [[1, 0, 2]]
    assert strategy.forward(torch.ones(5, 4)).dtype == torch.bfloat16
    assert strategy.differs == "nothing"


def test_workers_with_one_image_each_have_enough_for_batch_norm_together() -> None:
    usual = {"dataset": "digits", "strategy": "model_parallel", "topology": "1x2", "model": "resnet50"}
    assert resolved(usual, global_batch_size=2).images_per_worker == 1


def test_the_gpus_of_a_worker_alone_are_seeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generators = [torch.Generator().manual_seed(1) for _ in range(4)]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    for value, (device, others, seeds) in enumerate(
        [("cpu", (), [1, 1, 1, 1]), ("cuda:2", (), [1, 1, 8, 1]), ("cuda:1", (1, 3), [1, 9, 8, 9])], start=7
    ):
        seed(value, torch.device(device), others)
        assert torch.default_generator.initial_seed() == value
        assert [generator.initial_seed() for generator in generators] == seeds
