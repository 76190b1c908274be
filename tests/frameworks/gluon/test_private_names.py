"""Canaries for the private names in `private_names`: they fail by name where a release of MXNet drops or changes one."""

from __future__ import annotations

from typing import Any

from embgrad_gluon import cures, lookup, state

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
