from __future__ import annotations

import shlex
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from cifar_ray import data, models
from cifar_ray.config import imports, runfile
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.strategies.worker import Worker
from cifar_ray.training import hardware, optimizer, probe, recipe, step_times
from cifar_ray.training.clock import Clock
from cifar_ray.training.rank_times import PARTS, Spread, StepTimes
from tests.support import typed
from tests.support.helpers import resolved
from tests.support.learning import Lion
from tests.support.threads import on_threads

CPU = torch.device("cpu")


def config(**values: object) -> TrainConfig:
    plain = {"lr": 0.4, "warmup_epochs": 1.0, "epochs": 5, "batch_size": 128, "schedule": "cosine"}
    return recipe.resolve(TrainConfig(**{**plain, **values}))  # type: ignore[arg-type]


def rates(epochs: int = 5, **values: object) -> list[float]:
    return [optimizer.learning_rate(config(epochs=epochs, **values), step, 10) for step in range(10 * epochs)]


def test_the_learning_rate_rises_then_falls_as_its_schedule_says() -> None:
    cosine, constant, triangle = (rates(schedule=name) for name in ("cosine", "constant", "triangle"))
    assert cosine[:10] == pytest.approx([0.04 * step for step in range(1, 11)])
    assert (cosine[10], cosine[30], 0 < cosine[49] < 0.001) == (pytest.approx(0.4), pytest.approx(0.2), True)
    assert cosine[10:] == sorted(cosine[10:], reverse=True)
    assert set(constant[10:]) == {0.4}
    expected = {0: 0.08, 5: 0.24, 10: 0.4, 30: 0.4 * (1 - 0.93 / 2)}  # from a fifth, to a fourteenth
    assert {step: triangle[step] for step in expected} == pytest.approx(expected)
    assert triangle[49] == pytest.approx(0.4 * 0.07, abs=0.01)
    assert rates(warmup_epochs=0.0)[0] == pytest.approx(0.4)
    assert rates(2, warmup_epochs=2.0) == pytest.approx([0.02 * step for step in range(1, 21)])


def speednet(**values: object) -> ResolvedConfig:
    return recipe.resolve(TrainConfig(model="speednet", dataset="digits", global_batch_size=64, **values))  # type: ignore[arg-type]


def test_batch_norms_biases_learn_64_times_as_fast_and_decay_as_the_matrices() -> None:
    wanted = speednet(epochs=2)
    model = models.build(wanted, SPECS["digits"])
    made = optimizer.build(model, wanted)
    optimizer.schedule(made, wanted, 22, 22)
    biases = [module.bias for module in model if isinstance(module, nn.BatchNorm2d)]
    matrices, own, vectors = made.param_groups
    assert [id(bias) for bias in own["params"]] == [id(bias) for bias in biases]
    assert own["lr"] == pytest.approx(64 * matrices["lr"])
    assert own["lr"] * own["weight_decay"] == pytest.approx(matrices["lr"] * matrices["weight_decay"])
    assert [tuple(parameter.shape) for parameter in vectors["params"]] == [(24,)]  # the first convolution's bias
    assert (vectors["lr"], vectors["weight_decay"]) == (matrices["lr"], 0.0)


def test_lookahead_draws_the_weights_to_their_average_every_five_steps_and_ends_with_it() -> None:
    wanted = speednet(epochs=1, steps_per_epoch=12, schedule="constant", warmup_epochs=0.0, weight_decay=0.0)
    wanted = replace(wanted, lr=0.1, momentum=0.0)
    weight = nn.Parameter(torch.ones(1, 1))
    made = optimizer.build(nn.ParameterList([weight]), wanted)
    fast = slow = 1.0
    for step in range(12):
        optimizer.schedule(made, wanted, step, 12)
        weight.grad = torch.ones(1, 1)
        made.step()
        fast -= 0.1
        if step in (4, 9):
            kept = 0.95**5 * ((step + 1) / 12) ** 3
            fast = slow = kept * slow + (1 - kept) * fast
        if step == 11:
            fast = slow
        assert weight.item() == pytest.approx(fast)


def test_lookahead_needs_steps_that_are_taken_together() -> None:
    with pytest.raises(ConfigError, match="strategy must be one whose workers take every step together"):
        speednet(strategy="hogwild", topology="1x2")


