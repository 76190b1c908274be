"""The properties that attributions of an objective and of output tokens share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embgrad.common.arrays import as_asked

__all__ = ["Scores"]


class Scores:
    """A base class of results whose `scores` say how much each position contributes, by one method."""

    scores: np.ndarray
    ids: np.ndarray
    mask: np.ndarray | None
    provenance: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The name of the method's class."""
        return str(self.provenance["method"]["class"])

    @property
    def real(self) -> np.ndarray:
        """A bool array, shape (example, position): true at real positions, everywhere without a mask."""
        return np.ones(self.ids.shape, bool) if self.mask is None else self.mask.astype(bool)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the scores, for `np.asarray` and all NumPy functions: the array itself, unless a copy is requested."""
        return as_asked(self.scores, dtype, copy)
