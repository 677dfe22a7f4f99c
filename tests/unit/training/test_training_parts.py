from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from cifar_ray import models
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import ResolvedConfig, TrainConfig
from cifar_ray.data import SPECS
from cifar_ray.training import hardware, optimizer, recipe
from cifar_ray.training.clock import Clock

CPU = torch.device("cpu")


def config(**values: object) -> TrainConfig:
    plain = {"lr": 0.4, "warmup_epochs": 1.0, "epochs": 5, "batch_size": 128, "schedule": "cosine"}
    return recipe.resolve(TrainConfig(**{**plain, **values}))  # type: ignore[arg-type]


def test_the_learning_rate_rises_then_falls_along_a_cosine() -> None:
    rates = [optimizer.learning_rate(config(), step, steps_per_epoch=10) for step in range(50)]
    assert rates[:10] == pytest.approx([0.04 * step for step in range(1, 11)])
    assert rates[10] == pytest.approx(0.4)
    assert rates[30] == pytest.approx(0.2)
    assert 0 < rates[49] < 0.001
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_constant_schedule_stays_at_its_peak() -> None:
    rates = [optimizer.learning_rate(config(schedule="constant"), step, 10) for step in range(50)]
    assert set(rates[10:]) == {0.4}


def test_a_triangle_rises_from_a_fifth_and_falls_to_a_fourteenth() -> None:
    rates = [optimizer.learning_rate(config(schedule="triangle"), step, 10) for step in range(50)]
    assert rates[0] == pytest.approx(0.08)
    assert rates[5] == pytest.approx(0.24)
    assert rates[10] == pytest.approx(0.4)
    assert rates[30] == pytest.approx(0.4 * (1 - 0.93 / 2))
    assert rates[49] == pytest.approx(0.4 * 0.07, abs=0.01)


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
    with pytest.raises(ConfigError) as caught:
        speednet(strategy="hogwild", topology="1x2")
    assert caught.value.as_flag() == (
        "--strategy must be one whose workers take every step together for --model speednet, whose recipe averages "
        "weights over steps, got hogwild"
    )


def test_no_warm_up_begins_at_the_peak() -> None:
    assert optimizer.learning_rate(config(warmup_epochs=0.0), 0, 10) == pytest.approx(0.4)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("sqrt", 2), ("linear", 4)])
def test_scaling_follows_the_global_batch(rule: str, factor: float) -> None:
    scaled = config(lr_scaling=rule, base_batch=128, topology="2x2")  # 512 images per step
    assert optimizer.learning_rate(scaled, 10, 10) == pytest.approx(0.4 * factor)


def test_scaling_counts_every_image_of_a_step() -> None:
    once = config(lr_scaling="linear", base_batch=128, topology="1x2", batch_size=128)
    thrice = config(lr_scaling="linear", base_batch=128, topology="1x2", batch_size=128, accumulate=3)
    assert optimizer.learning_rate(once, 10, 10) == pytest.approx(0.4 * 2)
    assert optimizer.learning_rate(thrice, 10, 10) == pytest.approx(0.4 * 6)


def test_a_warm_up_as_long_as_the_run_only_rises() -> None:
    rates = [optimizer.learning_rate(config(epochs=2, warmup_epochs=2.0), step, 10) for step in range(20)]
    assert rates == pytest.approx([0.02 * step for step in range(1, 21)])


def test_vectors_do_not_decay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    groups = optimizer.build(model, config(weight_decay=0.1)).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.1, 1), (0.0, 3)]


def test_both_optimizers_are_built_as_configured() -> None:
    model = nn.Linear(2, 2)
    sgd = optimizer.build(model, config(optimizer="sgd", momentum=0.8))
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.8, True)
    adamw = optimizer.build(model, config(optimizer="adamw", lr=0.03, weight_decay=0.2))
    assert isinstance(adamw, torch.optim.AdamW)
    for group, decay in zip(adamw.param_groups, (0.2, 0.0), strict=True):
        options = {"lr": 0.03, "weight_decay": decay, "betas": (0.9, 0.999), "eps": 1e-8, "fused": True}
        assert {**group, **options} == group


