"""MXNet Gluon, imperative, hybridised and exported: the forward pass, the gradient by hand, and all weights' gradients."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from embgrad_gluon import import_mxnet

import embgrad
from tests.benchmarks.cases import POSITION, Case
from tests.benchmarks.measuring import Mode

mx = import_mxnet()

Total = Callable[[Sequence[Any]], Any]


def imperative(case: Case) -> Mode:
    net = _net(case.checkpoint, "")
    batch, total = case.batch(), _total(case)
    return _mode(
        case,
        net,
        {"the lookup's output marked, autograd.grad": lambda: _by_mark(net, _native(batch), total)},
        lambda: embgrad.gradients(net, batch, case.embgrad_objective()),
    )


def hybridised(case: Case) -> Mode:
    net = _net(case.checkpoint, "hybridised")
    net(*_inputs(case))
    batch = case.batch()
    return _mode(case, net, _cut_ways(case, net), lambda: embgrad.gradients(net, batch, case.embgrad_objective()))


def exported(case: Case) -> Mode:
    block = _exported(case.checkpoint)
    names = block._cached_graph[1].list_outputs()
    asked, batch = case.embgrad_objective(pooled=names[1], sequence=names[0]), case.batch("gluonnlp")
    return _mode(case, block, _cut_ways(case, block), lambda: embgrad.gradients(block, batch, asked))


MODES = {"Gluon, imperative": imperative, "Gluon, hybridised": hybridised, "Gluon, SymbolBlock": exported}


def _mode(case: Case, net: Any, by_hand: dict[str, Callable[[], np.ndarray]], gradients: Callable[[], Any]) -> Mode:
    inputs, total = _inputs(case), _total(case)
    return Mode(lambda: _forward(net, inputs), by_hand, lambda: _backward(net, inputs, total), gradients, mx.nd.waitall)


@functools.cache
def _net(checkpoint: str, kind: str) -> Any:
    net = embgrad.zoo.load_bert(checkpoint, "gluon")
    if kind == "hybridised":
        net.hybridize()
    return net


@functools.cache
def _exported(checkpoint: str) -> Any:
    net = _net(checkpoint, "hybridised")
    net(mx.nd.ones((1, 2)), mx.nd.zeros((1, 2)), mx.nd.array([2]))
    with tempfile.TemporaryDirectory() as folder:
        net.export(f"{folder}/bert")
        names = ["data0", "data1", "data2"]
        return mx.gluon.SymbolBlock.imports(f"{folder}/bert-symbol.json", names, f"{folder}/bert-0000.params")


def _inputs(case: Case) -> list[Any]:
    return _native(case.batch())


def _native(batch: embgrad.TokenBatch) -> list[Any]:
    return [mx.nd.array(value, dtype=value.dtype) for value in batch.to_gluonnlp()]


def _total(case: Case) -> Total:
    if case.objective == "pooled":
        return lambda outputs: outputs[1].sum()
    return lambda outputs: outputs[0].slice_axis(axis=1, begin=POSITION, end=POSITION + 1).sum()


def _forward(net: Any, inputs: Sequence[Any]) -> None:
    for output in net(*inputs):
        output.wait_to_read()


def _backward(net: Any, inputs: Sequence[Any], total: Total) -> None:
    with mx.autograd.record(train_mode=False):
        objective = total(net(*inputs))
    objective.backward(train_mode=False)
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            parameter.grad().wait_to_read()


def _by_mark(net: Any, inputs: Sequence[Any], total: Total) -> np.ndarray:
    kept: list[Any] = []

    def hook(block: Any, arguments: Any, output: Any) -> None:
        output.attach_grad()
        kept.append(output)

    handle = net.word_embed[0].register_forward_hook(hook)
    try:
        with mx.autograd.record(train_mode=False):
            objective = total(net(*inputs))
    finally:
        handle.detach()
    return np.asarray(mx.autograd.grad(objective, kept, train_mode=False)[0].asnumpy())


def _cut_ways(case: Case, net: Any) -> dict[str, Callable[[], np.ndarray]]:
    """Return ways through the net's graph with the rows as an input, with and without static memory."""
    lookup, body, table = _cut(net)
    planned = _cut(net)[1]
    planned.hybridize(static_alloc=True, static_shape=True)
    batch, total = case.batch(), _total(case)

    def by_cut(part: Any) -> np.ndarray:
        ids, types, lengths = _native(batch)
        rows = lookup(ids, table)
        rows.attach_grad()
        with mx.autograd.record(train_mode=False):
            objective = total(part(ids, types, lengths, rows))
        return np.asarray(mx.autograd.grad(objective, [rows], train_mode=False)[0].asnumpy())

    return {
        "the graph cut at the rows": lambda: by_cut(body),
        "the same, static_alloc and static_shape": lambda: by_cut(planned),
    }


def _cut(net: Any) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """Return the lookup, the rest of the graph as a block of (ids, types, lengths, rows), and the table."""
    inputs, symbol = net._cached_graph
    graph = json.loads(symbol.tojson())
    number, node = next(
        (n, node) for n, node in enumerate(graph["nodes"]) if node["op"] == "Embedding" and "word_embed" in node["name"]
    )
    weight = graph["nodes"][node["inputs"][1][0]]["name"]
    graph["nodes"][number] = {"op": "null", "name": "rows", "inputs": []}
    graph["arg_nodes"] = [n for n, entry in enumerate(graph["nodes"]) if entry["op"] == "null"]
    body, parameters = mx.sym.load_json(json.dumps(graph)), net.collect_params()
    names = [*(entry.name for entry in inputs if entry.name in body.list_inputs()), "rows"]
    block = mx.gluon.SymbolBlock(body, [mx.sym.var(name) for name in names], params=parameters)
    sizes = {key: int(node["attrs"][key]) for key in ("input_dim", "output_dim")}

    def call(*arguments: Any) -> Any:
        named = dict(zip([*(entry.name for entry in inputs), "rows"], arguments, strict=True))
        return block(*[named[name] for name in names])

    call.hybridize = block.hybridize  # type: ignore[attr-defined]
    return lambda ids, table: mx.nd.Embedding(ids, table, **sizes), call, parameters[weight].data()
