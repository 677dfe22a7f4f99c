"""Charts as files, and as parts of a page."""

from __future__ import annotations

import io
import re
from pathlib import Path

from cifar_ray.reporting import style
from cifar_ray.reporting.contents import Chart, Theme
from cifar_ray.tracking import drawing

_DOTS_PER_INCH = 160
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write ``KEY.png`` (160 dots per inch) and ``KEY.svg``, both on white, with the title in the picture.

    Returns:
        The two paths.
    """
    figure = chart.draw("light")
    look = style.LOOKS["light"]
    paths = [folder / f"{chart.key}.png", folder / f"{chart.key}.svg"]
    with style.settings(look):
        figure.suptitle(drawing.plain(chart.title), fontsize=12)
        figure.savefig(paths[0], dpi=_DOTS_PER_INCH, facecolor=look.page)
        figure.savefig(paths[1], facecolor=look.page, metadata=_NO_METADATA)
    return paths


def svg(chart: Chart, theme: Theme) -> str:
    """The chart as an ``svg`` element for a page of this theme.

    Its ids begin with the chart's key and the theme, so that several can stand in one page.
    """
    figure = chart.draw(theme)
    written = io.StringIO()
    with style.settings(style.LOOKS[theme]):
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    text = text[text.index("<svg") :]  # a page has no place for the XML heading
    # A style element would hold for the whole page; these two properties are inherited instead.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", '<svg style="stroke-linejoin: round; stroke-linecap: butt" ', 1)
    # Only within tags: the same characters may stand in a text, where they are no id.
    return re.sub(r"<[^>]+>", lambda tag: _prefixed(tag[0], f"{chart.key}-{theme}-"), text).strip()


def _prefixed(tag: str, prefix: str) -> str:
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", tag)
