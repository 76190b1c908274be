"""How Sphinx builds these pages: `make docs`, with warnings as errors, without a network and without any framework."""

import sys
from pathlib import Path
from typing import Any

import embgrad

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.messages.page import page

project = "embgrad"
author = "the embgrad authors"
version = release = embgrad.__version__
language = "en_GB"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["examples/**/.*"]

# Pages.
myst_heading_anchors = 3  # as GitHub makes them, for the pages' links to sections
myst_links_external_new_tab = False

# The reference.
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
default_role = "code"  # docstrings write `names` as Markdown does
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore_regex = [
    # Names of other libraries, whose inventories would come over a network, and what annotations alone speak of.
    (r"py:.*", r"(np|numpy|os|pathlib|collections|typing|contextlib|dataclasses|types)(\..*)?"),
    # Names of types of functions, which the docstrings describe.
    (r"py:.*", r"(Call|Keywords|OfForward|Progress)"),
    # What results are made of and nobody makes: it has no place in the reference.
    (
        r"py:.*",
        r"(embgrad\.(attribution\.method|common\.metrics|comparison\.bisection_records|model_points|display|results\.pieces|token_search\.method|streaming)\..*|"
        r"embgrad\.backend\.protocol\.(BoundModel|Weight)|Method|Step|Suspect|Weight)",
    ),
]

# How it looks: all fonts and scripts are the reader's own or lie beside the pages.
html_theme = "furo"
html_title = f"embgrad {release}"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}


def setup(app: Any) -> None:
    """Take docstrings as they are written, ahead of napoleon, and write the page of every message."""
    app.connect("autodoc-process-docstring", _as_written, priority=400)
    (Path(__file__).parent / "errors" / "messages.md").write_text(page(), encoding="utf-8")


def _as_written(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    if what in ("attribute", "property") and lines:
        lines[0] = lines[0].replace(": ", " – ", 1)  # napoleon takes what is before a colon for a type
    for number, line in enumerate(lines):
        if line.startswith("with embgrad."):  # code among the text
            end = lines.index("", number)
            lines[number:end] = ["::", "", *(f"    {one}" for one in lines[number:end])]
            break
