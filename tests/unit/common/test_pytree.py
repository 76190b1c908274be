"""The first tensor in a nest of what modules are given and give, and another in its place."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embgrad.common.pytree import every, first, map_nest, with_first


class Tensor:
    """A tensor without equality and truth, as arrays."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("tensors are told by identity")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise AssertionError("a tensor has no truth")


Pair = namedtuple("Pair", ["left", "right"])  # as frameworks give


@dataclass
class Output:
    loss: Any = None
    hidden: Any = None
    rest: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    hidden: Any


class ModelOutput(OrderedDict):  # entries are attributes too, as in Hugging Face's
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


T, U = Tensor(), Tensor()
NEW = Tensor()


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def same(one: Any, other: Any) -> bool:
    if is_tensor(one) or is_tensor(other):
        return one is other
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if hasattr(one, "__dataclass_fields__"):
        return same(vars(one), vars(other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("nest", "expected"),
    [
        (T, NEW),
        ((T, U), (NEW, U)),
        ([None, 3, "word", T, T], [None, 3, "word", NEW, T]),
        ({"loss": None, "hidden": T, "more": U}, {"loss": None, "hidden": NEW, "more": U}),
        (((), [{"a": (1, T)}], U), ((), [{"a": (1, NEW)}], U)),
        (Pair(None, T), Pair(None, NEW)),
        (Pair(T, [U]), Pair(NEW, [U])),
        (Output(hidden=(T,), rest=[U]), Output(hidden=(NEW,), rest=[U])),
        (Frozen(T), Frozen(NEW)),
        (((), {"mask": None}), ((), {"mask": None})),
        (None, None),
        ("a text", "a text"),
        (Output, Output),
    ],
)
def test_the_first_tensor_is_found_and_replaced(nest: Any, expected: Any) -> None:
    before = repr(nest)
    actual = first(nest, is_tensor)
    changed = with_first(nest, is_tensor, NEW)
    assert actual is (T if before != repr(expected) else None)
    assert same(changed, expected)
    assert repr(nest) == before  # what was given stays as it was


def test_an_output_that_is_a_dict_with_attributes() -> None:
    nest = ModelOutput(logits=T, hidden=(U,))
    changed = with_first(nest, is_tensor, NEW)
    assert isinstance(changed, ModelOutput)
    assert changed["logits"] is changed.logits is NEW
    assert list(changed) == ["logits", "hidden"]
    assert nest["logits"] is nest.logits is T


NESTS = st.recursive(
    st.sampled_from([None, 1, "a", T, U]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
        st.builds(Output, inner, inner),
    ),
    max_leaves=8,
)


@given(NESTS)
def test_every_tensor_is_found_in_order_and_replaced(nest: Any) -> None:
    actual = every(nest, is_tensor)
    assert (actual[0] if actual else None) is first(nest, is_tensor)
    assert map_nest(nest, is_tensor, lambda item: item) is nest, "where nothing changes, nothing is copied"
    fresh = iter([Tensor() for _ in actual])
    new = map_nest(nest, is_tensor, lambda item: next(fresh))
    assert len(every(new, is_tensor)) == len(actual)
    assert not {*map(id, every(new, is_tensor))} & {*map(id, actual)}
    back = iter(actual)
    assert same(map_nest(new, is_tensor, lambda item: next(back)), nest)
