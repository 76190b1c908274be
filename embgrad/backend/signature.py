"""How a model is called: which of the batch's parts go to which of its parameters, told by their names."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
import typing
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.errors import BatchError, UnsupportedError, brief, listed
from embgrad.inputs.batch import CONVENTIONS, TokenBatch

__all__ = ["CallPlan", "as_parts", "expect_callable", "expect_single", "parameters_of", "plan_call", "plan_mapping"]

#: The names by which models call each part of a batch, over the conventions of all frameworks. A mask is 1 at
#: real positions under each of these; names that mean the reverse somewhere (`key_padding_mask`) are left out.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "ids": ("input_ids", "input_word_ids", "token_ids", "ids", "tokens", "inputs", "x"),
    "mask": ("attention_mask", "input_mask", "mask"),
    "types": ("token_type_ids", "input_type_ids", "segment_ids", "token_types", "type_ids", "types"),
    "valid_length": ("valid_length", "valid_lengths", "lengths"),
}


#: Names of an only required parameter that takes a dict of all inputs, in a model that does not say so by an annotation.
DICT_NAMES: Final = ("features", "batch", "encoding", "encodings", "encoded_input", "encoded_inputs", "input_dict")

#: An annotation, as text, of a parameter that takes a dict.
DICT_ANNOTATION: Final = re.compile(r"(\w+\.)*(Optional\[)?(\w+\.)*(dict|Dict|Mapping|MutableMapping)\b")


#: How many functions that wrap one another are looked through for a signature that is kept.
MOST_WRAPPED: Final = 80


@dataclass(frozen=True)
class CallPlan:
    """The arguments of one call of a model, in NumPy, and what of the batch it leaves out.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments; the batch's extras as the user gave them.
        unused: of "mask", "types" and the extras' names those that the model cannot take.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    unused: tuple[str, ...]


def as_parts(model: Any) -> tuple[Any, ...]:
    """The parts of a model: those of a list or tuple, or the model alone."""
    return tuple(model) if isinstance(model, (list, tuple)) else (model,)


def expect_single(model: Any) -> None:
    """Refuse a sequence of parts where no `call` is given.

    Raises:
        UnsupportedError: the model is a list or tuple.
    """
    if isinstance(model, (list, tuple)):
        raise UnsupportedError("the model is a sequence of parts: pass call=lambda parts, inputs: outputs to say how")


def expect_callable(call: Any, name: str = "call") -> None:
    """Refuse as the option `call` what cannot be called.

    Raises:
        BatchError: it is neither None nor a function of two arguments.
    """
    if call is None:
        return
    if not callable(call):
        raise BatchError(f"{name} is {brief(call)}: expected a function, {name}(model, inputs) -> outputs")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # one written in C does not say what it takes
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise BatchError(
            f"{name} takes {signature}, and is called with the model and its inputs ({error}): expected a function, "
            f"{name}(model, inputs) -> outputs"
        ) from None


class Signature(tuple[inspect.Parameter, ...]):
    """The parameters of a function.

    Attributes:
        plans: how the batch's parts were distributed over them, by which parts there were.
        less: the same without those of some names, by these.
    """

    plans: dict[Hashable, CallPlan]
    less: dict[frozenset[str], Signature]

    def __new__(cls, parameters: Iterable[inspect.Parameter]) -> Signature:
        """Nothing has been distributed yet."""
        made = super().__new__(cls, parameters)
        made.plans, made.less = {}, {}
        return made


def parameters_of(function: Any, skip: Iterable[str] = ()) -> Signature:
    """The parameters of a bound method, less those that are not the batch's affair, such as `training`.

    What comes after one that is left out can be passed by name alone.
    """
    parameters, left_out = _signature(function), frozenset(skip)
    if not left_out:
        return parameters
    if left_out not in parameters.less:
        parameters.less[left_out] = Signature(_without(parameters, left_out))
    return parameters.less[left_out]


def _without(parameters: Iterable[inspect.Parameter], left_out: Collection[str]) -> Iterator[inspect.Parameter]:
    gap = False
    for parameter in parameters:
        if parameter.name in left_out:
            gap = True
        elif gap and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            yield parameter.replace(kind=parameter.KEYWORD_ONLY)
        else:
            yield parameter


#: By a function what its signature was read from, and the parameters of a method made of it.
_signatures: WeakKeyDictionary[Any, tuple[tuple[Any, ...], Signature]] = WeakKeyDictionary()


