"""Record a command in a terminal as a GIF, from a real run.

    python docs/recording.py docs/images/train.gif \\
        cifar-ray train --dataset digits --model simple_cnn --epochs 5 --run-name first

The command runs in a pseudo-terminal. Each change of its screen is a picture, shown for as long as it stood there, but
for a second at most.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path

import matplotlib
import pyte
from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS = 100, 34
CELL, SIZE, MARGIN = (9, 19), 15, 14
FRAME_S, LONGEST_S, LAST_S = 0.3, 1.0, 6.0
PAPER, INK = "#0d1117", "#d1d7e0"
COLOURS = {
    "default": INK,
    "black": "#6e7681",
    "red": "#ff7b72",
    "green": "#3fb950",
    "brown": "#d29922",
    "blue": "#58a6ff",
    "magenta": "#bc8cff",
    "cyan": "#39c5cf",
    "white": "#d1d7e0",
}
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def draw(screen: pyte.Screen) -> Image.Image:
    """The screen as it stands."""
    picture = Image.new("RGB", (COLUMNS * CELL[0] + 2 * MARGIN, ROWS * CELL[1] + 2 * MARGIN), PAPER)
    pen = ImageDraw.Draw(picture)
    fonts = [ImageFont.truetype(FONTS / f"DejaVuSansMono{kind}.ttf", SIZE) for kind in ("", "-Bold")]
    for y in range(ROWS):
        for x in range(COLUMNS):
            char = screen.buffer[y][x]
            if char.data.strip():
                colour = COLOURS.get(char.fg.removeprefix("bright"), f"#{char.fg}" if len(char.fg) == 6 else INK)
                place = (MARGIN + x * CELL[0], MARGIN + y * CELL[1])
                pen.text(place, char.data, fill=colour, font=fonts[char.bold])
    return picture


def record(words: list[str]) -> list[tuple[Image.Image, float]]:
    """Pictures of the command's screen, each with its seconds."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[1m$ {' '.join(words)}\x1b[0m\r\n".encode())
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execvp(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    frames: list[tuple[Image.Image, float]] = []
    shown, since = draw(screen), time.monotonic()
    while True:
        ready, _, _ = select.select([terminal], [], [], FRAME_S)
        if ready:
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:  # the command is over
                break
        now = time.monotonic()
        if screen.dirty and now - since >= FRAME_S:
            screen.dirty.clear()
            frames.append((shown, min(now - since, LONGEST_S)))
            shown, since = draw(screen), now
    os.waitpid(child, 0)
    return [*frames, (draw(screen), LAST_S)]


def main() -> None:
    """Record the command and write the GIF."""
    frames = record(sys.argv[2:])
    first, *others = (picture.quantize(16, dither=Image.Dither.NONE) for picture, _ in frames)
    lengths = [int(1000 * seconds) for _, seconds in frames]
    first.save(sys.argv[1], save_all=True, append_images=others, duration=lengths, loop=0, optimize=True)


if __name__ == "__main__":
    main()
