"""What the ranks of a strategy exchange, with real messages between threads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import strategies
from cifar_ray.config.train import TrainConfig
from cifar_ray.data.loader import MicroBatch
from cifar_ray.strategies import gradients
from cifar_ray.strategies.served_weights import ParameterServer, Start
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import optimizer
from cifar_ray.training.stopping import Stopper
from tests.support.helpers import built, resolved
from tests.support.threads import on_threads

BATCH = 16
EXCHANGING = ["gather_scatter", "send_recv", "all_reduce", "ddp"]
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
    yield from (MicroBatch(*pair, seed=0, divisor=len(pair[0])) for pair in zip(images, labels, strict=True))


def of(strategy: str, workers: int, **values: object) -> TrainConfig:
    return config(strategy=strategy, topology=f"1x{workers}", global_batch_size=BATCH, lr=0.3, **values)


def backward(part: slice = slice(None)) -> tuple[float, list[Tensor]]:
    """The loss of a part of the first global batch, and its gradients."""
    plain = model()
    images, labels = whole(0)
    loss = nn.functional.cross_entropy(plain(images[part]), labels[part])
    loss.backward()
    return loss.item(), [parameter.grad for parameter in plain.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("strategy", EXCHANGING)
@pytest.mark.parametrize(("workers", "accumulate"), [(2, 2), (4, 1)])
def test_every_rank_has_the_mean_gradient_of_the_whole_batch(strategy: str, workers: int, accumulate: int) -> None:
    wanted = of(strategy, workers, accumulate=accumulate)

    def one(worker: Worker) -> tuple[list[Tensor], list[float]]:
        made = built(wanted, model(), worker)
        loss = made.gradients(micro_batches(wanted, worker, 0))
        return [parameter.grad for parameter in made.model.parameters()], made.losses(loss)

    share = BATCH // workers
    each = [backward(slice(rank * share, (rank + 1) * share))[0] for rank in range(workers)]
    results = on_threads(workers, one)
    for found, losses in results:
        torch.testing.assert_close(found, backward()[1], rtol=1e-4, atol=1e-6)
        assert all(map(torch.equal, found, results[0][0]))
        assert losses == results[0][1] == pytest.approx(each, rel=1e-4)


def step(made: Any, wanted: TrainConfig, worker: Worker, number: int) -> None:
    made.gradients(micro_batches(wanted, worker, number))
    made.step()


def ready(wanted: TrainConfig, worker: Worker, norm: bool = False, **more: Any) -> Any:
    """The strategy over the same weights on every rank."""
    made = built(wanted, model(norm), worker, **more)
    made.load(model(norm).state_dict(), None)
    return made


@pytest.mark.parametrize("strategy", EXCHANGING)
def test_statistics_become_those_of_rank_0_at_an_evaluation_or_a_checkpoint(strategy: str) -> None:
    wanted = of(strategy, 2)

    def one(worker: Worker) -> tuple[Tensor, Tensor]:
        made = built(wanted, model(norm=True), worker)
        for number in range(2):
            made.gradients(micro_batches(wanted, worker, number))
        before = made.model[1].running_mean.clone()
        made.consolidate()
        return before, made.model[1].running_mean

    (own, consolidated), (other, received) = on_threads(2, one)
    alone = model(norm=True)
    for number in range(2):
        alone(whole(number)[0][BATCH // 2 :])
    torch.testing.assert_close(other, alone[1].running_mean)
    assert [torch.equal(own, each) for each in (other, consolidated, received)] == [False, True, True]


def test_reproducible_is_the_same_to_the_last_bit_at_any_number_of_workers() -> None:
    def trained(wanted: TrainConfig, worker: Worker) -> dict[str, Tensor]:
        made = built(wanted, model(norm=True), worker)
        for number in range(3):
            step(made, wanted, worker, number)
        made.consolidate()
        return made.model.state_dict()

    first, *others = (
        weights
        for workers in (1, 2, 4)
        for weights in on_threads(
            workers, partial(trained, of("reproducible", workers, strategy_options={"shards": 4}))
        )
    )
    for weights in others:
        assert all(torch.equal(weights[name], tensor) for name, tensor in first.items())
    assert not torch.equal(first["0.weight"], model(norm=True)[0].weight)
    assert first["1.num_batches_tracked"] == 3


def test_local_sgd_averages_after_every_so_many_steps_and_not_between() -> None:
    """Weights, batch norm's statistics and momentum."""
    wanted = of("local_sgd", 2, strategy_options={"sync_every": 2})

    def one(worker: Worker) -> list[list[Tensor]]:
        made, found = ready(wanted, worker, norm=True), []
        for number in range(4):
            step(made, wanted, worker, number)
            assert made.may_pause == (number % 2 == 1)
            kept = made.optimizer.state[made.model[5].bias]["momentum_buffer"]
            found.append([tensor.clone() for tensor in (made.model[0].weight, made.model[1].running_var, kept)])
        return found

    first, second = on_threads(2, one)
    equal = [list(map(torch.equal, *both)) for both in zip(first, second, strict=True)]
    assert equal == [[False] * 3, [True] * 3, [False] * 3, [True] * 3]