@pytest.mark.parametrize(
    ("rule", "values", "factor"),
    [
        ("none", {"topology": "2x2"}, 1),
        ("sqrt", {"topology": "2x2"}, 2),
        ("linear", {"topology": "2x2"}, 4),
        ("linear", {"topology": "1x2", "accumulate": 3}, 6),  # every image of a step counts
    ],
)
def test_scaling_follows_the_global_batch(rule: str, values: dict[str, object], factor: float) -> None:
    scaled = config(lr_scaling=rule, base_batch=128, **values)
    assert optimizer.learning_rate(scaled, 10, 10) == pytest.approx(0.4 * factor)


def test_both_optimizers_are_built_as_configured() -> None:
    """Vectors do not decay."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    sgd = optimizer.build(model, config(optimizer="sgd", momentum=0.8))
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.8, True)
    adamw = optimizer.build(model, config(optimizer="adamw", lr=0.03, weight_decay=0.2))
    assert isinstance(adamw, torch.optim.AdamW)
    for group, decay, count in zip(adamw.param_groups, (0.2, 0.0), (1, 3), strict=True):
        options = {"lr": 0.03, "weight_decay": decay, "betas": (0.9, 0.999), "eps": 1e-8, "fused": True}
        assert ({**group, **options}, len(group["params"])) == (group, count)


def clock_at(monkeypatch: pytest.MonkeyPatch, *moments: float) -> Clock:
    """A clock that reads these moments."""
    now = iter(moments)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    return Clock(CPU, 0.0)


def run_for(clock: Clock, laps: int) -> None:
    clock.start()
    for _ in range(laps):
        clock.lap()
    clock.stop()


def test_the_clock_keeps_phases_and_iterations_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_at(monkeypatch, 10.0, 12.0, 20.0, 25.0, 26.0, 28.0, 40.0, 43.0)
    with clock.phase("evaluation"):  # 10 to 12
        pass
    run_for(clock, 3)  # from 20: 25, 26, 28
    assert clock.seconds == {"startup": 0, "data": 0, "training": 8, "evaluation": 2, "checkpoint": 0}
    assert clock.state()["steps"][:, 0].tolist() == [1, 2]  # the first of a process is left out
    run_for(clock, 1)  # from 40: 43
    assert clock.seconds["training"] == 11
    assert clock.state()["steps"][:, 0].tolist() == [1, 2, 3]
    assert clock.iterations() == pytest.approx({"iteration_mean_s": 2, "iteration_median_s": 2, "iteration_p95_s": 2.9})


def test_a_share_of_waiting_for_cpus_is_of_all_steps_also_of_those_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([3.0, 23.0])
    monkeypatch.setattr(hardware, "cpu_wait_s", lambda: next(waited))
    clock = clock_at(monkeypatch, 0.0, 50.0, 90.0, 100.0)
    assert clock.cpu_wait == 0
    run_for(clock, 3)  # from 0: 50, which is left out, 90, 100
    assert clock.cpu_wait == pytest.approx(0.2)


def test_the_pace_has_the_pauses_between_stretches_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on from its state: on other workers, with other iterations."""
    clock = clock_at(monkeypatch, 0.0, 9.0, 10.0, 12.0, 12.0, 20.0, 20.0, 50.0)
    run_for(clock, 3)  # from 0: 9, 10, 12
    for phase in ("training", "evaluation"):  # 12 to 20, 20 to 50
        with clock.phase(phase):
            pass
    assert clock.iterations()["iteration_mean_s"] == 1.5
    assert clock.pace() == (1 + 2 + 8) / 2
    resumed, elsewhere = Clock(CPU, 0.0), Clock(CPU, 0.0)
    resumed.seconds["startup"] = 1.0
    resumed.restore(clock.state(), same_workers=True)
    assert (resumed.pace(), resumed.iterations()) == (clock.pace(), clock.iterations())
    assert resumed.seconds == {**clock.seconds, "startup": 1.0}
    elsewhere.restore(clock.state(), same_workers=False)
    assert (elsewhere.seconds, elsewhere.iterations()) == (clock.seconds, {})
    elsewhere.restore({**clock.state(), "pauses": 0.0}, same_workers=True)
    assert elsewhere.pace() == 1.5


