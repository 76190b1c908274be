"""The continuation of prompts by a model's own method `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Request
from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.engine.encoder_decoders import parameters_of_call, takes_decoder
from embgrad.errors import EmbgradError, OutputError, UnsupportedError, brief, quote
from embgrad.inputs.alignment import Alignment
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, MASK, NAMES, decoder_names

__all__ = ["generate_tokens"]

#: The inputs that a continuation does not need.
UNNEEDED: Final = frozenset({"labels"})

#: The arguments of the method that the batch gives.
OF_BATCH: Final = ("input_ids", "attention_mask", "token_type_ids", "inputs", *(ids for ids, _ in NAMES))


def generate_tokens(bound: BoundModel, batch: TokenBatch, options: Any, tokenizer: Any) -> tuple[TokenBatch, int]:
    """Return the batch with the tokens that the model generates, and the position of the first of these.

    The model runs in evaluation mode, without gradients. A causal model is given the prompts padded on the left, as its method
    `generate` expects.

    Args:
        options: the number of new tokens, for greedy search, or the arguments of the method.
        tokenizer: knows the ids at which a continuation ends; None where there is none.
    """
    arguments = _arguments(options)
    method = getattr(bound.model, "generate", None)
    if not callable(method):
        raise UnsupportedError(
            f"{type(bound.model).__name__} has no method generate(): give the prompts with their continuations as the batch, "
            "and the positions of the continuations as targets"
        )
    if hasattr(bound.model, "make_generate_function"):
        raise UnsupportedError(
            f"{type(bound.model).__name__} is a model of keras-hub, whose generate() takes prompts with room for the new tokens: "
            "call it yourself, and give what it returns as the batch, with targets=slice(n, None) for prompts of n tokens"
        )
    encoder_decoder = bool(takes_decoder(bound.model))
    _expect_plain(batch, encoder_decoder)
    prompts = _prompts(bound, batch, padded_left=not encoder_decoder)
    returned = _call_generate(bound, prompts, arguments)
    ids = _ids(getattr(returned, "sequences", returned))
    expected = 0 if encoder_decoder else prompts.shape[1]
    if ids is None or ids.ndim != 2 or len(ids) != len(batch) or ids.shape[1] <= expected:
        raise UnsupportedError(
            f"generate() returned {'no ids' if ids is None else f'ids of shape {ids.shape}'} for {len(batch)} prompts of "
            f"{prompts.shape[1]} positions: expected one sequence for each, with the prompt and new tokens. Leave out options "
            "that return several"
        )
    if not np.array_equal(ids[:, :expected], prompts.ids[:, :expected]):
        raise UnsupportedError(
            "generate() returned sequences that do not begin with the prompts' ids, so that the new tokens are not known: give "
            "the prompts with their continuations as the batch, and the positions of the continuations as targets"
        )
    ends = _ends(_enders(bound, arguments, tokenizer), ids, expected + int(encoder_decoder))
    if encoder_decoder:
        mask = (np.arange(ids.shape[1]) < ends[:, None]).astype(np.int64)
        extras = {**batch.extras, IDS: ids, MASK: mask}
        return batch.replace(extras=extras), 1
    mask = np.concatenate([prompts.real, np.arange(expected, ids.shape[1]) < ends[:, None]], 1).astype(np.int64)
    types = prompts.types
    if types is not None:  # new tokens have the type of the prompt's last
        types = np.concatenate([types, np.repeat(types[:, -1:], ids.shape[1] - expected, 1)], 1)
    whole = TokenBatch(ids, mask, types, convention=prompts.convention, mask_is_bool=batch.mask_is_bool)
    return whole, expected


def _arguments(options: Any) -> dict[str, Any]:
    if isinstance(options, Mapping):
        wrong = [name for name in options if not isinstance(name, str) or name in OF_BATCH]
        if wrong:
            raise EmbgradError(
                f"generate has the argument {wrong[0]!r}: expected names of other arguments of the model's method generate() "
                "than the prompts, which are the batch"
            )
        return dict(options)
    if isinstance(options, bool) or not isinstance(options, (int, np.integer)) or options < 1:
        raise EmbgradError(
            f"generate is {brief(options)}: expected the number of new tokens, at least 1, or a dict of arguments of the model's "
            "method generate()"
        )
    return {"max_new_tokens": int(options), "do_sample": False}


def _expect_plain(batch: TokenBatch, encoder_decoder: bool) -> None:
    """Refuse prompts with inputs that the continuation would need as well.

    Args:
        encoder_decoder: whether the model is an encoder-decoder, which keeps the encoder's inputs.
    """
    of_decoder = set(decoder_names(batch.extras) or ())
    others = [name for name in batch.extras if name not in UNNEEDED and (not encoder_decoder or name in of_decoder)]
    if others:
        raise UnsupportedError(
            f"the batch has {quote(others)} beside the prompts, and generate=... continues these alone: leave it out, or give "
            "all inputs of prompts and continuations as the batch, and the positions of the continuations as targets"
        )


def _prompts(bound: BoundModel, batch: TokenBatch, *, padded_left: bool) -> TokenBatch:
    """Return the prompts with all that the model takes of them: types, and a mask, which a method may otherwise guess."""
    ends = batch.shape[1] - batch.real[:, ::-1].argmax(1) if padded_left else np.zeros(len(batch), np.int64)
    move = Alignment(ends % batch.shape[1], batch.shape[1])
    names = {parameter.name for parameter in parameters_of_call(bound.model) or ()}
    takes_mask = batch.mask is not None or "attention_mask" in names
    takes_types = batch.types is not None and "token_type_ids" in names
    return TokenBatch(
        move.move(batch.ids),
        move.move(batch.real.astype(np.int64)) if takes_mask else None,
        move.move(batch.types) if takes_types and batch.types is not None else None,
        extras={} if padded_left else {name: value for name, value in batch.extras.items() if name not in UNNEEDED},
        convention="huggingface" if takes_mask and batch.convention == "ids" else batch.convention,
        mask_is_bool=batch.mask_is_bool,
    )


def _call_generate(bound: BoundModel, prompts: TokenBatch, arguments: Mapping[str, Any]) -> Any:
    """Return what the model's method `generate` returns for native inputs."""
    returned: list[Any] = []
    generates = getattr(bound.backend, "generates", None)
    if generates is not None and generates(bound.model):
        with bound.backend.alone(bound.model):
            inputs = {name: np.asarray(value, np.int32) for name, value in prompts.to_huggingface().items()}
            return _call_function(bound.model, inputs, arguments)

    def generate(model: Any, inputs: Any) -> Any:
        returned.append(_call_function(model, inputs, arguments))
        return returned[-1]

    try:
        bound.run(prompts, Request(call=generate, pullback=False))
    except OutputError:  # what the method returned holds no tensor of the framework, and may still hold ids
        if not returned:
            raise
    return returned[-1]


