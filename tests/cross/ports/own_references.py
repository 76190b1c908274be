"""References of ports written by hand: small models of transformers with drawn weights, MiniLM with its own, and modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import tokenizers
import torch
import transformers
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from embgrad import TokenBatch
from embgrad.loading.minilm import minilm_folder
from tests.cross.ports import architectures, twins
from tests.cross.ports.architectures import ARCHITECTURES, PADDING, VOCAB, Architecture, draw_weights, token_batch
from tests.cross.ports.encoders_torch import product

#: The sizes of small encoders and decoders, in the names of most configurations.
ENCODER: Final = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 40, "pad_token_id": PADDING},
}
DECODER: Final = {
    **{"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 64},
    **{"pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
}

_WITHOUT_INNER: Final = {name: size for name, size in ENCODER.items() if name != "intermediate_size"}

#: The texts that MiniLM is given.
TEXTS: Final = (
    "The keys to the cabinet that the carpenter's sons had locked are on the kitchen table, next to yesterday's bread.",
    "A gripping film, told with unforgettable warmth.",
    "Researchers measured how quickly 37 glaciers lose their ice in summer.",
    "Is it cheaper to repair an old bicycle than to buy another one?",
)


#: Models of transformers: their classes' names, and the fields of their configurations.
_MODELS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "roberta-classifier": ("RobertaForSequenceClassification", "RobertaConfig",
        {**ARCHITECTURES["roberta"].options, "num_labels": 5}),
    "bert-scorer": ("BertForSequenceClassification", "BertConfig", {**ENCODER, "num_labels": 1}),
    "mpnet": ("MPNetModel", "MPNetConfig", {**ENCODER, "max_position_embeddings": 42}),
    # Of so many layers that their numbers are in another order as text.
    "opt": ("OPTModel", "OPTConfig",
        {**_WITHOUT_INNER, "ffn_dim": 48, "word_embed_proj_dim": 32, "num_hidden_layers": 11}),
    # With a number of heads that is no power of two.
    "bloom": ("BloomModel", "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 3, "n_head": 6, "pad_token_id": PADDING}),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig",
        {**ARCHITECTURES["gpt-neox"].options, "tie_word_embeddings": False}),
    # With biases, and heads that share one key and one value.
    "falcon": ("FalconForCausalLM", "FalconConfig", {**DECODER, "num_key_value_heads": None, "bias": True}),
    # With heads that are wider than their share of the width.
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config",
        {**DECODER, "head_dim": 24, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**twins.MODELS["gptj"][1], "tie_word_embeddings": False}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config",
        {**DECODER, "partial_rotary_factor": 0.5, "sliding_window": 6, "tie_word_embeddings": False}),
    "gptneo": ("GPTNeoForCausalLM", "GPTNeoConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "window_size": 5,
            "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 40, "bos_token_id": None,
            "eos_token_id": None}),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "context_length": 32,
            "use_cache": False}),
    # With fewer states than features.
    "mamba": ("MambaForCausalLM", "MambaConfig",
        {"vocab_size": VOCAB, "hidden_size": 24, "state_size": 6, "num_hidden_layers": 3, "conv_kernel": 4,
            "time_step_rank": 6, "use_cache": False}),
}  # fmt: skip


def drawn(name: str) -> Callable[[], Any]:
    """Return a function that makes a model of transformers with drawn weights."""
    kind, config, options = _MODELS[name]

    def make() -> Any:
        settings = getattr(transformers, config)(**options)
        settings._attn_implementation = "eager"
        return with_drawn_weights(getattr(transformers, kind)(settings))

    return make


def with_drawn_weights(made: Any) -> Any:
    draw_weights(made, Architecture(type(made).__name__, "", "", {}, "bare"), 0)
    return made.eval()


class Sentences(nn.Module):
    """A sentence encoder: the mean of a BERT's last hidden states at real positions, of length 1."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert, self.config = bert, bert.config

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        x = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]
        real = attention_mask[..., None].to(x.dtype)
        return nn.functional.normalize((x * real).sum(1) / real.sum(1).clamp(min=1e-9), dim=-1)


def minilm() -> Any:
    """Return all-MiniLM-L6-v2 without its pooling."""
    folder = minilm_folder()
    return transformers.BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()


def minilm_batch() -> TokenBatch:
    """Return MiniLM's texts."""
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(list(TEXTS))
    return TokenBatch(np.array([one.ids for one in found]), np.array([one.attention_mask for one in found]))


def drawn_sentences() -> Any:
    return Sentences(architectures.reference("bert"))


