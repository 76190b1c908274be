"""The names of layers in Keras models, by stand-ins for Keras's classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from embgrad.keras import layers as keras_layers
from embgrad.keras.layers import Node


class Layer:
    __module__ = "keras.src.layers.layer"

    def __init__(self, name: str, **attributes: Any) -> None:
        self.name = name
        vars(self).update(attributes)


class Functional(Layer):
    __module__ = "keras.src.models.functional"

    layers: Iterable[Layer] = ()
    output: Any = None


class Embedding(Layer):
    __module__ = "keras.src.layers.core.embedding"


class Variable:
    pass


KINDS = {Layer: "module", Functional: "module", Embedding: "module", Variable: "variable", list: "list", dict: "dict"}


class Kinds(dict[type, Any]):
    def __missing__(self, cls: type) -> None:
        return None


def held(value: Any, kind: str) -> Iterable[tuple[str, Any]]:
    return keras_layers.attributes(value)


def walked(*parts: Any, hidden: Iterable[str] = ()) -> tuple[list[Node], dict[int, list[str]]]:
    aliases: dict[int, list[str]] = {}
    nodes = keras_layers.walk(parts, Kinds(KINDS), held, lambda module: frozenset(hidden), aliases)
    return list(nodes), aliases


def paths(*parts: Any, hidden: Iterable[str] = ()) -> list[str]:
    return [node.path for node in walked(*parts, hidden=hidden)[0]]


def test_a_public_path_is_preferred_to_a_shorter_private_one() -> None:
    words = Layer("words")
    model = Layer("net", _words=words, embeddings=Layer("embeddings", words=words), _only=Layer("only"))
    nodes, aliases = walked(model)
    assert [node.path for node in nodes] == ["", "embeddings", "embeddings.words", "_only"]
    assert aliases == {id(words): ["_words"]}
    names = keras_layers.further_names(nodes, aliases)
    assert names[id(words)] == ("_words", "words")
    assert names[id(model)] == ()


def test_layers_of_a_graph_go_by_their_names_and_their_attributes_are_aliases() -> None:
    blocks = [Layer("block_0", norm=Layer("norm")), Layer("block_1", norm=Layer("norm"))]
    model = Functional("net", blocks=blocks, _operations=[*blocks], layers=blocks)
    nodes, aliases = walked(model, hidden=["_operations", "layers"])
    assert [node.path for node in nodes] == ["", "block_0", "block_1", "block_0.norm", "block_1.norm"]
    names = keras_layers.further_names(nodes, aliases)
    assert names[id(blocks[1])] == ("blocks.1",)
    assert names[id(blocks[1].norm)] == ("blocks.1.norm",)  # another layer is called "norm" as well


def test_several_parts_are_numbered_and_share_what_they_share() -> None:
    shared = Layer("shared")
    assert paths(Layer("a", inner=shared), Layer("b", inner=shared, own={"x": Layer("x")})) == [
        *("0", "1", "0.inner", "1.own.x")
    ]


def test_what_only_a_hidden_list_holds_is_found_last_and_is_no_alias() -> None:
    words, other = Layer("words"), Layer("other")
    model = Layer("net", _layers=[words, other], _hidden=Layer("hidden"), _words=words)
    nodes, aliases = walked(model, hidden=["_layers", "_hidden"])
    assert [node.path for node in nodes] == ["", "_words", "_layers.1"]
    assert aliases == {}


def test_a_table_goes_by_its_embedding() -> None:
    table, sliced, left, right = (Variable() for _ in range(4))
    model = Layer(
        "net",
        words=Embedding("words", _embeddings=table),
        place=Layer("place", position_embeddings=sliced),
        two=Embedding("two", embeddings=left, _embeddings=right),
    )
    nodes, _ = walked(model)
    variables = [node for node in nodes if node.kind == "variable"]
    assert dict(zip((node.path for node in variables), keras_layers.table_paths(variables), strict=True)) == {
        "words._embeddings": "words",
        "place.position_embeddings": "place.position_embeddings",
        "two.embeddings": "two.embeddings",
        "two._embeddings": "two._embeddings",
    }


@pytest.mark.parametrize(("mask_zero", "row"), [(True, 0), (False, None), (None, None)])
def test_padding_of_a_table_is_zero_where_its_layer_masks_it(mask_zero: Any, row: int | None) -> None:
    assert keras_layers.padding_row(Embedding("words", mask_zero=mask_zero)) == row
    assert keras_layers.padding_row(None) is None


def test_the_outputs_of_a_functional_model_have_their_declared_order() -> None:
    model = Functional("net", output={"sequence": 0, "pooled": 1})
    assert list(keras_layers.restore_declared_order(model, {"pooled": 2, "sequence": 3})) == ["sequence", "pooled"]
    for returned in ({"pooled": 2}, [2, 3], 4):
        assert keras_layers.restore_declared_order(model, returned) is returned
    assert list(keras_layers.restore_declared_order(Layer("net"), {"pooled": 2, "sequence": 3})) == [
        "pooled",
        "sequence",
    ]


class Matrix:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Called:
    def __call__(self) -> None: ...


class Own(Called):
    __module__ = "keras_hub.src.layers"


def test_matrices_of_no_module_of_their_own() -> None:
    """They are those of modules with several, of what is never called, and of the model, and none of a library's layers."""
    root, called, several, uncalled, own = Called(), Called(), Called(), Matrix(0), Own()
    nodes = [
        Node("table", Matrix(5, 4), "variable", root, ""),
        Node("bias", Matrix(4), "variable", root, ""),
        Node("called.w", Matrix(4, 4), "variable", called, "called"),
        Node("called.bias", Matrix(4), "variable", called, "called"),
        *(Node(f"several.{name}", Matrix(4, 2, 2), "variable", several, "several") for name in "qk"),
        Node("uncalled.w", Matrix(4, 4), "variable", uncalled, "uncalled"),
        *(Node(f"own.{name}", Matrix(4, 4), "variable", own, "own") for name in "qk"),
    ]
    found = keras_layers.find_loose(nodes)
    assert list(found.values()) == ["table", "several.q", "several.k", "uncalled.w"]
    assert found[id(nodes[0].value)] == "table"