def _call_function(model: Any, inputs: Any, arguments: Mapping[str, Any]) -> Any:
    try:
        return (
            model.generate(**inputs, **arguments)
            if isinstance(inputs, Mapping)
            else model.generate(inputs, **arguments)
        )
    except (TypeError, ValueError) as error:
        raise EmbgradError(
            f"the model's method generate() refuses {brief(dict(arguments))}: {error}. Correct generate=..., "
            "or give the continuations in the batch"
        ) from error


def _ids(returned: Any) -> np.ndarray | None:
    try:
        return whole_numbers(to_numpy(returned))
    except (TypeError, ValueError):  # no array, or one without values, as where JAX traces
        return None


def _enders(bound: BoundModel, arguments: Mapping[str, Any], tokenizer: Any) -> np.ndarray:
    """Return the ids that end a text: of the arguments of `generate`, or else of the model, or else of the tokenizer."""
    if "eos_token_id" in arguments and arguments["eos_token_id"] is None:
        return np.zeros(0, np.int64)
    configs = [
        arguments.get("generation_config"),
        *(getattr(bound.model, f"{kind}config", None) for kind in ("generation_", "")),
    ]
    declared = [
        arguments.get("eos_token_id"),
        *(getattr(source, "eos_token_id", None) for source in (*configs, tokenizer)),
    ]
    return np.atleast_1d(np.asarray(next((to_numpy(ids) for ids in declared if ids is not None), [])))


def _ends(enders: np.ndarray, ids: np.ndarray, start: int) -> np.ndarray:
    """Return the positions after each sequence's last token: after the first id that ends a text, which padding follows."""
    is_end = np.isin(ids, enders)
    is_end[:, :start] = False
    return np.asarray(np.where(is_end.any(1), is_end.argmax(1) + 1, ids.shape[1]))
