import signal

import pytest

from cifar_ray.orchestration.run import interrupts


def test_signals_that_come_together_are_one_and_the_third_after_a_while_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now, pending = [0.0], list[int]()
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(interrupts.os, "_exit", exit)
    with interrupts.signals(pending):
        for now[0] in (0.0, 0.1, 0.9, 1.1):
            signal.raise_signal(signal.SIGTERM)
        assert pending == [signal.SIGTERM] * 2
        now[0] = 2.2
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err == "Stopped at once by SIGTERM.\n"
