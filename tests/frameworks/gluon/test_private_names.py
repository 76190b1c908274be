"""Canaries for the private names in `private_names`: they fail by name where a release of MXNet drops or changes one."""

from __future__ import annotations

from typing import Any

from embgrad_gluon import cures, lookup, state

from tests.frameworks.gluon.helpers import mx
from tests.frameworks.gluon.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names

nn = mx.gluon.nn


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
    made.hybridize()
    return made


def test_the_names_of_blocks_parameters_and_modules() -> None:
    made = net()
    made(mx.nd.ones((1, 3)))
    names = {
        "_children _reg_params _collect_params_with_prefix _call_cached_op": made,
        "_cached_graph _cached_op _cached_op_args _in_format _out_format": made,
        "_flatten _regroup": mx.gluon.block,
        "_data _finish_deferred_init": made[0].weight,
        "_LIB _is_np_op": mx.base,
        "_imperative_invoke": mx.ndarray.register,
    }
    for of_one, holder in names.items():
        for name in of_one.split():
            expect(hasattr(holder, name), name)


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