def test_the_clock_keeps_phases_and_iterations_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 12.0, 20.0, 25.0, 26.0, 28.0, 40.0, 43.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = Clock(CPU, 0.0)
    with clock.phase("evaluation"):  # 10 to 12
        pass
    clock.start()  # 20
    for _ in range(3):
        clock.lap()  # 25, 26, 28
    clock.stop()
    assert clock.seconds == {"startup": 0, "data": 0, "training": 8, "evaluation": 2, "checkpoint": 0}
    assert clock.state()["steps"][:, 0].tolist() == [1, 2]  # the first of a process is left out
    clock.start()  # 40
    clock.lap()  # 43
    clock.stop()
    assert clock.seconds["training"] == 11
    assert clock.state()["steps"][:, 0].tolist() == [1, 2, 3]
    assert clock.iterations() == pytest.approx({"iteration_mean_s": 2, "iteration_median_s": 2, "iteration_p95_s": 2.9})


def test_a_share_of_waiting_for_cpus_is_of_all_steps_also_of_those_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = iter([0.0, 50.0, 90.0, 100.0]), iter([3.0, 23.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(hardware, "cpu_wait_s", lambda: next(waited))
    clock = Clock(CPU, 0.0)
    assert clock.cpu_wait == 0
    clock.start()  # 0
    for _ in range(3):
        clock.lap()  # 50, which is left out, 90, 100
    clock.stop()
    assert clock.cpu_wait == pytest.approx(0.2)


def test_the_pace_has_the_pauses_between_stretches_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 9.0, 10.0, 12.0, 12.0, 20.0, 20.0, 50.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = Clock(CPU, 0.0)
    clock.start()  # 0
    for _ in range(3):
        clock.lap()  # 9, 10, 12
    clock.stop()
    for phase in ("training", "evaluation"):  # 12 to 20, 20 to 50
        with clock.phase(phase):
            pass
    assert clock.iterations()["iteration_mean_s"] == 1.5
    assert clock.pace() == (1 + 2 + 8) / 2
    resumed, elsewhere = Clock(CPU, 0.0), Clock(CPU, 0.0)
    resumed.restore(clock.state(), same_workers=True)
    assert resumed.pace() == clock.pace()
    elsewhere.restore(clock.state(), same_workers=False)
    elsewhere.restore({**clock.state(), "pauses": 0.0}, same_workers=True)
    assert elsewhere.pace() == 1.5


def test_a_clock_continues_from_its_state() -> None:
    first = Clock(CPU, 0.0)
    first.seconds["training"] = 5.0
    first.start()
    for _ in range(3):
        first.lap()
    first.stop()
    second = Clock(CPU, 0.0)
    second.seconds["startup"] = 1.0
    second.restore(first.state(), same_workers=True)
    assert second.seconds["training"] == first.seconds["training"]
    assert second.seconds["startup"] == 1.0
    assert second.iterations() == first.iterations() != {}
    elsewhere = Clock(CPU, 0.0)
    elsewhere.restore(first.state(), same_workers=False)  # on other workers, other iterations
    assert elsewhere.seconds == first.seconds
    assert elsewhere.iterations() == {}


def test_the_parts_of_a_step_continue_over_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration of each process counts once, but for the first; what follows the last is of none."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def measured(*iterations: tuple[float, float]) -> Clock:
        nonlocal now
        clock = Clock(CPU, 0.0)
        clock.start()
        for data_s, forward_s in iterations:
            now += data_s
            clock.mark("data")
            now += forward_s
            clock.mark("forward")
            clock.lap()
        now += 64
        clock.mark("communication")
        clock.stop()
        return clock

    first = measured((8, 8), (1, 2), (2, 6))
    assert first.parts() == {"data": 1.5, "forward": 4.0}
    second = measured((8, 8), (6, 7))
    second.restore(first.state(), same_workers=True)
    assert second.parts() == {"data": 3.0, "forward": 5.0}  # of (1, 2), (2, 6) and (6, 7)
    assert second.iterations()["iteration_mean_s"] == 8.0
    elsewhere = measured((8, 8), (6, 7))
    elsewhere.restore(first.state(), same_workers=False)
    assert elsewhere.parts() == {"data": 6.0, "forward": 7.0}


def test_the_wall_clock_continues_over_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 130.0
    monkeypatch.setattr(time, "time", lambda: now)
    first = Clock(CPU, begun=100.0)
    state = first.state()  # after 30 s; what follows is lost
    now = 1005.0
    second = Clock(CPU, begun=1000.0)
    second.restore(state, same_workers=True)
    assert now - second.begun == 35.0


def test_a_clock_without_a_second_iteration_has_no_iteration_times() -> None:
    clock = Clock(CPU, 0.0)
    clock.start()
    clock.lap()
    clock.stop()
    assert clock.iterations() == {}