def test_a_rank_without_a_state_for_a_parameter_counts_as_zeros() -> None:
    wanted = config()

    def one(worker: Worker) -> bool:
        made = optimizer.build(model(), wanted)
        for parameter in gradients.numbered(made):
            parameter.grad = torch.ones_like(parameter)
        made.step()
        for state in made.state.values():
            state["step"] = torch.tensor(4.0)
        last = gradients.numbered(made)[-1]
        momentum = made.state[last]["momentum_buffer"].clone()
        if worker.rank == 1:
            made.state.pop(last)
        gradients.average_with_state([torch.ones(1)], made)
        found = made.state[last]
        return torch.equal(found["momentum_buffer"], momentum / 2) and torch.equal(found["step"], torch.tensor(2.0))

    assert on_threads(2, one) == [True, True]
    unused = model()
    assert [len(vector) for vector in gradients.flat_gradients(gradients.learning(unused))] == [135, 5, 200, 10]
    assert unused[5].bias.grad.tolist() == [0] * 10


def test_a_parameter_is_used_if_any_rank_has_used_it() -> None:
    def one(worker: Worker) -> list[bool]:
        parameters = [*model().parameters()]
        parameters[worker.rank].grad = torch.zeros_like(parameters[worker.rank])
        used = gradients.used_on_any_rank(parameters)
        return [any(parameter is each for each in used) for parameter in parameters]

    assert on_threads(2, one) == [[True, True, False, False]] * 2


def test_an_average_is_that_of_all_ranks_but_whole_numbers_are_rank_0s() -> None:
    def one(worker: Worker) -> tuple[Tensor, object]:
        across = torch.arange(6.0).view(2, 3).t() * (worker.rank + 1)  # not contiguous
        mean, counts = torch.full((2,), 10.0 * worker.rank), torch.tensor([5 + worker.rank])
        number, alone = torch.tensor(worker.rank), torch.tensor(7 + worker.rank)
        gradients.average([across, mean, counts, number])
        gradients.average([alone])
        return across, (mean.tolist(), counts.tolist(), number.item(), alone.item())

    for across, others in on_threads(2, one):
        assert torch.equal(across, torch.arange(6.0).view(2, 3).t() * 1.5)
        assert others == ([5.0, 5.0], [5], 0, 7)
    mine = torch.tensor([1.0, 2.0])  # alone there is nothing to exchange
    gradients.average([mine])
    assert (gradients.gather(mine)[0] is mine, mine.tolist()) == (True, [1.0, 2.0])


WORDS = {"d": "data", "f": "forward", "b": "backward", "c": "communication", "o": "optimizer", "x": "other"}


