"""The assignment of a batch's fields to a model's parameters, by the parameters' names."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import BatchError, UnsupportedError, brief, quote
from embgrad.inputs.batch import CONVENTIONS, ID_NAMES, MASK_NAMES, PACKED, TYPE_NAMES, TokenBatch
from embgrad.inputs.decoder import DECODER_MASKS, decoder_names, further_named

__all__ = ["CallPlan", "as_parts", "expect_callable", "expect_single", "parameters_of", "plan_call", "plan_mapping"]

#: The parameter names that models use for each field of a batch, in the conventions of all frameworks. Under each of these
#: names a mask is 1 at real positions; names that mean the reverse in some framework (`key_padding_mask`) are not listed.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "ids": ("input_ids", "input_word_ids", "token_ids", "encoder_token_ids", *ID_NAMES),
    "mask": MASK_NAMES,
    "types": TYPE_NAMES,
    "valid_length": (
        *("valid_length", "valid_lengths", "lengths", "lens", "seq_lens", "seq_lengths", "sequence_lengths"),
        *("src_lens", "src_lengths", "input_lengths", "text_lengths", "token_lengths"),
    ),
}

#: Further names that the lengths may have, or one number for all examples: they are not filled, and messages explain them.
LENGTH_NAMES: Final = (
    *("len", "length", "seq_len", "seq_length", "seqlen", "sequence_length", "src_len", "src_length", "input_length"),
    *("text_length", "token_length", "num_tokens"),
)


#: Names of a parameter that takes a dict of all inputs, if it is the only required parameter and has no annotation.
DICT_NAMES: Final = ("features", "batch", "encoding", "encodings", "encoded_input", "encoded_inputs", "input_dict")

#: Matches the annotation, as text, of a parameter that takes a dict.
DICT_ANNOTATION: Final = re.compile(r"(\w+\.)*(Optional\[)?(\w+\.)*(dict|Dict|Mapping|MutableMapping)\b")


@dataclass(frozen=True)
class CallPlan:
    """The arguments of one call of a model, in NumPy, and the names of the fields of the batch that it does not use.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments; extras of the batch are as the user passed them.
        unused: the names of the fields that the model cannot take: "mask", "types" or names of extras.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    unused: tuple[str, ...]


def as_parts(model: Any) -> tuple[Any, ...]:
    """Return the parts of a model: the entries of a list or tuple, or the model alone."""
    return tuple(model) if isinstance(model, (list, tuple)) else (model,)


def expect_single(model: Any) -> None:
    """Check that a model without `call` is a single object.

    Raises:
        UnsupportedError: the model is a list or tuple.
    """
    if isinstance(model, (list, tuple)):
        raise UnsupportedError(
            "the model is a sequence of parts: pass call=lambda parts, inputs: outputs to define how they are called"
        )


def expect_callable(call: Any, name: str = "call") -> None:
    """Check that the option `call` is None or a function of two arguments."""
    if call is None:
        return
    if not callable(call):
        raise BatchError(f"{name} is {brief(call)}: expected a function, {name}(model, inputs) -> outputs")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # functions written in C may have no signature
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise BatchError(
            f"{name} takes {signature}, and is called with the model and its inputs ({error}): expected a function, "
            f"{name}(model, inputs) -> outputs"
        ) from None


