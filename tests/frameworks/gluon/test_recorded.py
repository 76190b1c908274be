"""A recorded graph is read from MXNet's text about it as its JSON describes it, since making the JSON leaks memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import pullback

import embgrad
from tests.frameworks.gluon.helpers import model, mx, small_bert

nn = mx.gluon.nn

IDS = np.array([[3, 1, 4, 12], [9, 2, 6, 5]])


def net_with_inner(*, hybridised: bool) -> Any:
    """Return a net of an embedding, three layers, which may be hybridised, the mean and a dense layer."""
    inner = nn.HybridSequential()
    inner.add(nn.Dense(4, flatten=False, activation="tanh"), nn.LayerNorm(), nn.Dropout(0.3))
    inner.hybridize(hybridised)
    return model(lambda net, F, ids: net.head(net.inner(net.words(ids)).mean(axis=1)), inner=inner, head=nn.Dense(3))


def of_bert() -> Any:
    ids = mx.nd.array(IDS)
    return small_bert()(ids, mx.nd.zeros_like(ids), mx.nd.array([4, 3]))[1]


def of_split() -> Any:
    rows = mx.nd.random.normal(shape=(2, 6))
    rows.attach_grad()
    one, two, three = mx.nd.split(rows, 3)
    return mx.nd.concat(three * 2.5, one, mx.nd.Cast(two, dtype="float32"), rows[:, 1:3], dim=1).sum()


def of_a_variable() -> Any:
    rows = mx.nd.ones((2,))
    rows.attach_grad()
    return rows


GRAPHS: dict[str, Callable[[], Any]] = {
    "bert": of_bert,
    "net": lambda: net_with_inner(hybridised=False)(mx.nd.array(IDS)),
    "with a graph as one operator": lambda: net_with_inner(hybridised=True)(mx.nd.array(IDS)),
    "several outputs": of_split,
    "a variable": of_a_variable,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_recorded_graph_is_read_as_its_json_describes_it(name: str) -> None:
    with mx.autograd.record(train_mode=True):
        symbol = mx.autograd.get_symbol(GRAPHS[name]())
    described = json.loads(symbol.tojson())
    found = pullback._read_graph(symbol)
    assert found["heads"] == described["heads"]
    assert len(found["nodes"]) == len(described["nodes"])
    for own, other in zip(found["nodes"], described["nodes"], strict=True):
        assert (own["op"], own["name"]) == (other["op"], other["name"])
        assert [one[:2] for one in own["inputs"]] == [one[:2] for one in other["inputs"]]
        assert own["attrs"] == other.get("attrs", {})


@pytest.mark.parametrize("text", ["", "Symbol Outputs:\n\toutput[0]=x(0)\n", "Variable:x\nVariable:y\n"])
def test_a_text_without_outputs_says_nothing(text: str) -> None:
    assert pullback._parse(text) is None


def test_an_ambiguous_text_is_read_from_the_json() -> None:
    a = mx.sym.Variable("a")
    twice = mx.sym.Group([mx.sym.exp(a, name="same"), mx.sym.log(a, name="same")])
    strange = mx.sym.exp(mx.sym.Variable("x", attr={"note": "of two\nlines"}), attr={"note": "of two\nlines"})
    for symbol in (twice, strange):
        assert pullback._read_graph(symbol) == json.loads(symbol.tojson())


@pytest.mark.parametrize("hybridised", [False, True])
def test_no_json_is_made_at_each_call(hybridised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, made = net_with_inner(hybridised=hybridised), []
    for _ in range(2):
        embgrad.gradients(net, IDS, embgrad.Logit(1))
    original = mx.sym.Symbol.tojson
    monkeypatch.setattr(mx.sym.Symbol, "tojson", lambda self, *given: made.append(1) or original(self, *given))
    for _ in range(3):
        embgrad.gradients(net, IDS, embgrad.Logit(1))
        embgrad.gradients(net, IDS, embgrad.Logit(1), split=True)
        with embgrad.capture(net, at="word"), mx.autograd.record():
            net(mx.nd.array(IDS)).sum().backward()
    assert not made
