"""Values of configurations that introspection cannot know, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BACKBONES", "EVERYWHERE", "SETTINGS"]

_MROPE: Final = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
_NO_CACHE: Final = {"use_cache": False}

#: Values in every part of a configuration that has the parameter: positions of images and texts need sections of the few
#: dimensions, and caches of a model that mixes attention with states look for a layer of each kind, which two layers may lack.
EVERYWHERE: Final[Mapping[str, Mapping[str, Any]]] = {
    **{
        f"{name}{part}": _MROPE
        for name in (
            "glm46v",
            "glm4v",
            "glm_image",
            "glm_ocr",
            "qwen2_vl",
            "qwen2_5_vl",
            "paddleocr_vl",
            "cosmos3_edge",
        )
        for part in ("", "_text")
    },
    **{
        name: {"rope_parameters": {**_MROPE["rope_parameters"], "partial_rotary_factor": 1.0}}
        for name in ("glm4v_moe", "glm4v_moe_text", "hy_v4_vl", "hy_v4_vl_text")
    },
    **dict.fromkeys(
        (
            *("bailing_hybrid", "bamba", "glm5_next", "glm5_next_text", "granitemoehybrid", "jamba", "kimi_linear",
                "lfm3"),
            *("lfm3_vl", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"),
            *("qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "xlstm", "zamba",
                "zamba2"),
        ),
        _NO_CACHE,
    ),
}  # fmt: skip

#: Values by parameter, those of a part in a mapping of its own.
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bridgetower": {
        "text_config": {"num_attention_heads": 4},
        "vision_config": {"hidden_size": 64},
        "num_attention_heads": 4,
    },
    "chameleon": {"vocabulary_map": {"<image>": 95}},
    "codegen": {"rotary_dim": 4},
    "dbrx": {"attn_config": {"clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "emu3": {"vocabulary_map": {"<image>": 95}},
    "esm": {"pad_token_id": 0, "mask_token_id": 4},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "longcat_flash": {"moe_topk": 2},
    "mamba2": {"num_heads": 8},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0, 1]}},
    "mt5": {"decoder_start_token_id": 0},
    "neomme": {"head_dim": 16},
    "perceiver": {"d_latents": 32, "num_latents": 8},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 94},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 94},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "attn_layers": ["local", "lsh"]},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "t5": {"decoder_start_token_id": 0},
    "umt5": {"decoder_start_token_id": 0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
}

_SMOL: Final = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "layer_norm_epsilon": 1e-5,
    "layer_types": ["full_attention"] * 2,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "rope_layer_enabled_list": [True, False],
    "rope_theta": 10000.0,
}
_T5_GEMMA: Final = {
    "sliding_window": 8,
    **{f"{half}_layer_types": ["full_attention", "sliding_attention"] for half in ("encoder", "decoder")},
}

#: Arguments of keras-hub's backbones that are no sizes, by family.
BACKBONES: Final[Mapping[str, Mapping[str, Any]]] = {
    "SmolLM": _SMOL, "SmolLM3": _SMOL, "T5Gemma": _T5_GEMMA, "T5Gemma2": _T5_GEMMA,
}  # fmt: skip
