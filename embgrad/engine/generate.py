"""The continuation of prompts by a model's own method `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Request
from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.engine.decoder import takes_decoder
from embgrad.errors import EmbgradError, OutputError, UnsupportedError, brief, listed
from embgrad.inputs.alignment import Alignment
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, MASK
from embgrad.inputs.encode import with_tokens

__all__ = ["generated"]

#: The further inputs of prompts that do without their values: the model's method `generate` makes positions, and asks no labels.
MADE_ANEW: Final = frozenset({"position_ids", "labels"})


def generated(bound: BoundModel, batch: TokenBatch, options: Any, tokenizer: Any) -> tuple[TokenBatch, np.ndarray]:
    """Return the batch with the tokens that the model generates, and the position of each example's first generated token.

    The model runs in evaluation mode, without gradients. A causal model is given the prompts padded on the left, as its method
    `generate` expects.

    Args:
        bound: the model.
        batch: the prompts.
        options: the number of new tokens, for greedy search, or the arguments of the method.
        tokenizer: names the tokens, and knows the ids at which a continuation ends; None where there is none.

    Raises:
        EmbgradError: `options` is neither a number of tokens nor a dict.
        UnsupportedError: the model has no method `generate`, or it returns no ids, or other ids than the prompts' before the
            new tokens; or prompts for a causal model have further inputs than ids and a mask.
    """
    arguments = _arguments(options)
    method = getattr(bound.model, "generate", None)
    if not callable(method):
        raise UnsupportedError(
            f"{type(bound.model).__name__} has no method generate(): give the prompts with their continuations "
            "as the batch, and the "
            "positions of the continuations as targets"
        )
    encoder_decoder = bool(takes_decoder(bound.model))
    prompts = batch if encoder_decoder else _prompts(batch)
    returned = _returned(bound, prompts, arguments)
    ids = _ids(getattr(returned, "sequences", returned))
    expected = 0 if encoder_decoder else prompts.shape[1]
    if ids is None or ids.ndim != 2 or len(ids) != len(batch) or ids.shape[1] <= expected:
        raise UnsupportedError(
            f"generate() returned {'no ids' if ids is None else f'ids of shape {ids.shape}'} for {len(batch)} prompts of "
            f"{prompts.shape[1]} "
            "positions: expected one sequence for each, with the prompt and new tokens. Leave out options that return several"
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
        return batch.replace(extras=extras), np.ones(len(batch), np.int64)
    mask = np.concatenate([prompts.real, np.arange(expected, ids.shape[1]) < ends[:, None]], 1).astype(np.int64)
    whole = TokenBatch(ids, mask, convention=batch.convention, mask_is_bool=batch.mask_is_bool)
    return (whole if tokenizer is None else with_tokens(whole, tokenizer)), np.full(len(batch), expected)


def _arguments(options: Any) -> dict[str, Any]:
    if isinstance(options, Mapping):
        return dict(options)
    if isinstance(options, bool) or not isinstance(options, (int, np.integer)) or options < 1:
        raise EmbgradError(
            f"generate is {brief(options)}: expected the number of new tokens, at least 1, or a dict of arguments of the model's "
            "method generate()"
        )
    return {"max_new_tokens": int(options), "do_sample": False}


def _prompts(batch: TokenBatch) -> TokenBatch:
    """Return the ids and the mask of prompts, with their padding on the left.

    Raises:
        UnsupportedError: the batch has inputs that the continuation would need as well.
    """
    others = [name for name in batch.extras if name not in MADE_ANEW]
    if batch.types is not None and batch.types.any():
        others.append("types")
    if others:
        raise UnsupportedError(
            f"the batch has {listed(others)} beside ids and mask, and generate=... continues ids alone: generate first, and give "
            "all inputs of prompts and continuations as the batch, and the positions of the continuations as targets"
        )
    ends = batch.shape[1] - batch.real[:, ::-1].argmax(1)
    move = Alignment(ends % batch.shape[1], batch.shape[1])
    return TokenBatch(
        move.moved(batch.ids),
        None if batch.mask is None else move.moved(batch.mask),
        convention=batch.convention,
        mask_is_bool=batch.mask_is_bool,
    )


def _returned(bound: BoundModel, prompts: TokenBatch, arguments: Mapping[str, Any]) -> Any:
    """Return what the model's method `generate` returns for native inputs."""
    returned: list[Any] = []

    def generate(model: Any, inputs: Any) -> Any:
        returned.append(
            model.generate(**inputs, **arguments)
            if isinstance(inputs, Mapping)
            else model.generate(inputs, **arguments)
        )
        return returned[-1]

    try:
        bound.run(prompts, Request((), lambda outputs: (), call=generate, pullback=False))
    except OutputError:  # what the method returned holds no tensor of the framework, and may still hold ids
        if not returned:
            raise
    return returned[-1]


def _ids(returned: Any) -> np.ndarray | None:
    try:
        return whole_numbers(to_numpy(returned))
    except ValueError:
        return None


def _enders(bound: BoundModel, arguments: Mapping[str, Any], tokenizer: Any) -> np.ndarray:
    """Return the ids that end a text: of the arguments of `generate`, or else of the model, or else of the tokenizer."""
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
