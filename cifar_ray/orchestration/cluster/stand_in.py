"""Stand in for Ray's dashboard agent, which every raylet starts and does not live without: wait for the raylet's end.

Run as a file by an interpreter without site-packages. Where there is no dashboard, the agent itself would collect
figures of the machine for nobody.
"""

import os
import time

_LOOK_S = 1.0

if __name__ == "__main__":
    raylet = os.getppid()
    while os.getppid() == raylet != 1:  # init: the raylet has ended before this began
        time.sleep(_LOOK_S)
