"""A browser for all tests of the page; without one they fail and say what to install."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embgrad.report import write_page
from tests.unit.page.browser import Browser, BrowserMissingError, Page


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        started = Browser(tmp_path_factory.mktemp("browser"))
    except BrowserMissingError as error:
        pytest.fail(str(error), pytrace=False)
    yield started
    started.close()


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Return a function that opens HTML; `width`, `dark` and `media` are passed to the browser."""
    pages: list[Page] = []

    def write_and_open(html: str, **how: Any) -> Page:
        target = tmp_path / f"shown {len(pages)}.html"
        target.write_text(html, encoding="utf-8")
        pages.append(browser.open(target.as_uri(), **how))
        return pages[-1]

    yield write_and_open
    for page in pages:
        page.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Return a function that writes a page and opens it; `width`, `dark` and `media` are passed to the browser."""
    pages: list[Page] = []

    def write_and_open(*args: Any, width: int = 1200, dark: bool = False, media: str = "", **kwargs: Any) -> Page:
        target = tmp_path / f"page {len(pages)}.html"
        write_page(target, *args, **kwargs)
        pages.append(browser.open(target.as_uri(), width=width, dark=dark, media=media))
        return pages[-1]

    yield write_and_open
    for page in pages:
        page.close()
