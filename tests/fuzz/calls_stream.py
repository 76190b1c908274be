"""Calls of `stream`: in memory, to a folder, interrupted and resumed, and as tables."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import embgrad
from tests.fuzz.cases import REFUSAL, Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense
from tests.fuzz.worlds import World, drawn_world


def stream(draw: Draw, framework: str) -> Case:
    world = drawn_world(draw, framework, ("masked",), exact=True, least=2)
    count, size = draw.integer(1, 7), draw.integer(1, 4)
    texts = ["".join(draw.choice("abcdef") for _ in range(draw.integer(0, 5))) for _ in range(count)]
    labels = draw.integers(0, world.classes - 1, count)

    def tokenizer(text: str, pair: Any = None) -> list[int]:
        return [1, *((ord(letter) - 95) % world.vocab for letter in text)]

    if draw.chance(0.25):
        return _broken(draw, world, texts, tokenizer)
    labelled = draw.chance(0.4)
    source: Any = list(zip(texts, labels.tolist(), strict=True)) if labelled else texts
    objective = embgrad.Labelled(embgrad.CrossEntropy) if labelled else embgrad.CrossEntropy(labels)
    options: dict[str, Any] = {"batch_size": size, "tokenizer": tokenizer}
    keep = draw.choice(["all", "all", "saliency", "table"])
    options |= {"keep": keep, "run_id": "fuzz"}
    to, stop = draw.chance(0.5), draw.integer(0, 3)

    def run() -> Any:
        if not to:
            with embgrad.stream(world.model, iter(source), objective, **options) as running:
                return running.table() if keep == "table" else list(running)
        with tempfile.TemporaryDirectory(prefix="embgrad-fuzz-") as directory:
            with contextlib.suppress(_StopError):
                embgrad.stream(world.model, _until(source, stop), objective, to=directory, **options).finish()
            kept = embgrad.stream(world.model, iter(source), objective, to=directory, **options).finish()
            expect(kept.complete, "the folder is not complete")
            again = embgrad.open_stream(directory)
            return again.table() if keep == "table" else list(again)

    def judge(actual: Any) -> None:
        whole = [
            embgrad.gradients(
                world.model, texts[i : i + size], embgrad.CrossEntropy(labels[i : i + size]), tokenizer=tokenizer
            )
            for i in range(0, count, size)
        ]
        if keep == "table":
            expected = sum(result.table().to_dense() for result in whole)
            expect_close(actual.to_dense(), expected, 1e-9, "table()")
            return
        expect_equal(len(actual), len(whole), "the number of results")
        for mine, theirs in zip(actual, whole, strict=True):
            if keep == "saliency":
                expect_close(mine.scores[theirs.real], theirs.saliency()[theirs.real], 1e-9, "scores")
                expect_equal(mine.ids, theirs.ids, "ids")
            else:
                for name in ("values", "activations", "objective", "ids", "mask"):
                    expect_equal(getattr(mine, name), getattr(theirs, name), name)

    said = {name: value for name, value in options.items() if name != "tokenizer"}
    text = f"model: {world}\ntexts={texts}\nlabels={labels.tolist()}\nlabelled={labelled}, to a folder={to}, stop={stop}, {said}"
    return Case("stream", text, run, judge, (), [world], [texts, labels], framework=framework)


class _StopError(Exception):
    """An interruption of a run."""


def _until(source: Any, stop: int) -> Any:
    yield from source[:stop]
    raise _StopError


def _broken(draw: Draw, world: World, texts: list[str], tokenizer: Any) -> Case:
    wrong: dict[str, Any] = {
        "keep": draw.choice(["some", None, 3]),
        "batch_size": draw.choice([0, -1, "x", 1.5]),
        "tokenizer": draw.choice([3, "bert", lambda *_: nonsense(draw)]),
        "at": draw.choice(["wrod", [], 3]),
        "to": draw.choice([__file__]),
        "source": draw.choice([3, None, [3], [b"x"], [None], [["a", "b", "c"]], [0.5]]),
        "objective": draw.choice(
            [embgrad.CrossEntropy([0] * (len(texts) + 1)), embgrad.Labelled, 3, None, nonsense(draw)]
        ),
        "Labelled": None,
    }
    kind = draw.choice(list(wrong))
    options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 2}
    arguments: list[Any] = [world.model, texts, embgrad.Sum()]
    if kind in ("source", "objective"):
        arguments[1 if kind == "source" else 2] = wrong[kind]
    elif kind != "Labelled":
        options[kind] = wrong[kind]

    def run() -> Any:
        if kind == "Labelled":
            return embgrad.Labelled(draw.choice([3, None, embgrad.Sum(), "x"]))
        with embgrad.stream(*arguments, **options) as running:
            return list(running)

    refused: tuple[type[BaseException], ...] = REFUSAL
    if kind == "to":
        refused += (OSError,)
    text = f"model: {world}\ntexts={texts}\nbroken: {kind}: {wrong[kind]!r}"
    return Case("stream", text, run, None, refused, [world], [texts], framework=world.framework)
