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


@pytest.mark.parametrize("name", strategies.NAMES)
def test_every_file_opens_with_what_it_promises(name: str) -> None:
    about = strategies.about(name)
    assert about.summary.endswith(".")
    assert about.label in ("exact", "close", "different")
    assert about.condition
    assert about.source
    assert "``" not in about.messages + about.bytes
    assert about.cost.endswith(".")


def test_an_opening_is_read_into_its_parts() -> None:
    assert strategies.about("local_sgd") == strategies.About(
        summary="Every rank takes optimizer steps of its own, and every few steps the replicas are averaged.",
        label="different",
        condition="Between two averages the replicas drift apart; the fewer the averages, the less is sent",
        source='Lin et al. 2018, "Don\'t Use Large Mini-Batches, Use Local SGD" (without its start of synchronous '
        "steps); Yu, Jin and Yang 2019 for averaging the momentum too.",
        messages="1 / N",
        bytes="(G + O + B) / N",
        cost="One all-reduce every ``sync_every`` N steps: of all weights, which are as large as the gradients "
        "(G bytes), of the optimizer's state (O bytes: G for SGD's momentum, twice that for AdamW) and of batch norm's "
        "running statistics (B bytes).",
    )
    assert {name: strategies.about(name).label for name in strategies.NAMES if name not in CLOSE} == {
        **dict.fromkeys(("model_parallel", "reproducible"), "exact"),
        **dict.fromkeys(("local_sgd", "parameter_server", "hogwild"), "different"),
    }
    assert all(strategies.about(name).label == "close" for name in CLOSE)


CLOSE = ("gather_scatter", "send_recv", "all_reduce", "ddp", "data_parallel", "fsdp", "gpipe", "one_f_one_b")


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


def test_the_list_shows_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["strategies"]) == 0
    shown = capsys.readouterr().out
    for name in strategies.NAMES:
        assert f"{name}: {strategies.about(name).label}\n" in shown


def test_one_strategy_is_listed_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["strategies", "gpipe"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("gpipe: close what A pipeline: ")
    assert shown.endswith(
        "options of gpipe: --strategy-options.micro-batches INT Micro-batches per global batch. (default: 4)"
    )
    assert main.main(["strategies", "all_reduce"]) == 0
    assert capsys.readouterr().out.endswith("\nall_reduce has no options of its own\n")


def test_the_reports_lists_are_those_of_the_program() -> None:
    """Reports know no torch, and so have lists of their own."""
    classes = {name: strategies.named(name) for name in strategies.NAMES}
    assert {name for name, one in classes.items() if not one.synchronous} == set(figures.ASYNCHRONOUS)
    assert set(reported.PLAIN_ALONE) < set(strategies.NAMES)
    assert figures.STEP_PARTS == clock.PARTS


REFUSED = [
    ({"strategy": "data_parallel", "device": "cpu"}, "strategy data_parallel needs several GPUs in one process; on CPUs, use ddp"),
    ({"strategy": "data_parallel", "topology": "1x2"}, "topology must be 1x1 for data_parallel, whose one process has --gpus-per-worker GPUs, got 1x2"),
    ({"strategy": "data_parallel"}, "gpus_per_worker must be at least 2, got 1; for one GPU, use ddp"),
    ({"strategy": "reproducible", "strategy_options": {"shards": 6}}, "strategy_options.shards must be a power of two, got 6"),
    ({"strategy": "reproducible", "topology": "1x3", "batch_size": 16}, "strategy_options.shards must be a multiple of the workers, so that each has as many, got 4 for 3"),
    ({"strategy": "reproducible", "topology": "2x4"}, "strategy_options.shards must be a multiple of the workers, so that each has as many, got 4 for 8"),
    ({"strategy": "reproducible", "global_batch_size": 90, "topology": "1x2"}, "strategy_options.shards must divide the global batch of 90 images, got 4"),
    ({"strategy": "reproducible", "accumulate": 2}, "accumulate is for --strategy gather_scatter, "),
    ({"strategy": "all_reduce", "strategy_options": {"comm_hook": "fp16"}}, "strategy_options.comm_hook is no option of all_reduce, which has none"),
    ({"strategy": "ddp", "strategy_options": {"shards": 8}}, "strategy_options.shards is no option of ddp, which has comm_hook"),
    ({"strategy": "reproducible", "batch_size": 4, "model": "resnet50"}, "strategy_options.shards must leave at least 2 in each pass of --model resnet50, which cannot take 1 image of 3x32x32 at once: "),
    ({"strategy": "hogwild", "topology": "2x1"}, "topology must be on one node (1xWORKERS) for hogwild, got 2x1"),
    ({"strategy": "hogwild", "device": "cuda"}, "device must be cpu for hogwild, whose workers share the node's memory"),
    ({"strategy": "gpipe"}, "topology must have at least 2 workers for --strategy gpipe, got 1x1: a pipeline of one stage is plain training, --strategy ddp"),
    ({"strategy": "model_parallel", "topology": "1x5", "batch_size": 8}, "topology must have at most 4 workers for --strategy model_parallel with this simple_cnn, one for each layer that has parameters, got 1x5"),
    ({"strategy": "gpipe", "topology": "1x2", "strategy_options": {"micro_batches": 3}, "global_batch_size": 64}, "strategy_options.micro_batches must divide the global batch of 64 images, got 3"),
    ({"strategy": "one_f_one_b", "topology": "1x4", "strategy_options": {"micro_batches": 2}}, "strategy_options.micro_batches must be at least the number of workers (4) for --strategy one_f_one_b, got 2"),
    ({"strategy": "gpipe", "topology": "1x2", "strategy_options": {"micro_batches": "many"}}, "strategy_options.micro_batches must be a whole number, got 'many'"),
    ({"strategy": "all_reduce", "strategy_options": {"model": 1}}, "strategy_options.model is no option of all_reduce, which has none"),
    ({"strategy": "gpipe", "topology": "1x2", "accumulate": 2}, "accumulate is for --strategy "),
    ({"strategy": "model_parallel", "topology": "1x2", "strategy_options": {"micro_batches": 2}}, "strategy_options.micro_batches is no option of model_parallel, which has none"),
    ({"strategy": "gpipe", "topology": "1x2", "model": "resnet50", "global_batch_size": 8, "strategy_options": {"micro_batches": 8}}, "strategy_options.micro_batches must leave at least 2 in each pass of --model resnet50, which cannot take 1 image of 3x32x32 at once: "),
    ({"strategy": "data_parallel", "gpus_per_worker": 3, "batch_size": 50, "accumulate": 2}, "global_batch_size must be a multiple of GPUs x accumulation (3 x 2), got 100"),
    ({"strategy": "ring"}, "strategy must be gather_scatter, send_recv, "),
    ({"steps_per_epoch": 12, "batch_size": 128}, "steps_per_epoch must be at most 11, the global batches of 128 images in digits, got 12"),
    ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "sentence"), REFUSED)
