"""Keeps the random generators of Python and NumPy where they stand, while something is made whose numbers do not count."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

__all__ = ["generators_kept"]


@contextlib.contextmanager
def generators_kept(*others: random.Random | None) -> Iterator[None]:
    """The generators come back to where they stood; the others are a framework's own of Python's kind, None where it has none."""
    own = [one for one in others if one is not None]
    of_python, of_numpy, of_others = random.getstate(), np.random.get_state(), [one.getstate() for one in own]
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        for one, state in zip(own, of_others, strict=True):
            one.setstate(state)
