"""What the ranks of a strategy tell each other, with real messages between threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.loader import MicroBatch
from cifar_ray.strategies import gradients, layout
from cifar_ray.strategies.served_weights import ParameterServer
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import optimizer
from cifar_ray.training.stopping import Stopper
from tests.support.helpers import resolved
from tests.support.threads import on_threads

BATCH = 16
config = partial(resolved, {"dataset": "digits", "model": "simple_cnn", "precision": "fp32", "momentum": 0.9})


def model(norm: bool = False) -> nn.Sequential:
    """Small, of the same weights every time, with a convolution whose gradient is laid out channels last."""
    generator = torch.Generator().manual_seed(7)
    made = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5) if norm else nn.Identity(), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return made


def whole(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


def micro_batches(wanted: TrainConfig, worker: Worker, step: int) -> Iterator[MicroBatch]:
    data_shard = strategies.of(wanted).data_shard(wanted, worker)
    images, labels = (
        part.chunk(data_shard.shares)[data_shard.index].chunk(data_shard.micro_batches) for part in whole(step)
    )
    yield from (MicroBatch(*pair, seed=0) for pair in zip(images, labels, strict=True))


def ready(
    wanted: TrainConfig, worker: Worker, norm: bool = False, mark: list[str] | None = None
) -> strategies.Strategy:
    marks = mark if mark is not None else []
    context = strategies.StrategyContext(
        wanted, worker, model(norm), partial(optimizer.build, config=wanted), nn.CrossEntropyLoss(), marks.append
    )
    return strategies.build(context)


def trained(wanted: TrainConfig, worker: Worker, *, steps: int, norm: bool = False) -> dict[str, Tensor]:
    """The model after some steps and what a checkpoint does first."""
    strategy = ready(wanted, worker, norm)
    for step in range(steps):
        strategy.gradients(micro_batches(wanted, worker, step))
        strategy.step()
    strategy.consolidate()
    return {name: tensor.clone() for name, tensor in strategy.model.state_dict().items()}  # type: ignore[attr-defined]


def of(strategy: str, workers: int, **values: object) -> TrainConfig:
    return config(strategy=strategy, topology=f"1x{workers}", global_batch_size=BATCH, lr=0.3, **values)


def gradient_of_whole_batch() -> list[Tensor]:
    plain = model()
    images, labels = whole(0)
    nn.functional.cross_entropy(plain(images), labels).backward()
    return [parameter.grad for parameter in plain.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("strategy", ["gather_scatter", "send_recv", "all_reduce"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("workers", [2, 4])
def test_every_rank_has_the_mean_gradient_of_the_whole_batch(strategy: str, workers: int, accumulate: int) -> None:
    wanted = of(strategy, workers, accumulate=accumulate)

    def one(worker: Worker) -> tuple[list[Tensor], list[float]]:
        made = ready(wanted, worker)
        loss = made.gradients(micro_batches(wanted, worker, 0))
        found = [parameter.grad for parameter in made.model.parameters()]  # type: ignore[attr-defined]
        return found, made.losses(loss)

    expected = gradient_of_whole_batch()
    results = on_threads(workers, one)
    for found, losses in results:
        for gradient, right in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-6)
        assert all(map(torch.equal, found, results[0][0]))
        assert losses == results[0][1]  # of every rank, in the order of the ranks
        images, labels = whole(0)
        each = [
            nn.functional.cross_entropy(model()(part), own).item()
            for part, own in zip(images.chunk(workers), labels.chunk(workers), strict=True)
        ]
        assert losses == pytest.approx(each, rel=1e-4)


@pytest.mark.parametrize("strategy", ["gather_scatter", "send_recv", "all_reduce"])
def test_statistics_become_those_of_rank_0(strategy: str) -> None:
    def one(worker: Worker) -> tuple[Tensor, Tensor]:
        made = ready(of(strategy, 2), worker, norm=True)
        made.gradients(micro_batches(of(strategy, 2), worker, 0))
        mean = made.model[1].running_mean  # type: ignore[attr-defined]
        before = mean.clone()
        made.consolidate()
        return before, mean

    (own, consolidated), (other, received) = on_threads(2, one)
    assert not torch.equal(own, other)
    assert torch.equal(consolidated, own)
    assert torch.equal(received, own)


def test_reproducible_is_the_same_to_the_last_bit_at_any_number_of_workers() -> None:
    results = []
    for workers in (1, 2, 4):
        wanted = of("reproducible", workers, shards=4)
        results += on_threads(workers, partial(trained, wanted, steps=3, norm=True))
    assert len(results) == 7
    for weights in results[1:]:
        assert all(torch.equal(weights[name], tensor) for name, tensor in results[0].items())
    assert not torch.equal(results[0]["0.weight"], model(norm=True)[0].weight)
    assert results[0]["1.num_batches_tracked"] == 3


def test_shards_have_batch_statistics_of_their_own_and_their_mean_is_kept() -> None:
    wanted = of("reproducible", 1, shards=2)
    found = trained(wanted, Worker(), steps=1, norm=True)
    halves = []
    for part in whole(0)[0].chunk(2):
        plain = model(norm=True)
        plain(part)
        halves.append(plain[1])
    for name in ("running_mean", "running_var"):
        expected = (getattr(halves[0], name) + getattr(halves[1], name)) / 2
        torch.testing.assert_close(found[f"1.{name}"], expected, rtol=1e-4, atol=1e-6)


def test_local_sgd_averages_after_every_so_many_steps_and_not_between() -> None:
    wanted = of("local_sgd", 2, sync_every=2)

    def one(worker: Worker) -> list[Tensor]:
        made = ready(wanted, worker)
        found = []
        for step in range(4):
            made.gradients(micro_batches(wanted, worker, step))
            made.step()
            found.append(made.model[0].weight.detach().clone())  # type: ignore[attr-defined]
        return found

    first, second = on_threads(2, one)
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [False, True, False, True]


def test_an_average_is_that_of_all_ranks_but_whole_numbers_are_rank_0s() -> None:
    def one(worker: Worker) -> list[Tensor]:
        across = torch.arange(6.0).view(2, 3).t() * (worker.rank + 1)  # not contiguous
        tensors = [
            across,
            torch.full((2,), 10.0 * worker.rank),
            torch.tensor([5 + worker.rank]),
            torch.tensor(worker.rank),
        ]
        gradients.average(tensors)
        return tensors

    for across, mean, count, number in on_threads(2, one):
        assert torch.equal(across, torch.arange(6.0).view(2, 3).t() * 1.5)
        assert mean.tolist() == [5.0, 5.0]
        assert (count.tolist(), number.item()) == ([5], 0)


def test_whole_numbers_alone_are_rank_0s_too() -> None:
    def one(worker: Worker) -> int:
        number = torch.tensor(7 + worker.rank)
        gradients.average([number])
        return int(number)

    assert on_threads(2, one) == [7, 7]


def test_what_is_gathered_is_in_the_order_of_the_ranks() -> None:
    found = on_threads(3, lambda worker: [part.tolist() for part in gradients.gather(torch.tensor([1.0, worker.rank]))])
    assert found == [[[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]] * 3


def test_alone_there_is_nobody_to_tell() -> None:
    mine = torch.tensor([1.0, 2.0])
    assert [part is mine for part in gradients.gather(mine)] == [True]
    gradients.average([mine])
    assert mine.tolist() == [1.0, 2.0]


def test_neighbours_swap() -> None:
    def one(worker: Worker) -> float:
        received = torch.zeros(2)
        gradients.swap(torch.full((2,), float(worker.rank)), (worker.rank + 1) % 3, received, (worker.rank - 1) % 3)
        return received.unique().item()

    assert on_threads(3, one) == [2.0, 0.0, 1.0]


def test_a_flat_gradient_is_the_gradient_whatever_its_layout() -> None:
    made = model()
    images, labels = whole(0)
    nn.functional.cross_entropy(made(images), labels).backward()
    made[5].bias.grad = None
    vectors = gradients.flat_gradients(made)
    assert [len(vector) for vector in vectors] == [135, 5, 200]
    assert made[0].weight.grad is not None
    assert not made[0].weight.grad.is_contiguous()
    gradients.scatter_back(torch.arange(340.0), vectors)
    assert sorted(made[0].weight.grad.flatten().tolist()) == list(range(135))
    assert made[0].bias.grad is not None
    assert made[0].bias.grad.tolist() == [135, 136, 137, 138, 139]
    vectors[0].zero_()
    assert not made[0].weight.grad.any()


def test_a_models_parameters_lie_in_one_vector() -> None:
    made = model()
    before = [parameter.detach().clone() for parameter in made.parameters()]
    strides = [parameter.stride() for parameter in made.parameters()]
    vector = torch.zeros(layout.size(made))
    layout.move_into(vector, made)
    assert len(vector) == 135 + 5 + 200 + 10
    assert all(map(torch.equal, made.parameters(), before))
    assert [parameter.stride() for parameter in made.parameters()] == strides
    vector[140] = 99.0
    assert made[5].weight[0, 0] == 99.0
    assert [tuple(view.shape) for view in layout.views(vector, layout.of(made))] == [
        (5, 3, 3, 3),
        (5,),
        (10, 20),
        (10,),
    ]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_part_of_a_step_is_marked_when_it_ends(accumulate: int) -> None:
    wanted, marks = of("all_reduce", 1, accumulate=accumulate), []
    made = ready(wanted, Worker(), mark=marks)
    made.gradients(micro_batches(wanted, Worker(), 0))
    made.step()
    assert marks == ["data", "forward", "backward"] * accumulate + ["communication", "optimizer"]


def test_each_part_of_a_step_is_marked_by_reproducible() -> None:
    """A shard's passes; what prepares and ends the exchange counts to the backward pass."""
    wanted, marks = of("reproducible", 1, shards=2), []
    made = ready(wanted, Worker(), mark=marks)
    made.gradients(micro_batches(wanted, Worker(), 0))
    made.step()
    assert marks == ["data", "forward", "backward"] * 2 + ["backward", "communication", "backward", "optimizer"]


