"""The small backend in the documentation: registered, against a closed form, and shown in the page as it is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import embgrad
from embgrad.backend import registry

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "examples" / "tiny" / "embgrad_tiny.py"
IDS = np.array([[1, 4, 2], [3, 3, 0]])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the example's module, with its backend registered."""
    spec = importlib.util.spec_from_file_location("embgrad_tiny", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = registry.Discovery({"tiny": module.TinyBackend()}, {})
    monkeypatch.setattr(registry, "_discover", lambda: known)
    return module


def test_the_gradient_is_the_closed_form(tiny: ModuleType) -> None:
    table, matrix = np.random.default_rng(0).normal(size=(5, 4)), np.random.default_rng(1).normal(size=(4, 3))
    model = tiny.Bag(table, matrix)
    result = embgrad.gradients(model, IDS, embgrad.Projection([1.0, -2.0, 0.5]))
    wanted = np.broadcast_to(matrix @ [1.0, -2.0, 0.5] / 3, (2, 3, 4))
    np.testing.assert_allclose(result.values, wanted, rtol=1e-12)
    np.testing.assert_array_equal(result.activations, table[IDS])
    np.testing.assert_allclose(result.objective, table[IDS].mean(1) @ matrix @ [1.0, -2.0, 0.5], rtol=1e-12)
    assert "word" in embgrad.points(model, IDS)[0].roles


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_half_precision_is_widened(tiny: ModuleType, dtype: str) -> None:
    model = tiny.Bag(np.ones((5, 4), dtype), np.ones((4, 3), dtype))
    result = embgrad.gradients(model, IDS, embgrad.Projection([1.0, -2.0, 0.5]))
    wanted = np.float64 if dtype == "float64" else np.float32
    assert (result.values.dtype, result.activations.dtype) == (wanted, wanted)
    assert result.provenance["compute_dtype"] == dtype


def test_each_of_several_objectives_is_evaluated(tiny: ModuleType) -> None:
    model = tiny.Bag(np.arange(20.0).reshape(5, 4), np.eye(4))
    first, last = embgrad.evaluate(model, IDS, [embgrad.Logit(0), embgrad.Logit(3)])
    np.testing.assert_array_equal(first, model.table[IDS].mean(1)[:, 0])
    np.testing.assert_array_equal(last, model.table[IDS].mean(1)[:, 3])


def test_another_call_is_refused(tiny: ModuleType) -> None:
    model = tiny.Bag(np.ones((5, 4)), np.ones((4, 3)))
    for function in (embgrad.gradients, embgrad.evaluate):
        with pytest.raises(embgrad.errors.UnsupportedError, match="a Bag is called in one way only"):
            function(model, IDS, embgrad.Logit(0), call=lambda model, ids: 2 * model(model.table[ids]))
    with pytest.raises(embgrad.errors.UnsupportedError, match="a Bag is called in one way only"):
        embgrad.points(model, IDS, call=lambda model, ids: 2 * model(model.table[ids]))


def test_what_the_model_cannot_take_is_warned_of(tiny: ModuleType) -> None:
    model = tiny.Bag(np.ones((5, 4)), np.ones((4, 3)))
    batch = embgrad.TokenBatch(IDS, types=np.ones_like(IDS))
    with pytest.warns(embgrad.EmbgradWarning, match="cannot take the types"):
        result = embgrad.gradients(model, batch, embgrad.Logit(0))
    assert result.provenance["unused"] == ["types"]


def test_what_it_lacks_is_said(tiny: ModuleType) -> None:
    model = tiny.Bag(np.ones((5, 4)), np.ones((4, 3)))
    with pytest.raises(embgrad.errors.UnsupportedError, match="the backend 'tiny' does not support 'override'"):
        embgrad.gradients(model, IDS, embgrad.Sum(), override={"word": 0.0})
    with pytest.raises(embgrad.errors.BatchError, match="id 9 at example 0, position 1 is outside the table"):
        embgrad.gradients(model, [[1, 9]], embgrad.Sum())


def test_the_page_shows_the_code_as_it_is() -> None:
    page = (DOCS / "backend.md").read_text(encoding="utf-8")
    source = FILE.read_text(encoding="utf-8")
    excerpts = re.findall(r"^```py\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    assert len(excerpts) >= 2
    for excerpt in [excerpt for excerpt in excerpts if "ConformanceSuite" not in excerpt]:
        assert excerpt in source
