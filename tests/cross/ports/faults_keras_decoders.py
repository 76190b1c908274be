"""Faults of ports to keras-hub: GPT-2, Llama, Mistral, Qwen 2 and 3, Gemma 2, Phi-3 and GPT-NeoX."""

from __future__ import annotations

from typing import Final

import keras
from keras import ops

from tests.cross.ports import plants_keras as keras_plants
from tests.cross.ports.architectures import VOCAB
from tests.cross.ports.fault import Entry, Fault, faults_of
from tests.cross.ports.plants_keras import masking
from tests.cross.ports.plants_tensorflow import setting, subclassed
from tests.cross.ports.weights import (
    both,
    changed,
    exchanged,
    halves_interleaved,
    heads_inside,
    in_bfloat16,
    noisy,
    transposed,
    zeros,
)

ALL: Final = (0, 1, 2)
_NORM: Final = r"(.*\.)?\w*(layer_?norm|_norm|normalization)"
_ROTARY: Final = r"(.*\.)?\w*rotary_embedding(_\d+)?"
_CORE: Final = r"layers\.\d+\.self_attn"
_MLP: Final = r"layers\.\d+\.mlp"


def _after_heads(model: object) -> None:
    """Join heads and their entries in the other order before the output's matrix."""
    changed(
        r"attention_output\.kernel",
        lambda value: heads_inside(4, 0)(value.reshape(-1, value.shape[-1])).reshape(value.shape),
    )(model)


GPT2: Final = faults_of(
    "gpt2", "keras", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "ln_", setting(_NORM, epsilon=1e-6), ("1e-05", "1e-06"), ALL),
    Entry("exact-gelu", "gelu", r"h\.\d+\.mlp",
        setting("feedforward_intermediate_dense", activation=keras.activations.gelu), ("gelu_new", "gelu"), ALL),
    Entry("not-causal", "attention-causal", r"h\.\d+\.attn", masking(keras_plants.ATTENTION, keras_plants.not_causal),
        None, ALL),
    Entry("one-ahead", "attention-shift", r"h\.\d+\.attn", masking(keras_plants.ATTENTION, keras_plants.one_ahead),
        None, ALL),
    Entry("norm-last", "norm-order", r"h\.\d+", setting(r"transformer_layer_\d", normalize_first=False), None, ALL),
    Entry("positions-from-one", "position-ids-offset", r"(wpe|drop|h\.0\.ln_1)$",
        subclassed("position_embedding", call=keras_plants.started(1)), ("0", "1")),
    Entry("last-norm-missing", "missing-norm", r"ln_f", subclassed("layer_norm", call=keras_plants.same)),
    Entry("padding-seen", "mask-ignored", r"h\.\d+\.attn", masking(keras_plants.ATTENTION, keras_plants.unpadded), None,
        ALL, "left"),
    Entry("heads-inside", "attention-heads permuted-weight", r"h\.\d+\.attn", _after_heads, None, ALL),
)  # fmt: skip

GPT2_HEAD: Final = faults_of(
    "gpt2-lm", "keras", "port",
    Entry("capped", "logit-cap", "lm_head", setting("token_embedding", logit_soft_cap=4.0), ("none", "4")),
    Entry(
        "scaled", "logit-scale", "lm_head",
        subclassed("token_embedding",
            call=lambda self, inner, inputs, reverse=False: inner(inputs, reverse) * (32**-0.5 if reverse else 1)),
        ("1", "0.176777"),
    ),
)  # fmt: skip

