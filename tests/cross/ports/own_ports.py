"""Ports written from scratch, as researchers write them, with the weights of small random models, and the faults people make.

The list was written down before any of it was tried.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import nn

from embgrad import TokenBatch
from tests.cross.ports import architectures, twins
from tests.cross.ports.architectures import ARCHITECTURES, Architecture, draw_weights
from tests.cross.ports.own_settings import Settings
from tests.cross.ports.ports import Pair, Port
from tests.cross.ports.weights import Change, drawn_anew, zeros

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class OwnPort:
    """A reference and a port of it.

    Attributes:
        reference: makes the reference.
        batch: makes the batch.
        port: the module of this folder and the name there of what makes the port of a state, a configuration and settings.
        call: the name there of the function that calls the port; "" where it is called as usual.
    """

    reference: Callable[[], Any]
    batch: Callable[[], TokenBatch]
    port: tuple[str, str]
    call: str = ""

    def make(self, change: Callable[[State], State], fault: OwnFault | None) -> tuple[Pair, Any]:
        """Return the pair, and how the port is called."""
        first, batch = self.reference(), self.batch()
        state = change({name: value.detach().numpy().copy() for name, value in first.state_dict().items()})
        module = importlib.import_module(f"tests.cross.ports.{self.port[0]}")
        build = getattr(module, self.port[1])
        settings = Settings(build.usual, fault and fault.settings, fault and fault.layers)
        made = build(state, first.config, settings)
        port = made.eval() if isinstance(made, nn.Module) else made
        way = Port(self.port[1], "own", lambda _: port, lambda batch: batch, architectures.forward("bert"))
        return Pair(first, port, batch, batch, way), getattr(module, self.call) if self.call else None


@dataclass(frozen=True)
class OwnFault:
    """A fault in a port written by hand.

    Attributes:
        port: a key of `PORTS`.
        label: what is wrong, such as "exact-gelu".
        causes: the keys of `CAUSES` that are true; none where no known cause is, and naming none is right.
        site: a regular expression that is found in the reference's path of the module at the site.
        settings: the port's settings that are others.
        layers: the layers that have these; None for all.
        change: what is done to the reference's weights before the port takes them.
        may_be_unnamed: whether naming no cause is right as well.
        second: another fault of the same port, for two at once.
    """

    port: str
    label: str
    causes: tuple[str, ...]
    site: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    change: Callable[[State], State] = dict
    may_be_unnamed: bool = False
    second: OwnFault | None = None

    @property
    def name(self) -> str:
        behind = "" if self.second is None else f"+{self.second.label}"
        return f"{self.port}-{self.label}{behind}"

    def make(self) -> tuple[Pair, Any]:
        """Return the pair with the fault, and how the port is called."""
        if self.second is None:
            return PORTS[self.port].make(self.change, self)
        both = replace(self, settings={**self.settings, **self.second.settings}, second=None)
        assert self.layers == self.second.layers, self.name
        return PORTS[self.port].make(lambda state: self.second.change(self.change(state)), both)  # type: ignore[union-attr]


@dataclass(frozen=True)
class OwnRight:
    """A port written by hand that is right, as it stands or written in another way."""

    port: str
    label: str = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.port}-{self.label}"

    def make(self) -> tuple[Pair, Any]:
        """Return the pair, and how the port is called."""
        return PORTS[self.port].make(dict, OwnFault(self.port, self.label, (), "", self.settings))


class Sentences(nn.Module):
    """A sentence encoder: the mean of BERT's last hidden states at real positions, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = architectures.reference("bert")
        self.config = self.bert.config

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        x = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]
        real = attention_mask[..., None].to(x.dtype)
        return nn.functional.normalize((x * real).sum(1) / real.sum(1).clamp(min=1e-9), dim=-1)


def _classifier() -> Any:
    options = {**ARCHITECTURES["roberta"].options, "num_labels": 5}
    config = transformers.RobertaConfig(**options)
    config._attn_implementation = "eager"
    made = transformers.RobertaForSequenceClassification(config)
    draw_weights(made, Architecture("roberta", "", "", {}, "bare"), 0)
    return made.eval()


