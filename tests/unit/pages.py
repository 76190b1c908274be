"""Results for pages, and a reader of pages that does not depend on how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import numpy as np

import embgrad
from embgrad.report import render_page

#: What may stand in a text, and must be shown and never take effect.
HOSTILE = (
    "<script>alert(1)</script>",
    '"onmouseover="alert(2)" x="',
    "'><img src=x onerror=alert(3)>",
    "</style><b>bold</b>",
    "</title></head><h1>",
    "&lt;&amp;&#60;",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(4)",
    "]]><!--",
)

SENTENCE = [["[CLS]", "a", "grip", "##ping", "film", "[SEP]"]]


def result(
    tokens: Sequence[Sequence[str]] | None,
    values: Any = None,
    *,
    mask: Any = None,
    ids: Any = None,
    shape: tuple[int, int] = (1, 1),
    **changes: Any,
) -> embgrad.results.EmbeddingGradients:
    """Return a result of these tokens, with random values by default."""
    if tokens is not None:
        shape = (len(tokens), len(tokens[0]))
    random = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "values": random.normal(size=(*shape, 4)).astype(np.float32) if values is None else np.asarray(values),
        "objective": np.arange(shape[0]) + 0.25,
        "ids": np.arange(shape[0] * shape[1]).reshape(shape) if ids is None else np.asarray(ids),
        "mask": None if mask is None else np.asarray(mask),
        "types": None,
        "tokens": None if tokens is None else tuple(map(tuple, tokens)),
        "words_of": None, "vocab": None, "pad_leak": 0.0,
        "provenance": {"backend": "reference", "versions": {"numpy": "1.2.3"}, "model": "some.Model", "point": "word",
            "objective": {"class": "Sum", "output": "logits"}, "compute_dtype": "float32"},
    }  # fmt: skip
    fields.update(changes)
    ones = np.ones(fields["values"].shape, fields["values"].dtype)
    return embgrad.results.EmbeddingGradients(**{"activations": ones, **fields})


def times(one: embgrad.results.EmbeddingGradients, factor: float) -> embgrad.results.EmbeddingGradients:
    """Return the result with its values multiplied by a factor."""
    return replace(one, values=one.values * np.float32(factor))


@dataclass
class Token:
    """A token of a page."""

    classes: list[str]
    text: str = ""
    figures: str = ""


@dataclass
class Panel:
    """A panel of a page."""

    legend: str = ""
    tokens: list[Token] = field(default_factory=list)
    line: str = ""


class Reader(HTMLParser):
    """A page as a browser shows it.

    Attributes:
        panels: the sentences.
        rows: every row of a table, as its cells' texts.
        seen: all text outside of style sheets.
        tags: every tag with its attributes.
    """

    EMPTY = frozenset({"meta", "input"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.panels: list[Panel] = []
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.open: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        self.seen = "".join(self.pieces)
        assert self.open == [], "every tag that needs it is closed"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"an attribute twice: {tag} {attrs}"
        self.tags.append((tag, attributes))
        kinds = (attributes.get("class") or "").split()
        if tag == "fieldset":
            self.panels.append(Panel())
        elif tag == "label":
            self.panels[-1].tokens.append(Token(kinds))
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in self.EMPTY:
            self.open.append((tag, kinds[0] if kinds else ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag, f"</{tag}> closes something else"

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if "style" in tags:
            return
        self.pieces.append(data)
        if "td" in tags or "th" in tags:
            self.rows[-1][-1] += data
        elif "label" in tags:
            token = self.panels[-1].tokens[-1]
            if ("span", "f") in self.open:
                token.figures += data
            else:
                token.text += data
        elif "legend" in tags:
            self.panels[-1].legend += data
        elif ("p", "tokens") in self.open:
            self.panels[-1].line += data

    def texts(self, panel: int = 0) -> list[str]:
        """Return the tokens of a panel."""
        return [token.text for token in self.panels[panel].tokens]

    def attributes(self, name: str) -> list[str | None]:
        """Return every value of an attribute."""
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def read(*args: Any, **kwargs: Any) -> Reader:
    """Return a reader of the page of these results."""
    return Reader(render_page(*args, **kwargs))
