"""How Sphinx makes the site of these pages: `make docs`."""

from typing import Any

from cifar_ray import __version__

project = "cifar_ray"
author = "the cifar_ray developers"
release = version = __version__
html_theme = "furo"
html_title = "cifar_ray"
html_show_copyright = False
highlight_language = "text"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"


def setup(app: Any) -> None:
    """Send links to the repository's CONTRIBUTING.md to the page that includes it."""

    def read(app: Any, page: str, source: list[str]) -> None:
        source[0] = source[0].replace("](../CONTRIBUTING.md", "](contributing.md")

    app.connect("source-read", read)
