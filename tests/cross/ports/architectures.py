"""References: small models of transformers in PyTorch, with weights in which every part of a model matters, and their batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import transformers

from embgrad import TokenBatch

VOCAB: Final = 97

#: The padding id of every model that has one in its table. It stands at real positions too, as where padding is the end of text.
PADDING: Final = 1

_ENCODER: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": PADDING,
}  # fmt: skip
_DECODER: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_GPT2: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
_GEMMA2: Final[Mapping[str, Any]] = {
    **_DECODER,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "rms_norm_eps": 1e-6,
    "sliding_window": 5,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 8.0,
}


@dataclass(frozen=True)
class Architecture:
    """A reference's class, configuration and kind of batch.

    Attributes:
        model: the class of transformers.
        config: the class of its configuration.
        options: the configuration's fields.
        kind: "encoder" (has types), "bare" (an encoder without), "decoder" or "both" (an encoder and a decoder).
        output: the field of the output that is compared.
        zero_centred: whether norms multiply by 1 + weight.
    """

    name: str
    model: str
    config: str
    options: Mapping[str, Any]
    kind: str
    output: str = "last_hidden_state"
    zero_centred: bool = False


def _named(*architectures: Architecture) -> dict[str, Architecture]:
    return {architecture.name: architecture for architecture in architectures}


ARCHITECTURES: Final[Mapping[str, Architecture]] = _named(
    Architecture("bert", "BertModel", "BertConfig", {**_ENCODER, "layer_norm_eps": 1e-12}, "encoder"),
    Architecture("bert-lm", "BertForMaskedLM", "BertConfig", {**_ENCODER, "layer_norm_eps": 1e-12}, "encoder",
        "logits"),
    Architecture("roberta", "RobertaModel", "RobertaConfig",
        {**_ENCODER, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 42}, "bare"),
    Architecture(
        "distilbert", "DistilBertModel", "DistilBertConfig",
        {
            **{"vocab_size": VOCAB, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
            **{"max_position_embeddings": 40, "pad_token_id": PADDING},
        },
        "bare",
    ),
    Architecture(
        "albert", "AlbertModel", "AlbertConfig",
        {**_ENCODER, "embedding_size": 16, "hidden_act": "gelu_new", "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": 0.1},
        "encoder",
    ),
    Architecture("gpt2", "GPT2Model", "GPT2Config", _GPT2, "decoder"),
    Architecture("gpt2-lm", "GPT2LMHeadModel", "GPT2Config", _GPT2, "decoder", "logits"),
    Architecture("llama", "LlamaModel", "LlamaConfig", _DECODER, "decoder"),
    Architecture("llama-lm", "LlamaForCausalLM", "LlamaConfig", _DECODER, "decoder", "logits"),
    Architecture(
        "llama3", "LlamaModel", "LlamaConfig",
        {
            **_DECODER, "rope_theta": 500000.0,
            "rope_scaling": {**{"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                **{"original_max_position_embeddings": 32}},
        },
        "decoder",
    ),
    Architecture("mistral", "MistralModel", "MistralConfig",
        {**_DECODER, "head_dim": 16, "sliding_window": 6, "tie_word_embeddings": False}, "decoder"),
    Architecture("qwen2", "Qwen2Model", "Qwen2Config", {**_DECODER, "rope_theta": 1000000.0}, "decoder"),
    Architecture("qwen3", "Qwen3Model", "Qwen3Config", {**_DECODER, "head_dim": 16, "rope_theta": 1000000.0},
        "decoder"),
    Architecture("gemma2", "Gemma2Model", "Gemma2Config", _GEMMA2, "decoder", zero_centred=True),
    Architecture("gemma2-lm", "Gemma2ForCausalLM", "Gemma2Config", _GEMMA2, "decoder", "logits", zero_centred=True),
    Architecture("phi3", "Phi3Model", "Phi3Config", {**_DECODER, "tie_word_embeddings": False}, "decoder"),
    Architecture(
        "gpt-neox", "GPTNeoXModel", "GPTNeoXConfig",
        {
            **{name: _DECODER[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
            **{"num_attention_heads": 4, "intermediate_size": 80, "max_position_embeddings": 64, "rotary_pct": 0.5},
            **{"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": None},
        },
        "decoder",
    ),
    Architecture(
        "t5", "T5Model", "T5Config",
        {
            **{"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
            **{"feed_forward_proj": "gated-gelu", "pad_token_id": PADDING, "decoder_start_token_id": PADDING},
        },
        "both",
    ),
    Architecture(
        "bart", "BartModel", "BartConfig",
        {
            **{"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
            **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40},
            **{"pad_token_id": PADDING, "decoder_start_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
        },
        "both",
    ),
)  # fmt: skip


def reference(name: str, seed: int = 0) -> Any:
    """Return a reference with weights of a seed, in evaluation mode."""
    architecture = ARCHITECTURES[name]
    config = getattr(transformers, architecture.config)(**architecture.options)
    config._attn_implementation = "eager"
    model = getattr(transformers, architecture.model)(config)
    draw_weights(model, architecture, seed)
    return model.eval()


def draw_weights(model: Any, architecture: Architecture, seed: int) -> None:
    """Draw weights by their names: no norm is trivial, no bias zero, attention is not even."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            path = path.removeprefix(f"{model.base_model_prefix}.")
            random = np.random.default_rng([zlib.crc32(f"{path} {seed}".encode()), 1])
            parameter.copy_(torch.tensor(_drawn(path, tuple(parameter.shape), architecture, random)))


