"""Settings that models declare in their configurations, read into one table with one name for each, whatever the framework."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.results.port_records import Cause, SettingDifference

__all__ = ["Declared", "declared_settings", "differing_settings"]

#: The names under which configurations hold each setting.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "epsilon": (
        "layer_norm_eps",
        "rms_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_eps",
        "norm_epsilon",
        "epsilon",
        "eps",
    ),
    "activation": (
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "dense_act_fn",
        "activation",
        "feed_forward_proj",
    ),
    "rotary_base": (
        "rope_theta",
        "rotary_emb_base",
        "rope_max_wavelength",
        "rope_wavelength",
        "rope_base",
        "rotary_base",
    ),
    "rotary_scaling": ("rope_type", "rope_scaling_type"),
    "rotary_factor": ("rope_scaling_factor", "rope_position_scaling_factor", "factor"),
    "rotary_low": ("low_freq_factor", "beta_slow"),
    "rotary_high": ("high_freq_factor", "beta_fast"),
    "rotary_original": ("original_max_position_embeddings",),
    "rotary_rounded": ("truncate",),
    "rotary_share": ("partial_rotary_factor", "rotary_pct", "rotary_percentage"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads", "encoder_attention_heads"),
    "key_value_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv", "attention_head_size"),
    "attention_scale": ("query_pre_attn_scalar", "attention_multiplier"),
    "attention_cap": ("attn_logit_softcapping", "attention_logit_soft_cap", "attn_logit_softcap"),
    "logit_cap": ("final_logit_softcapping", "final_logit_soft_cap"),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "window": ("sliding_window", "sliding_window_size", "attention_window"),
    "bias_distance": ("relative_attention_max_distance", "relative_max_distance", "max_distance"),
    "tied": ("tie_word_embeddings", "tie_embeddings", "tie_embedding_weights"),
    "embedding_scale": ("scale_embedding", "embedding_multiplier"),
    "residual_scale": ("residual_multiplier",),
    "norm_first": ("do_layer_norm_before", "normalize_before", "norm_first", "normalize_first"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "dim": ("hidden_size", "n_embd", "d_model", "hidden_dim"),
    "inner_dim": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "intermediate_dim", "encoder_ffn_dim"),
    "vocab": ("vocab_size", "vocabulary_size"),
    "positions": ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k"),
    "experts_normalised": ("norm_topk_prob",),
    "expert_groups": ("n_group", "num_expert_group"),
    "groups_per_token": ("topk_group",),
    "attention_bias": ("attention_bias", "use_bias", "qkv_bias"),
}

#: The setting of each name.
SETTING_OF: Final = {name: setting for setting, names in NAMES.items() for name in names}

#: Names of one activation function.
ACTIVATIONS: Final[Mapping[str, str]] = {
    "gelu_new": "gelu, tanh",
    "gelu_pytorch_tanh": "gelu, tanh",
    "gelu_fast": "gelu, tanh",
    "gelu_approximate": "gelu, tanh",
    "gelu_python": "gelu",
    "gelu_exact": "gelu",
    "quick_gelu": "gelu, logistic",
    "swish": "silu",
    "gated-gelu": "gelu, tanh",
}

#: The attributes that hold a configuration or a model with one.
HOLDERS: Final = ("config", "cfg", "args", "hparams", "backbone")

#: The parts of a configuration that hold further settings, such as those of a text model in a model of texts and images.
PARTS: Final = ("text_config", "rope_scaling", "rope_parameters", "decoder_config", "encoder_config")

#: The setting that each cause is about.
SETTING_OF_CAUSE: Final[Mapping[str, tuple[str, ...]]] = {
    "layer-norm-epsilon": ("epsilon",),
    "gelu": ("activation",),
    "activation": ("activation",),
    "expert-routing": ("experts_per_token", "experts_normalised", "expert_groups", "groups_per_token"),
    "rotary-base": ("rotary_base",),
    "rotary-scaling": (
        "rotary_scaling",
        "rotary_factor",
        "rotary_low",
        "rotary_high",
        "rotary_original",
        "rotary_rounded",
    ),
    "rotary-partial": ("rotary_share",),
    "attention-scale": ("attention_scale", "head_dim"),
    "attention-cap": ("attention_cap",),
    "attention-heads": ("heads", "head_dim"),
    "attention-groups": ("key_value_heads",),
    "attention-window": ("window",),
    "logit-cap": ("logit_cap",),
    "logit-scale": ("logit_scale",),
    "head-untied": ("tied",),
    "scaled-lookup": ("embedding_scale",),
    "residual-scale": ("residual_scale",),
    "norm-order": ("norm_first",),
    "missing-bias": ("attention_bias",),
}


@dataclass(frozen=True)
class Declared:
    """A setting that a configuration declares.

    Attributes:
        value: a number, a truth value or a text.
        where: the name under which the configuration holds it.
    """

    value: float | int | bool | str
    where: str


def declared_settings(model: Any) -> dict[str, Declared]:
    """Return the settings that a model's configuration declares, by their names here.

    A configuration is an object with `to_dict`, a dict, a dataclass, or what Keras's `get_config` returns.

    Args:
        model: the model, or a sequence of its parts.
    """
    found: dict[str, Declared] = {}
    for part in model if isinstance(model, (list, tuple)) else (model,):
        for entries in _configurations(part):
            for name, value in _entries(entries):
                setting = SETTING_OF.get(name)
                if setting is not None and setting not in found and isinstance(value, (bool, int, float, str)):
                    found[setting] = Declared(value, name)
    return found


def differing_settings(
    a: Mapping[str, Declared], b: Mapping[str, Declared], causes: Sequence[Cause], *, all_explained: bool
) -> tuple[SettingDifference, ...]:
    """Return the settings that both configurations declare in different ways.

    Args:
        a: the reference's settings.
        b: the port's settings.
        causes: the causes that were found.
        all_explained: whether these explain all sites, so that no other setting matters for this batch.
    """
    active = {setting for cause in causes for setting in SETTING_OF_CAUSE.get(cause.cause, ())}
    return tuple(
        SettingDifference(
            name,
            str(a[name].value),
            str(b[name].value),
            (a[name].where, b[name].where),
            True if name in active else False if all_explained else None,
        )
        for name in NAMES
        if name in a and name in b and _comparable(name, a[name].value) != _comparable(name, b[name].value)
    )


def _configurations(model: Any) -> Iterator[Any]:
    """Yield the configurations that a model holds, its own first."""
    holders = [model, *(getattr(model, name, None) for name in HOLDERS)]
    for holder in holders:
        if holder is None:
            continue
        for read in (_from_dict, _from_method, _from_fields):
            entries = read(holder)
            if entries is not None:
                yield entries
                yield from (entries[name] for name in PARTS if isinstance(entries.get(name), Mapping))
                break


def _from_dict(holder: Any) -> Mapping[str, Any] | None:
    return holder if isinstance(holder, Mapping) and all(isinstance(name, str) for name in holder) else None


def _from_method(holder: Any) -> Mapping[str, Any] | None:
    for name in ("to_dict", "get_config"):
        method: Callable[[], Any] | None = getattr(holder, name, None)
        if callable(method) and not isinstance(holder, type):
            try:
                entries = method()
            except (
                NotImplementedError,
                TypeError,
                ValueError,
                AttributeError,
            ):  # Keras's models without a configuration
                continue
            if isinstance(entries, Mapping):
                return entries
    return None


def _from_fields(holder: Any) -> Mapping[str, Any] | None:
    if dataclasses.is_dataclass(holder) and not isinstance(holder, type):
        return {field.name: getattr(holder, field.name, None) for field in dataclasses.fields(holder)}
    plain = getattr(holder, "__dict__", None)
    return {name: value for name, value in plain.items() if not name.startswith("_")} if plain else None


def _entries(entries: Any) -> Iterable[tuple[str, Any]]:
    return entries.items() if isinstance(entries, Mapping) else ()


def _comparable(setting: str, value: Any) -> Any:
    """Return a value in a form in which equal settings are equal."""
    if setting == "activation":
        plain = re.sub(r".*[.>]", "", str(value)).lower()
        return ACTIVATIONS.get(plain, plain)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return float(f"{float(value):.6g}")