def _port(
    architecture: str, module: str, name: str, call: str = "", reference: Callable[[], Any] | None = None
) -> OwnPort:
    return OwnPort(
        reference or (lambda: architectures.reference(architecture)),
        lambda: architectures.token_batch(architecture),
        (module, name),
        call,
    )


PORTS: Final[Mapping[str, OwnPort]] = {
    "nanogpt": _port("gpt2-lm", "own_torch", "NanoGpt"),
    "jax-llama": _port("llama-lm", "own_jax", "plain_llama", "applied"),
    "nnx-qwen": _port("qwen2", "own_jax", "Qwen"),
    "fused-llama": _port("llama", "own_jax", "FusedLlama"),
    "linen-bert": _port("bert", "own_jax", "linen_bert", "applied_linen"),
    "keras-bert": _port("bert", "own_keras", "keras_bert"),
    "torch-t5": _port("t5", "own_torch", "PlainT5"),
    "keras-mixtral": _port("llama", "own_keras", "Mixtral", "applied", lambda: twins.model("mixtral")),
    "gemma-functions": _port("gemma2-lm", "own_torch", "FunctionalGemma"),
    "sentences": _port("bert", "own_torch", "Encoder", "", Sentences),
    "classifier": _port("roberta", "own_torch", "Classifier", "", _classifier),
}


def weights(*patterns: str, by: Change | str) -> Callable[[State], State]:
    """Return what changes the weights with a pattern, or takes those of another name in their place.

    Args:
        patterns: regular expressions of whole names.
        by: a function of the values; or the name of the weight that is taken, as `re.sub` writes it.
    """

    def change(state: State) -> State:
        found = {name: pattern for pattern in patterns for name in state if re.fullmatch(pattern, name)}
        assert found, patterns
        others = {
            name: state[re.sub(pattern, by, name)] if isinstance(by, str) else by(state[name])
            for name, pattern in found.items()
        }
        return {**state, **{name: np.asarray(value, np.float32).copy() for name, value in others.items()}}

    return change


def swapped(first: str, second: str) -> Callable[[State], State]:
    """Return what exchanges a part of weights' names with another."""

    def change(state: State) -> State:
        def other(name: str) -> str:
            return name.replace(first, second) if first in name else name.replace(second, first)

        assert any(first in name for name in state), first
        return {name: state[other(name)] for name in state}

    return change


def _transposed(values: np.ndarray) -> np.ndarray:
    return values.T


