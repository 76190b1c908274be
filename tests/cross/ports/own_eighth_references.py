"""References that are no stacks of attention: recurrent nets, convolutions and averages, as small modules in PyTorch."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from embgrad import TokenBatch
from tests.cross.ports.architectures import PADDING, VOCAB, Architecture, draw_weights, token_batch
from tests.cross.ports.own_more_ports import drawn

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
        draw_weights(self, Architecture(type(self).__name__, "", "", {}, "bare"), 0)
        self.words.weight.data.mul_(3)
        return self.eval()


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


def mamba() -> Any:
    """Return Mamba with fewer states than features, and steps that are neither all small nor all large."""
    sizes = {"hidden_size": 24, "state_size": 6, "num_hidden_layers": 3, "conv_kernel": 4, "time_step_rank": 6}
    return drawn("MambaForCausalLM", "MambaConfig", vocab_size=VOCAB, use_cache=False, **sizes)


def rwkv() -> Any:
    """Return RWKV, whose shares of this token and the one before lie between none and all."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "context_length": 32}
    made = drawn("RwkvForCausalLM", "RwkvConfig", vocab_size=VOCAB, use_cache=False, **sizes)
    for name, share in made.named_parameters():
        if "time_mix" in name:
            share.data.mul_(6).sigmoid_()
        elif "time_first" in name:
            share.data.mul_(4)
    return made


def fnet() -> Any:
    """Return FNet with its head."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "max_position_embeddings": 40}
    return drawn("FNetForMaskedLM", "FNetConfig", vocab_size=VOCAB, pad_token_id=PADDING, type_vocab_size=2, **sizes)


def convbert() -> Any:
    """Return ConvBERT with narrower lookups and layers of two groups."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    options = {"embedding_size": 16, "conv_kernel_size": 5, "num_groups": 2, "max_position_embeddings": 40}
    return drawn("ConvBertModel", "ConvBertConfig", vocab_size=VOCAB, pad_token_id=PADDING, **sizes, **options)


def texts() -> TokenBatch:
    """Return texts without types."""
    return token_batch("distilbert")
