"""Checks of other projects' ports: `python -m tests.cross.ports.campaign --write docs/ports.md`, or `make ports`.

Each text converter of keras-hub, transformers' classes for Flax and TensorFlow, and embgrad's own models in each framework are
checked against transformers' PyTorch model, on a small folder with random weights. It runs in the environment `all`, with Keras
on JAX.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.errors import EmbgradError
from embgrad.results import PortReport

#: Sizes that most configurations share.
USUAL: Final = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
PLACES: Final = {**USUAL, "max_position_embeddings": 64}
GROUPED: Final = {**PLACES, "num_key_value_heads": 2}
LLAMA: Final = {**GROUPED, "rms_norm_eps": 1e-5}
EXPERTS: Final = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA: Final = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
LLAMA3: Final = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
DISTILBERT: Final = {
    "vocab_size": 60, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
OPT: Final = {**PLACES, "ffn_dim": 48, "word_embed_proj_dim": 32}
T5: Final = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART: Final = {
    "vocab_size": 60,
    "d_model": 32,
    **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 48))},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    "max_position_embeddings": 64,
}
GPT2: Final = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

#: By architecture: transformers' class without its ending, its sizes, the ending, and keras-hub's backbone if it has a converter.
CONVERTERS: Final[Mapping[str, tuple[str, dict[str, Any], str, str]]] = {
    "bert": ("Bert", PLACES, "Model", "BertBackbone"),
    "roberta": ("Roberta", {**PLACES, "pad_token_id": 1}, "ForMaskedLM", "RobertaBackbone"),
    "xlm_roberta": ("XLMRoberta", {**PLACES, "pad_token_id": 1}, "Model", "XLMRobertaBackbone"),
    "distilbert": ("DistilBert", DISTILBERT, "ForMaskedLM", "DistilBertBackbone"),
    "albert": ("Albert", {**PLACES, "embedding_size": 16}, "ForSequenceClassification", "AlbertBackbone"),
    "bart": ("Bart", BART, "Model", "BartBackbone"),
    "gpt2": ("GPT2", GPT2, "Model", "GPT2Backbone"),
    "opt": ("OPT", OPT, "Model", ""),
    "llama": ("Llama", LLAMA, "ForCausalLM", "LlamaBackbone"),
    "llama3": ("Llama", {**LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA3}, "ForCausalLM", "Llama3Backbone"),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": 4}, "ForCausalLM", "MistralBackbone"),
    "mixtral": (
        "Mixtral",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
        "ForCausalLM",
        "MixtralBackbone",
    ),
    "gemma": ("Gemma", {**PLACES, "num_key_value_heads": 1, "head_dim": 8}, "ForCausalLM", "GemmaBackbone"),
    "gemma2": ("Gemma2", {**GEMMA, "attn_implementation": "eager"}, "ForCausalLM", "GemmaBackbone"),
    "gemma3": ("Gemma3", GEMMA, "TextModel", "Gemma3Backbone"),
    "qwen2": ("Qwen2", LLAMA, "ForCausalLM", "QwenBackbone"),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 8}, "ForCausalLM", "Qwen3Backbone"),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 24}, "ForCausalLM", "QwenMoeBackbone"),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 8}, "ForCausalLM", "Qwen3MoeBackbone"),
    "smollm3": ("SmolLM3", {**GROUPED, "pad_token_id": 0}, "ForCausalLM", "SmolLM3Backbone"),
    "t5": ("T5", T5, "Model", ""),
    "esm": ("Esm", {**PLACES, "pad_token_id": 1, "position_embedding_type": "rotary"}, "Model", "ESMBackbone"),
}

#: The architectures of transformers that have classes for Flax, for TensorFlow, or both.
FLAX: Final = ("bert", "roberta", "distilbert", "albert", "gpt2", "opt", "bart", "t5", "mistral", "llama", "gemma")
TENSORFLOW: Final = ("bert", "roberta", "distilbert", "albert", "gpt2", "opt", "bart", "t5", "mistral")

#: The frameworks of embgrad's own models.
FRAMEWORKS: Final = ("tensorflow", "keras", "jax", "gluon")

#: What stands before and behind the table in a page.
TABLE: Final = re.compile(r"(<!-- table: campaign -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """What a check said of a port.

    Attributes:
        name: the port.
        agrees: whether it agrees; None where nothing could be compared.
        words: the causes with both values, and the sites without a known cause; empty where it agrees.
        share: the share of the difference that the causes explain.
        seconds: the time that the check took.
    """

    name: str
    agrees: bool | None
    words: tuple[str, ...] = ()
    share: float | None = None
    seconds: float = 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a line of the table."""
        outcome = {True: "agrees", False: "differs", None: "not compared"}[self.agrees]
        words = f"{outcome}: {'; '.join(self.words)}" if self.words else outcome
        share = "" if self.share is None else f"{100 * self.share:.4g} %"
        return self.name, words.replace("|", "\\|"), share, f"{self.seconds:.1f}"