def _drawn(path: str, shape: tuple[int, ...], architecture: Architecture, random: np.random.Generator) -> np.ndarray:
    if len(shape) == 1:
        is_norm = path.endswith("weight")
        if is_norm and not architecture.zero_centred:
            return random.uniform(0.6, 1.5, shape)
        return random.normal(0, 0.25 if is_norm else 0.2, shape)
    if "relative_attention_bias" in path:
        return random.normal(0, 0.7, shape)
    if "token_type_embeddings" in path and shape[0] == 1:
        return np.zeros(shape)  # as in the published weights of RoBERTa, which has one type
    if is_table(path):
        return random.normal(0, 0.15, shape)
    return random.normal(0, 0.2, shape)


def is_table(path: str) -> bool:
    """Return whether a weight is a table, by its path."""
    return any(part in path for part in ("embeddings.", "embed_", "wte", "wpe", "shared", "embed_in"))


def token_batch(name: str, seed: int = 0, side: str = "right") -> TokenBatch:
    """Return examples of different lengths, padded on one side, in the convention of Hugging Face."""
    kind = ARCHITECTURES[name].kind
    random = np.random.default_rng([zlib.crc32(kind.encode()), seed, 2])
    lengths = (16, 12, 14)
    ids = np.full((len(lengths), max(lengths)), PADDING)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, length in enumerate(lengths):
        real = slice(0, length) if side == "right" else slice(max(lengths) - length, None)
        ids[row, real] = random.integers(3, VOCAB - 3, length)
        mask[row, real] = 1
        types[row, real] = np.arange(length) > length // 2
    if name != "roberta":  # its positions are counted by what is not padding
        ids[0, 5] = ids[1, ids.shape[1] // 2] = PADDING
    if kind == "encoder":
        return TokenBatch(ids, mask, types)
    if kind == "both":
        decoder = random.integers(3, VOCAB - 3, (len(lengths), 13))
        return TokenBatch(ids, mask, extras={"decoder_input_ids": decoder})
    return TokenBatch(ids, mask)


def compared(batch: TokenBatch, output: np.ndarray) -> np.ndarray:
    """Return an output at positions that are real: what is at padding is not compared."""
    return output if output.shape[1] != batch.shape[1] else output[batch.real]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Return how far b is from a, relative in the L2 norm."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


#: A reference's output on a batch.
Forward = Callable[[Any, TokenBatch], np.ndarray]


def forward(name: str) -> Forward:
    """Return the function that runs a reference, or a port of the same inputs and outputs in PyTorch."""
    field = ARCHITECTURES[name].output

    def run(model: Any, batch: TokenBatch) -> np.ndarray:
        with torch.no_grad():
            return model(**{key: torch.tensor(value) for key, value in batch.inputs().items()})[field].double().numpy()

    return run
