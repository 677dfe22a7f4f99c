import signal
import subprocess
import sys

import pytest

TWICE_THREE_SIGNALS = """
import os, signal, time
from cifar_ray.orchestration.run import interrupts
for apart in (0, 1.1):
    pending = []
    with interrupts.signals(pending):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(apart * interrupts._APART_S)
    print(pending == [signal.SIGTERM], flush=True)
"""


@pytest.mark.slow
def test_signals_that_come_together_are_one_and_the_third_after_a_while_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE_THREE_SIGNALS], capture_output=True, text=True)
    assert ended.returncode == 128 + signal.SIGTERM
    assert (ended.stdout, ended.stderr) == ("True\n", "Stopped at once by SIGTERM.\n")