def parameters_of(function: Any, skip: Iterable[str] = ()) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a bound method, without those that the batch does not fill, such as `training`.

    Parameters that follow a skipped one can only be passed by name.

    Args:
        function: the bound method.
        skip: the names of the parameters to skip.
    """
    return tuple(_without(inspect.signature(function).parameters.values(), frozenset(skip)))


def _without(parameters: Iterable[inspect.Parameter], skipped: Collection[str]) -> Iterator[inspect.Parameter]:
    gap = False
    for parameter in parameters:
        if parameter.name in skipped:
            gap = True
        elif gap and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            yield parameter.replace(kind=parameter.KEYWORD_ONLY)
        else:
            yield parameter


def plan_call(parameters: Sequence[inspect.Parameter], batch: TokenBatch, masks: Sequence[str] = ()) -> CallPlan:
    """Return the arguments with which to call a model on a batch.

    If the model's only required parameter takes a dict, it gets the whole batch as a dict, see `_takes_all`. Otherwise the
    ids are passed to the parameter with a known name, or else to the first one. The mask, the types and the valid lengths are
    passed to parameters with a known name if the user gave them, or if the parameter has no default; in the latter case a
    missing mask is ones, and missing types are zeros. Lengths are counted from the mask alone. Extras are passed by their own
    names.

    Args:
        parameters: the model's parameters, in order.
        batch: the batch.
        masks: further names of a mask that is 1 at real positions, in this framework.

    Raises:
        BatchError: the batch has no value for a parameter without a default.
    """
    by_name = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if not by_name:
        return _plan_unnamed(parameters, batch)
    whole = _takes_all(by_name, batch)
    if whole is not None:
        return _bind(parameters, {whole: _field("inputs", batch)}, ())
    if batch.convention == PACKED:
        return _pack(parameters, by_name, batch)
    known_names = {**NAMES, "mask": (*NAMES["mask"], *masks)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    ids = next((name for name in NAMES["ids"] if name in by_name), next(iter(by_name)))
    values: dict[str, Any] = {ids: batch.ids}
    further = {name: own for name in by_name if (own := further_named(name, batch.extras)) is not None}
    values |= {name: batch.extras[own] for name, own in further.items()}
    values |= {name: value for name, value in batch.extras.items() if takes_any and name not in further.values()}
    fields = {
        field: name for field, names in known_names.items() if (name := _first(names, by_name, values)) is not None
    }
    for field, name in fields.items():
        is_given = getattr(batch, "mask" if field == "valid_length" else field) is not None
        # A mask holds more information than lengths.
        is_needed = is_given and not (field == "valid_length" and "mask" in fields)
        if field != "ids" and (is_needed or by_name[name].default is inspect.Parameter.empty):
            _expect_known(field, name, batch)
            values[name] = _field(field, batch)
    _expect_complete(by_name, values)
    # Also if the lengths are one of the extras.
    lengths = ["valid_length"] if any(name in values for name in NAMES["valid_length"]) else []
    return _bind(parameters, values, _find_left_out(batch, {*fields, *lengths}, {*values, *further.values()}))


def _pack(
    parameters: Sequence[inspect.Parameter], by_name: Mapping[str, inspect.Parameter], batch: TokenBatch
) -> CallPlan:
    """Return the call plan of ids in one row, which the first parameter beside `offsets` takes, unless one has a known name."""
    others = [name for name in by_name if name not in ("offsets", *batch.extras)]
    ids = next((name for name in NAMES["ids"] if name in others), next(iter(others), "input_ids"))
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if "offsets" not in by_name and not takes_any:
        raise BatchError(
            "the batch holds ids in one row with 'offsets', and the model takes no input of that name: expected ids of shape "
            "(example, position), or call=lambda model, inputs: ..., which may use both"
        )
    values = {ids: _field("ids", batch), "offsets": _field("offsets", batch)}
    values |= {name: value for name, value in batch.extras.items() if name in by_name or takes_any}
    _expect_complete(by_name, values)
    return _bind(parameters, values, tuple(name for name in batch.extras if name not in values))


def _expect_known(field: str, name: str, batch: TokenBatch) -> None:
    """Refuse to invent lengths: without a mask ids may hold padding. gluonnlp's own batches always have lengths."""
    if field == "valid_length" and batch.mask is None and batch.convention != "gluonnlp":
        raise BatchError(_missing_message([name]))


def _takes_all(by_name: Mapping[str, inspect.Parameter], batch: TokenBatch) -> str | None:
    """Return the name of the parameter that takes the whole batch in one dict, as a sentence encoder's does, or None.

    Such a parameter is the only one without a default, and its annotation is a dict type. Without an annotation its name must be
    one of `DICT_NAMES`, and the batch must have been given as a dict.
    """
    required = [p for p in by_name.values() if p.default is p.empty]
    if len(required) != 1:
        return None
    only = required[0]
    if only.annotation is only.empty:
        return only.name if batch.convention in (*CONVENTIONS, PACKED) and only.name in DICT_NAMES else None
    return only.name if _is_dict(only.annotation) else None


def _is_dict(annotation: Any) -> bool:
    """Return whether an annotation, possibly given as text, is a dict type."""
    if isinstance(annotation, str):
        return DICT_ANNOTATION.match(annotation.strip("'\" ")) is not None
    cls = typing.get_origin(annotation) or annotation
    return isinstance(cls, type) and issubclass(cls, Mapping)