def _signature(function: Any) -> Signature:
    """The parameters. They take long to find out: a plain method's are kept while what they follow from is the same."""
    plain = getattr(function, "__func__", None)
    if type(function) is not MethodType or type(plain) is not FunctionType:
        return Signature(inspect.signature(function).parameters.values())
    origin: list[Any] = []
    inner: Any = plain
    while type(inner) is FunctionType and len(origin) < MOST_WRAPPED:
        by_name = itertools.chain.from_iterable((inner.__kwdefaults__ or {}).items())
        origin += [inner.__code__, inner.__defaults__, inner.__dict__.get("__signature__"), *by_name]
        inner = inner.__dict__.get("__wrapped__")
    known, parameters = _signatures.get(plain, ((), None)) if inner is None else ((), None)
    if parameters is None or len(known) != len(origin) or not all(map(operator.is_, known, origin)):
        parameters = Signature(inspect.signature(function).parameters.values())
        if inner is None:
            _signatures[plain] = (tuple(origin), parameters)
    return parameters


def plan_call(parameters: Sequence[inspect.Parameter], batch: TokenBatch, masks: Sequence[str] = ()) -> CallPlan:
    """Which argument gets which part of the batch.

    A model whose only required parameter takes a dict gets all of the batch in that, see `_takes_all`. Otherwise the
    ids go to the parameter with a known name, or else to the first one. The mask, the types and the valid
    lengths go only where a parameter has their name, and only where the user gave them; those that have no
    default are filled in (ones, zeros, and every position). Extras go under their own names.

    Args:
        parameters: the model's parameters, in order.
        batch: the batch.
        masks: further names of a mask that is 1 at real positions, in this framework.

    Raises:
        BatchError: a parameter without a default that the batch has nothing for.
    """
    form = (batch.mask is None, batch.types is None, tuple(batch.extras), batch.convention, tuple(masks))
    plans = parameters.plans if isinstance(parameters, Signature) else {}
    plan = plans.get(form)
    if plan is None:
        by_name = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if not by_name:
            return _plan_unnamed(parameters, batch)
        plan = plans[form] = _distributed(parameters, by_name, batch, masks)
    filled = {name: _part(part, batch) for name, part in plan.kwargs.items()}
    return CallPlan(tuple([_part(part, batch) for part in plan.args]), filled, plan.unused)


def _distributed(
    parameters: Sequence[inspect.Parameter],
    by_name: Mapping[str, inspect.Parameter],
    batch: TokenBatch,
    masks: Sequence[str],
) -> CallPlan:
    """The plan with the names of the batch's parts in place of these, see `_part`."""
    whole = _takes_all(by_name, batch)
    if whole is not None:
        return _bind(parameters, {whole: ("inputs", True)}, ())
    known_names = {**NAMES, "mask": (*NAMES["mask"], *masks)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    ids = next((name for name in NAMES["ids"] if name in by_name), next(iter(by_name)))
    values = {ids: ("ids", True)}
    values |= {name: (name, False) for name in batch.extras if name in by_name or takes_any}
    fields = {
        field: name for field, names in known_names.items() if (name := _first(names, by_name, values)) is not None
    }
    for field, name in fields.items():
        given = getattr(batch, "mask" if field == "valid_length" else field) is not None
        told = given and not (field == "valid_length" and "mask" in fields)  # a mask says more than lengths
        if field != "ids" and (told or by_name[name].default is inspect.Parameter.empty):
            values[name] = (field, True)
    _expect_complete(by_name, values)
    lengths = ["valid_length"] if any(name in values for name in NAMES["valid_length"]) else []  # the user's own, too
    return _bind(parameters, values, _left_out(batch, {*fields, *lengths}, values))


def _takes_all(by_name: Mapping[str, inspect.Parameter], batch: TokenBatch) -> str | None:
    """Return the name of the parameter that takes the whole batch in one dict, as a sentence encoder's does; else None.

    It is the only one without a default. Its annotation says that it takes a dict; without an annotation its name does, where
    the batch was given as a dict.
    """
    required = [p for p in by_name.values() if p.default is p.empty]
    if len(required) != 1:
        return None
    only = required[0]
    if only.annotation is only.empty:
        return only.name if batch.convention in CONVENTIONS and only.name in DICT_NAMES else None
    return only.name if _is_dict(only.annotation) else None


def _is_dict(annotation: Any) -> bool:
    """Return whether an annotation, which may be text, means a dict."""
    if isinstance(annotation, str):
        return DICT_ANNOTATION.match(annotation.strip("'\" ")) is not None
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, Mapping)


