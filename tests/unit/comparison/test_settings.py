"""Settings are read from configurations of every kind under one name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from embgrad.comparison.settings import (
    NAMES,
    SETTING_OF_CAUSE,
    Declared,
    declared_settings,
    differing_settings,
)
from embgrad.results.port_records import Cause


class WithMethod:
    """A configuration or a model whose method returns its entries."""

    def __init__(self, method: str, entries: Any) -> None:
        setattr(self, method, lambda: entries)


@dataclasses.dataclass
class Fields:
    num_heads: int = 12
    norm_eps: float = 1e-5
    activation: str = "gelu"
    rope_theta: float | None = None


class Plain:
    """A configuration whose settings are attributes."""

    def __init__(self) -> None:
        self.n_head, self.n_embd, self._private = 3, 24, 5


class Unmade:
    """A configuration whose method needs an object."""

    @staticmethod
    def to_dict() -> Mapping[str, Any]:
        raise AssertionError("called")


HUGGING_FACE = {
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1e4, "num_attention_heads": 9, "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "sliding_window": None, "unknown": 7,
}  # fmt: skip
READ = {
    "epsilon": (1e-5, "rms_norm_eps"),
    "activation": ("silu", "hidden_act"),
    "rotary_base": (1e4, "rope_theta"),
    "heads": (9, "num_attention_heads"),
    "key_value_heads": (3, "num_key_value_heads"),
    "tied": (True, "tie_word_embeddings"),
}


def read(model: Any) -> dict[str, tuple[Any, str]]:
    return {name: (held.value, held.where) for name, held in declared_settings(model).items()}


@pytest.mark.parametrize(
    "model",
    [
        SimpleNamespace(config=WithMethod("to_dict", HUGGING_FACE)),
        SimpleNamespace(config=HUGGING_FACE),
        WithMethod("get_config", HUGGING_FACE),
        SimpleNamespace(backbone=WithMethod("get_config", HUGGING_FACE)),
        SimpleNamespace(cfg=HUGGING_FACE),
        SimpleNamespace(args=HUGGING_FACE),
        SimpleNamespace(hparams=HUGGING_FACE),
        [object(), SimpleNamespace(config=HUGGING_FACE)],
        (SimpleNamespace(config=SimpleNamespace(**HUGGING_FACE)),),
        SimpleNamespace(**HUGGING_FACE),
    ],
    ids=["to_dict", "dict", "get_config", "backbone", "cfg", "args", "hparams", "parts", "attributes",
        "own attributes"],
)  # fmt: skip
def test_each_kind_of_configuration_is_read(model: Any) -> None:
    assert read(model) == READ


def test_fields_of_dataclasses_are_read() -> None:
    wanted = {"heads": (12, "num_heads"), "epsilon": (1e-5, "norm_eps"), "activation": ("gelu", "activation")}
    assert read(SimpleNamespace(config=Fields())) == wanted
    assert read(Fields()) == wanted


def test_attributes_are_read_but_private_ones() -> None:
    assert read(Plain()) == {"heads": (3, "n_head"), "dim": (24, "n_embd")}


def test_attributes_of_a_class_are_read_and_its_methods_are_not_called() -> None:
    assert read(SimpleNamespace(config=Fields)) == read(Fields())
    assert read(SimpleNamespace(cfg=Unmade)) == {}
    assert read(object()) == {}


def test_keys_that_are_no_names_are_not_settings() -> None:
    assert read(SimpleNamespace(config={1: 2, "epsilon": 3.0})) == {}


@pytest.mark.parametrize("error", [NotImplementedError, TypeError, ValueError, AttributeError])
def test_a_configuration_that_cannot_be_made_is_no_error(error: type[Exception]) -> None:
    class Layer:
        def __init__(self) -> None:
            self.epsilon = 1e-3

        def get_config(self) -> Mapping[str, Any]:
            raise error("no configuration")

    assert read(Layer()) == {"epsilon": (1e-3, "epsilon")}


def test_a_method_that_returns_no_dict_is_not_read() -> None:
    assert read(WithMethod("get_config", [("epsilon", 1.0)])) == {}


@pytest.mark.parametrize("part", ["rope_scaling", "rope_parameters", "text_config", "decoder_config", "encoder_config"])
def test_settings_in_parts_of_a_configuration_are_read(part: str) -> None:
    nested = {part: {"rope_type": "llama3", "factor": 8.0, "rms_norm_eps": 1e-6}, "rms_norm_eps": 1e-5}
    assert read(SimpleNamespace(config=nested)) == {
        "epsilon": (1e-5, "rms_norm_eps"),
        "rotary_scaling": ("llama3", "rope_type"),
        "rotary_factor": (8.0, "factor"),
    }


def test_the_first_of_two_names_counts() -> None:
    assert read({"layer_norm_eps": 1e-12, "norm_eps": 1e-6}) == {"epsilon": (1e-12, "layer_norm_eps")}
    assert read([{"n_head": 3}, {"n_head": 4}]) == {"heads": (3, "n_head")}


def test_each_name_belongs_to_one_setting() -> None:
    names = [name for held in NAMES.values() for name in held]
    assert len(names) == len(set(names))
    assert {setting for settings in SETTING_OF_CAUSE.values() for setting in settings} <= set(NAMES)


def declared(**values: Any) -> dict[str, Declared]:
    return {name: Declared(value, f"its_{name}") for name, value in values.items()}


def cause(name: str) -> Cause:
    return Cause(name, "a text", ("1", "2"), ("up",), (), 1.0, 0.0)


def test_settings_that_differ_are_listed_in_the_order_of_the_names() -> None:
    a = declared(heads=4, epsilon=1e-5, vocab=60, dim=32)
    b = {**declared(heads=2, epsilon=1e-6, dim=32, layers=3), "heads": Declared(2, "other")}
    first, second = differing_settings(a, b, [], all_explained=False)
    assert (first.name, first.a, first.b, first.where) == ("epsilon", "1e-05", "1e-06", ("its_epsilon", "its_epsilon"))
    assert (second.name, second.a, second.b, second.where) == ("heads", "4", "2", ("its_heads", "other"))


@pytest.mark.parametrize(
    ("a", "b"),
    [("gelu_new", "gelu_pytorch_tanh"), ("gelu", "jax.nn.gelu_exact"), ("gated-gelu", "gelu_fast"), ("swish", "SiLU"),
        ("silu", "keras.activations.silu")],
)  # fmt: skip
def test_names_of_one_activation_are_equal(a: str, b: str) -> None:
    assert not differing_settings(declared(activation=a), declared(activation=b), [], all_explained=False)


@pytest.mark.parametrize(("a", "b"), [("gelu", "gelu_new"), ("silu", "relu"), ("quick_gelu", "gelu")])
def test_other_activations_differ(a: str, b: str) -> None:
    (found,) = differing_settings(declared(activation=a), declared(activation=b), [], all_explained=False)
    assert (found.name, found.a, found.b) == ("activation", a, b)


def test_numbers_are_compared_as_far_as_they_are_written() -> None:
    a = declared(epsilon=1e-5, rotary_base=10000, tied=True, window=4096)
    same = declared(epsilon=9.99999974737875e-06, rotary_base=10000.0, tied=True, window=4096.0)
    assert not differing_settings(a, same, [], all_explained=False)
    other = declared(epsilon=1.0001e-5, rotary_base=10001, tied=False, window=4097)
    assert {item.name for item in differing_settings(a, other, [], all_explained=False)} == set(a)


def test_a_setting_matters_where_a_cause_is_about_it() -> None:
    a, b = declared(epsilon=1e-5, window=10, rotary_base=1e4), declared(epsilon=1e-6, window=20, rotary_base=5e5)
    causes = [cause("layer-norm-epsilon"), cause("different-weight")]
    found = {item.name: item.matters for item in differing_settings(a, b, causes, all_explained=True)}
    assert found == {"epsilon": True, "rotary_base": False, "window": False}
    unknown = {item.name: item.matters for item in differing_settings(a, b, causes, all_explained=False)}
    assert unknown == {"epsilon": True, "rotary_base": None, "window": None}
    nothing = {item.name: item.matters for item in differing_settings(a, b, [], all_explained=True)}
    assert nothing == {"epsilon": False, "rotary_base": False, "window": False}


@dataclasses.dataclass(slots=True)
class Slots:
    n_head: int = 7


def test_fields_without_a_dictionary_are_read() -> None:
    assert read(SimpleNamespace(config=Slots())) == {"heads": (7, "n_head")}


def test_attributes_beside_a_configuration_of_its_own_are_not_read() -> None:
    model = WithMethod("to_dict", {"n_head": 4})
    model.hidden_size = 5  # type: ignore[attr-defined]
    assert read(model) == {"heads": (4, "n_head")}