def plan_mapping(
    names: Iterable[str], batch: TokenBatch, optional: Collection[str] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the batch by the input names of a model that declares them (a functional Keras model, a symbol).

    Every declared input is filled: types with zeros and the mask with ones if the user gave none. Lengths are counted from the
    mask alone.

    Args:
        names: the names of the declared inputs.
        batch: the batch.
        optional: the names of those that may be None, and are None if the user gave no value.

    Returns:
        The inputs by name, and the names of the fields of the batch that are unused.

    Raises:
        BatchError: the batch has no value for an input.
    """
    names = list(names)
    fields = {name: field for field, aliases in NAMES.items() for name in aliases}
    fields["padding_mask"] = fields["encoder_padding_mask"] = "mask"  # as keras-hub declares it: 1 at real positions
    if batch.convention == PACKED:
        fields["offsets"] = "offsets"
    further = {name: other for name in names if (other := _further(name, batch)) is not None}
    filled: dict[str, Any] = {}
    for name in names:
        field = fields.get(name)
        if name in further:
            filled[name] = further[name][1]
        elif name in optional and (field is None or getattr(batch, field, batch.mask) is None):
            filled[name] = None
        elif field is not None:
            _expect_known(field, name, batch)
            filled[name] = _field(field, batch)
    if not any(fields.get(name) == "ids" for name in filled):
        nameless = [name for name in names if name not in filled]
        if len(nameless) != 1:
            raise BatchError(
                f"the model's inputs are {quote(names)}, and none has a name that means token ids: expected one of "
                f"{quote(NAMES['ids'])}; pass call=... to call the model yourself"
            )
        filled[nameless[0]] = _field("ids", batch)
    missing = [name for name in names if name not in filled]
    if missing:
        raise BatchError(_missing_message(missing))
    passed = {*filled, *(name for name, _ in further.values())}
    return filled, _find_left_out(batch, {fields[name] for name in names if name in fields}, passed)


def _further(name: str, batch: TokenBatch) -> tuple[str, Any] | None:
    """Return the name and the value of the further input for a declared one; None where the batch has none.

    An input of the decoder may have the name of another convention. A mask of the decoder that was not given is ones.
    """
    own = further_named(name, batch.extras)
    if own is not None:
        return own, batch.extras[own]
    names = decoder_names(batch.extras)
    if names is not None and name in DECODER_MASKS:
        return names[0], np.ones_like(to_numpy(batch.extras[names[0]]))
    return None


def _find_left_out(batch: TokenBatch, used: Collection[str], passed: Collection[str]) -> tuple[str, ...]:
    """Return the names of the fields and extras of a batch that a call does not use. Valid lengths count as a mask."""
    used = {*used, "mask"} if "valid_length" in used or batch.convention == PACKED else used
    fields = [field for field in ("mask", "types") if getattr(batch, field) is not None and field not in used]
    return (*fields, *(name for name in batch.extras if name not in passed))


def _field(field: str, batch: TokenBatch) -> Any:
    if field == "inputs":
        is_named = batch.convention in (*CONVENTIONS, PACKED)
        return (batch if is_named else batch.replace(convention="huggingface")).inputs()
    if batch.convention == PACKED and field in ("ids", "offsets"):
        return batch.pack()[int(field == "offsets")]
    if field == "valid_length":
        return batch.lengths()
    if field == "mask":
        return batch.model_mask()
    if field == "types":
        return np.zeros_like(batch.ids) if batch.types is None else batch.types
    return batch.ids


def _plan_unnamed(parameters: Sequence[inspect.Parameter], batch: TokenBatch) -> CallPlan:
    """Return the plan for a signature without names, such as `forward(*args, **kwargs)`.

    A model that takes any keyword arguments gets the batch by Hugging Face's names; otherwise, or for bare ids, the ids alone.
    """
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes_first = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if batch.convention == PACKED:
        return CallPlan((), batch.inputs(), ()) if takes_any else CallPlan(batch.pack(), {}, tuple(batch.extras))
    if takes_any and takes_first and batch.convention == "ids":
        return CallPlan((batch.ids,), {}, ())
    if takes_any:
        return CallPlan((), batch.replace(convention="huggingface").inputs(), ())
    left = [field for field in ("mask", "types") if getattr(batch, field) is not None]
    return CallPlan((batch.ids,), {}, (*left, *batch.extras))


def _first(names: Iterable[str], by_name: Mapping[str, Any], taken: Mapping[str, Any]) -> str | None:
    """Return the first of the names that is a parameter's and not taken: a model may have a second, reversed mask."""
    return next((name for name in names if name in by_name and name not in taken), None)


def _expect_complete(by_name: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> None:
    missing = [name for name, p in by_name.items() if name not in values and p.default is p.empty]
    if missing:
        raise BatchError(_missing_message(missing))


def _missing_message(missing: Sequence[str]) -> str:
    lengths = next((name for name in missing if name in (*NAMES["valid_length"], *LENGTH_NAMES)), None)
    if lengths is not None:
        counted = "" if lengths in LENGTH_NAMES else ", or the batch's mask, from which the lengths are counted"
        return (
            f"the model needs {quote(missing)}, which has no default, and the number of real tokens of each example is not "
            f"known: give the batch as a dict with the key {lengths!r}{counted}, or pass call=lambda model, inputs: ..."
        )
    return (
        f"the model needs {quote(missing)}, which has no default, and the batch has no entry of that name. Give the batch as a "
        "dict with that key, or pass call=lambda model, inputs: ..."
    )


def _bind(parameters: Sequence[inspect.Parameter], values: Mapping[str, Any], unused: tuple[str, ...]) -> CallPlan:
    """Return a plan that passes values by position as far as possible, with defaults only where needed, and the rest by name."""
    args = []
    left = dict(values)
    positional_only = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name in left:
            args.append(left.pop(p.name))
        elif any(parameter.name in left for parameter in positional_only):
            args.append(p.default)
        else:
            break
    return CallPlan(tuple(args), left, unused)