def test_the_parts_of_a_step_and_the_wall_clock_continue_over_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration of each process counts once, but for the first; what follows the last is of none."""
    now = 0.0
    for name in ("perf_counter", "time"):
        monkeypatch.setattr(time, name, lambda: now)

    def measured(*iterations: tuple[float, float]) -> Clock:
        nonlocal now
        clock = Clock(CPU, now)
        clock.start()
        for data_s, forward_s in iterations:
            for part, seconds in (("data", data_s), ("forward", forward_s)):
                now += seconds
                clock.mark(part)
            clock.lap()
        now += 64
        clock.mark("communication")
        clock.stop()
        return clock

    first = measured((8, 8), (1, 2), (2, 6))
    state = first.state()
    assert first.parts() == {"data": 1.5, "forward": 4.0}
    now += 1000  # lost, and a pause
    second, elsewhere = measured((8, 8), (6, 7)), measured((8, 8), (6, 7))
    second.restore(state, same_workers=True)
    assert second.parts() == {"data": 3.0, "forward": 5.0}  # of (1, 2), (2, 6) and (6, 7)
    assert second.iterations()["iteration_mean_s"] == 8.0
    assert now - second.begun == (16 + 3 + 8 + 64) + 2 * (16 + 13 + 64)
    elsewhere.restore(state, same_workers=False)
    assert elsewhere.parts() == {"data": 6.0, "forward": 7.0}


def test_times_of_a_rank_without_steps_are_zeros() -> None:
    none = torch.zeros(0, 1 + len(PARTS), dtype=torch.float64)
    assert step_times._of_rank(none, 1) == (Spread(0.0, 0.0, 0.0), {}, {"iteration": (0.0,)})


def test_an_exchange_takes_as_long_as_for_the_rank_that_comes_last() -> None:
    column = 1 + PARTS.index("communication")
    waits = ((3.0, 1.0), (2.0, 5.0))  # of each rank, in two steps

    def gathered(worker: Worker, synchronous: bool) -> StepTimes:
        steps = torch.zeros(2, 1 + len(PARTS), dtype=torch.float64)
        steps[:, 0], steps[:, column] = 10.0, torch.tensor(waits[worker.rank])
        clock = SimpleNamespace(steps=lambda: steps, cpu_wait=0.1 * worker.rank)
        state: Any = SimpleNamespace(worker=worker, clock=clock)
        state.strategy = SimpleNamespace(synchronous=synchronous, incomparable="")
        return step_times.gather(state)

    first, second = on_threads(2, lambda worker: gathered(worker, True))
    assert first == second
    assert first.exchange == (2.0, 1.0)
    assert [(rank.rank, rank.node, rank.host, rank.steps, rank.cpu_wait) for rank in first.ranks] == [
        (0, 0, "", 2, 0.0),
        (1, 0, "", 2, 0.1),
    ]
    assert [rank.stretches["communication"] for rank in first.ranks] == list(waits)
    assert on_threads(2, lambda worker: gathered(worker, False))[0].exchange == ()


def test_gradients_are_ready_from_the_last_layer_to_the_first() -> None:
    config = recipe.resolve(TrainConfig(dataset="digits", model="simple_cnn", precision="fp32"))
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    found = probe.readiness(config, "fp32", 4, 1)
    model = models.outline(config, data.facts(config))
    sizes = [parameter.nbytes for parameter in model.parameters()]
    assert sorted(found.sizes) == sorted(sizes)
    assert sorted(found.sizes[:2]) == sorted(sizes[-2:])
    assert sorted(found.sizes[-2:]) == sorted(sizes[:2])
    assert list(found.ready) == sorted(found.ready)
    assert 0 < found.ready[0] < found.ready[-1] <= 1
    assert found.buffer_bytes == sum(buffer.nbytes for buffer in model.buffers() if buffer.is_floating_point())
    assert (torch.random.get_rng_state().equal(state), torch.get_num_threads()) == (True, threads)


HERE = "tests.support.learning"
DIGITS: dict[str, object] = {"dataset": "digits", "model": "simple_cnn"}
LION: dict[str, object] = {"optimizer": f"{HERE}:Lion", "lr": 1e-3, "weight_decay": 0.1}


def test_a_class_of_ones_own_gets_groups_rate_and_options() -> None:
    config = resolved(DIGITS, **LION, optimizer_options={"beta": 0.5})
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    made = optimizer.build(model, config)
    assert isinstance(made, Lion)
    assert [(group["lr"], group["beta"], group["weight_decay"]) for group in made.param_groups] == [
        (1e-3, 0.5, 0.1),
        (1e-3, 0.5, 0.0),  # biases and norms do not decay
    ]
    assert recipe.resolve(config) == config
    assert config.optimizer_source == imports.source(f"{HERE}:Lion", "optimizer")
    optimizer.schedule(made, config, config.epochs * 5, 10)
    assert 0 < made.param_groups[0]["lr"] < 1e-3


def test_options_and_paths_come_from_words_and_go_into_them_again() -> None:
    words = f"--dataset digits --model simple_cnn --optimizer {HERE}:Lion --lr 0.001 --weight-decay 0.1"
    words += f" --optimizer-options.beta 0.5 --schedule {HERE}:falling"
    config = recipe.resolve(typed.run(*words.split()))
    assert recipe.resolve(typed.run(*shlex.split(recipe.command(config))[2:])) == config
    known = {"optimizer": f"{HERE}:Lion", "optimizer_options.beta": "0.5", "schedule": f"{HERE}:falling"}
    params = runfile.params(config, Decided.asked(config))
    assert known.items() <= params.items()
    assert len(params["optimizer_source"]) == len(params["schedule_source"]) == 64
    plain = resolved(DIGITS)
    assert not {"optimizer_source", "schedule_source"} & runfile.params(plain, Decided.asked(plain)).keys()


def test_a_course_follows_the_warm_up() -> None:
    config = resolved(DIGITS, schedule=f"{HERE}:falling", epochs=4, warmup_epochs=1.0, lr=0.2)
    rates = [optimizer.learning_rate(config, step, 5) for step in range(20)]
    assert rates[:5] == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
    assert rates[5:] == pytest.approx([0.2 * (1 - step / 15) ** 2 for step in range(15)])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"optimizer": f"{HERE}:Lion"}, "optimizer"),  # without --lr and --weight-decay
        ({"optimizer": "lion"}, "optimizer"),
        ({"schedule": "cosinus"}, "schedule"),
        *((LION | {"optimizer": f"{HERE}:{name}"}, "optimizer") for name in ("Lyon", "no_optimizer", "of_some", "Odd")),
        (LION | {"optimizer": f"{HERE}:Asking"}, "optimizer"),
        (LION | {"optimizer": "torch.optim:LBFGS"}, "optimizer"),
        (LION | {"optimizer_options": {"alpha": 1}}, "optimizer"),
        ({"optimizer_options": {"beta": 1}}, "optimizer_options.beta"),
        ({"schedule_source": "a"}, "schedule_source"),
        (LION | {"optimizer_source": "a"}, "optimizer"),
        ({"schedule": f"{HERE}:falling", "schedule_source": "a"}, "schedule"),
        *(({"schedule": f"{HERE}:{name}"}, "schedule") for name in ("negative", "unknown", "failing")),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(values: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(DIGITS, **values)
    assert (caught.value.key, "\n" in str(caught.value)) == (key, False)


def test_trying_leaves_torchs_generator_as_it_was_and_torchs_classes_need_no_file() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    resolved(DIGITS, **LION)
    config = resolved(DIGITS, optimizer="torch.optim:RMSprop", lr=1e-3, weight_decay=0.0)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(optimizer.build(nn.Linear(2, 2), config), torch.optim.RMSprop)


def test_an_average_is_drawn_once_a_step_beside_that_of_lookahead() -> None:
    config = resolved({"dataset": "digits", "model": "speednet"}, ema=0.9)
    model = nn.Sequential(nn.Linear(3, 2))
    made = optimizer.build(model, config)
    weight, seen = model[0].weight, []
    for step in range(2):
        weight.grad, model[0].bias.grad = torch.ones_like(weight), torch.ones(2)
        optimizer.schedule(made, config, step, 20)
        made.step()
        seen.append(weight.detach().clone())
    torch.testing.assert_close(made.state[weight]["ema"], seen[1].lerp(seen[0], 2 / 11))
    for is_average in (True, False):
        optimizer.exchange(made)
        assert torch.equal(weight, seen[1]) is not is_average


def test_a_parameter_may_have_its_first_gradient_after_others() -> None:
    """As with experts of which a step leaves out some; torch's fused step would not take it."""
    config = resolved({"dataset": "digits", "model": "tests.support.nets:build"}, weight_decay=0.0)
    layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
    made = optimizer.build(layers, config)
    for layer in layers:
        layer.weight.grad = torch.ones(1, 1)
        before = layer.weight.detach().clone()
        made.step()
        assert float(before - layer.weight.detach()) == pytest.approx(1.9 * config.lr, rel=1e-4)
    assert len(made.state) == 2
