"""A port written by hand in MXNet Gluon: an LSTM over (position, example, feature) with additive attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.by_hand import KINDS, State
from tests.cross.ports.own_settings import Settings

mx = import_mxnet()
nn, rnn, nd = mx.gluon.nn, mx.gluon.rnn, mx.nd


class GluonAttention(mx.gluon.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"form": "layer", "layout": "TNC", "turned": True, "hidden_bias": 1.0, "of": None, "axis": 0},
        **{"mask": "added", "act": "tanh", "last": "real", "shares": "softmax", "values": "states"},
        **{"product": "sum"},
    }

    def __init__(self, state: State, _: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        width = state["words.weight"].shape[1]
        with self.name_scope():
            self.words = nn.Embedding(*state["words.weight"].shape)
            if s.form == "cells":
                self.lstm = rnn.SequentialRNNCell()
                for _n in range(2):
                    self.lstm.add(rnn.LSTMCell(width, input_size=width))
            else:
                self.lstm = rnn.LSTM(width, 2, s.layout, input_size=width)
            self.memory, self.query = (
                nn.Dense(width, use_bias=False, flatten=False, in_units=width) for _n in range(2)
            )
            self.score = nn.Dense(1, use_bias=False, flatten=False, in_units=width)
            self.head = nn.Dense(len(state["head.weight"]), in_units=width)
        self.initialize()
        for name in ("words", "memory", "query", "score", "head"):
            getattr(self, name).weight.set_data(nd.array(state[f"{name}.weight"]))
        self.head.bias.set_data(nd.array(state["head.bias"]))
        for n in range(2):
            own = settings.at(n)
            for mine, theirs in (("i2h", "ih"), ("h2h", "hh")):
                for kind in KINDS:
                    of = n if own.of is None or (mine, kind) != ("h2h", "weight") else own.of
                    value = state[f"lstm.{kind}_{theirs}_l{of}"]
                    value = value * own.hidden_bias if (mine, kind) == ("h2h", "bias") else value
                    block, prefix = (self.lstm[n], "") if s.form == "cells" else (self.lstm, f"l{n}_")
                    getattr(block, f"{prefix}{mine}_{kind}").set_data(nd.array(value))

    def states(self, x: Any) -> Any:
        """Return the states of (position, example, feature)."""
        if self.s.form == "cells":
            return self.lstm.unroll(x.shape[0], x, layout="TNC", merge_outputs=True)[0]
        return self.lstm(x) if self.s.layout == "TNC" else self.lstm(x.swapaxes(0, 1)).swapaxes(0, 1)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, ids, real = self.s, input_ids.astype("float32").T, attention_mask.astype("float32").T
        x = self.words(ids)
        states = self.states(x) if s.turned else self.lstm(x.swapaxes(0, 1)).swapaxes(0, 1)
        lengths = {"sequence_length": real.sum(axis=0), "use_sequence_length": True} if s.last == "real" else {}
        last = nd.SequenceLast(states, **lengths)
        mixed = self.memory(states) + self.query(last).expand_dims(0)
        mixed = {"tanh": nd.tanh, "none": nd.identity}[s.act](mixed)
        scores = self.score(mixed).squeeze(axis=2)  # (position, example)
        scores = scores if s.mask == "none" else scores + (1 - real) * -1e9
        if s.shares == "softmax":
            shares = nd.softmax(scores * real if s.mask == "times" else scores, axis=s.axis)
        else:
            shares = nd.sigmoid(scores)
        values = x if s.values == "words" else states
        if s.product == "batch":
            found = nd.batch_dot(shares.T.expand_dims(1), values.swapaxes(0, 1)).squeeze(axis=1)
        else:
            found = (shares.expand_dims(2) * values).sum(axis=0)
        return self.head(found)