def test_every_batch_norm_moves_as_far_as_its_own_momentum_says() -> None:
    wanted = of("reproducible", 1, shards=2)
    layers: list[Any] = [
        *(nn.BatchNorm2d(3, momentum=momentum) for momentum in (0.5, 0.25, 0.125)),
        nn.Flatten(),
        nn.Linear(192, 10),
    ]
    context = strategies.StrategyContext(
        wanted, Worker(), nn.Sequential(*layers), partial(optimizer.build, config=wanted), nn.CrossEntropyLoss(), print
    )
    made = strategies.build(context)
    made.gradients(micro_batches(wanted, Worker(), 0))
    images, _ = whole(0)
    expected = torch.stack([part.mean((0, 2, 3)) for part in images.chunk(2)]).mean(0)
    torch.testing.assert_close(layers[0].running_mean, 0.5 * expected)
    # What the others are given has a mean of 0 and a variance of 1 in each shard, which begin at 0 and 1; so that
    # they move, they begin elsewhere.
    for layer in layers[1:3]:
        layer.running_mean += 8.0
        layer.running_var += 8.0
    made.gradients(micro_batches(wanted, Worker(), 0))
    for layer, left in ((layers[1], 6.0), (layers[2], 7.0)):
        torch.testing.assert_close(layer.running_mean, torch.full((3,), left), rtol=1e-2, atol=0.0)
        torch.testing.assert_close(layer.running_var, torch.full((3,), 1.0 + left), rtol=1e-2, atol=0.0)
    assert [int(layer.num_batches_tracked) for layer in layers[:3]] == [2, 2, 2]


