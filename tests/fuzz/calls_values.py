"""Calls that need no model: `TokenBatch`, `encode`, objectives, and the list of backends."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

import embgrad
from tests.fuzz.batches import broken_batch, drawn_mask
from tests.fuzz.cases import REFUSAL, Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import disguised, nonsense
from tests.fuzz.objectives import broken_objective, drawn_objective
from tests.fuzz.oracle import STEP

#: The broken objectives that only a call with a model can detect.
FOR_A_MODEL: Final = ("no objective", "a class", "a function", "Scalar of a function", "an output of no name")


def token_batches(draw: Draw, framework: str) -> Case:
    shape = draw.integer(1, 4), draw.integer(1, 5)
    if draw.chance(0.4):
        kind, made = broken_batch(draw, "reference", 50, at="batch")
        text = f"broken: {kind}"
        return Case("TokenBatch", text, lambda: _as_batch(made()), None, REFUSAL)
    ids = draw.integers(0, 2**31 - 1 if draw.chance(0.1) else 50, shape)
    mask = drawn_mask(draw, shape) if draw.chance(0.6) else None
    types = draw.integers(0, 3, shape) if draw.chance(0.3) else None
    words = draw.integers(-1, 3, shape) if draw.chance(0.2) else None
    tokens = [[f"t{value}" for value in row] for row in ids.tolist()] if draw.chance(0.3) else None
    extras = {"position_ids": np.arange(ids.size).reshape(shape), "flag": True} if draw.chance(0.2) else None
    convention = draw.choice(["huggingface", "tfhub", "keras_hub", "ids"])
    options = {"mask": mask, "types": types, "words": words}
    arguments = {name: None if value is None else disguised(draw, value) for name, value in options.items()}
    arguments |= {"tokens": tokens, "extras": extras, "convention": convention}
    ids_given = disguised(draw, ids)

    def judge(batch: embgrad.TokenBatch) -> None:
        real = np.ones(shape, bool) if mask is None else mask.astype(bool)
        expect_equal(batch.ids, ids, "ids")
        expect_equal(batch.ids.dtype, np.dtype(np.int64), "the dtype of ids")
        expect(not batch.ids.flags.writeable, "ids can be written to")
        for name, value in options.items():
            expect_equal(getattr(batch, name), value, name)
        expect_equal(batch.real, real, "real")
        expect_equal((batch.shape, len(batch), batch.padded), (shape, shape[0], not real.all()), "shape, len, padded")
        expect_equal(pickle.loads(pickle.dumps(batch)) == batch, True, "equality with its pickle")
        expect_equal(batch.replace() == batch, True, "equality with itself rebuilt")
        size = draw.integer(1, 5)
        pieces = list(batch.micro_batches(size))
        expect_equal(np.concatenate([piece.ids for piece in pieces]), ids, "the ids of its micro-batches")
        expect(all(len(piece) <= size for piece in pieces), "a micro-batch is too large")
        if extras is not None:
            places = np.concatenate([piece.extras["position_ids"] for piece in pieces])
            expect_equal(places, extras["position_ids"], "an extra, cut and joined")
        _expect_conventions(batch, ids, mask, types, real)
        expect(repr(batch).startswith("TokenBatch("), "its repr")

    text = f"ids={ids.tolist()} as {type(ids_given).__name__}, " + ", ".join(
        f"{key}={value!r}" for key, value in arguments.items()
    )
    return Case(
        "TokenBatch", text, lambda: embgrad.TokenBatch(ids_given, **arguments), judge, (), [], [ids_given, arguments]
    )


def _as_batch(arguments: Any) -> Any:
    return arguments if isinstance(arguments, embgrad.TokenBatch) else embgrad.TokenBatch(arguments)


def _expect_conventions(batch: Any, ids: np.ndarray, mask: Any, types: Any, real: np.ndarray) -> None:
    named = batch.to_huggingface()
    expect_equal(named["input_ids"], ids, "input_ids")
    expect_equal("attention_mask" in named, mask is not None, "whether there is an attention_mask")
    for actual, keys in (
        (batch.to_tfhub(), ("input_word_ids", "input_mask", "input_type_ids")),
        (batch.to_keras_hub(), ("token_ids", "padding_mask", "segment_ids")),
    ):
        expected = (ids, real.astype(int), np.zeros_like(ids) if types is None else types)
        expect_equal(
            "segment_ids" in actual, keys[2] == "segment_ids" and types is not None, "whether it has segment_ids"
        )
        for key, value in zip(keys, expected, strict=True):
            if key not in actual:
                continue
            expect_equal(actual[key], value, key)
            expect_equal(actual[key].dtype, np.dtype(np.int32), f"the dtype of {key}")
    lengths = real.sum(1)
    if (real == (np.arange(real.shape[1]) < lengths[:, None])).all():
        expect_equal(batch.lengths(), lengths, "lengths")
        expect_equal(batch.to_gluonnlp()[2], lengths.astype(np.float32), "valid lengths")
    else:
        try:
            batch.lengths()
        except embgrad.errors.BatchError:
            return
        expect(False, "lengths of a batch that is not padded on the right")


class Pieces:
    """A tokenizer with `tokenize` and `convert_tokens_to_ids`, whose pieces are letters."""

    special: Final = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}

    def tokenize(self, text: str) -> list[str]:
        return list(text)

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        return [self.special.get(token, 3 + ord(token[0]) % 90) for token in tokens]


def letters(text: str, pair: str | None = None) -> list[int]:
    """Return [1] text [2] pair [2], with an id per letter."""
    return [
        1,
        *(i for part in (text, pair) if part is not None for i in [*(3 + ord(letter) % 90 for letter in part), 2]),
    ]


def as_dict(text: str, pair: str | None = None) -> dict[str, Any]:
    """Return the same in a known convention, with masked padding."""
    ids = letters(text, pair)
    return {"input_ids": [*ids, 0, 0], "attention_mask": [*[1] * len(ids), 0, 0]}


def encode(draw: Draw, framework: str) -> Case:
    texts: list[Any] = []
    for _ in range(draw.integer(1, 4)):
        first, second = ("".join(draw.choice("abcé 漢\u202e😀\n") for _ in range(draw.integer(0, 6))) for _ in range(2))
        texts.append(draw.choice([first, (first, second), [first, second]]))
    kind = draw.choice(["callable", "dict", "pieces"])
    tokenizer: Any = {"callable": letters, "dict": as_dict, "pieces": Pieces()}[kind]
    side, pad, most = draw.choice([None, "right", "left"]), draw.choice([None, 0, 7]), None
    if kind == "pieces" and draw.chance(0.5):
        most = draw.integer(3, 9)
    options = {"padding_side": side, "pad_id": pad, "max_length": most}
    text = f"texts={texts!r}, a {kind} tokenizer, {options}"
    if draw.chance(0.35):
        return _broken_encode(draw, texts, tokenizer)

    def judge(batch: embgrad.TokenBatch) -> None:
        wholes = [letters(*([entry] if isinstance(entry, str) else entry)) for entry in texts]
        lengths = [len(whole) if most is None else min(len(whole), most) for whole in wholes]
        expect_equal(batch.shape, (len(texts), max(lengths)), "the shape")
        expect_equal(batch.real.sum(1), np.array(lengths), "the lengths")
        expect_equal(batch.truncated, np.array([len(whole) for whole in wholes]) - lengths, "truncated")
        for row, real, expected in zip(batch.ids, batch.real, wholes, strict=True):
            start = np.flatnonzero(real)[0]
            expect_equal(start, len(real) - real.sum() if side == "left" else 0, "where an example begins")
            expect(set(row[~real].tolist()) <= {pad or 0}, f"padding is {row[~real].tolist()}")
            if most is None:
                expect_equal(row[real], np.array(expected), "the ids")

    return Case("encode", text, lambda: embgrad.encode(texts, tokenizer, **options), judge, (), [], [texts])


def _broken_encode(draw: Draw, texts: list[Any], tokenizer: Any) -> Case:
    wrong: dict[str, Callable[[], Any]] = {
        "texts": lambda: embgrad.encode(
            draw.choice([("a", "b"), [], [3], None, [["a"]], [("a", "b", "c")], {}, b"x"]), tokenizer
        ),
        "nonsense": lambda: embgrad.encode(_no_text(nonsense(draw)), tokenizer),
        "tokenizer": lambda: embgrad.encode(texts, draw.choice([None, 3, "bert", Pieces, object()])),
        "answer": lambda: embgrad.encode(texts, lambda *_: nonsense(draw) if draw.chance(0.5) else [[1], [2]]),
        "an answer of another length": lambda: embgrad.encode(
            ["a"], lambda *_: {"input_ids": [1], "attention_mask": [1, 1]}
        ),
        "max_length": lambda: embgrad.encode(texts, Pieces(), max_length=draw.choice([0, -1, 1, 1.5, "9", True])),
        "max_length of a callable": lambda: embgrad.encode(texts, letters, max_length=9),
        "padding_side": lambda: embgrad.encode(
            texts, tokenizer, padding_side=draw.choice(["Left", "", 3, [], None, b"left"]) or 0
        ),
        "pad_id": lambda: embgrad.encode(
            ["a", "abc"], tokenizer, pad_id=draw.choice([-1, 0.5, "0", float("nan"), [0], 2**70])
        ),
    }
    kind = draw.choice(list(wrong))
    return Case("encode", f"texts={texts!r}\nbroken: {kind}", wrong[kind], None, REFUSAL)


def _no_text(value: Any) -> Any:
    return 3 if isinstance(value, str) else value


class _Formula:
    """An objective of a random output, with the expected value."""

    def __init__(self, draw: Draw) -> None:
        shape = draw.integer(1, 4), draw.integer(1, 5)
        mask = drawn_mask(draw, shape) if draw.chance(0.6) else None
        self.batch = embgrad.TokenBatch(draw.integers(0, 9, shape), mask)
        self.architecture = draw.choice(["mean", "positions", "probabilities"])
        classes = draw.integer(2, 5)
        self.objective = drawn_objective(draw, self.architecture, classes, self.batch)
        outer = shape if self.architecture == "positions" else shape[:1]
        self.output = draw.normal(*outer, classes, scale=draw.choice([0.1, 1.0, 20.0]))
        if self.architecture == "probabilities":
            powers = np.exp(self.output - self.output.max(-1, keepdims=True)) + 1e-3
            self.output = powers / powers.sum(-1, keepdims=True)

    def right(self) -> tuple[np.ndarray, np.ndarray]:
        steps = np.eye(self.output.size).reshape(-1, *self.output.shape) * 1j * STEP
        values = np.broadcast_to(
            self.objective.formula({"logits": self.output + steps}), (self.output.size, len(self.batch))
        )
        return values[0].real, (values.imag / STEP).sum(1).reshape(self.output.shape)


def objectives(draw: Draw, framework: str) -> Case:
    if draw.chance(0.4):
        kind, made, _ = broken_objective(draw, 3, 2)
        while kind.startswith(FOR_A_MODEL):
            kind, made, _ = broken_objective(draw, 3, 2)
        batch, output = embgrad.TokenBatch([[1, 2], [3, 4]]), draw.normal(2, 3)
        run = lambda: made().evaluate(output, batch)  # noqa: E731
        return Case("objectives", f"broken: {kind}", run, None, REFUSAL)
    formula = _Formula(draw)
    value, cotangent = formula.right()

    def judge(actual: Any) -> None:
        expect_close(actual[0], value, 1e-9, "L", 1.0)
        expect_close(actual[1], cotangent, 1e-9, "the cotangent", 1e-3)
        described = formula.objective.argument.describe()
        rebuilt = getattr(embgrad, described["class"])(
            **{key: kept for key, kept in described.items() if key != "class"}
        )
        again = rebuilt.evaluate(formula.output, formula.batch)
        expect_equal(again[1], actual[1], "the cotangent of what describe() rebuilds")

    real = formula.batch.real.astype(int).tolist()
    text = (
        f"{formula.objective.text}\nbatch: {formula.batch.ids.tolist()}, mask {real}\noutput {formula.output.tolist()}"
    )
    run = lambda: formula.objective.argument.evaluate(formula.output, formula.batch)  # noqa: E731
    # Without a model it is not known whether as many numbers as positions are classes or scores of positions.
    is_open = formula.batch.padded and formula.output.shape[-1] == formula.batch.shape[1]
    refused = (embgrad.errors.ObjectiveError,) if is_open else ()
    return Case(
        "objectives", text, run, judge, refused, [], [formula.output, formula.batch, formula.objective.argument]
    )


def backends(draw: Draw, framework: str) -> Case:
    refresh = draw.chance(0.1)

    def run() -> Any:
        if refresh:
            embgrad.backend.refresh_backends()
        return embgrad.backend.list_backends()

    def judge(actual: Mapping[str, Any]) -> None:
        for name in ("reference", framework):
            expect(name in actual, f"{name!r} is not in the list {actual!r}")

    return Case("list_backends", f"refresh: {refresh}", run, judge, framework=framework)
