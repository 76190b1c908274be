"""SymbolBlocks: operators of the user's own, with graphs of their own, and such as a graph alone has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import UnsupportedError
from tests.frameworks.gluon.exporting import exported, opened
from tests.frameworks.gluon.helpers import DIM, ROWS, built, distinct_ids, model, mx, relative
from tests.frameworks.gluon.test_models import bag

nd = mx.nd
SymbolBlock = mx.gluon.SymbolBlock

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")


@mx.operator.register("embgrad_spelled")
class Spelled(mx.operator.CustomOpProp):  # type: ignore[misc]
    """Doubles what it gets, if its argument arrives as it was spelled; MXNet crashes where this raises."""

    def __init__(self, number: str, **more: str) -> None:
        super().__init__(need_top_grad=True)
        self.factor = 2 if number == "1e2" and not more else 3

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        factor = self.factor

        class Doubling(mx.operator.CustomOp):  # type: ignore[misc]
            def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
                self.assign(out_data[0], req[0], in_data[0] * factor)

            def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
                self.assign(in_grad[0], req[0], out_grad[0] * factor)

        return Doubling()


def test_custom_operators_receive_their_arguments_as_strings() -> None:
    ids, table = mx.sym.var("data"), mx.sym.var("words", shape=(ROWS, DIM))
    rows = mx.sym.Embedding(ids, table, input_dim=ROWS, output_dim=DIM)
    block = SymbolBlock(mx.sym.Custom(rows, op_type="embgrad_spelled", number="1e2").sum(axis=1), ids)
    block.initialize()
    assert (embgrad.gradients(block, distinct_ids(), embgrad.Sum()).values == 2).all()


def test_several_outputs_of_one_operator(tmp_path: Path) -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        left, right = F.split(net.words(x), num_outputs=2, axis=2)
        values, places = F.topk(F.sum(left, axis=2), k=2, ret_typ="both")
        return F.sum(left * right, axis=(1, 2)), values, places

    block = exported(model(forward), [nd.array(distinct_ids())], tmp_path)
    symbol = block._cached_graph[1].list_outputs()
    assert len(symbol) == 3
    found = embgrad.gradients(block, distinct_ids(), embgrad.Sum(output=symbol[0]))
    assert relative(found.values, np.roll(found.activations, 2, axis=2)) < 1e-6
    best = embgrad.gradients(block, distinct_ids(), embgrad.Sum(output=symbol[1]))
    assert (best.values[..., :2].sum((1, 2)) == 4).all()


def loop(F: Any, rows: Any) -> Any:
    return F.contrib.foreach(lambda row, state: (row + state, row + state), rows, F.zeros((2, DIM)))[0]


def condition(F: Any, rows: Any) -> Any:
    return F.contrib.cond(F.sum(rows) > 0, lambda: rows * 2, lambda: rows * 3)


def repetition(F: Any, rows: Any) -> Any:
    step = lambda count, state: (state, (count + 1, state * 2))  # noqa: E731
    return F.contrib.while_loop(lambda count, _: count < 3, step, (F.zeros((1,)), rows), max_iterations=3)[1][1]


SUBGRAPHS = [(loop, "_foreach"), (condition, "_cond"), (repetition, "_while_loop")]


@pytest.mark.parametrize(("inner", "operator"), SUBGRAPHS)
def test_operators_with_graphs_of_their_own_are_refused(inner: Any, operator: str) -> None:
    ids, table = mx.sym.var("data"), mx.sym.var("words", shape=(ROWS, DIM))
    rows = mx.sym.transpose(mx.sym.Embedding(ids, table, input_dim=ROWS, output_dim=DIM), axes=(1, 0, 2))
    block = SymbolBlock(inner(mx.sym, rows), ids)
    block.initialize()
    with pytest.raises(UnsupportedError, match=rf"is '{operator}', an operator with a graph of its own .*unrolled"):
        embgrad.gradients(block, distinct_ids(), embgrad.Sum())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_shape_and_dtype_of_a_fill_are_inferred(dtype: str) -> None:
    ids, table = mx.sym.var("data"), mx.sym.var("words")
    last = mx.sym.slice_axis(mx.sym.take(table, ids), axis=1, begin=4, end=5)
    block = SymbolBlock(mx.sym.elemwise_add(last, mx.sym._internal._zeros_without_dtype(shape=(0, 1, DIM))), [ids])
    block.params["words"].shape = (ROWS, DIM)
    block.initialize()
    block.cast(dtype)
    inputs = nd.array(distinct_ids(), dtype=dtype)
    assert (opened(block, inputs) == block(inputs)).asnumpy().all()
    found = embgrad.gradients(block, distinct_ids(), embgrad.Scalar(lambda out: out.sum()))
    assert found.values.dtype == dtype
    assert found.values[:, :, 0].tolist() == [[0, 0, 0, 0, 1]] * 2


def test_a_range_needs_no_shape(tmp_path: Path) -> None:
    net = model(lambda net, F, x: F.sum(F.broadcast_mul(net.words(x), F.arange(DIM)), axis=1))
    block = exported(net, [nd.array(distinct_ids())], tmp_path)
    found = embgrad.gradients(block, distinct_ids(), embgrad.Logit(3))
    assert found.values.tolist() == [[[0, 0, 0, 3]] * 5] * 2


def test_a_graph_that_is_optimised_for_a_device_is_refused(tmp_path: Path) -> None:
    block = exported(built(bag, distinct_ids(), "float32"), [nd.array(distinct_ids())], tmp_path)
    block.hybridize(backend="MKLDNN")
    assert embgrad.gradients(block, distinct_ids(), embgrad.Logit(0)).values.any()  # not optimised yet
    block(nd.array(distinct_ids()))
    with pytest.raises(UnsupportedError, match=r"is '_sg_mkldnn_.*without optimize_for"):
        embgrad.gradients(block, distinct_ids(), embgrad.Logit(0))


def test_a_fill_of_unknown_shape_and_a_wrong_number_of_arguments_are_refused() -> None:
    ids, table = mx.sym.var("data"), mx.sym.var("words", shape=(ROWS, DIM))
    rows = mx.sym.Embedding(ids, table, input_dim=ROWS, output_dim=DIM)
    block = SymbolBlock([rows, mx.sym.zeros((0, 3))], [ids])
    block.params["words"].shape = (ROWS, DIM)
    block.initialize()
    with pytest.raises(UnsupportedError, match=r"'_zeros' .* whose shape cannot be inferred from the inputs"):
        embgrad.points(block, distinct_ids())
    with pytest.raises(ValueError, match=r"called with 2 arguments of structure .*Pass 'data'"):
        embgrad.gradients(block, distinct_ids(), embgrad.Sum(), call=lambda model, inputs: model(inputs, inputs))
