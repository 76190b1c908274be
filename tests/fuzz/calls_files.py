"""Calls that write and read files: `save`, `load`, `golden` and `write_page`."""

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


def result(draw: Draw) -> embgrad.results.EmbeddingGradients:
    examples, positions, dim, vocab = draw.integer(1, 3), draw.integer(1, 4), draw.integer(1, 3), draw.integer(4, 9)
    dtype = draw.choice([np.float32, np.float64])
    shape = examples, positions
    values = draw.normal(*shape, dim).astype(dtype)
    if draw.chance(0.2):
        values[0, 0, 0] = draw.choice([0.0, -0.0, 1e-40, 1e30])
    mask = draw.integers(0, 1, shape) if draw.chance(0.5) else None
    tokens = tuple(
        tuple(draw.choice(["[CLS]", "##a", "<script>", "é", "", "Ġx", "\u202e"]) for _ in range(positions))
        for _ in range(examples)
    )
    tables = None
    if draw.chance(0.15):
        tables = tuple(
            embgrad.results.RowSparse(np.arange(2), draw.normal(2, dim).astype(dtype), (vocab, dim))
            for _ in range(examples)
        )
    objective = draw.choice([draw.normal(examples), np.float64(0.5), None]) if tables is None else draw.normal(examples)
    source = {"point": "word", "path": "E#0", "backend": "reference", "model": "m", "objective": {"class": "Sum"}}
    return embgrad.results.EmbeddingGradients(
        values=values,
        activations=draw.normal(*shape, dim).astype(dtype),
        objective=objective,
        ids=draw.integers(0, vocab - 1, shape),
        mask=mask,
        types=draw.integers(0, 1, shape) if draw.chance(0.3) else None,
        tokens=tokens if draw.chance(0.5) else None,
        words_of=draw.integers(-1, 3, shape) if draw.chance(0.2) else None,
        vocab=vocab if tables is not None or draw.chance(0.7) else None,
        pad_leak=draw.choice([0.0, 0.5]),
        provenance={**source, **({"captured": True} if objective is None else {})},
        tables=tables,
        before=draw.normal(*shape, dim).astype(dtype) if draw.chance(0.2) else None,
    )


def results(draw: Draw) -> Any:
    return result(draw) if draw.chance(0.6) else {name: result(draw) for name in draw.subset(NAMES, most=3)}


def expect_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, Mapping):
        expect_equal(list(actual), list(expected), "the names")
        for name, value in expected.items():
            expect_same(actual[name], value)
        return
    for name in ARRAYS:
        mine, theirs = getattr(actual, name), getattr(expected, name)
        expect_equal(mine is None, theirs is None, f"whether {name} is None")
        if theirs is not None:
            theirs = np.asarray(theirs)
            expect_equal((mine.dtype, mine.shape, mine.tobytes()), (theirs.dtype, theirs.shape, theirs.tobytes()), name)
    for name in ("tokens", "vocab", "pad_leak"):
        expect_equal(getattr(actual, name), getattr(expected, name), name)
    expect_equal(dict(actual.provenance), dict(expected.provenance), "provenance")
    expect_equal(actual.tables is None, expected.tables is None, "whether tables is None")
    for mine, theirs in zip(actual.tables or (), expected.tables or (), strict=True):
        expect_equal(
            (mine.rows.tobytes(), mine.values.tobytes(), mine.shape),
            (theirs.rows.tobytes(), theirs.values.tobytes(), theirs.shape),
            "tables",
        )


def save_and_load(draw: Draw, framework: str) -> Case:
    """Draw results, which must be read back bit for bit, unless writing is refused."""
    if draw.chance(0.3):
        return _save_broken(draw)
    saved = results(draw)
    refused = REFUSAL if _has_surrogate(saved) else ()

    def run() -> Any:
        with folder() as directory:
            embgrad.save(saved, directory / "x.safetensors")
            expect_equal(os.listdir(directory), ["x.safetensors"], "the files in the folder")
            return embgrad.load(directory / "x.safetensors")

    return Case("save", f"results: {saved!r}", run, lambda actual: expect_same(actual, saved), refused, [], [saved])


def _has_surrogate(saved: Any) -> bool:
    return isinstance(saved, Mapping) and "\ud800" in saved


def _save_broken(draw: Draw) -> Case:
    sample = result(draw)
    kinds: dict[str, Callable[[], Any]] = {
        "nonsense": lambda: nonsense(draw),
        "None": lambda: None,
        "an empty mapping": lambda: {},
        "names that are no text": lambda: {3: sample},
        "a mapping of nonsense": lambda: {"word": nonsense(draw)},
        "half precision": lambda: replace(sample, values=np.clip(sample.values, -9, 9).astype(np.float16)),
        "shapes that do not go together": lambda: replace(sample, ids=sample.ids[:, :0]),
        "a provenance that JSON cannot hold": lambda: replace(sample, provenance={("no", "text"): 1}),
        "ids that are floats": lambda: replace(sample, ids=sample.ids.astype(np.float32)),
    }
    kind = draw.choice(list(kinds))

    def run() -> Any:
        with folder() as directory:
            try:
                embgrad.save(kinds[kind](), directory / "x.safetensors")
            finally:
                expect_equal(os.listdir(directory), [], "what a refused save has left")

    return Case("save", f"broken: {kind} of {sample!r}", run, None, REFUSAL)


