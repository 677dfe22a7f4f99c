"""How Sphinx makes the site of these pages: `make docs`."""

import sys
from pathlib import Path
from typing import Any

from cifar_ray import __version__

project = "cifar_ray"
author = "the cifar_ray developers"
release = version = __version__
html_theme = "furo"
html_title = "cifar_ray"
html_show_copyright = False
highlight_language = "text"
smartquotes_action = "qe"  # and no dashes, since flags begin with two hyphens
sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "flags_page"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Positive": "float", "Numbers": "tuple[float, ...]", "Overwrite": "bool"}
napoleon_custom_sections = [("Attributes", "params_style")]

# Pages of the repository that pages here include, so that links to them stay on the site.
INCLUDED = {
    "../CONTRIBUTING.md": "contributing.md",
    "../../CONTRIBUTING.md": "../contributing.md",
    "../examples/bring_your_own/README.md": "ten_minutes.md",
    "../examples/fine_tune/README.md": "fine_tuning.md",
}


def setup(app: Any) -> None:
    """Send links to a page of the repository to the page that includes it."""

    def read(app: Any, page: str, source: list[str]) -> None:
        up = "../" * page.count("/")
        for path, included in INCLUDED.items():
            source[0] = source[0].replace(f"]({up}{path}", f"]({up}{included}")

    def without_fields(app: Any, what: str, name: str, value: Any, *_: Any) -> tuple[str, None] | None:
        """Leave out the signature of a config, which its docstring describes field by field."""
        return ("", None) if hasattr(value, "__pydantic_fields__") else None

    app.connect("source-read", read)
    app.connect("autodoc-process-signature", without_fields)
