"""The Jinja2 environment, which imports Jinja2 only when a page is rendered."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from embgrad.common.text import visible
from embgrad.errors import EmbgradError

__all__ = ["MOST_TEXT", "environment"]

#: The folder of the templates, inside this package.
TEMPLATES: Final = "templates"

#: The largest number of characters in a text on the page, such as a name; tokens and provenance are cut earlier.
MOST_TEXT: Final = 10_000


def environment() -> Any:
    """Return the Jinja2 environment of the templates, which escapes all text and spells out invisible characters.

    Raises:
        EmbgradError: Jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise EmbgradError(
            f"the page needs the package 'jinja2', which cannot be imported ({error}): pip install 'embgrad[report]'"
        ) from error
    return _environment()


@cache
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("embgrad.report", TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalised,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalised(value: Any) -> Any:
    """Return markup unchanged, which only embgrad writes, and other text visible and cut: it may have any origin and length."""
    if type(value) is not str:
        return value
    return visible(value) if len(value) <= MOST_TEXT else f"{visible(value[:MOST_TEXT])}… ({len(value)} characters)"