LLAMA: Final = faults_of(
    "llama", "keras", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "norm", setting(_NORM, epsilon=1e-6), ("1e-05", "1e-06"), ALL),
    Entry("epsilon-in-one-layer", "layer-norm-epsilon", r"layers\.1\.post_attention_layernorm",
        setting(r"transformer_layer_1\.feedforward_layernorm", epsilon=1e-3), ("1e-05", "0.001"), (1,)),
    Entry("base", "rotary-base", _CORE, setting(_ROTARY, max_wavelength=500000), ("10000", "500000"), ALL),
    Entry("interleaved", "rotary-layout", _CORE, subclassed(_ROTARY, _apply_rotary_pos_emb=keras_plants.interleaved),
        ("halves", "interleaved"), ALL),
    Entry("no-rotary", "missing-rotary", _CORE, subclassed(_ROTARY, call=keras_plants.not_turned), None, ALL),
    Entry("queries-later", "rotary-offset", _CORE, keras_plants.query_later(1, "self_attention"), ("0", "1"), ALL),
    Entry("rows-interleaved", "permuted-weight rotary-layout", r"layers\.0\.self_attn",
        changed(r"transformer_layer_0\.self_attention\.(query|key)\.kernel", halves_interleaved(1, 2)), None, (0,)),
    Entry("scale-of-dim", "attention-scale", _CORE, setting("self_attention", _inv_norm_factor=0.125),
        ("0.25", "0.125"), ALL),
    Entry("keys-tiled", "attention-groups", _CORE, keras_plants.attending("self_attention", keras_plants.tiled(2)),
        None, ALL),
    Entry("gelu-for-silu", "activation", _MLP, setting(r"transformer_layer_\d", activation=keras.activations.gelu),
        ("silu", "gelu"), ALL),
    Entry("gate-on-up", "gate-swapped", r"layers\.2\.mlp",
        subclassed("transformer_layer_2", call=keras_plants.gate_on_up), None, (2,)),
    Entry("norm-with-mean", "norm-kind", "norm", subclassed(_NORM, call=keras_plants.centred), None, ALL),
    Entry("norm-plus-one", "norm-offset", "norm", subclassed(_NORM, call=keras_plants.offset(1.0)), ("0", "1"), ALL),
    Entry("norm-in-bfloat16", "norm-in-half", "norm", subclassed(_NORM, call=keras_plants.in_half("bfloat16")), None,
        ALL),
    Entry("attention-doubled", "residual-scale", r"layers\.1(\.|$)",
        keras_plants.returning(r"transformer_layer_1\.self_attention", lambda x: x * 2), ("1", "2"), (1,)),
    Entry("scaled-lookup", "scaled-lookup", r"(embed_tokens|layers\.0)",
        keras_plants.returning("token_embedding", lambda x: x * 8.0), ("1", "8")),
    Entry("output-transposed", "transposed-weight", r"self_attn\.o_proj",
        changed(r"attention_output\.kernel", transposed), None, ALL),
    Entry("gate-for-up", "swapped-weights gate-swapped", _MLP,
        exchanged(r"feedforward_gate_dense\.kernel", r"feedforward_intermediate_dense\.kernel"), None, ALL),
    Entry("weights-in-bfloat16", "half-weights", ".", changed(r"kernel|embeddings", in_bfloat16), None, ALL),
    Entry("ids-three-late", "other-ids", r"(embed_tokens|layers\.0)",
        subclassed("token_embedding", call=keras_plants.looked_up(3, VOCAB))),
)  # fmt: skip

LLAMA_HEAD: Final = faults_of(
    "llama-lm", "keras", "port",
    Entry("capped", "logit-cap", "lm_head", setting("token_embedding", logit_soft_cap=5.0), ("none", "5")),
    Entry(
        "scaled", "logit-scale", "lm_head",
        subclassed("token_embedding",
            call=lambda self, inner, inputs, reverse=False: inner(inputs, reverse) * (0.125 if reverse else 1)),
        ("1", "0.125"),
    ),
)  # fmt: skip

LLAMA3: Final = faults_of(
    "llama3",
    "keras",
    "port",
    Entry("factor", "rotary-scaling", _CORE, setting(_ROTARY, frequency_adjustment_factor=8.0), ("4", "8"), ALL),
    Entry("scaling-dropped", "rotary-scaling", _CORE, setting(_ROTARY, low_freq_factor=None), ("llama3", "none"), ALL),
    Entry("base", "rotary-base", _CORE, setting(_ROTARY, max_wavelength=10000), ("500000", "10000"), ALL),
)

MISTRAL: Final = faults_of(
    "mistral", "keras", "port",
    Entry("window-missing", "attention-window", _CORE, setting(r"transformer_layer_\d", sliding_window=None),
        ("6", "none"), ALL),
    Entry("window-one-wider", "attention-window", _CORE, setting(r"transformer_layer_\d", sliding_window=7), ("6", "7"),
        ALL),
    Entry("window-missing-in-one-layer", "attention-window", r"layers\.1\.self_attn",
        setting("transformer_layer_1", sliding_window=None), ("6", "none"), (1,)),
    Entry("linear-scaling", "rotary-scaling", _CORE, setting(_ROTARY, scaling_factor=2.0), ("1", "2"), ALL),
    Entry("not-itself", "attention-shift", _CORE, masking("self_attention", keras_plants.only_before), None, ALL),
    Entry("relu-for-silu", "activation", r"layers\.0\.mlp",
        setting("transformer_layer_0", activation=keras.activations.relu), ("silu", "relu"), (0,)),
)  # fmt: skip

QWEN2: Final = faults_of(
    "qwen2", "keras", "port",
    Entry("biases-missing", "missing-bias", r"self_attn\.(q|k|v)_proj",
        changed(r"attention\.(query|key|value)\.bias", zeros), None, ALL),
    Entry("base", "rotary-base", _CORE, setting(_ROTARY, max_wavelength=10000), ("1e+06", "10000"), ALL),
    Entry(
        "key-for-value", "swapped-weights", r"layers\.1\.self_attn",
        both(
            exchanged(r"layer_1\.\w*attention\w*\.key\.kernel", r"layer_1\.\w*attention\w*\.value\.kernel"),
            exchanged(r"layer_1\.\w*attention\w*\.key\.bias", r"layer_1\.\w*attention\w*\.value\.bias"),
        ),
        None,
        (1,),
    ),
)  # fmt: skip

