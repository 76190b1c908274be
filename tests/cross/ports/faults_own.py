"""Faults of ports in PyTorch: of a decoder written anew, whose settings are attributes, and of copies of the references."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from tests.cross.ports import plants_torch as plants
from tests.cross.ports.architectures import PADDING
from tests.cross.ports.fault import Entry, Fault, faults_of
from tests.cross.ports.plants_torch import replaced, returning, setting
from tests.cross.ports.weights import (
    both,
    changed,
    drawn_anew,
    exchanged,
    in_bfloat16,
    noisy,
    permuted,
    row_zeroed,
    transposed,
    zeros,
)

ALL: Final = (0, 1, 2)
_FOUR: Final = (0, 1, 2, 3)
_CORE: Final = r"layers\.\d+\.self_attn"
_MLP: Final = r"layers\.\d+\.mlp"
_NORMS: Final = "(.*_)?norm|attention_after|feed_after"
_LOOKUP: Final = r"(embed_tokens|layers\.0)"


def _untied(model: object) -> None:
    """Give the head a matrix of its own."""
    model.head.weight = nn.Parameter(torch.tensor(drawn_anew(model.head.weight.detach().numpy()), dtype=torch.float32))


OWN: Final = [
    *faults_of(
        "llama", "own", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "norm", setting(_NORMS, epsilon=1e-6), ("1e-05", "1e-06"), ALL),
        Entry("norm-with-mean", "norm-kind", r"layers\.1\.input_layernorm", setting(r"layers\.1\.norm", kind="layer"),
            None, (1,)),
        Entry("norm-missing", "missing-norm", r"(^|\.)norm$", setting("norm", kind="none")),
        Entry("norm-in-float16", "norm-in-half", "norm", setting(_NORMS, dtype=torch.float16), None, ALL),
        Entry("base", "rotary-base", _CORE, setting("rotary_(query|key)", base=1000.0), ("10000", "1000"), ALL),
        Entry("interleaved", "rotary-layout", _CORE, setting("rotary_(query|key)", layout="interleaved"),
            ("halves", "interleaved"), ALL),
        Entry("half-turned", "rotary-partial", _CORE, setting("rotary_(query|key)", share=0.5), ("1", "0.5"), ALL),
        Entry("linear-scaling", "rotary-scaling", _CORE, setting("rotary_(query|key)", factor=4.0), ("1", "4"), ALL),
        Entry("queries-later", "rotary-offset", _CORE, setting("rotary_query", start=1), ("0", "1"), ALL),
        Entry("no-rotary", "missing-rotary", r"layers\.2\.self_attn",
            setting(r"layers\.2\.attention\.rotary_(query|key)", used=False), None, (2,)),
        Entry("keys-tiled", "attention-groups", _CORE, setting("core", grouping="tile"), None, ALL),
        Entry("unscaled", "attention-scale", _CORE, setting("core", scale=1.0), ("0.25", "1"), ALL),
        Entry("capped", "attention-cap", _CORE, setting("core", cap=3.0), ("none", "3"), ALL),
        Entry("not-causal", "attention-causal", _CORE, setting("core", ahead=None), None, ALL),
        Entry("not-causal-in-one-layer", "attention-causal", r"layers\.1\.self_attn",
            setting(r"layers\.1\.attention\.core", ahead=None), None, (1,)),
        Entry("one-ahead", "attention-shift", _CORE, setting("core", ahead=1), ("0", "1"), ALL),
        Entry("not-itself", "attention-shift", _CORE, setting("core", ahead=-1), ("0", "-1"), ALL),
        Entry("padding-seen", "mask-ignored", _CORE, setting("core", padded=False), None, ALL, "left"),
        Entry("window", "attention-window", _CORE, setting("core", window=8), ("none", "8"), ALL),
        Entry("dropout", "dropout", _CORE, setting("core", rate=0.1), None, ALL),
        Entry("tanh-gelu", "activation", _MLP, setting("feed", activation="gelu_pytorch_tanh"),
            ("silu", "gelu_pytorch_tanh"), ALL),
        Entry("quick-gelu", "activation", r"layers\.0\.mlp", setting(r"layers\.0\.feed", activation="quick_gelu"),
            ("silu", "quick_gelu"), (0,)),
        Entry("gate-on-up", "gate-swapped", _MLP, setting("feed", side="up"), None, ALL),
        Entry("residual-scaled", "residual-scale", r"layers\.\d+", setting(r"layers\.\d+", scale=0.5), ("1", "0.5"),
            ALL),
        Entry("residual-missing", "missing-residual", r"layers\.1", setting(r"layers\.1", keeps=(True, False)), None,
            (1,)),
        Entry("residual-of-attention-missing", "missing-residual", r"layers\.0",
            setting(r"layers\.0", keeps=(False, True)), None, (0,)),
        Entry("layer-again", "layer-order", r"layers\.2", setting("", order=(0, 1, 1, 2)), ("0–2", "0–1, 1–2")),
        Entry("norm-last", "norm-order", r"layers\.\d+", setting(r"layers\.\d+", norm_first=False), None, ALL),
        Entry("ids-two-late", "other-ids", _LOOKUP, setting("", shift=2)),
        Entry("padding-zeroed", "padding-row", _LOOKUP, changed(r"embed\.weight", row_zeroed(PADDING))),
        Entry("value-permuted", "permuted-weight", r"layers\.1\.self_attn(\.v_proj)?",
            changed(r"layers\.1\.attention\.v\.weight", permuted(0)), None, (1,)),
        Entry("down-in-bfloat16", "half-weights", r"layers\.2\.mlp\.down_proj",
            changed(r"layers\.2\.feed\.down\.weight", in_bfloat16), None, (2,)),
    ),
    *faults_of(
        "llama-lm", "own", "port",
        Entry("untied", "head-untied", "lm_head", _untied),
        Entry("capped", "logit-cap", "lm_head", setting("", logit_cap=6.0), ("none", "6")),
        Entry("scaled", "logit-scale", "lm_head", setting("", logit_scale=0.5), ("1", "0.5")),
    ),
    *faults_of(
        "llama3", "own", "port",
        Entry("scaling-dropped", "rotary-scaling", _CORE, setting("rotary_(query|key)", frequencies=None),
            ("llama3", "none"), ALL),
    ),
    *faults_of(
        "mistral", "own", "port",
        Entry("window-missing", "attention-window", _CORE, setting("core", window=None), ("6", "none"), ALL),
        Entry("window-narrower", "attention-window", r"layers\.2\.self_attn",
            setting(r"layers\.2\.attention\.core", window=4), ("6", "4"), (2,)),
        Entry("up-of-other-layer", "swapped-weights", r"layers\.[01]\.mlp(\.up_proj)?",
            exchanged(r"layers\.0\.feed\.up", r"layers\.1\.feed\.up"), None, (0, 1)),
    ),
    *faults_of(
        "qwen2", "own", "port",
        Entry("key-and-value-biases", "swapped-weights different-weight", r"layers\.\d+\.self_attn",
            exchanged(r"attention\.k\.bias", r"attention\.v\.bias"), None, ALL),
        Entry("value-bias-missing", "missing-bias", r"layers\.1\.self_attn\.v_proj",
            changed(r"layers\.1\.attention\.v\.bias", zeros), None, (1,)),
    ),
    *faults_of(
        "qwen3", "own", "port",
        Entry("norms-exchanged", "swapped-weights", r"self_attn(\.[qk]_norm)?", exchanged("query_norm", "key_norm"),
            None, ALL),
        Entry("norm-of-heads-with-mean", "norm-kind", r"self_attn(\.q_norm)?", setting("query_norm", kind="layer"),
            None, ALL),
    ),
    *faults_of(
        "gemma2", "own", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "norm", setting(_NORMS, epsilon=1e-5), ("1e-06", "1e-05"), _FOUR),
        Entry("norm-without-one", "norm-offset", "norm", setting(_NORMS, offset=0.0), ("1", "0"), _FOUR),
        Entry("lookup-not-scaled", "scaled-lookup", _LOOKUP, setting("", scale=1.0), ("8", "1")),
        Entry("after-norm-missing", "missing-norm", r"post_(attention|feedforward)_layernorm",
            setting("(attention|feed)_after", kind="none"), None, _FOUR),
        Entry("exact-gelu", "gelu", _MLP, setting("feed", activation="gelu"), ("gelu_pytorch_tanh", "gelu"), _FOUR),
    ),
    *faults_of(
        "phi3", "own", "port",
        Entry("output-transposed", "transposed-weight", r"layers\.1\.self_attn\.o_proj",
            changed(r"layers\.1\.attention\.o\.weight", transposed), None, (1,)),
        Entry("window", "attention-window", _CORE, setting("core", window=10), ("none", "10"), ALL),
    ),
]  # fmt: skip

COPIES: Final = [
    *faults_of(
        "gpt2-lm", "copy", "port",
        Entry("untied", "head-untied", "lm_head", replaced("lm_head", lambda head: _drawn(head))),
        Entry("scaled", "logit-scale", "lm_head", returning("lm_head", lambda x: x * 0.5), ("1", "0.5")),
    ),
    *faults_of(
        "t5", "copy", "port",
        Entry("norm-plus-one", "norm-offset", "layer_norm",
            replaced(".*layer_norm", lambda norm: plants.Offset(norm, 1.0)), ("0", "1"), (0, 1)),
        Entry(
            "cross-query-for-key", "swapped-weights",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention",
            exchanged(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.q",
                r"decoder\.block\.0\.layer\.1\.EncDecAttention\.k"),
            None,
            (0,),
        ),
        Entry("bias-missing-in-decoder", "attention-bias", r"decoder\.block\.\d+\.layer\.0\.SelfAttention",
            changed(r"decoder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias", zeros), None, (0, 1)),
    ),
    *faults_of(
        "bart", "copy", "port",
        Entry("norm-without-mean", "norm-kind", "layer_?norm",
            replaced(".*layer_?norm(_embedding)?", plants.RootMeanSquare), None, (0, 1)),
        Entry("norm-missing", "missing-norm", r"decoder\.layers\.1\.encoder_attn_layer_norm",
            replaced(r"decoder\.layers\.1\.encoder_attn_layer_norm", lambda _: nn.Identity()), None, (1,)),
        Entry("positions-missing", "missing-positions", r"(embed_positions|layernorm_embedding)",
            returning(r"embed_positions", torch.zeros_like)),
    ),
    *faults_of(
        "distilbert", "copy", "port",
        Entry("query-for-value", "swapped-weights", r"transformer\.layer\.2\.attention",
            both(exchanged(r"layer\.2\.attention\.q_lin", r"layer\.2\.attention\.v_lin"),), None, (2,)),
        Entry("inner-trained-on", "different-weight", r"transformer\.layer\.0\.ffn\.lin1",
            changed(r"layer\.0\.ffn\.lin1\.weight", noisy(0.01)), None, (0,)),
    ),
]  # fmt: skip


def _drawn(head: nn.Linear) -> nn.Linear:
    made = nn.Linear(head.in_features, head.out_features, bias=False)
    made.weight.data = torch.tensor(drawn_anew(head.weight.detach().numpy()), dtype=torch.float32)
    return made


FAULTS: Final[list[Fault]] = [*OWN, *COPIES]
