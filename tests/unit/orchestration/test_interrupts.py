import signal
import subprocess
import sys

THREE_SIGNALS = """
import os, signal, sys, time
from cifar_ray.orchestration.run import interrupts
pending = []
with interrupts.signals(pending):
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(float(sys.argv[1]) * interrupts._APART_S)
print(pending == [signal.SIGTERM])
"""


def after_three_signals(apart: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", THREE_SIGNALS, apart], capture_output=True, text=True)


def test_signals_that_come_together_are_one() -> None:
    assert after_three_signals("0").stdout == "True\n"


def test_the_third_signal_ends_the_process_at_once_with_a_sentence() -> None:
    ended = after_three_signals("1.1")
    assert ended.returncode == 128 + signal.SIGTERM
    assert (ended.stdout, ended.stderr) == ("", "error: interrupted by SIGTERM\n")