QWEN3: Final = faults_of(
    "qwen3", "keras", "port",
    Entry("query-norm-missing", "missing-norm", r"self_attn(\.q_norm)?",
        subclassed("(.*\\.)?query_dense_layernorm", call=keras_plants.same), None, ALL),
    Entry("epsilon-of-heads", "layer-norm-epsilon", r"self_attn(\.[qk]_norm)?",
        setting("(.*\\.)?(query|key)_dense_layernorm", epsilon=1e-2), ("1e-05", "0.01"), ALL),
    Entry("not-causal", "attention-causal", _CORE, masking(keras_plants.ATTENTION, keras_plants.not_causal), None, ALL),
    Entry("down-trained-on", "different-weight", r"layers\.2\.mlp\.down_proj",
        changed(r"layer_2\.feedforward_output_dense\.kernel", noisy(0.001)), None, (2,)),
)  # fmt: skip

GEMMA2: Final = faults_of(
    "gemma2", "keras", "port",
    Entry("cap-missing", "attention-cap", _CORE, setting("attention", logit_soft_cap=None), ("5", "none"),
        (0, 1, 2, 3)),
    Entry("cap-of-real-models", "attention-cap", _CORE, setting("attention", logit_soft_cap=50.0), ("5", "50"),
        (0, 1, 2, 3)),
    Entry("norm-without-one", "norm-offset", "norm", subclassed(_NORM, call=keras_plants.offset(0.0)), ("1", "0"),
        (0, 1, 2, 3)),
    Entry(
        "windows-on-other-layers",
        "attention-window", _CORE,
        both(
            setting(r"decoder_block_[02]\.attention", use_sliding_window_attention=False),
            setting(r"decoder_block_[13]\.attention", use_sliding_window_attention=True),
        ),
        None,
        (0, 1, 2, 3),
    ),
    Entry("windows-missing", "attention-window", _CORE,
        setting(r"decoder_block_\d\.attention", use_sliding_window_attention=False), ("5", "none"), (0, 2)),
    Entry("after-norm-missing", "missing-norm", r"layers\.\d+\.post_attention_layernorm",
        subclassed("(.*\\.)?post_attention_norm", call=keras_plants.same), None, (0, 1, 2, 3)),
    Entry("lookup-not-scaled", "scaled-lookup", r"(embed_tokens|layers\.0)",
        keras_plants.returning("token_embedding", lambda x: x / 8.0), ("8", "1")),
    Entry("scale-of-other-head", "attention-scale", _CORE,
        keras_plants.attending("attention", lambda query, key, value: (query * 0.5, key, value)), ("0.25", "0.125"),
        (0, 1, 2, 3)),
)  # fmt: skip

GEMMA2_HEAD: Final = faults_of(
    "gemma2-lm",
    "keras",
    "port",
    Entry("cap-missing", "logit-cap", "lm_head", setting("token_embedding", logit_soft_cap=None), ("8", "none")),
    Entry("cap-of-real-models", "logit-cap", "lm_head", setting("token_embedding", logit_soft_cap=30.0), ("8", "30")),
)

PHI3: Final = faults_of(
    "phi3", "keras", "port",
    Entry("halves-exchanged", "swapped-weights gate-swapped", _MLP,
        exchanged(r"feedforward_gate_dense\.kernel", r"feedforward_intermediate_dense\.kernel"), None, ALL),
    Entry(
        "partial", "rotary-partial", _CORE,
        subclassed(
            _ROTARY,
            call=lambda self, inner, inputs, **named: ops.concatenate(
                [inner(inputs[..., :8], **named), inputs[..., 8:]], axis=-1
            ),
        ),
        ("1", "0.5"),
        ALL,
    ),
    Entry("epsilon-all", "layer-norm-epsilon", "norm", setting(_NORM, epsilon=1e-6), ("1e-05", "1e-06"), ALL),
)  # fmt: skip

GPT_NEOX: Final = faults_of(
    "gpt-neox", "keras", "port",
    Entry("quarter-turned", "rotary-partial", r"layers\.\d+\.attention", setting("self_attention", rotary_dim=4),
        ("0.5", "0.25"), ALL),
    Entry("all-turned", "rotary-partial", r"layers\.\d+\.attention", setting("self_attention", rotary_dim=16),
        ("0.5", "1"), ALL),
    Entry("base", "rotary-base", r"layers\.\d+\.attention", setting(_ROTARY, max_wavelength=1000), ("10000", "1000"),
        ALL),
    Entry("exact-gelu", "gelu", r"layers\.\d+\.mlp",
        setting("(.*\\.)?feedforward_intermediate_dense", activation=keras.activations.gelu), ("gelu_new", "gelu"),
        ALL),
)  # fmt: skip

FAULTS: Final[list[Fault]] = [
    *(*GPT2, *GPT2_HEAD, *LLAMA, *LLAMA_HEAD, *LLAMA3, *MISTRAL),
    *(*QWEN2, *QWEN3, *GEMMA2, *GEMMA2_HEAD, *PHI3, *GPT_NEOX),
]
