"""Run the Python of a page of `docs`, and compare what it prints with what the page shows.

A page is run from top to bottom, in one namespace and an empty folder. What it prints is compared with the ```text fence that
follows a ```python fence with nothing between: white space counts alike, however much; a `...` that stands alone stands for
anything; a number with a point may be off by one in the last place shown, or by a hundredth. Where that fence ends in the line
with which a traceback of Python ends, the snippet has to raise that; the line in which embgrad's own errors name their page is
left out. A fence in another language is not run.

`<!-- needs: torch, minilm -->` on a page says what it needs beside NumPy. What a reader has already, and the page does not
repeat, stands in a comment `<!-- python ... -->`, which is run in its place, or on another page, `<!-- after: other.md -->`,
which is run before it.

`python -m tests.docs.pages docs/tutorial.md` prints what each snippet prints.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import embgrad

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DATA = ROOT / "tests" / "data"

_PYTHON = re.compile(
    r"^```python\n(?P<shown>.*?)^```$(?:\n+```text\n(?P<printed>.*?)^```$)?|^<!-- python\n(?P<hidden>.*?)^-->$",
    flags=re.DOTALL | re.MULTILINE,
)
_NEEDS = re.compile(r"^<!-- needs: (.*) -->$", flags=re.MULTILINE)
_AFTER = re.compile(r"^<!-- after: (.*) -->$", flags=re.MULTILINE)
_NUMBER = r"[-+]?(?:\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)"
_PART = re.compile(rf"(?P<gap>\s+)|(?P<any>(?<!\S)\.\.\.(?!\S))|(?P<number>(?<![\w.]){_NUMBER}(?![\w.]))|.", re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A piece of a page's Python.

    Attributes:
        code: the lines.
        line: the number of the line in the page above its first.
        printed: what the page says that it prints; None where it says nothing.
        hidden: whether it stands in a comment.
    """

    code: str
    line: int
    printed: str | None
    hidden: bool


def pages() -> list[str]:
    actual = (path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md")))
    return [name for name in actual if snippets(name)]


def snippets(page: str) -> list[Snippet]:
    text = (DOCS / page).read_text(encoding="utf-8")
    actual = []
    for match in _PYTHON.finditer(text):
        part = "shown" if match["shown"] is not None else "hidden"
        line = text.count("\n", 0, match.start(part))
        actual.append(Snippet(match[part], line, match["printed"], part == "hidden"))
    return actual


def needs(page: str) -> list[str]:
    said = _NEEDS.findall((DOCS / page).read_text(encoding="utf-8"))
    return [item.strip() for line in said for item in line.split(",")]


def run(page: str) -> Iterator[tuple[Snippet, str]]:
    """Yield each snippet with what it printed, an expected error of embgrad included; other errors are raised."""
    names: dict[str, Any] = {
        "__name__": "__main__",
        "encoder_folder": str(DATA / "tfhub_bert_tiny"),
        "preprocessing_folder": str(DATA / "tfhub_bert_tiny_preprocess"),
    }
    for before in _AFTER.findall((DOCS / page).read_text(encoding="utf-8")):
        for snippet in snippets(before):
            _printed_by(snippet, before, names)
    for snippet in snippets(page):
        yield snippet, _printed_by(snippet, page, names)


def _printed_by(snippet: Snippet, page: str, names: dict[str, Any]) -> str:
    code = compile("\n" * snippet.line + snippet.code, str(DOCS / page), "exec", dont_inherit=True)
    stream = io.StringIO()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, embgrad.EmbgradWarning):
            stream.write(f"{category.__name__}: {message}\n")

    with contextlib.redirect_stdout(stream), warnings.catch_warnings():
        warnings.simplefilter("always", embgrad.EmbgradWarning)
        warnings.showwarning = show
        try:
            exec(code, names)
        except Exception as error:
            kind = type(error)
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            if name not in (snippet.printed or ""):  # not an error that the page speaks of
                raise
            said = error.message if isinstance(error, embgrad.EmbgradError) else error
            stream.write(f"{name}: {said}\n")
    return stream.getvalue()


def difference(expected: str, printed: str) -> str | None:
    """Return how the printed text differs from the page, or None."""
    numbers: list[str] = []

    def as_pattern(part: re.Match[str]) -> str:
        if part["gap"]:
            return r"\s+"
        if part["any"]:
            return r".*?"
        if part["number"]:
            numbers.append(part["number"])
            return rf"({_NUMBER})"
        return re.escape(part[0])

    pattern = "".join(as_pattern(part) for part in _PART.finditer(expected.strip()))
    actual = re.fullmatch(pattern, printed.strip(), flags=re.DOTALL)
    if actual is None:
        return f"the page says\n{expected}\nand the snippet printed\n{printed}"
    wrong = [pair for pair in zip(numbers, actual.groups(), strict=True) if not _near(*pair)]
    return f"the page says {wrong[0][0]} and the snippet printed {wrong[0][1]} in\n{printed}" if wrong else None


def _near(shown: str, printed: str) -> bool:
    mantissa, _, exponent = shown.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(shown) - float(printed)) <= max(1.001 * unit, 0.01 * abs(float(shown)))


if __name__ == "__main__":
    for item, text in run(Path(sys.argv[1]).resolve().relative_to(DOCS).as_posix()):
        print(f"--- line {item.line + 1}\n{text}", end="", flush=True)