def test_what_cannot_be_is_told_in_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolved({"dataset": "digits", "model": "simple_cnn"}, **values)
    assert str(refusal.value).startswith(sentence)


def test_data_parallel_is_refused_where_only_cpus_are_found() -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", strategy="data_parallel", gpus_per_worker=2))
    with pytest.raises(ConfigError, match="strategy data_parallel needs several GPUs in one process"):
        recipe.check_place(config, replace(Decided.asked(config), device="cpu"))


def test_shards_are_added_up_in_one_tree_however_they_are_dealt_out() -> None:
    """Numbers of very different size, for which every other order of additions gives another sum."""
    torch.manual_seed(0)
    shards = list(torch.randn(8, 1000) * 10.0 ** torch.randint(-6, 6, (8, 1000)))
    whole = reproducible._tree(shards)
    for workers in (2, 4, 8):
        share = 8 // workers
        parts = [reproducible._tree(shards[rank * share : (rank + 1) * share]) for rank in range(workers)]
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
    usual = {
        "dataset": "digits",
        "strategy": "data_parallel",
        "gpus_per_worker": 3,
        "batch_size": 48,
    }
    worker = Worker(gpus=(1, 0, 2))  # in the order in which Ray has given them
    strategy = built(resolved(usual, precision="bf16"), torch.nn.Sequential(torch.nn.Linear(4, 2)), worker)
    assert made == [[1, 0, 2]]
    assert strategy.forward(torch.ones(5, 4)).dtype == torch.bfloat16
    assert strategy.differs == "nothing"


def test_workers_with_one_image_each_have_enough_for_batch_norm_together() -> None:
    usual = {"dataset": "digits", "strategy": "model_parallel", "topology": "1x2", "model": "resnet50"}
    assert resolved(usual, global_batch_size=2).images_per_worker == 1


def test_the_gpus_of_a_worker_are_seeded_and_no_other_and_none_where_a_cpu_computes(
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
