"""Decoders of `transformers` with small random weights, and the modes in which they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from tests.decoders.inputs import PADDING, VOCAB

DIM: Final = 64

_SPECIAL: Final = {"pad_token_id": PADDING, "bos_token_id": 1, "eos_token_id": 2}
_USUAL: Final = {
    "vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 32,
    **_SPECIAL,
}  # fmt: skip
_GROUPED: Final = {**_USUAL, "num_key_value_heads": 2, "head_dim": 16}
#: Shorter than the texts, so that it matters.
_WINDOW: Final = {**_GROUPED, "sliding_window": 4}
_OPT: Final = {
    **{name: value for name, value in _USUAL.items() if name != "intermediate_size"},
    "ffn_dim": 96,
    "word_embed_proj_dim": DIM,
}
_HALVES: Final = {f"{half}_{what}" for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
_BART: Final = {
    "vocab_size": VOCAB,
    "d_model": DIM,
    **dict.fromkeys(sorted(_HALVES), 2),
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 2,
    **_SPECIAL,
}


@dataclass(frozen=True)
class Decoder:
    """A decoder of `transformers`.

    Attributes:
        model: the class of the model.
        config: the class of its configuration.
        settings: of the configuration.
        layers: the path of the list of its layers (the encoder's in an encoder-decoder).
        encoder: whether it is an encoder-decoder.
        adapted: the modules that LoRA adapts.
    """

    model: str
    config: str
    settings: Mapping[str, Any]
    layers: str = "model.layers"
    encoder: bool = False
    adapted: str | list[str] = "all-linear"

    @property
    def cls(self) -> Any:
        """The class of the model."""
        return getattr(transformers, self.model)

    def build(self) -> Any:
        """Return the model in float32 and evaluation mode, with random weights that the same seed always gives."""
        torch.manual_seed(1)
        return self.cls(getattr(transformers, self.config)(**self.settings)).eval()

    def saved(self, folder: Path) -> Path:
        """Save the model into the folder, from which modes load it."""
        self.build().save_pretrained(folder)
        return folder


DECODERS: Final[Mapping[str, Decoder]] = {
    "GPT-2": Decoder(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCAB, "n_embd": DIM, "n_layer": 2, "n_head": 4, "n_positions": 32, **_SPECIAL},
        "transformer.h",
    ),
    "Llama": Decoder("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Qwen2": Decoder("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "Qwen3": Decoder("Qwen3ForCausalLM", "Qwen3Config", _GROUPED),
    "Gemma 2": Decoder("Gemma2ForCausalLM", "Gemma2Config", _WINDOW),
    "Gemma 3": Decoder("Gemma3ForCausalLM", "Gemma3TextConfig", _WINDOW),
    "Mistral": Decoder("MistralForCausalLM", "MistralConfig", _WINDOW),
    "Phi": Decoder("PhiForCausalLM", "PhiConfig", _USUAL),
    "Phi-3": Decoder("Phi3ForCausalLM", "Phi3Config", _USUAL),
    "OPT": Decoder("OPTForCausalLM", "OPTConfig", _OPT, "model.decoder.layers"),
    "Mamba": Decoder(
        "MambaForCausalLM",
        "MambaConfig",
        # Of so many steps that each layer of it can be cut into groups of 32, as 4-bit weights are.
        {"vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 32}
        | _SPECIAL,
        "backbone.layers",
        adapted=["in_proj", "x_proj"],  # PEFT refuses the others of a Mamba
    ),
    "T5": Decoder(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCAB, "d_model": DIM, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
        | {**_SPECIAL, "decoder_start_token_id": 0},
        "encoder.block",
        encoder=True,
    ),
    "BART": Decoder("BartForConditionalGeneration", "BartConfig", _BART, "model.encoder.layers", encoder=True),
}


# Modes


class Inapplicable(Exception):
    """The mode has no meaning for the decoder; the message says why."""


def _bfloat16(decoder: Decoder, folder: Path) -> Any:
    return decoder.build().to(torch.bfloat16)


def _bitsandbytes(decoder: Decoder, folder: Path, **settings: Any) -> Any:
    quantised = transformers.BitsAndBytesConfig(**settings)
    return _loaded(decoder, folder, quantization_config=quantised, torch_dtype=torch.float32, device_map="cpu")


def _bitsandbytes_8(decoder: Decoder, folder: Path) -> Any:
    return _bitsandbytes(decoder, folder, load_in_8bit=True)


def _bitsandbytes_4(decoder: Decoder, folder: Path) -> Any:
    settings = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    model = _bitsandbytes(decoder, folder, load_in_4bit=True, **settings)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # On some CPUs the first pass without gradients would rearrange the weights, for which there is no backward pass.
            module.support_avx512bf16_for_cpu = False
    return model


def _torchao_8(decoder: Decoder, folder: Path) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return _quantised(decoder.build(), Int8WeightOnlyConfig())


def _torchao_4(decoder: Decoder, folder: Path) -> Any:
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return _quantised(decoder.build(), IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))


def _torchao_activations(decoder: Decoder, folder: Path) -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    head = "lm_head"  # which libraries leave as it is
    config = Int8DynamicActivationInt8WeightConfig()
    return _quantised(decoder.build(), config, lambda path: head not in path)


def _quantised(model: Any, config: Any, chosen: Callable[[str], bool] = lambda path: True) -> Any:
    from torchao.quantization import quantize_

    if sum(isinstance(module, torch.nn.Linear) for module in model.modules()) < 2:
        raise Inapplicable("torchao quantises nn.Linear, and the layers are Conv1D of transformers")
    quantize_(model, config, filter_fn=lambda module, path: isinstance(module, torch.nn.Linear) and chosen(path))
    return model


def _on_cpu(decoder: Decoder, folder: Path) -> Any:
    return _loaded(decoder, folder, device_map="cpu")


def _last_layer_on_disk(decoder: Decoder, folder: Path) -> Any:
    return _loaded(
        decoder, folder, device_map=_last_on_disk(decoder.build(), decoder.layers), offload_folder=folder / "offloaded"
    )


def _last_on_disk(model: Any, layers: str) -> dict[str, str]:
    """Return a `device_map` that has the last of the layers on the disk and all else on the CPU."""
    devices: dict[str, str] = {}
    path, module = "", model
    for step in layers.split("."):
        held = [*module._modules, *module._parameters, *module._buffers]
        devices |= {f"{path}{name}": "cpu" for name in held if name != step}
        path, module = f"{path}{step}.", getattr(module, step)
    devices |= {f"{path}{number}": "cpu" for number in range(len(module))}
    return {**devices, f"{path}{len(module) - 1}": "disk"}


def _all_on_disk(decoder: Decoder, folder: Path) -> Any:
    from accelerate import disk_offload

    return disk_offload(decoder.build(), str(folder / "offloaded"), execution_device=torch.device("cpu"))


def _lora(decoder: Decoder, folder: Path) -> Any:
    from peft import LoraConfig, get_peft_model

    task = "SEQ_2_SEQ_LM" if decoder.encoder else "CAUSAL_LM"
    model = decoder.build()
    torch.manual_seed(2)
    config = LoraConfig(r=4, lora_alpha=1, target_modules=decoder.adapted, init_lora_weights=False, task_type=task)
    return get_peft_model(model, config).eval()


def _lora_merged(decoder: Decoder, folder: Path) -> Any:
    return _lora(decoder, folder).merge_and_unload().eval()


def _loaded(decoder: Decoder, folder: Path, **options: Any) -> Any:
    return decoder.cls.from_pretrained(decoder.saved(folder), **options).eval()


@dataclass(frozen=True)
class Mode:
    """A way in which a model is loaded.

    Attributes:
        build: returns the model, with a folder for files.
        rounds: whether it computes with few digits, so that a batch differs from its examples alone by rounding.
        approximate: whether it approximates the model in float32.
    """

    build: Callable[[Decoder, Path], Any]
    rounds: bool = False
    approximate: bool = False


MODES: Final[Mapping[str, Mode]] = {
    "float32": Mode(lambda decoder, folder: decoder.build()),
    "bfloat16": Mode(_bfloat16, rounds=True, approximate=True),
    "8 bits, bitsandbytes": Mode(_bitsandbytes_8, rounds=True, approximate=True),
    "4 bits, bitsandbytes": Mode(_bitsandbytes_4, approximate=True),
    "8 bits, torchao": Mode(_torchao_8, approximate=True),
    "4 bits, torchao": Mode(_torchao_4, approximate=True),
    "8-bit activations, torchao": Mode(_torchao_activations),
    'device_map="cpu"': Mode(_on_cpu),
    "device_map, last layer on disk": Mode(_last_layer_on_disk),
    "all weights on disk": Mode(_all_on_disk),
    "LoRA": Mode(_lora),
    "LoRA, merged": Mode(_lora_merged),
}
