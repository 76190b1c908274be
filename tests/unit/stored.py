"""A result made by hand, and the expectations of one that is read from a file."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

import embgrad
from embgrad.results.certificate import Certificate, Slope
from embgrad.results.row_sparse import scatter
from tests.unit.refusals import refused

IDS = np.array([[3, 5, 5], [3, 7, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
TABLES = tuple(scatter(IDS[i], np.full((3, 4), number, np.float32), 10) for i, number in enumerate((0.1, 0.2)))
CERTIFICATE = Certificate((Slope("gradient", 1.0, 1.0, 1e-9, 1e-6),), scatter=1e-8)
FULL_CERTIFICATE = Certificate(
    (Slope("gradient", 1.0, 1.0, 1e-9, 1e-6), Slope("values", 1, 2.0, 0.5, float("inf"))),
    **{"scatter": None, "independence": 0.25, "untested": (0, 3)},
    **{"neighbours": 0.5, "order": None, "padding": 0.125, "unrun": {"order": "one example"}},
)


def result(dtype: Any = np.float32, **changes: Any) -> embgrad.results.EmbeddingGradients:
    """Return a result of two examples with random values and these changes."""
    random = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "values": random.normal(size=(2, 3, 4)).astype(dtype),
        "activations": random.normal(size=(2, 3, 4)).astype(dtype),
        "objective": np.array([0.5, 1.25]),
        "ids": IDS.copy(), "mask": MASK.copy(),
        "types": np.array([[0, 0, 1], [0, 0, 0]]),
        "tokens": (("[CLS]", "grip", "##ping"), ("[CLS]", "naïve", "[PAD]")),
        "words_of": np.array([[-1, 0, 0], [-1, 0, -1]]),
        "vocab": 10, "pad_leak": 1e-9,
        "provenance": {"backend": "reference", "model": "some.Model", "point": "word", "path": "E",
            "objective": {"class": "Sum"}},
    }  # fmt: skip
    return embgrad.results.EmbeddingGradients(**{**fields, **changes})


def everything() -> embgrad.results.EmbeddingGradients:
    """Return a result with every optional field."""
    return result(tables=TABLES, before=np.ones((2, 3, 4), np.float32), certificate=CERTIFICATE)


def expect_same_bits(one: Any, other: Any) -> None:
    assert isinstance(other, embgrad.results.EmbeddingGradients)
    for name in ("values", "activations", "objective", "ids", "mask", "types", "words_of", "before"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None)
        if first is not None:
            assert (second.dtype, second.shape, second.tobytes()) == (first.dtype, first.shape, first.tobytes())
            assert second.flags.writeable
    for name in ("tokens", "vocab", "pad_leak", "provenance", "certificate"):
        assert getattr(other, name) == getattr(one, name)
    assert (one.tables is None) == (other.tables is None)
    for table, again in zip(one.tables or (), other.tables or (), strict=True):
        assert again.shape == table.shape
        np.testing.assert_array_equal(again.rows, table.rows)
        np.testing.assert_array_equal(again.values, table.values)


def through_a_file(results: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        embgrad.save(results, Path(folder) / "g.safetensors")
        return embgrad.load(Path(folder) / "g.safetensors")


def saved_bytes(results: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        embgrad.save(results, Path(folder) / "g.safetensors")
        return (Path(folder) / "g.safetensors").read_bytes()


def expect_refused_or_sound(data: bytes) -> None:
    """Expect that a file is refused with FileFormatError, or gives results that can be used, written and read again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.safetensors"
        path.write_bytes(data)
        try:
            found = embgrad.load(path)
        except embgrad.errors.FileFormatError:
            return
        results = found if isinstance(found, dict) else {"": found}
        for one in results.values():
            assert isinstance(one, embgrad.results.EmbeddingGradients)
            with np.errstate(all="ignore"):
                assert repr(one)
                assert one.saliency().shape == one.shape[:-1]
            if one.tokens is not None:
                assert len(one.words()) == len(one.ids)
            if one.vocab is not None:
                assert one.table().rows.max() < one.vocab
        embgrad.save(found, path)
        again = embgrad.load(path)
        for name, one in results.items():
            other = again[name] if isinstance(again, dict) else again
            for array in ("values", "ids", "objective"):
                np.testing.assert_array_equal(getattr(one, array), getattr(other, array))


def expect_restored(first: Any, second: Any) -> None:
    """Assert that a result was read back bit for bit; of a batch all but its further inputs, which are not stored."""
    assert type(second) is type(first)
    for field in fields(first):
        value, again = getattr(first, field.name), getattr(second, field.name)
        if isinstance(value, np.ndarray):
            assert (again.dtype, again.shape, again.tobytes()) == (value.dtype, value.shape, value.tobytes())
            assert again.flags.writeable
        elif isinstance(value, embgrad.TokenBatch):
            assert again == (value.replace(extras={}) if value.extras else value)
        elif is_dataclass(value):
            expect_restored(value, again)
        else:
            assert again == value


def expect_change_refused(stored: Any, change: Any, message: str) -> None:
    """Expect that the file of a result is refused after a change of its arrays and its description by hand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.safetensors"
        stored.save(path)
        arrays = safetensors.numpy.load_file(path)
        with safetensors.safe_open(str(path), "numpy") as file:
            entry = json.loads(file.metadata()["embgrad"])
        change(arrays, entry)
        # It writes the memory behind an array as it lies there, also that before a view with a negative step.
        contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        safetensors.numpy.save_file(contiguous, path, {"embgrad": json.dumps(entry)})
        with refused(embgrad.errors.FileFormatError, message):
            embgrad.load(path)