def row_of(name: str, report: PortReport) -> Row:
    """Return the line about a port whose check took a report's seconds."""
    words = [cause.text for cause in report.causes]
    words += [f"no known cause at {site}" for site in report.unexplained[:1]]
    words += report.notes if not report.agrees and not words else ()
    return Row(name, report.agrees, tuple(words), report.explained, sum(report.seconds.values()))


def markdown(rows: list[Row]) -> str:
    """Return the table of the campaign."""
    head = ("Port", "Result", "Explained", "Seconds")
    lines = [head, ("---",) * len(head), *(row.cells for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_table(page: str, rows: list[Row]) -> str:
    """Return a page with the table between its marks."""
    return TABLE.sub(lambda match: f"{match[1]}\n{markdown(rows)}\n\n{match[2]}", page)


def reference(name: str, folder: Path) -> Any:
    """Return a transformers model with random weights, which are written to the folder."""
    import torch
    import transformers

    prefix, sizes, ending, _ = CONVERTERS[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}{ending}")(_configuration(name)(**sizes)).eval()
    centred = name.startswith("gemma")  # whose norms multiply by one more than the weight
    for path, parameter in model.named_parameters():
        is_gain = parameter.ndim == 1 and "bias" not in path and "norm" in path.lower()
        parameter.data = 0.15 * torch.randn_like(parameter) + float(is_gain and not centred)
    model.save_pretrained(folder)
    return getattr(model, model.base_model_prefix, model)


def _configuration(name: str) -> Any:
    import transformers

    prefix, _, ending, _ = CONVERTERS[name]
    return getattr(transformers, f"{prefix}{'Text' if ending == 'TextModel' else ''}Config")


def batch_of(name: str) -> embgrad.TokenBatch:
    """Return two texts of different lengths, and for an encoder-decoder those of the decoder."""
    random = np.random.default_rng(0)
    ids, mask = random.integers(3, 60, (2, 13)), np.ones((2, 13), np.int64)
    mask[1, 10:] = 0
    ids[1, 10:] = CONVERTERS[name][1].get("pad_token_id", 0)
    extras = {}
    if name in {"bart", "t5"}:
        extras = {
            "decoder_input_ids": random.integers(3, 60, (2, 7)),
            "decoder_attention_mask": np.ones((2, 7), np.int64),
        }
    return embgrad.TokenBatch(ids, mask, extras=extras)


def from_keras_hub(name: str, folder: Path) -> Any:
    """Return keras-hub's model, converted from a folder."""
    import keras_hub

    return getattr(keras_hub.models, CONVERTERS[name][3]).from_preset(str(folder), dtype="float32")


def from_transformers(kind: str) -> Callable[[str, Path], Any]:
    """Return a function that returns transformers' model for Flax or TensorFlow from a folder."""

    def load(name: str, folder: Path) -> Any:
        import transformers

        return getattr(transformers, f"{kind}{CONVERTERS[name][0]}Model").from_pretrained(folder, from_pt=True)

    return load


def own_models(framework: str) -> Callable[[str, Path], Any]:
    """Return a function that returns embgrad's BERT of a framework from a folder."""
    return lambda name, folder: embgrad.zoo.load_bert(str(folder), framework)


def ports() -> Iterator[tuple[str, str, Callable[[str, Path], Any]]]:
    """Yield the ports' names, their architectures, and functions that load them from a folder."""
    yield from (
        (f"keras-hub {CONVERTERS[name][3]} ({name})", name, from_keras_hub)
        for name in CONVERTERS
        if CONVERTERS[name][3]
    )
    yield from ((f"transformers Flax{CONVERTERS[name][0]}Model", name, from_transformers("Flax")) for name in FLAX)
    yield from ((f"transformers TF{CONVERTERS[name][0]}Model", name, from_transformers("TF")) for name in TENSORFLOW)
    yield from ((f"embgrad.zoo.load_bert, {framework}", "bert", own_models(framework)) for framework in FRAMEWORKS)


def check(label: str, name: str, load: Callable[[str, Path], Any]) -> Row:
    """Return the line about a port."""
    with tempfile.TemporaryDirectory() as folder:
        model = reference(name, Path(folder))
        try:
            port = load(name, Path(folder))
        except (AttributeError, ImportError, KeyError, NotImplementedError, OSError, TypeError, ValueError) as error:
            return Row(label, None, (f"it cannot be loaded: {first_sentence(error)}",))
        try:
            return row_of(label, embgrad.check_port(model, port, batch_of(name)))
        except EmbgradError as error:
            return Row(label, None, (error.message,))


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's text, without the paths in it."""
    return re.sub(r"\S*/\S*", "FOLDER", " ".join(str(error).split()).partition(". ")[0])[:160] or type(error).__name__


def check_real(folder: Path) -> Row:
    """Return the line about keras-hub's model of a folder of real weights, which holds a Llama."""
    import keras_hub
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    port = keras_hub.models.LlamaBackbone.from_preset(str(folder), dtype="float32")
    texts = ["The capital of France is Paris, and the capital of Italy is Rome.", "Once upon a time there was a girl."]
    size = sum(parameter.numel() for parameter in model.parameters())
    report = embgrad.check_port(model.model, port, texts, tokenizer=tokenizer)
    return row_of(f"keras-hub LlamaBackbone ({folder.name}, {size / 1e6:.0f} M parameters)", report)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cross.ports.campaign", description=__doc__)
    parser.add_argument("--only", default="", help="check the ports whose names match this regular expression")
    parser.add_argument("--real", type=Path, help="a folder with a Llama's real weights, to check as well")
    parser.add_argument("--record", type=Path, help="a file of finished lines, which are not made again")
    parser.add_argument("--write", type=Path, help="the page whose table is made anew")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported
    recorded = options.record is not None and options.record.exists()
    held = [Row(**entry) for entry in json.loads(options.record.read_text("utf-8"))] if recorded else []
    rows = {row.name: row for row in held}
    for label, name, load in ports():
        if label not in rows and re.search(options.only, label):
            begin = time.monotonic()
            rows[label] = check(label, name, load)
            print(*rows[label].cells, f"({time.monotonic() - begin:.0f} s)", sep=" · ", flush=True)
            if options.record is not None:
                options.record.write_text(json.dumps([asdict(row) for row in rows.values()], indent=1), "utf-8")
    if options.real is not None:
        real = check_real(options.real)
        rows[real.name] = real
        print(*real.cells, sep=" · ")
        if options.record is not None:
            options.record.write_text(json.dumps([asdict(row) for row in rows.values()], indent=1), "utf-8")
    if options.write is not None:
        order = [label for label, _, _ in ports()]
        listed = sorted(rows.values(), key=lambda row: order.index(row.name) if row.name in order else len(order))
        options.write.write_text(with_table(options.write.read_text("utf-8"), listed), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