@pytest.mark.parametrize(
    ("strategy", "values", "marks"),
    [
        ("all_reduce", {"accumulate": 2}, ["dfbdfbco"]),
        ("local_sgd", {}, ["dfbcoc"]),
        ("hogwild", {}, ["dfbco"]),
        ("parameter_server", {}, ["dfbcc"]),
        ("parameter_server", {"strategy_options": {"push_every": 3}}, ["dfbco"]),
        # A shard's passes; what prepares and ends the exchange counts to the backward pass.
        ("reproducible", {"strategy_options": {"shards": 2}}, ["dfbdfbbcbo"]),
        # DDP waits with its last bucket until the backward pass has ended; what is then waited for is communication.
        ("ddp", {"accumulate": 2}, ["dfbdfbco"] * 2),
        # Two layers are gathered for each pass, and their gradients scattered.
        ("fsdp", {"accumulate": 2}, ["dfcfcfbcbcbdfcfcfbcbcbcbcbco"] * 2),
        # The last stage computes a loss for each micro-batch; that all ranks hear of it is no part.
        ("model_parallel", {}, ["dcfcbcxo", "dcfcfcbcxo"]),
        ("gpipe", {"strategy_options": {"micro_batches": 2}}, ["dcfcfcbcbcxo", "dcfcfcfcfcbcbcxo"]),
        ("one_f_one_b", {"strategy_options": {"micro_batches": 2}}, ["dcfcfcbcbcxo", "d" + 2 * "cfcfcb" + "cxo"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_each_part_of_a_step_is_marked_when_it_ends(strategy: str, values: dict[str, object], marks: list[str]) -> None:
    wanted = of(strategy, len(marks), **values)

    def one(worker: Worker) -> list[str]:
        found: list[str] = []
        made = ready(wanted, worker, mark=found.append, server=ParameterServer())
        for number in range(2):
            found.clear()
            step(made, wanted, worker, number)
        return found

    assert on_threads(len(marks), one) == [[WORDS[letter] for letter in each] for each in marks]


def test_every_batch_norm_moves_as_far_as_its_own_momentum_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean of the statistics that each shard has of its own images."""
    wanted = of("reproducible", 1, strategy_options={"shards": 2})
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    for kind in ("cpu", "cuda"):  # a GPU is to choose the same algorithms every time
        built(wanted, model(), Worker(device=torch.device(kind)))
        assert torch.backends.cudnn.deterministic is (kind == "cuda")
    layers: list[Any] = [nn.BatchNorm2d(3, momentum=0.5), nn.BatchNorm2d(3, momentum=0.25)]
    made = built(wanted, nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 10)))
    made.gradients(micro_batches(wanted, Worker(), 0))
    halves = whole(0)[0].chunk(2)
    for found, begin, each in (
        (layers[0].running_mean, 0.0, [part.mean((0, 2, 3)) for part in halves]),
        (layers[0].running_var, 1.0, [part.transpose(0, 1).flatten(1).var(1) for part in halves]),
    ):
        torch.testing.assert_close(found, 0.5 * begin + 0.5 * torch.stack(each).mean(0))
    # What the second is given has a mean of 0 and a variance of 1 in each shard, where it begins; so that it moves, it
    # begins elsewhere.
    layers[1].running_mean += 8.0
    layers[1].running_var += 8.0
    made.gradients(micro_batches(wanted, Worker(), 0))
    torch.testing.assert_close(layers[1].running_mean, torch.full((3,), 6.0), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(layers[1].running_var, torch.full((3,), 7.0), rtol=1e-2, atol=0.0)
    assert [int(layer.num_batches_tracked) for layer in layers] == [2, 2]


def test_a_batch_norm_without_momentum_has_the_mean_of_all_steps() -> None:
    wanted = of("reproducible", 1, strategy_options={"shards": 2})
    norm = nn.BatchNorm2d(3, momentum=None)
    made = built(wanted, nn.Sequential(norm, nn.Flatten(), nn.Linear(192, 10)))
    for step in range(2):
        made.gradients(micro_batches(wanted, Worker(), step))
    means = torch.stack([whole(step)[0].mean((0, 2, 3)) for step in range(2)])
    torch.testing.assert_close(norm.running_mean, means.mean(0))


def test_workers_of_hogwild_step_in_shared_weights_with_a_share_of_the_rate() -> None:
    """Two workers in turn: each sees the other's step, knows its loss, and how many steps it had missed."""
    wanted = of("hogwild", 2, weight_decay=0.0)

    def one(worker: Worker) -> tuple[list[list[Tensor]], list[list[float]], dict[str, float]]:
        made, weights, losses = ready(wanted, worker), [], []
        for turn in (0, 1, 0):
            for group in made.optimizer.param_groups:
                group["lr"] = 0.3
            loss = made.gradients(micro_batches(wanted, worker, 0))
            made.barrier()
            if worker.rank == turn:
                losses.append(made.losses(loss))
                made.step()
            else:
                made.optimizer.zero_grad()
            made.barrier()
            weights.append([parameter.detach().clone() for parameter in made.model.parameters()])
        made.consolidate()
        return weights, losses, made.figures()

    (weights, losses, figures), (others, theirs, same) = on_threads(2, one)
    for each, other in zip(weights, others, strict=True):
        assert all(map(torch.equal, each, other))
    # Nesterov's first step is 1.9 gradients long.
    moved = [after - before for after, before in zip(weights[0], model().parameters(), strict=True)]
    torch.testing.assert_close(moved, [-0.15 * 1.9 * gradient for gradient in backward(slice(8))[1]])
    assert not torch.equal(weights[0][0], weights[1][0])
    first, second = losses
    assert first[0] == first[1] == theirs[0][0]  # nothing was heard of rank 1 yet, and one's own stands for it
    assert second[1] == theirs[0][1] != second[0]
    assert figures == same == {"staleness/mean": 0.0, "staleness/max": 0.0}


def test_staleness_counts_the_steps_of_others_while_a_gradient_was_computed() -> None:
    wanted = of("hogwild", 2)

    def one(worker: Worker) -> dict[str, float]:
        made = ready(wanted, worker)
        assert made.figures() == {}
        for number in range(2):
            made.gradients(micro_batches(wanted, worker, number))
            made.barrier()
            for turn in range(2):  # rank 1 is the second of both each time
                if worker.rank == turn:
                    made.step()
                made.barrier()
        return made.figures()

    assert on_threads(2, one) == [{"staleness/mean": 2 / 4, "staleness/max": 1.0}] * 2


def test_workers_of_a_parameter_server_push_to_one_optimizer_with_a_share_of_the_rate() -> None:
    """Two workers in turn, of which the second has a gradient of weights that have moved."""
    wanted = of("parameter_server", 2, strategy_options={"max_staleness": 3, "staleness_weighting": "inverse"})
    begun: list[Start] = []

    class Recording(ParameterServer):
        def reset(self, start: Start) -> None:
            begun.append(start)
            super().reset(start)

    server = Recording()

    def one(worker: Worker) -> tuple[dict[str, Tensor], dict[str, Any], list[list[float]], dict[str, float]]:
        made = ready(wanted, worker, server=server)
        loss = made.gradients(micro_batches(wanted, worker, 0))
        losses = [made.losses(loss)]
        for turn in range(2):
            if worker.rank == turn:
                made.step()
                losses.append(made.losses(loss))
            made.barrier()
        made.consolidate()
        return copy.deepcopy(made.model.state_dict()), made.state(), losses, made.figures()

    first, second = on_threads(2, one)
    parts = [backward(slice(8)), backward(slice(8, 16))]
    plain = model()
    expected = optimizer.build(plain, wanted)
    for lr, (_, each) in zip((0.3 / 2, 0.3 / 2 / 2), parts, strict=True):  # the second has missed one update
        for group in expected.param_groups:
            group["lr"] = lr
        for parameter, gradient in zip(plain.parameters(), each, strict=True):
            parameter.grad = gradient
        expected.step()
    torch.testing.assert_close(dict(first[0]), dict(plain.state_dict()))
    assert all(torch.equal(second[0][name], value) for name, value in first[0].items())
    for number, kept in expected.state_dict()["state"].items():
        torch.testing.assert_close(first[1]["state"][number]["momentum_buffer"], kept["momentum_buffer"])
    assert second[1]["state"] == {}
    one_loss, other_loss = (pytest.approx(loss, rel=1e-4) for loss, _ in parts)
    assert first[2] == [[one_loss, one_loss]] * 2  # one's own stands for that of a rank not heard of yet
    assert second[2] == [[other_loss, other_loss], [one_loss, other_loss]]
    assert first[3] == second[3] == {"staleness/mean": 0.5, "staleness/max": 1.0, "staleness/ahead_max": 1.0}
    (start,) = begun
    assert (start.world_size, start.max_staleness, start.weighting, start.states) == (2, 3, "inverse", {})


def test_between_two_pushes_a_worker_moves_its_own_copy_and_then_pushes_the_sum() -> None:
    """Three steps with a push in every second one, and of what is left at a checkpoint."""
    wanted = of("parameter_server", 1, strategy_options={"push_every": 2})
    made = ready(wanted, Worker(), server=ParameterServer())
    held, own = model(), model()
    pushed = optimizer.build(held, wanted)
    for number, is_pushed in enumerate((False, True, True)):
        step(made, wanted, Worker(), number)
        assert made.may_pause == (number == 1)
        if number == 2:
            made.consolidate()
        images, labels = whole(number)
        found = torch.autograd.grad(nn.functional.cross_entropy(own(images), labels), list(own.parameters()))
        with torch.no_grad():
            for mine, other, gradient in zip(own.parameters(), held.parameters(), found, strict=True):
                other.grad = gradient if other.grad is None else other.grad + gradient
                mine.add_(gradient, alpha=-0.3)
        if is_pushed:
            pushed.step()
            pushed.zero_grad()
            own.load_state_dict(held.state_dict())
        torch.testing.assert_close(dict(made.model.state_dict()), dict(own.state_dict()), rtol=1e-4, atol=1e-6)


def test_a_pipelines_bubble_is_the_share_of_time_in_which_stages_wait() -> None:
    """Two stages that compute for 3 and 2 of 10 seconds wait for 7 and 8 of them; rank 0's time is the schedule's."""
    wanted = of("gpipe", 2, strategy_options={"micro_batches": 4})
    times = [{"forward": 1.0, "backward": 2.0, "communication": 7.0}, {"data": 1.0, "forward": 2.0}]

    def one(worker: Worker) -> list[dict[str, float]]:
        made = built(wanted, model(), worker)
        return [made.figures(), made.figures([{}, {}]), made.figures(times)]

    theory = {"bubble/theory": 1 / 5}
    assert on_threads(2, one) == [[theory, theory, {**theory, "bubble/measured": pytest.approx(0.75)}]] * 2


def test_all_ranks_leave_after_the_same_step_and_talk_seldom_in_short_steps() -> None:
    questions: list[int] = []

    def one(worker: Worker) -> int:
        step = 0

        def asked() -> bool:
            assert worker.rank == 0, "the others hear it from rank 0"
            questions.append(step)
            return len(questions) > 3

        stopper = Stopper(worker, asked, 10)
        while not stopper.agreed():
            step += 1
            assert step < 10_000
        return step

    first, second = on_threads(2, one)
    assert first == second > len(questions) == 4
