"""Calls that write and read files: `save`, `load`, `golden`, and the page."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.report import write_page
from tests.fuzz.cases import REFUSAL, Case, expect, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense

ARRAYS: Final = ("values", "activations", "objective", "ids", "mask", "types", "words_of", "before")
NAMES: Final = ("word", "layer.-1", "", "a/b", "ü", "\u202e", "x" * 50, "\ud800", "\n")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="embgrad-fuzz-") as name:
        yield Path(name)


def result(draw: Draw) -> embgrad.EmbeddingGradients:
    """A result with numbers that are drawn at will."""
    examples, positions, dim, vocab = draw.whole(1, 3), draw.whole(1, 4), draw.whole(1, 3), draw.whole(4, 9)
    dtype = draw.one([np.float32, np.float64])
    shape = examples, positions
    values = draw.normal(*shape, dim).astype(dtype)
    if draw.chance(0.2):
        values[0, 0, 0] = draw.one([0.0, -0.0, 1e-40, 1e30])
    mask = draw.wholes(0, 1, shape) if draw.chance(0.5) else None
    tokens = tuple(
        tuple(draw.one(["[CLS]", "##a", "<script>", "é", "", "Ġx", "\u202e"]) for _ in range(positions))
        for _ in range(examples)
    )
    tables = None
    if draw.chance(0.15):
        tables = tuple(
            embgrad.RowSparse(np.arange(2), draw.normal(2, dim).astype(dtype), (vocab, dim)) for _ in range(examples)
        )
    objective = draw.one([draw.normal(examples), np.float64(0.5), None]) if tables is None else draw.normal(examples)
    source = {"point": "word", "path": "E#0", "backend": "reference", "model": "m", "objective": {"class": "Sum"}}
    return embgrad.EmbeddingGradients(
        values=values,
        activations=draw.normal(*shape, dim).astype(dtype),
        objective=objective,
        ids=draw.wholes(0, vocab - 1, shape),
        mask=mask,
        types=draw.wholes(0, 1, shape) if draw.chance(0.3) else None,
        tokens=tokens if draw.chance(0.5) else None,
        words_of=draw.wholes(-1, 3, shape) if draw.chance(0.2) else None,
        vocab=vocab if tables is not None or draw.chance(0.7) else None,
        pad_leak=draw.one([0.0, 0.5]),
        provenance={**source, **({"captured": True} if objective is None else {})},
        tables=tables,
        before=draw.normal(*shape, dim).astype(dtype) if draw.chance(0.2) else None,
    )


def results(draw: Draw) -> Any:
    return result(draw) if draw.chance(0.6) else {name: result(draw) for name in draw.some(NAMES, most=3)}


def expect_same(found: Any, expected: Any) -> None:
    """That two results, or dicts of them, are the same bit for bit."""
    if isinstance(expected, Mapping):
        expect_equal(list(found), list(expected), "the names")
        for name, one in expected.items():
            expect_same(found[name], one)
        return
    for name in ARRAYS:
        mine, theirs = getattr(found, name), getattr(expected, name)
        expect_equal(mine is None, theirs is None, f"whether {name} is None")
        if theirs is not None:
            theirs = np.asarray(theirs)
            expect_equal((mine.dtype, mine.shape, mine.tobytes()), (theirs.dtype, theirs.shape, theirs.tobytes()), name)
    for name in ("tokens", "vocab", "pad_leak"):
        expect_equal(getattr(found, name), getattr(expected, name), name)
    expect_equal(dict(found.provenance), dict(expected.provenance), "provenance")
    expect_equal(found.tables is None, expected.tables is None, "whether tables is None")
    for mine, theirs in zip(found.tables or (), expected.tables or (), strict=True):
        expect_equal(
            (mine.rows.tobytes(), mine.values.tobytes(), mine.shape),
            (theirs.rows.tobytes(), theirs.values.tobytes(), theirs.shape),
            "tables",
        )


def save_and_load(draw: Draw, framework: str) -> Case:
    """What is written is read back bit for bit, or writing is refused."""
    if draw.chance(0.3):
        return _save_broken(draw)
    given = results(draw)
    refused = REFUSAL if _has_surrogate(given) else ()

    def run() -> Any:
        with folder() as place:
            embgrad.save(given, place / "x.safetensors")
            expect_equal(os.listdir(place), ["x.safetensors"], "the files in the folder")
            return embgrad.load(place / "x.safetensors")

    return Case("save", f"results: {given!r}", run, lambda found: expect_same(found, given), refused, [], [given])


def _has_surrogate(given: Any) -> bool:
    return isinstance(given, Mapping) and "\ud800" in given


def _save_broken(draw: Draw) -> Case:
    one = result(draw)
    kinds: dict[str, Callable[[], Any]] = {
        "nonsense": lambda: nonsense(draw),
        "None": lambda: None,
        "an empty mapping": lambda: {},
        "names that are no text": lambda: {3: one},
        "a mapping of nonsense": lambda: {"word": nonsense(draw)},
        "half precision": lambda: replace(one, values=np.clip(one.values, -9, 9).astype(np.float16)),
        "shapes that do not go together": lambda: replace(one, ids=one.ids[:, :0]),
        "a provenance that JSON cannot hold": lambda: replace(one, provenance={("no", "text"): 1}),
        "ids that are floats": lambda: replace(one, ids=one.ids.astype(np.float32)),
    }
    kind = draw.one(list(kinds))

    def run() -> Any:
        with folder() as place:
            try:
                embgrad.save(kinds[kind](), place / "x.safetensors")
            finally:
                expect_equal(os.listdir(place), [], "what a refused save has left")

    return Case("save", f"broken: {kind} of {one!r}", run, None, REFUSAL)


def load_broken(draw: Draw, framework: str) -> Case:
    """A file that is not as it was written: refused, or read as some result, since a number may have become another."""
    given = results(draw)
    while _has_surrogate(given):
        given = results(draw)
    kind = draw.one(
        [
            "truncated",
            "flipped",
            "flipped in the header",
            "longer",
            "empty",
            "text",
            "missing",
            "a folder",
            "zeros",
            "header too long",
        ]
    )
    share, bit = draw.random.random(), draw.whole(0, 7)

    def run() -> Any:
        with folder() as place:
            path = place / "x.safetensors"
            embgrad.save(given, path)
            damage(path, kind, share, bit)
            return embgrad.load(path)

    def judge(found: Any) -> None:
        expect(kind.startswith("flipped"), f"a file that is {kind} was read: {found!r}")

    errors = (embgrad.FileFormatError,)
    if kind == "missing":
        errors = (FileNotFoundError,)
    elif kind == "a folder":
        errors = (embgrad.FileFormatError, OSError)
    return Case("load", f"{kind} at {share}, bit {bit}, of {given!r}", run, judge, errors)


def damage(path: Path, kind: str, share: float, bit: int) -> None:
    data = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    place = int(share * (header if kind.endswith("header") else len(data)))
    path.unlink()
    if kind == "missing":
        return
    if kind == "a folder":
        path.mkdir()
        return
    data[place] ^= (1 << bit) if kind.startswith("flipped") else 0
    broken = {
        "truncated": data[:place],
        "longer": data + b"more",
        "empty": b"",
        "text": b'{"values": 1}',
        "zeros": bytes(len(data)),
        "header too long": (2**60).to_bytes(8, "little") + data[8:],
    }
    path.write_bytes(broken.get(kind, data))


def no_path(draw: Draw, framework: str) -> Case:
    wrong, name = (
        draw.one([3, None, [], {}, 0.5, b"bytes", object()]),
        draw.one(["load", "save", "open_stream", "golden"]),
    )
    one = result(draw)

    def run() -> Any:
        return embgrad.save(one, wrong) if name == "save" else getattr(embgrad, name)(wrong)

    return Case(name, f"path: {wrong!r}", run, None, REFUSAL)


def golden(draw: Draw, framework: str) -> Case:
    """A golden file agrees with what it was made of, and with nothing else."""
    one = replace(result(draw), tables=None, before=None, vocab=9)
    if one.objective is None or np.ndim(one.objective) == 0:
        one = replace(one, objective=draw.normal(len(one.ids)))
    values = np.clip(one.values, -1e3, 1e3)
    one = replace(one, values=values)
    kind = draw.one(["same", "other values", "other objective", "no file", "nonsense", "not finite"])

    def run() -> Any:
        with folder() as place:
            kept = embgrad.golden(place / "new" / "g.safetensors")
            if kind == "no file":
                return kept.check(one)
            kept.update(replace(one, values=values * np.nan) if kind == "not finite" else one)
            if kind == "nonsense":
                return kept.check(nonsense(draw))
            changed = {
                "other values": {"values": values * 1.5 + 0.1},
                "other objective": {"objective": one.objective + 1},
            }
            return kept.check(replace(one, **changed.get(kind, {})))

    def judge(found: Any) -> None:
        expect(found.agrees, "the same results do not agree")

    return Case("golden", f"{kind}: {one!r}", run, judge if kind == "same" else None, () if kind == "same" else REFUSAL)


def pages(draw: Draw, framework: str) -> Case:
    """A page of any result, in which nothing of a token is markup."""
    broken = draw.chance(0.3)
    labels = draw.some(["a", "<b>", "ü", "\ud800"], most=2)
    one = replace(result(draw), tables=None)
    given: Any = one if draw.chance(0.4) else dict.fromkeys(labels, one)
    if broken:
        given = draw.one([nonsense(draw), {}, {"a": nonsense(draw)}, None, {"a": {}}])

    def run() -> Any:
        with folder() as place:
            write_page(place / "page.html", given, title="<i>title</i>")
            return (place / "page.html").read_text(encoding="utf-8")

    def judge(page: str) -> None:
        expect(page.lower().startswith("<!doctype html>"), f"the page begins {page[:40]!r}")
        expect("<script" not in page.lower(), "there is a script in the page")
        expect("<i>title</i>" not in page, "the title is markup")

    return Case("write_page", f"{given!r}", run, None if broken else judge, REFUSAL if broken else ())