def _heads_inside(values: np.ndarray) -> np.ndarray:
    """Return rows of heads and their features as rows of features and their heads."""
    return values.reshape(4, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def _moved(values: np.ndarray) -> np.ndarray:
    return np.roll(values, 1, 0)


def _fault(port: str, label: str, causes: str, site: str, **more: Any) -> OwnFault:
    own = {name: more.pop(name) for name in ("layers", "change", "may_be_unnamed") if name in more}
    return OwnFault(port, label, tuple(causes.split()), site, more, **own)


_NORM: Final = "norm|ln_|layernorm|LayerNorm"
_EPSILON: Final = "layer-norm-epsilon"
_ATTENTION: Final = "attn|attention|SelfAttention"
_FEED: Final = "mlp|intermediate|DenseReluDense|dense|moe"
_SWAP: Final = "swapped-weights different-weight"
_STREAM: Final = "norm-order missing-residual"
_HEADS: Final = "attention-heads permuted-weight"

OWN_FAULTS: Final = (
    _fault("nanogpt", "exact-gelu", "gelu", _FEED, gelu="exact"),
    _fault("nanogpt", "relu-in-one", "activation", _FEED, gelu="relu", layers=(1,)),
    _fault("nanogpt", "epsilon", _EPSILON, _NORM, epsilon=1e-3),
    _fault("nanogpt", "order-kqv", "swapped-weights permuted-weight", "attn", order="kqv"),
    _fault("nanogpt", "heads-inside", _HEADS, "attn", inside=True),
    _fault("nanogpt", "unturned", "attention-heads", "attn", unturned=True),
    _fault("nanogpt", "unscaled", "attention-scale", "attn", scale=1.0),
    _fault("nanogpt", "not-causal", "attention-causal", "attn", causal=False),
    _fault("nanogpt", "as-stored", "transposed-weight", "attn", as_stored=("c_proj",)),
    _fault("nanogpt", "normed-residual", _STREAM, "h|ln_", normed_residual=True),
    _fault("nanogpt", "positions-from-1", "position-ids-offset", "wpe|h", first=1),
    _fault("nanogpt", "untied", "head-untied", "lm_head|output", head=3),
    _fault("nanogpt", "no-final-norm", "missing-norm", "ln_f|lm_head|output", final=False),
    _fault("nanogpt", "dropout", "dropout", "attn", dropout=0.1),
    _fault("nanogpt", "bias-in-one", "missing-bias", "c_fc|mlp", unbiased=("c_fc",), layers=(1,)),
    _fault("nanogpt", "no-residual-in-one", "missing-residual", "h", residual=False, layers=(2,)),
    _fault("nanogpt", "layers-swapped", _SWAP, "h", change=swapped("h.0.", "h.1.")),
    _fault("nanogpt", "layer-twice", _SWAP, "h", change=weights(r"transformer\.h\.2\.(.*)", by=r"transformer.h.1.\1")),
    _fault("jax-llama", "interleaved", "rotary-layout", _ATTENTION, interleaved=True),
    _fault("jax-llama", "tiled", "attention-groups", _ATTENTION, tile=True),
    _fault("jax-llama", "epsilon", _EPSILON, _NORM, epsilon=1e-3),
    _fault("jax-llama", "softmax-over-queries", "", _ATTENTION, axis=2),
    _fault("jax-llama", "unscaled", "attention-scale", _ATTENTION, scale=1.0),
    _fault("jax-llama", "mask-after-softmax", "", _ATTENTION, mask="after"),
    _fault("jax-llama", "gate-on-up", "gate-swapped swapped-weights", "mlp", gated=False),
    _fault("jax-llama", "heads-inside", _HEADS, _ATTENTION, inside=True),
    _fault("jax-llama", "base", "rotary-base", _ATTENTION, base=5e5),
    _fault("jax-llama", "norms-in-half", "norm-in-half", _NORM, half=True),
    _fault("jax-llama", "late-residual", _STREAM, "layers|norm", late_residual=True),
    _fault(
        *("jax-llama", "output-transposed", "transposed-weight", "o_proj|attn"),
        change=weights(r".*layers\.1.*o_proj\.weight", by=_transposed),
    ),
    _fault("jax-llama", "no-final-norm", "missing-norm", "norm|lm_head|output", final=False),
    _fault("nnx-qwen", "key-bias-in-one", "missing-bias", "k_proj|attn", unbiased=("k",), layers=(1,)),
    _fault("nnx-qwen", "base", "rotary-base", _ATTENTION, base=1e4),
    _fault("nnx-qwen", "gelu", "activation", "mlp", act="exact"),
    _fault("nnx-qwen", "one-plus-weight", "norm-offset", _NORM, offset=1.0),
    _fault("nnx-qwen", "heads-inside", _HEADS, _ATTENTION, inside=True),
    _fault("nnx-qwen", "keys-unturned", "missing-rotary", _ATTENTION, turned="q"),
    _fault("nnx-qwen", "backwards", "rotary-layout", _ATTENTION, backwards=True),
    _fault("nnx-qwen", "residual-halved", "residual-scale", "layers", residual=0.5),
    _fault("nnx-qwen", "mask-after-softmax", "", _ATTENTION, mask="after"),
    _fault("nnx-qwen", "late-residual-in-one", _STREAM, "layers|norm", late_residual=True, layers=(1,)),
    _fault(
        *("nnx-qwen", "query-transposed", "transposed-weight", "q_proj|attn"),
        change=weights(r"layers\.0.*q_proj\.weight", by=_transposed),
    ),
    _fault("fused-llama", "gate-up-swapped", "gate-swapped permuted-weight swapped-weights", "mlp", gated=False),
    _fault("fused-llama", "by-group", "permuted-weight swapped-weights attention-heads", _ATTENTION, by_group=True),
    _fault("fused-llama", "stored-qvk", "swapped-weights permuted-weight", _ATTENTION, stored="qvk"),
    _fault("fused-llama", "tiled", "attention-groups", _ATTENTION, tile=True),
    _fault("fused-llama", "one-ahead", "attention-shift", _ATTENTION, ahead=1),
    _fault("fused-llama", "own-hidden", "attention-shift", _ATTENTION, ahead=-1),
    _fault("fused-llama", "norm-with-mean", "norm-kind", _NORM, centred=True),
    _fault("fused-llama", "epsilon-in-one", _EPSILON, _NORM, epsilon=1e-2, layers=(1,)),
    _fault("fused-llama", "no-norm-in-one", "missing-norm", "norm|attn", norms=False, layers=(1,)),
    _fault("fused-llama", "unturned", "attention-heads", _ATTENTION, unturned=True),
    _fault("fused-llama", "softmax-over-queries", "", _ATTENTION, axis=2),
    _fault("linen-bert", "tanh-gelu", "gelu", _FEED, act="gelu"),
    _fault("linen-bert", "epsilon", _EPSILON, _NORM, epsilon=1e-6),
    _fault("linen-bert", "mask-ignored", "mask-ignored", _ATTENTION, padded=False),
    _fault("linen-bert", "mask-sign", "", _ATTENTION, mask="sign"),
    _fault("linen-bert", "unscaled", "attention-scale", _ATTENTION, scale=1.0),
    _fault("linen-bert", "types-ignored", "types-ignored", "token_type|LayerNorm", types=False),
    _fault("linen-bert", "pre-norm", "norm-order", "layer|LayerNorm|attention", pre_norm=True),
    _fault("linen-bert", "residual-outside", "norm-order", "LayerNorm|layer", outside=True),
    _fault("linen-bert", "no-embedding-norm", "missing-norm", "embeddings", embedding_norm=False),
    _fault("linen-bert", "query-for-key", "swapped-weights", "self", change=swapped("self.query", "self.key")),
    _fault("linen-bert", "unturned-in-one", "attention-heads", _ATTENTION, unturned=True, layers=(2,)),
    _fault("linen-bert", "softmax-over-queries", "", _ATTENTION, axis=2),
    _fault("keras-bert", "epsilon", _EPSILON, _NORM, epsilon=1e-3),
    _fault("keras-bert", "tanh-gelu", "gelu", _FEED, exact=False),
    _fault("keras-bert", "mask-ignored", "mask-ignored", _ATTENTION, padded=False),
    _fault("keras-bert", "heads-inside", _HEADS, "self|attention", inside=True),
    _fault("keras-bert", "query-as-stored", "transposed-weight", "self|attention", as_stored=("self.query",)),
    _fault(
        *("keras-bert", "output-as-stored-in-one", "transposed-weight", "output|attention"),
        as_stored=("output.dense",),
        layers=(1,),
    ),
    _fault("keras-bert", "positions-from-1", "position-ids-offset", "position|LayerNorm", first=1),
    _fault("keras-bert", "types-ignored", "types-ignored", "token_type|LayerNorm", types=False),
    _fault("keras-bert", "dropout", "dropout", "attention|LayerNorm", dropout=0.1),
    _fault(
        *("keras-bert", "layer-twice", _SWAP, "layer"),
        change=weights(r"encoder\.layer\.2\.(.*)", by=r"encoder.layer.1.\1"),
    ),
    _fault("torch-t5", "scaled", "attention-scale", _ATTENTION, scale=8**-0.5),
    _fault("torch-t5", "decoder-of-both-sides", "attention-bias", r"decoder", one_sided=False),
    _fault("torch-t5", "buckets-one-late", "attention-bias", _ATTENTION, late=1),
    _fault("torch-t5", "bias-of-first-alone", "attention-bias", r"block\.1", first_alone=True),
    _fault("torch-t5", "distances-turned", "attention-bias", _ATTENTION, flipped=True),
    _fault("torch-t5", "longest", "attention-bias", _ATTENTION, longest=20),
    _fault("torch-t5", "exact-gelu", "gelu", "DenseReluDense", gelu="exact"),
    _fault("torch-t5", "norm-with-mean", "norm-kind", "layer_norm", centred=True),
    _fault("torch-t5", "memory-unmasked", "mask-ignored", "EncDecAttention", cross_padded=False),
    _fault("torch-t5", "gate-on-up", "gate-swapped", "DenseReluDense", gated=False),
    _fault("torch-t5", "no-final-norm", "missing-norm", "final_layer_norm|output", final=False),
    _fault("keras-mixtral", "not-normalised", "expert-routing", "moe|layers", order="before"),
    _fault("keras-mixtral", "sigmoid", "expert-routing", "moe|layers", order="sigmoid"),
    _fault("keras-mixtral", "top-1", "expert-routing", "moe|layers", taken=1),
    _fault("keras-mixtral", "all-experts", "expert-routing", "moe|layers", taken=4),
    _fault("keras-mixtral", "gate-on-up", "gate-swapped swapped-weights", "moe|layers", gated=False),
    _fault("keras-mixtral", "experts-rolled-in-one", "swapped-weights", "moe|layers", rolled=1, layers=(1,)),
    _fault("keras-mixtral", "gelu", "activation gelu", "moe|layers", act="gelu"),
    _fault("keras-mixtral", "tiled", "attention-groups", _ATTENTION, tile=True),
    _fault("keras-mixtral", "base", "rotary-base", _ATTENTION, base=1e4),
    _fault("keras-mixtral", "softmax-over-tokens", "", "moe|layers", order="before", axis=1),
    _fault("keras-mixtral", "epsilon", _EPSILON, _NORM, epsilon=1e-3),
    _fault("gemma-functions", "lookup-unscaled", "scaled-lookup", "embed|layers", embed_scale=1.0),
    _fault("gemma-functions", "weight-alone", "norm-offset", _NORM, offset=0.0),
    _fault("gemma-functions", "exact-gelu", "gelu", "mlp", gelu="exact"),
    _fault("gemma-functions", "no-cap", "attention-cap", _ATTENTION, cap=None),
    _fault("gemma-functions", "no-logit-cap", "logit-cap", "lm_head|output", logit_cap=None),
    _fault("gemma-functions", "other-layers-slide", "attention-window", _ATTENTION, sliding=1),
    _fault("gemma-functions", "window-one-more", "attention-window", _ATTENTION, window=6),
    _fault("gemma-functions", "no-norms-behind", "missing-norm", "layernorm|layers", post=False),
    _fault("gemma-functions", "late-residual-in-one", _STREAM, "layers|norm", late_residual=True, layers=(2,)),
    _fault("gemma-functions", "interleaved", "rotary-layout", _ATTENTION, interleaved=True),
    _fault(
        *("gemma-functions", "layers-swapped", _SWAP, "layers"),
        change=swapped("layers.0.", "layers.2."),
    ),
    _fault("sentences", "mean-over-padding", "pooling", "output", pooling="all"),
    _fault("sentences", "first-token", "pooling", "output", pooling="first"),
    _fault("sentences", "last-token", "pooling", "output", pooling="last"),
    _fault("sentences", "last-position", "pooling", "output", pooling="end"),
    _fault("sentences", "maximum", "pooling", "output", pooling="max"),
    _fault("sentences", "not-normalised", "pooling", "output", unit=False),
    _fault("sentences", "mean-of-unit-vectors", "pooling", "output", pooling="each"),
    _fault("sentences", "mask-inverted", "", _ATTENTION, mask="inverted"),
    _fault("sentences", "mask-ignored", "mask-ignored", _ATTENTION, mask="none"),
    _fault("sentences", "order-kqv", "swapped-weights permuted-weight", _ATTENTION, order=("key", "query", "value")),
    _fault(
        *("sentences", "value-heads-inside", "permuted-weight", "value|self|attention"),
        change=weights(r".*layer\.1\.attention\.self\.value\..*", by=_heads_inside),
    ),
    _fault("classifier", "positions-from-0", "position-ids-offset", "position|LayerNorm|embeddings", first=-2),
    _fault("classifier", "tanh-missing", "activation", "classifier|output|out_proj", act=torch.nn.Identity()),
    _fault("classifier", "relu-for-tanh", "activation", "classifier|output|out_proj", act=torch.relu),
    _fault("classifier", "mean-for-first", "pooling", "classifier|output|dense", pooling="mean"),
    _fault("classifier", "bias-missing", "missing-bias", "classifier|output|out_proj", out_bias=False),
    _fault(
        *("classifier", "dense-transposed", "transposed-weight", "classifier"),
        change=weights(r"classifier\.dense\.weight", by=_transposed),
    ),
    _fault(
        *("classifier", "labels-rolled", "permuted-weight", "classifier|output|out_proj"),
        change=weights(r"classifier\.out_proj\..*", by=_moved),
    ),
    _fault(
        *("classifier", "head-drawn-anew", "different-weight", "classifier|output|out_proj"),
        change=weights(r"classifier\.out_proj\..*", by=drawn_anew),
    ),
    _fault("classifier", "pre-norm", "norm-order", "layer|LayerNorm|attention", pre_norm=True),
    _fault(
        *("classifier", "value-bias-zero", "missing-bias different-weight", "value|attention|output"),
        change=weights(r".*layer\.1\.attention\.self\.value\.bias", by=zeros),
    ),
)

_BY_NAME: Final = {fault.name: fault for fault in OWN_FAULTS}

#: Two of these faults at once.
OWN_PAIRS: Final = tuple(
    replace(_BY_NAME[f"{port}-{first}"], second=_BY_NAME[f"{port}-{second}"])
    for port, first, second in (
        ("nanogpt", "exact-gelu", "as-stored"),
        ("nanogpt", "unscaled", "epsilon"),
        ("nanogpt", "positions-from-1", "no-final-norm"),
        ("jax-llama", "interleaved", "epsilon"),
        ("jax-llama", "tiled", "gate-on-up"),
        ("nnx-qwen", "base", "one-plus-weight"),
        ("nnx-qwen", "keys-unturned", "query-transposed"),
        ("fused-llama", "tiled", "gate-up-swapped"),
        ("linen-bert", "tanh-gelu", "epsilon"),
        ("linen-bert", "query-for-key", "types-ignored"),
        ("keras-bert", "epsilon", "mask-ignored"),
        ("torch-t5", "scaled", "gate-on-up"),
        ("keras-mixtral", "top-1", "tiled"),
        ("gemma-functions", "weight-alone", "no-cap"),
        ("sentences", "first-token", "mask-ignored"),
    )
)

#: Right ports: as they stand, and written in other ways that compute the same.
OWN_RIGHT: Final = (
    *(OwnRight(port) for port in PORTS),
    OwnRight("jax-llama", "added-mask", {"mask": "added"}),
    OwnRight("jax-llama", "positions-from-7", {"start": 7}),
    OwnRight("nnx-qwen", "padding-seen", {"padded": False}),
    OwnRight("linen-bert", "added-mask", {"mask": "added"}),
    OwnRight("torch-t5", "added-mask", {"mask": "added"}),
    OwnRight("keras-mixtral", "softmax-of-chosen", {"order": "of chosen"}),
    OwnRight("sentences", "normalised-sum", {"pooling": "sum"}),
)
