"""A tokenizer as BERT's, trained on a few texts."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

__all__ = ["SENTENCES", "SPECIAL", "train_wordpiece"]

SENTENCES = ["a gripping film", "the plot is thin but the film is gripping", "two hours of films, well spent"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def train_wordpiece(size: int, special: Sequence[str] = SPECIAL) -> Tokenizer:
    """Return WordPiece with [CLS] and [SEP], and a vocabulary of that size."""
    built = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    built.train_from_iterator(SENTENCES, trainer)
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return built
