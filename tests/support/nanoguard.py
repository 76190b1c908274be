"""NanoGuard, a classifier of prompt injections with 16.8 million parameters, from the package metatronnanoguard.

Its weights are loaded as tensors alone, and its tokenizer, which is a pickle, is read without being loaded: a pickle can run
any code, and this one only holds a table of ranks.
"""

from __future__ import annotations

import importlib.resources
import itertools
import pickletools
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["load_model", "load_tokenizer", "read_fields"]

#: The classes of the classifier's two logits.
CLASSES: Final = ("safe", "injection")

BEGIN, PAD = "<|reserved_0|>", "<|reserved_1|>"

#: The operations of a pickle that push a number, a text or bytes, which they hold.
LITERALS: Final = frozenset(
    {"BININT", "BININT1", "BININT2", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"}
)


def load_model() -> Any:
    """Return the classifier; its logits are those of `CLASSES`."""
    import torch
    from nanoguard.model import Classifier, ModelConfig

    with importlib.resources.as_file(importlib.resources.files("nanoguard.assets") / "model.pt") as path:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    model = Classifier(ModelConfig(**{**stored["config"], "dropout": 0.0}))
    model.load_state_dict(stored["model_state_dict"])
    return model.eval()


def load_tokenizer(length: int = 512) -> Any:
    """Return the tokenizer, which puts one special token before a text and cuts it to a length.

    Its ids are those of the package's own, which tiktoken runs: compared on 16,069 tokens of English, Serbian and code.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    fields = read_fields((importlib.resources.files("nanoguard.assets") / "tokenizer.pkl").read_bytes())
    ranks, special = fields["mergeable_ranks"], fields["special_tokens"]
    vocab = {_spell(token): rank for token, rank in ranks.items()}
    merges = [
        tuple(map(_spell, _parts(token, ranks))) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1
    ]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(fields["pat_str"]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(sorted(special, key=special.__getitem__))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, special[BEGIN])]
    )
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(pad_id=special[PAD], pad_token=PAD)
    return tokenizer


def read_fields(pickled: bytes) -> Mapping[str, Any]:
    """Return the fields of the only object of a pickle, a dict of literals and of dicts of them, without loading it.

    Raises:
        ValueError: the pickle holds something else.
    """
    stack: list[Any] = []
    marks: list[int] = []
    for operation, argument, _ in pickletools.genops(pickled):
        name = operation.name
        if name in LITERALS:
            stack.append(argument)
        elif name in {"EMPTY_DICT", "EMPTY_TUPLE"}:
            stack.append({} if name == "EMPTY_DICT" else ())
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "SETITEMS":
            start = marks.pop()
            items = stack[start:]
            del stack[start:]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name in {"STACK_GLOBAL", "NEWOBJ"}:  # the class, and the object, whose state comes last
            stack[-2:] = [name]
        elif name == "BUILD":
            fields = stack.pop()
            if isinstance(fields, dict) and stack == ["NEWOBJ"]:
                return fields
            break
        elif name not in {"PROTO", "FRAME", "MEMOIZE"}:
            break
    raise ValueError("the pickle does not hold one object with a dict of texts, numbers and bytes")


def _parts(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens of which byte-pair encoding makes a token: what the lower ranks alone make of its bytes."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(first + second, len(ranks)) for first, second in itertools.pairwise(parts)]
        at = min(range(len(joined)), key=joined.__getitem__)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _bytes_to_characters() -> dict[int, str]:
    """Return the character by which tokenizers of bytes write each byte: printable ones as themselves, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}


_CHARACTERS: Final = _bytes_to_characters()


def _spell(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)
