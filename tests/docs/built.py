"""Open every built page of the documentation in a browser: `python -m tests.docs.built build/docs`.

Each page has the heading of its source, and each of its links leads to a page, and a place in it, that exists.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tests.unit.page.browser import Browser

DOCS: Final = Path(__file__).parents[2] / "docs"

#: What is read of an open page.
READ: Final = """({
    heading: document.querySelector("article h1")?.innerText ?? null,
    visible: document.querySelector("article h1")?.getBoundingClientRect().height ?? 0,
    text: document.querySelector("article")?.innerText.length ?? 0,
    ids: [...document.querySelectorAll("[id]")].map(element => element.id),
    links: [...document.querySelectorAll("a[href]")].map(element => element.getAttribute("href")),
    pictures: [...document.images].filter(image => !image.naturalWidth).map(image => image.getAttribute("src")),
})"""


def heading_of(source: Path) -> str:
    """Return the text of a page's first heading, without the marks of code and of links."""
    found = re.search(r"^# (.+)$", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found is not None, f"{source} has no heading"
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found[1]).replace("`", "").strip()


def faults(built: Path) -> tuple[int, list[str]]:
    """Return how many pages there are, and what is wrong with them."""
    sources = [path for path in sorted(DOCS.rglob("*.md")) if "examples" not in path.parts]
    pages: dict[Path, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        try:
            for source in sources:
                path = built / source.relative_to(DOCS).with_suffix(".html")
                page = browser.open(path.resolve().as_uri())
                pages[path] = page.evaluate(READ)
                page.close()
        finally:
            browser.close()
    wrong: list[str] = []
    for source, (path, page_) in zip(sources, pages.items(), strict=True):
        name = source.relative_to(DOCS)
        if (page_["heading"] or "").removesuffix("#").strip() != heading_of(source) or not page_["visible"]:
            wrong.append(f"{name}: its heading is {page_['heading']!r}, expected {heading_of(source)!r}")
        if page_["text"] < len(source.read_text(encoding="utf-8")) / 10:
            wrong.append(f"{name}: the page has {page_['text']} characters")
        wrong += [f"{name}: the picture {picture} is missing" for picture in page_["pictures"]]
        wrong += [f"{name}: {link} leads nowhere" for link in page_["links"] if not _leads(path, link, pages)]
    return len(pages), wrong


def _leads(path: Path, link: str, pages: dict[Path, dict[str, Any]]) -> bool:
    """Return whether a link of a page leads to a file, and to a place in it where that is a page."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    known = {page.resolve(): read for page, read in pages.items()}
    if not parts.fragment or target not in known:
        return target.is_file() or (target / "index.html").is_file()
    return unquote(parts.fragment) in known[target]["ids"]


def main() -> int:
    count, wrong = faults(Path(sys.argv[1]))
    print(*wrong, f"{count} pages were opened, {len(wrong)} faults", sep="\n")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
