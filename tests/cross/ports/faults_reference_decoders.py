"""Faults of references that are decoders, against ports of every framework."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from tests.cross.ports import plants_torch as plants
from tests.cross.ports.architectures import PADDING
from tests.cross.ports.fault import Entry, Fault, faults_of
from tests.cross.ports.plants_torch import (
    Centred,
    InHalf,
    Offset,
    RootMeanSquare,
    Scaled,
    Shifted,
    configured,
    epsilon,
    masking,
    replaced,
    returning,
    rewritten,
    rotary_base,
    rotary_factor,
    setting,
)
from tests.cross.ports.weights import (
    both,
    changed,
    drawn_anew,
    exchanged,
    halves_interleaved,
    heads_inside,
    in_float16,
    noisy,
    permuted,
    rolled,
    row_zeroed,
    zeros,
)

ALL: Final = (0, 1, 2)
_CORE: Final = r"layers\.\d+\.self_attn"
_NORMS: Final = r".*norm"

GPT2: Final = [
    *faults_of(
        "gpt2", "flax", "reference",
        Entry("unscaled", "attention-scale", r"h\.\d+\.attn", setting("attn", scale_attn_weights=False),
            ("1", "0.353553"), ALL),
        Entry("scaled-by-layer", "attention-scale", r"h\.\d+\.attn",
            setting("attn", scale_attn_by_inverse_layer_idx=True), None, (1, 2)),
        Entry("exact-gelu", "gelu", r"h\.\d+\.mlp", setting("mlp", act=nn.GELU()), ("gelu", "gelu_new"), ALL),
    ),
    *faults_of(
        "gpt2", "tensorflow", "reference",
        Entry("epsilon-all", "layer-norm-epsilon", "ln_", epsilon(r"ln_\w", 1e-6), ("1e-06", "1e-05"), ALL),
        Entry(
            "queries-and-keys-exchanged",
            "swapped-weights permuted-weight",
            r"h\.1\.attn",
            changed(r"h\.1\.attn\.c_attn\.(weight|bias)",
                lambda value: value[..., [*range(32, 64), *range(32), *range(64, 96)]]),
            None,
            (1,),
        ),
        Entry("padding-zeroed", "padding-row", r"(wte|drop|h\.0\.ln_1)$", changed(r"wte\.weight", row_zeroed(PADDING))),
        Entry("positions-missing", "missing-positions", r"(wpe|drop|h\.0\.ln_1)$", returning("wpe", torch.zeros_like)),
    ),
]  # fmt: skip

LLAMA: Final = [
    *faults_of(
        "llama", "flax", "reference",
        Entry("base", "rotary-base", _CORE, rotary_base(500000.0), ("500000", "10000"), ALL),
        Entry("linear-scaling", "rotary-scaling", _CORE, rotary_factor(4.0), ("4", "1"), ALL),
        Entry("no-rotary", "missing-rotary", _CORE, plants.without_rotary, None, ALL),
        Entry("norm-with-mean", "norm-kind", "norm", replaced(_NORMS, Centred), None, ALL),
        Entry("epsilon-of-last", "layer-norm-epsilon", r"(^|\.)norm$", epsilon("norm", 1e-2), ("0.01", "1e-05")),
    ),
    *faults_of(
        "llama", "keras", "reference",
        Entry("not-causal", "attention-causal", _CORE, masking("self_attn", plants.not_causal), None, ALL),
        Entry("one-ahead", "attention-shift", _CORE, masking("self_attn", plants.one_ahead), None, ALL),
        Entry("padding-seen", "mask-ignored", _CORE, masking("self_attn", plants.unpadded), None, ALL, "left"),
        Entry("gate-on-up", "gate-swapped", r"layers\.\d+\.mlp", rewritten("mlp", plants.gate_on_up), None, ALL),
        Entry(
            "rows-interleaved",
            "permuted-weight rotary-layout",
            _CORE,
            both(
                changed(r"q_proj\.weight", halves_interleaved(4, 0)),
                changed(r"k_proj\.weight", halves_interleaved(2, 0)),
            ),
            None, ALL,
        ),
    ),
    *faults_of(
        "llama", "own", "reference",
        Entry("window", "attention-window", _CORE, masking("self_attn", plants.windowed(6)), ("6", "none"), ALL),
        Entry("scale", "attention-scale", _CORE, setting("self_attn", scaling=0.125), ("0.125", "0.25"), ALL),
        Entry("norm-plus-one", "norm-offset", "norm", replaced(_NORMS, lambda norm: Offset(norm, 1.0)), ("1", "0"),
            ALL),
        Entry("norm-in-bfloat16", "norm-in-half", r"layers\.\d+\.input_layernorm",
            replaced("input_layernorm", lambda norm: InHalf(norm, torch.bfloat16)), None, ALL),
        Entry("weights-in-float16", "half-weights", ".", changed(r"_proj|embed", in_float16), None, ALL),
    ),
]  # fmt: skip

DECODERS: Final = [
    *faults_of(
        "mistral", "own", "reference",
        Entry("window-missing", "attention-window", _CORE, masking("self_attn", plants.causal), ("none", "6"), ALL),
        Entry("window-narrower", "attention-window", _CORE, configured(sliding_window=5), ("5", "6"), ALL),
    ),
    *faults_of(
        "qwen2", "keras", "reference",
        Entry("query-biases-missing", "missing-bias", r"self_attn\.q_proj", changed(r"q_proj\.bias", zeros), None, ALL),
        Entry("epsilon-all", "layer-norm-epsilon", "norm", epsilon(_NORMS, 1e-6), ("1e-06", "1e-05"), ALL),
    ),
    *faults_of(
        "qwen3", "keras", "reference",
        Entry("key-norm-missing", "missing-norm", r"self_attn(\.k_norm)?", replaced("k_norm", lambda _: nn.Identity()),
            None, ALL),
        Entry("value-of-other-layer", "swapped-weights", r"layers\.[02]\.self_attn(\.v_proj)?",
            exchanged(r"layers\.0\.self_attn\.v_proj", r"layers\.2\.self_attn\.v_proj"), None, (0, 2)),
    ),
    *faults_of(
        "gemma2", "keras", "reference",
        Entry("norm-without-one", "norm-offset", "norm", replaced(_NORMS, lambda norm: Offset(norm, 0.0)), ("0", "1"),
            (0, 1, 2, 3)),
        Entry("cap-missing", "attention-cap", _CORE, setting("self_attn", attn_logit_softcapping=None), ("none", "5"),
            (0, 1, 2, 3)),
        Entry("windows-everywhere", "attention-window", r"layers\.[13]\.self_attn",
            masking(r"layers\.[13]\.self_attn", plants.windowed(5)), ("5", "none"), (1, 3)),
        Entry("exact-gelu", "gelu", r"layers\.\d+\.mlp", setting("mlp", act_fn=nn.GELU()),
            ("gelu", "gelu_pytorch_tanh"), (0, 1, 2, 3)),
    ),
    *faults_of(
        "gemma2", "own", "reference",
        Entry("scale", "attention-scale", _CORE, setting("self_attn", scaling=0.125), ("0.125", "0.25"), (0, 1, 2, 3)),
        Entry("after-norm-missing", "missing-norm", r"layers\.2\.post_feedforward_layernorm",
            replaced(r"layers\.2\.post_feedforward_layernorm", lambda _: nn.Identity()), None, (2,)),
    ),
    *faults_of(
        "phi3", "own", "reference",
        Entry("halves-exchanged", "gate-swapped swapped-weights permuted-weight", r"layers\.\d+\.mlp",
            changed(r"gate_up_proj\.weight", rolled(80)), None, ALL),
        Entry("heads-inside", "attention-heads permuted-weight", r"self_attn(\.o_proj)?",
            changed(r"o_proj\.weight", heads_inside(4, 1)), None, ALL),
    ),
    *faults_of(
        "gpt-neox", "keras", "reference",
        Entry("base", "rotary-base", r"layers\.\d+\.attention", rotary_base(500.0), ("500", "10000"), ALL),
        Entry("scale", "attention-scale", r"layers\.\d+\.attention", setting("attention", scaling=0.5), ("0.5", "0.25"),
            ALL),
    ),
    *faults_of(
        "llama-lm", "own", "reference",
        Entry("untied", "head-untied", "lm_head", replaced("lm_head", lambda head: _untied(head))),
        Entry("scaled", "logit-scale", "lm_head", returning("lm_head", lambda x: x * 0.125), ("0.125", "1")),
    ),
    *faults_of("gemma2-lm", "own", "reference",
        Entry("cap-missing", "logit-cap", "lm_head", configured(final_logit_softcapping=None), ("none", "8"))),
]  # fmt: skip


def _untied(head: nn.Linear) -> nn.Linear:
    made = nn.Linear(head.in_features, head.out_features, bias=False)
    made.weight.data = torch.tensor(drawn_anew(head.weight.detach().numpy()), dtype=torch.float32)
    return made


MORE: Final = [
    *faults_of(
        "gpt2", "keras", "reference",
        Entry("norm-without-mean", "norm-kind", "ln_", replaced(r"ln_\w", RootMeanSquare), None, ALL),
        Entry("inner-bias-missing", "missing-bias", r"h\.2\.mlp\.c_fc", changed(r"h\.2\.mlp\.c_fc\.bias", zeros), None,
            (2,)),
        Entry("scaled-lookup", "scaled-lookup", r"(wte|drop|h\.0\.ln_1)$", replaced("wte", Scaled), ("5.65685", "1")),
    ),
    *faults_of("gpt2-lm", "keras", "reference",
        Entry("untied", "head-untied", "lm_head", replaced("lm_head", lambda head: _untied(head)))),
    *faults_of("llama3", "own", "reference",
        Entry("scaling-dropped", "rotary-scaling", _CORE, rotary_base(500000.0), ("none", "llama3"), ALL)),
    *faults_of(
        "mistral", "keras", "reference",
        Entry("window-wider", "attention-window", _CORE, configured(sliding_window=9), ("9", "6"), ALL),
        Entry("epsilon-all", "layer-norm-epsilon", "norm", epsilon(_NORMS, 1e-6), ("1e-06", "1e-05"), ALL),
        Entry("key-permuted", "permuted-weight", r"layers\.1\.self_attn(\.k_proj)?",
            changed(r"layers\.1\.self_attn\.k_proj", permuted(0)), None, (1,)),
    ),
    *faults_of(
        "qwen2", "own", "reference",
        Entry("base", "rotary-base", _CORE, rotary_base(10000.0), ("10000", "1e+06"), ALL),
        Entry("ids-one-late", "other-ids", r"(embed_tokens|layers\.0)",
            replaced("embed_tokens", lambda table: Shifted(table, 1))),
    ),
    *faults_of(
        "qwen3", "own", "reference",
        Entry("gelu", "activation", r"layers\.\d+\.mlp", setting("mlp", act_fn=nn.GELU()), ("gelu", "silu"), ALL),
        Entry("not-itself", "attention-shift", _CORE, masking("self_attn", plants.only_before), None, ALL),
    ),
    *faults_of(
        "gemma2-lm", "keras", "reference",
        Entry("cap-of-real-models", "logit-cap", "lm_head", configured(final_logit_softcapping=30.0), ("30", "8")),
        Entry("lookup-not-scaled", "scaled-lookup", r"(embed_tokens|layers\.0)",
            replaced("embed_tokens", lambda table: Scaled(table, 0.125)), ("1", "8")),
    ),
    *faults_of(
        "phi3", "keras", "reference",
        Entry("gate-on-up", "gate-swapped", r"layers\.0\.mlp", rewritten(r"layers\.0\.mlp", plants.gate_on_up), None,
            (0,)),
        Entry("down-trained-on", "different-weight", r"layers\.1\.mlp\.down_proj",
            changed(r"layers\.1\.mlp\.down_proj", noisy(0.01)), None, (1,)),
    ),
]  # fmt: skip

FAULTS: Final[list[Fault]] = [*GPT2, *LLAMA, *DECODERS, *MORE]
