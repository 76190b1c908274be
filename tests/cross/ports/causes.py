"""The causes that a planted fault may have, by family; what a check of a port names is compared with these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "norm": ("layer-norm-epsilon", "norm-kind", "norm-offset", "missing-norm", "norm-in-half"),
    "activation": ("gelu", "activation", "gate-swapped"),
    "rotary": (
        *("rotary-base", "rotary-scaling", "rotary-layout", "rotary-partial"),
        *("rotary-offset", "missing-rotary", "rotary-in-half"),
    ),
    "attention": (
        *("attention-scale", "attention-cap", "attention-causal", "attention-window", "mask-ignored"),
        *("attention-shift", "attention-heads", "attention-groups", "attention-bias", "attention-softmax", "dropout"),
    ),
    "matrix": (
        *("transposed-weight", "missing-bias", "permuted-weight", "half-weights"),
        *("swapped-weights", "different-weight"),
    ),
    "table": (
        *("different-table", "scaled-lookup", "position-ids-offset", "missing-positions"),
        *("types-ignored", "padding-row", "other-ids"),
    ),
    "experts": ("expert-routing",),
    "recurrence": ("recurrence",),
    "convolution": ("convolution",),
    "residual": ("residual-scale", "missing-residual", "missing-part", "layer-order", "norm-order"),
    "head": ("head-untied", "logit-cap", "logit-scale"),
    "pooling": ("pooling",),
}

#: Every cause once: a head's bias may be missing as a matrix's is, and a query's weight swapped for a key's.
CAUSES: Final = tuple(cause for causes in FAMILIES.values() for cause in causes)


def family(cause: str) -> str:
    """Return the family that a cause belongs to."""
    return next(name for name, causes in FAMILIES.items() if cause in causes)
