"""The ids of a tokenizer's special tokens."""

from __future__ import annotations

from typing import Any, Final

from embgrad.inputs.keras_hub import inner_tokenizer

__all__ = ["id_of_special", "special_ids", "unknown_ids"]

#: The texts of the padding, the mask and the end of a text in the vocabularies of BERT, RoBERTa, GPT-2 and similar models.
TEXTS: Final = {"pad": ("[PAD]", "<pad>"), "mask": ("[MASK]", "<mask>"), "eos": ("</s>", "<eos>", "<|endoftext|>")}

#: The texts of unknown words, likewise.
UNKNOWN: Final = ("[unk]", "<unk>")


def id_of_special(tokenizer: Any, name: str) -> int | None:
    """Return the id of the padding, the mask or the end of a text; None where the tokenizer does not know it.

    Args:
        tokenizer: a Hugging Face tokenizer, a `tokenizers.Tokenizer`, or any object with the attributes of the former.
        name: "pad", "mask" or "eos".
    """
    tokenizer = inner_tokenizer(tokenizer)
    known = getattr(tokenizer, f"{name}_token_id", None)
    if known is not None:
        return int(known)
    if not hasattr(tokenizer, "token_to_id"):
        return None
    padding = getattr(tokenizer, "padding", None) or {}
    if name == "pad" and "pad_id" in padding:
        return int(padding["pad_id"])
    ids = (tokenizer.token_to_id(text) for text in TEXTS[name])
    return next((int(id_) for id_ in ids if id_ is not None), None)


def special_ids(tokenizer: Any) -> list[int] | None:
    """Return the ids of the special tokens but that of unknown words, which stands for a word of the text.

    None where the tokenizer does not know them.
    """
    tokenizer = inner_tokenizer(tokenizer)
    known = getattr(tokenizer, "all_special_ids", None)
    if known is not None:
        return [int(id_) for id_ in known if id_ != getattr(tokenizer, "unk_token_id", None)]
    if not hasattr(tokenizer, "get_added_tokens_decoder"):
        of_keras_hub = getattr(tokenizer, "special_token_ids", None)
        return None if of_keras_hub is None else [int(id_) for id_ in of_keras_hub]
    added = tokenizer.get_added_tokens_decoder().items()
    return [id_ for id_, token in added if token.special and token.content.lower() not in UNKNOWN]


def unknown_ids(tokenizer: Any) -> list[int]:
    """Return the id of unknown words as a list, which is empty where the tokenizer has none or does not know it."""
    known = getattr(tokenizer, "unk_token_id", None)
    lookup = getattr(tokenizer, "token_to_id", lambda text: None)
    ids = [known] if known is not None else [lookup(text) for text in ("[UNK]", "<unk>")]
    return [int(id_) for id_ in ids if id_ is not None]