def sentences() -> Any:
    """Return MiniLM as its authors use it."""
    return Sentences(minilm())


def sentences_in_8_bits() -> Any:
    """Return MiniLM whose matrices in layers are whole multiples, up to 127, of a scale of each output."""
    made = sentences()
    with torch.no_grad():
        for module in made.bert.encoder.modules():
            if isinstance(module, nn.Linear):
                scale = module.weight.abs().amax(1, keepdim=True) / 127
                module.weight.copy_((module.weight / scale).round() * scale)
    return made.eval()


def adapted_sentences() -> Any:
    """Return MiniLM with adapters of queries and values that are merged."""
    made = sentences()
    with torch.no_grad():
        for number, layer in enumerate(made.bert.encoder.layer):
            for part in ("query", "value"):
                layer.attention.self.get_submodule(part).weight += torch.tensor(product(number, part))
    return made.eval()


# models that are no stacks of attention


WIDTH: Final = 32
CLASSES: Final = 5

#: The rows of the table of pairs of words, which are found by a hash.
BUCKETS: Final = 50


class _Text(nn.Module):
    """A model of words that are looked up in a table; its sizes are those of its weights."""

    base_model_prefix: ClassVar[str] = "model"
    config: ClassVar[Any] = None

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)

    def drawn(self) -> Any:
        """Return the model with drawn weights, in evaluation mode."""
        with_drawn_weights(self).words.weight.data.mul_(3)
        return self


class BiLstm(_Text):
    """A classifier of the mean state of a bidirectional LSTM of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        lengths = attention_mask.sum(1)
        packed = pack_padded_sequence(self.words(input_ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(states.sum(1) / lengths[:, None])


class GruLm(_Text):
    """A language model: a GRU of two layers with a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids: Any) -> Any:
        return self.head(self.gru(self.words(input_ids))[0])


class TextCnn(_Text):
    """Kim's classifier: convolutions of three widths, and each one's maximum over the padded text."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, width) for width in (3, 4, 5))
        self.head = nn.Linear(3 * WIDTH, CLASSES)

    def drawn(self) -> Any:
        """Return the model with drawn weights; the padding's vector is zero, and some maxima are negative."""
        super().drawn().words.weight.data[PADDING] = 0
        for conv in self.convs:
            conv.bias.data.sub_(2)  # type: ignore[union-attr, operator]
        return self

    def forward(self, input_ids: Any) -> Any:
        x = self.words(input_ids).transpose(1, 2)
        return self.head(torch.cat([torch.relu(conv(x)).amax(2) for conv in self.convs], 1))


class LstmAttention(_Text):
    """A classifier of an LSTM's states, weighed by additive attention of the last real state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.memory, self.query = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.score = nn.Linear(WIDTH, 1, bias=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def drawn(self) -> Any:
        """Return the model with drawn weights, with which attention is not even."""
        super().drawn()
        for part in (self.memory, self.query, self.score):
            part.weight.data.mul_(4)
        return self

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        states = self.lstm(self.words(input_ids))[0]
        last = states[torch.arange(len(states)), attention_mask.sum(1) - 1]
        scores = self.score(torch.tanh(self.memory(states) + self.query(last)[:, None]))[..., 0]
        shares = scores.masked_fill(attention_mask == 0, -torch.inf).softmax(1)
        return self.head((shares[..., None] * states).sum(1))


class Averaging(_Text):
    """A classifier of the mean of words and of pairs of neighbours, behind two layers, as fastText and deep averaging do."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Embedding(BUCKETS, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        real = attention_mask.float()[..., None]
        pairs = (input_ids[:, :-1] * 31 + input_ids[:, 1:]) % BUCKETS
        total = (self.words(input_ids) * real).sum(1) + (self.pairs(pairs) * real[:, 1:]).sum(1)
        mean = total / (2 * real.sum(1) - 1)
        return self.head(torch.relu(self.second(torch.relu(self.first(mean)))))


def rwkv() -> Any:
    """Return RWKV, whose shares of this token and the one before lie between none and all."""
    made = drawn("rwkv")()
    for name, share in made.named_parameters():
        if "time_mix" in name:
            share.data.mul_(6).sigmoid_()
        elif "time_first" in name:
            share.data.mul_(4)
    return made


def longer() -> TokenBatch:
    """Return texts without types, of other ids."""
    return twins.token_batch(has_decoder=False, has_types=False)


def texts() -> TokenBatch:
    """Return texts without types."""
    return token_batch("distilbert")