@pytest.mark.parametrize(("kind", "deterministic"), [("cuda", True), ("cpu", False)])
def test_reproducible_has_a_gpu_choose_the_same_algorithm_every_time(
    kind: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    ready(of("reproducible", 1), Worker(device=torch.device(kind)))
    assert torch.backends.cudnn.deterministic is deterministic


def test_workers_of_hogwild_step_in_shared_weights_with_a_share_of_the_rate() -> None:
    """Two workers in turn: each sees the other's step, knows its loss, and how many steps it had missed."""
    wanted = of("hogwild", 2)

    def one(worker: Worker) -> tuple[list[Tensor], list[list[float]], dict[str, float]]:
        made = ready(wanted, worker)
        made.load(model().state_dict(), None)
        weights, losses = [], []
        for turn in (0, 1, 0):
            for group in made.optimizer.param_groups:
                group["lr"] = 0.3
            loss = made.gradients(micro_batches(wanted, worker, 0))
            made.barrier()  # type: ignore[attr-defined]
            if worker.rank == turn:
                losses.append(made.losses(loss))
                made.step()
            else:
                made.optimizer.zero_grad()
            made.barrier()  # type: ignore[attr-defined]
            weights.append(made.model[5].bias.detach().clone())  # type: ignore[attr-defined]
        made.consolidate()
        return weights, losses, made.figures()

    (weights, losses, figures), (others, theirs, same) = on_threads(2, one)
    assert all(map(torch.equal, weights, others))
    plain = model()
    images, labels = (part.chunk(2)[0] for part in whole(0))
    nn.functional.cross_entropy(plain(images), labels).backward()
    gradient = plain[5].bias.grad
    # Nesterov's first step is 1.9 gradients long.
    torch.testing.assert_close(weights[0], plain[5].bias.detach() - 0.15 * 1.9 * gradient)
    assert not torch.equal(weights[0], weights[1])
    first, second = losses
    assert first[0] == first[1]  # nothing was heard of rank 1 yet, and its own stands for it
    assert theirs[0][0] == first[0]
    assert second[1] == theirs[0][1] != second[0]
    assert figures == same == {"staleness/mean": 0.0, "staleness/max": 0.0}


def test_staleness_counts_the_steps_of_others_while_a_gradient_was_computed() -> None:
    wanted = of("hogwild", 2)

    def one(worker: Worker) -> dict[str, float]:
        made = ready(wanted, worker)
        made.load(model().state_dict(), None)
        assert made.figures() == {}
        for turns in ((0, 1), (1, 0)):
            made.gradients(micro_batches(wanted, worker, 0))
            made.barrier()  # type: ignore[attr-defined]
            for turn in turns:
                if worker.rank == turn:
                    made.step()
                made.barrier()  # type: ignore[attr-defined]
        return made.figures()

    # Each rank is once the second of both.
    assert on_threads(2, one) == [{"staleness/mean": 2 / 4, "staleness/max": 1.0}] * 2


def test_parts_of_a_step_of_fsdp_end_where_its_collectives_begin() -> None:
    wanted = of("fsdp", 2)

    def one(worker: Worker) -> list[str]:
        marks: list[str] = []
        made = ready(wanted, worker, mark=marks)
        made.gradients(micro_batches(wanted, worker, 0))
        made.step()
        return marks

    for marks in on_threads(2, one):
        assert set(marks) == {"data", "forward", "backward", "communication", "optimizer"}
        middle = marks.index("backward")
        assert "forward" not in marks[middle:]
        # A collective begins at a mark of the pass that waits for it, and ends with one of communication.
        assert marks[1:3] == ["forward", "communication"]
        assert marks[middle : middle + 2] == ["backward", "communication"]
        assert marks[-1] == "optimizer"


def test_a_parameter_server_begins_with_what_the_config_says() -> None:
    begun: list[Any] = []

    class Told(ParameterServer):
        def reset(self, generation: str, start: Any) -> None:
            begun.append(start)
            super().reset(generation, start)

    wanted = of("parameter_server", 1, max_staleness=3, staleness_weighting="inverse")
    context = strategies.StrategyContext(
        wanted, Worker(), model(), partial(optimizer.build, config=wanted), nn.CrossEntropyLoss(), print, Told()
    )
    made = strategies.build(context)
    made.load(model().state_dict(), None)
    (start,) = begun
    assert (start.world_size, start.max_staleness, start.weighting, start.state) == (1, 3, "inverse", None)
    assert len(start.weights) == 135 + 5 + 200 + 10


def test_all_ranks_leave_after_the_same_step() -> None:
    def one(worker: Worker) -> list[bool]:
        steps: list[bool] = []

        def asked() -> bool:
            assert worker.rank == 0, "the others hear it from rank 0"
            return len(steps) >= 2

        stopper = Stopper(worker, asked, 10)
        while len(steps) < 6:
            steps.append(stopper.agreed())
        return steps

    assert on_threads(2, one) == [[False, False, False, True, True, True]] * 2


def test_a_run_that_nobody_may_stop_sends_nothing() -> None:
    assert on_threads(2, lambda worker: [Stopper(worker, None, 10).agreed() for _ in range(2)]) == [[False, False]] * 2