def load_broken(draw: Draw, framework: str) -> Case:
    """Draw a damaged file, which must be refused, unless only a number has changed."""
    saved = results(draw)
    while _has_surrogate(saved):
        saved = results(draw)
    kind = draw.choice(
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
    share, bit = draw.random.random(), draw.integer(0, 7)

    def run() -> Any:
        with folder() as directory:
            path = directory / "x.safetensors"
            embgrad.save(saved, path)
            damage(path, kind, share, bit)
            return embgrad.load(path)

    def judge(actual: Any) -> None:
        expect(kind.startswith("flipped"), f"a file that is {kind} was read: {actual!r}")

    errors = (embgrad.errors.FileFormatError,)
    if kind == "missing":
        errors = (FileNotFoundError,)
    elif kind == "a folder":
        errors = (embgrad.errors.FileFormatError, OSError)
    return Case("load", f"{kind} at {share}, bit {bit}, of {saved!r}", run, judge, errors)


def damage(path: Path, kind: str, share: float, bit: int) -> None:
    data = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    directory = int(share * (header if kind.endswith("header") else len(data)))
    path.unlink()
    if kind == "missing":
        return
    if kind == "a folder":
        path.mkdir()
        return
    data[directory] ^= (1 << bit) if kind.startswith("flipped") else 0
    broken = {
        "truncated": data[:directory],
        "longer": data + b"more",
        "empty": b"",
        "text": b'{"values": 1}',
        "zeros": bytes(len(data)),
        "header too long": (2**60).to_bytes(8, "little") + data[8:],
    }
    path.write_bytes(broken.get(kind, data))


def no_path(draw: Draw, framework: str) -> Case:
    wrong, name = (
        draw.choice([3, None, [], {}, 0.5, b"bytes", object()]),
        draw.choice(["load", "save", "open_stream", "golden"]),
    )
    sample = result(draw)

    def run() -> Any:
        return embgrad.save(sample, wrong) if name == "save" else getattr(embgrad, name)(wrong)

    return Case(name, f"path: {wrong!r}", run, None, REFUSAL)


def golden(draw: Draw, framework: str) -> Case:
    """Draw a golden file, which must agree with its own result alone."""
    sample = replace(result(draw), tables=None, before=None, vocab=9)
    if sample.objective is None or np.ndim(sample.objective) == 0:
        sample = replace(sample, objective=draw.normal(len(sample.ids)))
    values = np.clip(sample.values, -1e3, 1e3)
    sample = replace(sample, values=values)
    kind = draw.choice(["same", "other values", "other objective", "no file", "nonsense", "not finite"])

    def run() -> Any:
        with folder() as directory:
            kept = embgrad.golden(directory / "new" / "g.safetensors")
            if kind == "no file":
                return kept.check(sample)
            kept.update(replace(sample, values=values * np.nan) if kind == "not finite" else sample)
            if kind == "nonsense":
                return kept.check(nonsense(draw))
            changed = {
                "other values": {"values": values * 1.5 + 0.1},
                "other objective": {"objective": sample.objective + 1},
            }
            return kept.check(replace(sample, **changed.get(kind, {})))

    def judge(actual: Any) -> None:
        expect(actual.agrees, "the same results do not agree")

    return Case(
        "golden", f"{kind}: {sample!r}", run, judge if kind == "same" else None, () if kind == "same" else REFUSAL
    )


def pages(draw: Draw, framework: str) -> Case:
    """Draw a page, in which no token may become markup."""
    broken = draw.chance(0.3)
    labels = draw.subset(["a", "<b>", "ü", "\ud800"], most=2)
    sample = replace(result(draw), tables=None)
    saved: Any = sample if draw.chance(0.4) else dict.fromkeys(labels, sample)
    if broken:
        saved = draw.choice([nonsense(draw), {}, {"a": nonsense(draw)}, None, {"a": {}}])

    def run() -> Any:
        with folder() as directory:
            write_page(directory / "page.html", saved, title="<i>title</i>")
            return (directory / "page.html").read_text(encoding="utf-8")

    def judge(page: str) -> None:
        expect(page.lower().startswith("<!doctype html>"), f"the page begins {page[:40]!r}")
        expect("<script" not in page.lower(), "there is a script in the page")
        expect("<i>title</i>" not in page, "the title is markup")

    return Case("write_page", f"{saved!r}", run, None if broken else judge, REFUSAL if broken else ())
