"""Address a model's outputs by name: native names and the roles logits, pooled and sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from embgrad.errors import OutputError, did_you_mean, quote

__all__ = ["ROLES", "choose_output", "name_outputs"]

#: The native names that have each role, across the conventions of all frameworks; the last one present is used.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "logits": ("scores", "logits"),
    "pooled": ("sentence_embedding", "pooler_output", "pooled_output"),
    "sequence": ("token_embeddings", "last_hidden_state", "sequence_output"),
}

#: The name of the output of a model that returns one array.
ONLY: Final = "output"


def name_outputs(returned: Any, is_tensor: Callable[[Any], bool], positional: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tensors in a model's return value, by native name.

    A single tensor is named "output"; entries of a mapping have their keys, of a named tuple or data class their fields, of a
    sequence their indices ("0"); names of nested entries are joined by a dot ("hidden_states.3").

    Args:
        returned: the model's return value.
        is_tensor: returns whether an object is a tensor of the framework.
        positional: names for the entries of a returned sequence, where the backend knows them.

    Raises:
        OutputError: the return value holds no tensor.
    """
    if is_tensor(returned):
        return {ONLY: returned}
    named: dict[str, Any] = {}
    if isinstance(returned, (list, tuple)) and not hasattr(returned, "_fields"):
        entries = list(zip([*positional, *map(str, range(len(positional), len(returned)))], returned, strict=False))
    else:
        entries = _entries(returned)
    for name, value in entries:
        _collect(name, value, is_tensor, named)
    if not named:
        raise OutputError(
            f"the model returned {type(returned).__name__}, in which there is no tensor: expected a tensor, or a dict, "
            "tuple or data class of tensors; pass call=lambda model, inputs: ... that returns one"
        )
    return named


def choose_output(named: Mapping[str, Any], wanted: str | None) -> str:
    """Return the native name of an output given by role, by native name, or None for the default.

    The default is the output with the role `logits`, or else the only output. If a model returns one array, its output has
    the role `logits`.

    Raises:
        OutputError: there is no such output; the message lists the outputs.
    """
    if wanted is not None and wanted in named:
        return wanted
    native = _of_role(named, "logits" if wanted is None else wanted)
    if native is not None:
        return native
    roles = _roles(named)
    if wanted is None:
        if len(named) == 1:
            return next(iter(named))
        raise OutputError(
            f"the model has {len(named)} outputs and none of them is its logits: expected output=... in the objective; "
            f"there are {_describe(named, roles)}",
            [*named],
        )
    raise OutputError(
        f"the model has no output {wanted!r}: there are {_describe(named, roles)}."
        f"{did_you_mean(wanted, [*named, *roles])}",
        [*named],
    )


def _roles(named: Mapping[str, Any]) -> dict[str, str]:
    names = {role: _of_role(named, role) for role in ROLES}
    return {role: name for role, name in names.items() if name is not None}


def _of_role(named: Mapping[str, Any], role: str) -> str | None:
    """Return the native name of the output with a role; None where there is none."""
    if role == "logits" and list(named) == [ONLY]:
        return ONLY
    return next((name for name in reversed(ROLES.get(role, ())) if name in named), None)


def _describe(named: Mapping[str, Any], roles: Mapping[str, str]) -> str:
    spelled = {name: role for role, name in roles.items()}
    return ", ".join(
        f"{name!r} (role {spelled[name]!r})" if spelled.get(name, name) != name else repr(name) for name in named
    ) or quote(())


def _entries(returned: Any) -> list[tuple[str, Any]]:
    if isinstance(returned, Mapping):
        return [(str(key), value) for key, value in returned.items()]
    if hasattr(returned, "_fields"):
        return list(zip(returned._fields, returned, strict=True))
    if is_dataclass(returned):
        return [(field.name, getattr(returned, field.name)) for field in fields(returned)]
    if isinstance(returned, (list, tuple)):
        return [(str(number), value) for number, value in enumerate(returned)]
    return []


def _collect(name: str, value: Any, is_tensor: Callable[[Any], bool], named: dict[str, Any]) -> None:
    if is_tensor(value):
        named[name] = value
        return
    for inner, entry in _entries(value):
        _collect(f"{name}.{inner}", entry, is_tensor, named)
