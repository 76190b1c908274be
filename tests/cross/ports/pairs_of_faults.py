"""Two faults at once in one pair: both are to be named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.cross.ports.fault import Fault
from tests.cross.ports.faults import FAULTS
from tests.cross.ports.ports import Pair


@dataclass(frozen=True)
class TwoFaults:
    """Two faults of the same architecture, framework and padding."""

    first: Fault
    second: Fault

    @property
    def name(self) -> str:
        return f"{self.first.name}+{self.second.side}-{self.second.label}"

    def healthy(self, seed: int = 0) -> Pair:
        """Return the pair without the faults."""
        return self.first.healthy(seed)

    def plant_in(self, pair: Pair) -> None:
        """Plant both faults."""
        self.first.plant_in(pair)
        self.second.plant_in(pair)


#: (architecture and framework, a fault's side and label, another's).
_LISTED: Final = (
    ("bert-keras", "port-gelu-all", "port-positions-from-one"),
    ("bert-keras", "port-epsilon-of-embeddings", "port-output-transposed"),
    ("bert-keras", "port-mask-ignored", "port-bias-missing"),
    ("bert-flax", "port-tanh-gelu", "reference-residual-missing"),
    ("bert-flax", "port-epsilon-all", "port-inner-kernel-zero"),
    ("bert-tensorflow", "port-unscaled", "reference-scaled-lookup"),
    ("bert-gluon", "port-query-for-key", "reference-inner-permuted"),
    ("bert-jax", "port-relu-in-one-layer", "port-output-permuted"),
    ("roberta-keras", "port-tanh-gelu", "port-value-anew"),
    ("roberta-flax", "port-value-bias-missing", "reference-norm-missing"),
    ("distilbert-keras", "port-swish", "port-ids-one-late"),
    ("albert-flax", "port-exact-gelu", "reference-value-transposed"),
    ("gpt2-keras", "port-exact-gelu", "port-positions-from-one"),
    ("gpt2-flax", "reference-unscaled", "port-epsilon-all"),
    ("llama-keras", "port-epsilon-all", "port-base"),
    ("llama-keras", "port-interleaved", "port-gate-on-up"),
    ("llama-flax", "reference-base", "port-tanh-gelu"),
    ("llama-own", "port-keys-tiled", "port-norm-with-mean"),
    ("llama-own", "port-window", "port-residual-scaled"),
    ("llama-own", "reference-scale", "port-down-in-bfloat16"),
    ("mistral-keras", "port-window-missing", "port-relu-for-silu"),
    ("gemma2-keras", "port-cap-missing", "reference-norm-without-one"),
    ("gemma2-own", "port-lookup-not-scaled", "reference-scale"),
    ("t5-flax", "port-key-for-value", "reference-distances-of-twenty"),
    ("bart-keras", "port-not-causal", "port-tanh-gelu"),
)

PAIRS: Final = {
    pair.name: pair
    for pair in (TwoFaults(FAULTS[f"{way}-{first}"], FAULTS[f"{way}-{second}"]) for way, first, second in _LISTED)
}
