"""Canaries for the private names in `private_names`: they fail by name where a release of MXNet drops or changes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from embgrad_gluon import cures, lookup, state
from embgrad_gluon.walk import memory

from tests.frameworks.gluon.helpers import mx
from tests.frameworks.gluon.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names

nn, autograd = mx.gluon.nn, mx.autograd


def expect(holds: Any, name: str) -> None:
    assert holds, (
        f"MXNet {mx.__version__} has changed {name!r}, on which the Gluon backend relies: {PRIVATE_NAMES[name]}"
    )


def test_the_list_is_that_of_the_source() -> None:
    assert sorted(PRIVATE_NAMES) == sorted(private_names("embgrad_gluon"))


def net(*layers: Any) -> Any:
    made = nn.HybridSequential()
    made.add(*(layers or (nn.Dense(2, in_units=3),)))
    made.initialize()
    return made


def test_children_and_parameters_of_a_block() -> None:
    made = net()
    expect([*made._children] == ["0"] and made._children["0"] is made[0], "_children")
    expect(made[0]._reg_params == {"weight": made[0].weight, "bias": made[0].bias}, "_reg_params")
    named = made._collect_params_with_prefix()
    expect(named == {"0.weight": made[0].weight, "0.bias": made[0].bias}, "_collect_params_with_prefix")


def test_the_graph_of_a_hybridised_block() -> None:
    made = net()
    expect(made._cached_op is None, "_cached_op")
    made.hybridize()
    made(mx.nd.ones((1, 3)))
    expect(made._cached_op is not None, "_cached_op")
    (data,), symbol = made._cached_graph
    expect(symbol.list_inputs() == [data.name, made[0].weight.name, made[0].bias.name], "_cached_graph")
    entries = {entry if is_input else entry.name for is_input, entry in made._cached_op_args}
    expect(entries == {0, made[0].weight.name, made[0].bias.name}, "_cached_op_args")
    expect((made._in_format, made._out_format) == ([0], 0), "_in_format")


def test_every_cached_graph_runs_by_one_method(monkeypatch: pytest.MonkeyPatch) -> None:
    made, calls = net(), []
    original = mx.gluon.HybridBlock._call_cached_op
    made.hybridize()
    monkeypatch.setattr(mx.gluon.HybridBlock, "_call_cached_op", lambda *args: calls.append(1) or original(*args))
    made(mx.nd.ones((1, 3)))
    expect(calls, "_call_cached_op")


def test_formats_of_nested_arguments() -> None:
    a, b = mx.nd.ones((1,)), mx.nd.zeros((1,))
    flat, structure = mx.gluon.block._flatten([a, [b, None]], "input")
    expect(flat[:2] == [a, b] and flat[2] is None and structure == [0, [0, -1]], "_flatten")
    expect(mx.gluon.block._regroup([a, b], [0, [0]]) == [a, [b]], "_regroup")


def test_the_arrays_of_a_parameter() -> None:
    parameter = mx.gluon.Parameter("a", shape=(0, 2), allow_deferred_init=True)
    expect(parameter._data is None, "_data")
    parameter.initialize()
    parameter.shape = (3, 2)
    parameter._finish_deferred_init()
    expect(parameter._data[0].shape == (3, 2), "_finish_deferred_init")
    expect(memory(parameter._data[0]) == memory(parameter.data()), "_data")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda table, ids: mx.nd.Embedding(ids, table, 3, 2), "Embedding"),
        (lambda table, ids: table.take(ids), "take"),
        (lambda table, ids: mx.np.std(table.as_np_ndarray()), "_npi_std"),
        (lambda table, ids: mx.nd.contrib.SparseEmbedding(ids, table, 3, 2), "_contrib_SparseEmbedding"),
    ],
)
def test_every_operator_runs_by_one_function(call: Callable[..., Any], name: str) -> None:
    seen = []
    with lookup.intercept_operators({name: lambda operation, proceed: seen.append(operation.name) or proceed()}):
        call(mx.nd.ones((3, 2)), mx.nd.array([0, 2]))
    expect(seen == [name], "_imperative_invoke")
    expect(mx.base._is_np_op(name) == name.startswith("_npi_"), "_is_np_op")


def test_addresses_by_the_c_library() -> None:
    array = mx.nd.ones((2, 3))
    expect(memory(array) == memory(array.detach()) != memory(array.copy()), "_LIB")
    expect(lookup._address("identity") == lookup._address("_copy") != 0, "_LIB")


def test_the_operators_by_their_names() -> None:
    registered = set(mx.operator.get_all_registered_operators())
    known = (*lookup.LOOKUPS, *cures.GUARDED, *cures.WRONG, *cures.Cures(False).handlers(), *state.RANDOM_OPERATORS)
    missing = {*known, "_zeros", "_zeros_without_dtype"} - registered
    assert not missing, f"MXNet {mx.__version__} has no operators of these names, by which the backend goes: {missing}"


def test_the_names_of_nodes() -> None:
    made = net(nn.Dense(2, in_units=3, prefix="a_"))
    (fully,) = [name for name in made(mx.sym.var("data")).get_internals().list_outputs() if "fwd" in name]
    expect(fully == "a_fwd_output", "_fwd")
    expect(made[0].weight.name == "a_weight", "_")
