"""What a call with a trace must give beside one without: the same, in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np


def same(plain: Any, compiled: Any, rel: float = 1e-10) -> None:
    """Assert that a trace was run, and gave what the model gives, relative to the largest entry."""
    assert compiled.provenance["compiled"] is True, compiled.provenance["uncompiled"]
    assert compiled.provenance["uncompiled"] is None
    for name in ("values", "activations", "objective"):
        one, other = getattr(plain, name), getattr(compiled, name)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=0, atol=rel * max(np.abs(one).max(), 1e-30))
    assert plain.provenance["path"] == compiled.provenance["path"]
    assert plain.provenance["compute_dtype"] == compiled.provenance["compute_dtype"]
