"""Small configurations of `transformers`, by introspection: a configuration class's own parameters, made small by their names."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["VOCAB", "small_configuration", "small_size"]

#: The number of ids that every model knows.
VOCAB: Final = 96

#: What a parameter becomes whose name matches and whose default is a larger whole number. The first match counts.
SIZES: Final[tuple[tuple[str, int], ...]] = (
    (r"codebook_size", 64),
    (r"vocab_?size|^n_words$", VOCAB),
    (r"type_vocab|n_langs|num_labels", 2),
    (r"per_tok|num_selected|topk_group|^n_group$|^top_?k$|moe_topk|moe_k$|moe_top_k$", 1),
    (r"experts", 4),
    (r"(num|n)_?(\w+_)?(kv|key_value)_heads|num_kv|kv_heads|num_query_groups|n_groups$|mamba_n_groups|ngroups", 2),
    (r"heads?$|n_head|num_heads|attention_heads", 4),
    (r"kv_lora_rank|q_lora_rank|lora_rank|_rank$|lora", 8),
    (r"head_dim|d_kv$|d_head|head_size|attention_head_size|kv_channels", 8),
    (r"layers?$|^num_\w*layers\w*$|n_layers?$|depth$|_layers$|num_\w*blocks?$", 2),
    (r"first_k_dense|num_nextn|num_dense", 1),
    (r"max_position|n_positions|n_ctx|max_seq|max_\w*length|max_target|max_source|seq_len|seq_length", 64),
    (r"image_size|img_size|input_size", 16),
    (r"patch_size|tile_size", 8),
    (r"window|chunk|block_size|block_len", 8),
    (r"intermediate|ffn|d_ff|n_inner|feed_forward|mlp_dim|feedforward|_ff$", 48),
    (r"conv_kernel|kernel|stride|padding|groups$", 2**31),
    (
        r"hidden_size|hidden_dim|d_model|^dim$|n_embd|emb_dim|embed_dim|embedding_size|embd|_dim$|_size$|width|_channels$",
        32,
    ),
    (r"features$|_dims?$|rank$", 32),
)

#: Sizes of parameters whose default is None, where the class does not derive them.
UNGIVEN: Final[Mapping[str, int]] = {"vocab_size": VOCAB, "hidden_size": 32, "head_dim": 8, "num_key_value_heads": 4}

#: Ids of tokens that a model treats in a way of its own; the last ids of the vocabulary, which no batch holds.
_SPECIAL: Final = re.compile(r"token_(id|index)$|token_ids$|_token$|_idx$")
_ENDS: Final[Mapping[str, int]] = {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "sep_token_id": 3, "pad_index": 0, "bos_index": 1, "eos_index": 2,
}  # fmt: skip


def small_configuration(cls: Any, exceptions: Mapping[str, Any], everywhere: Mapping[str, Any]) -> Any:
    """Return a configuration with small sizes.

    Args:
        cls: a configuration class of `transformers`.
        exceptions: values by the names of parameters, those of a part below the part's name, which introspection cannot know.
        everywhere: values by the names of parameters, for each part that has one.
    """
    given = dict(exceptions)
    names = {field.name for field in dataclasses.fields(cls)}
    shared = {
        name: copy.deepcopy(value) for name, value in everywhere.items() if name in names
    }  # classes write into them
    settings = {**dict(_settings(cls)), **shared}
    for name, part in cls.sub_configs.items():
        chosen = part if getattr(part, "model_type", "") else _class_of_part(cls, name)
        if chosen is not None:
            settings[name] = small_configuration(chosen, given.pop(name, {}), everywhere)
    return cls(**{**settings, **given})


def _class_of_part(cls: Any, name: str) -> Any:
    """Return the class of a part that may be of any model, as the configuration makes it by default."""
    value = getattr(cls(), name, None)
    return None if value is None else type(value)


def _settings(cls: Any) -> Iterator[tuple[str, Any]]:
    fields = {field.name: _default(field) for field in dataclasses.fields(cls)}
    special = VOCAB
    for name, value in fields.items():
        if name in cls.sub_configs:
            continue
        if name in _ENDS:
            yield name, _ENDS[name]
        elif name == "num_key_value_heads" and "kv_lora_rank" in fields:  # the heads share one compressed key and value
            yield name, small_size("num_attention_heads", 2**20)
        elif value is None and name in UNGIVEN:
            yield name, UNGIVEN[name]
        elif _SPECIAL.search(name):
            if isinstance(value, int) and value >= VOCAB:
                special -= 1
                yield name, special
        elif isinstance(value, int) and not isinstance(value, bool):
            small = small_size(name, value)
            if small != value:
                yield name, small


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def small_size(name: str, value: int) -> int:
    """Return the size of a parameter whose default is a number."""
    for pattern, size in SIZES:
        if re.search(pattern, name):
            return min(value, size)
    return value