class _Default(NamedTuple):
    """What a parameter has by itself, given where others follow by their places."""

    value: Any


def _part(part: tuple[str, bool] | _Default, batch: TokenBatch) -> Any:
    """A part of the batch: a field, or one of the extras; or a default."""
    if isinstance(part, _Default):
        return part.value
    name, is_field = part
    return _field(name, batch) if is_field else batch.extras[name]


def plan_mapping(names: Iterable[str], batch: TokenBatch) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The batch under the input names of a model that declares them (a functional Keras model, a symbol).

    Every declared input is filled: types with zeros and the mask with ones where the user gave none.

    Returns:
        The inputs by name, and what of the batch was left over.

    Raises:
        BatchError: an input that the batch has nothing for.
    """
    names = list(names)
    known = {name: field for field, spelled in NAMES.items() for name in spelled}
    known["padding_mask"] = "mask"  # as keras-hub declares it: 1 at real positions
    filled: dict[str, Any] = {}
    for name in names:
        field = known.get(name)
        if name in batch.extras:
            filled[name] = batch.extras[name]
        elif field is not None:
            filled[name] = _field(field, batch)
    if not any(known.get(name) == "ids" for name in filled):
        nameless = [name for name in names if name not in filled]
        if len(nameless) != 1:
            raise BatchError(
                f"the model's inputs are {listed(names)}, and none has a name that means token ids: expected one of "
                f"{listed(NAMES['ids'])}; pass call=... to call the model yourself"
            )
        filled[nameless[0]] = batch.ids
    missing = [name for name in names if name not in filled]
    if missing:
        raise BatchError(_missing_message(missing))
    return filled, _left_out(batch, {known[name] for name in names if name in known}, filled)


def _left_out(batch: TokenBatch, told: Collection[str], given: Collection[str]) -> tuple[str, ...]:
    """What of the batch a call leaves out: fields that no argument tells, and extras that are none. Lengths tell a mask."""
    told = {*told, "mask"} if "valid_length" in told else told
    fields = [field for field in ("mask", "types") if getattr(batch, field) is not None and field not in told]
    return (*fields, *(name for name in batch.extras if name not in given))


def _field(field: str, batch: TokenBatch) -> Any:
    if field == "inputs":
        return (batch if batch.convention in CONVENTIONS else batch.replace(convention="huggingface")).inputs()
    if field == "valid_length":
        return batch.lengths()
    if field == "mask":
        return batch.model_mask()
    if field == "types":
        return np.zeros_like(batch.ids) if batch.types is None else batch.types
    return batch.ids


def _plan_unnamed(parameters: Sequence[inspect.Parameter], batch: TokenBatch) -> CallPlan:
    """For `forward(*args, **kwargs)`: Hugging Face's names where it takes names, else the ids alone, as when given alone."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes_first = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if takes_any and takes_first and batch.convention == "ids":
        return CallPlan((batch.ids,), {}, ())
    if takes_any:
        return CallPlan((), batch.replace(convention="huggingface").inputs(), ())
    left = [field for field in ("mask", "types") if getattr(batch, field) is not None]
    return CallPlan((batch.ids,), {}, (*left, *batch.extras))


def _first(names: Iterable[str], by_name: Mapping[str, Any], taken: Mapping[str, Any]) -> str | None:
    """The first of the names that is a parameter's and not taken: a model may know a mask under a second, reversed one."""
    return next((name for name in names if name in by_name and name not in taken), None)


def _expect_complete(by_name: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> None:
    missing = [name for name, p in by_name.items() if name not in values and p.default is p.empty]
    if missing:
        raise BatchError(_missing_message(missing))


def _missing_message(missing: Sequence[str]) -> str:
    return (
        f"the model needs {listed(missing)}, and the batch has nothing of that name: expected every argument without a "
        "default; add it to the batch as a dict's key, or pass call=lambda model, inputs: ..."
    )


def _bind(parameters: Sequence[inspect.Parameter], values: dict[str, Any], unused: tuple[str, ...]) -> CallPlan:
    """Positional where that leaves no gap, or where nothing else will do, else by name."""
    args = []
    left = dict(values)
    by_place = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name in left:
            args.append(left.pop(p.name))
        elif any(one.name in left for one in by_place):
            args.append(_Default(p.default))
        else:
            break
    return CallPlan(tuple(args), left, unused)
