"""A word list becomes a Hugging Face fast tokenizer that cuts any text without loss and without thulac.

The model is a Unigram (Kudo 2018, "Subword Regularization"): each piece has a score, its log frequency, and a
text is cut into the pieces whose scores add up highest. Characters nobody has seen are spelled as UTF-8 bytes.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from helpers import paths

SPECIAL_TOKENS = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]"]  # ids 0-4, names as in the book
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ASCII = ["\t", "\n", "\r", *map(chr, range(32, 127))]
# Pieces are matched in plain text. With this score neither "[CLS]" nor "<0x41>" in a user's text ever beats the
# same text letter by letter: 1e4 is more than any six letters cost together.
_NEVER = -1e4


def build(words: dict[str, int], characters: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a word list: ids 0-4 special tokens, then the words, characters, and bytes.

    `words` maps a word to its count, in the order of the ids; `characters` are those seen in training.
    A character that is no word of the list scores like a word seen once. Document start is bos (`[MASK]`),
    document end eos (`[CLS]`). A word that has the name of a special or a byte piece is left to its letters.
    """
    total = sum(words.values()) or 1
    scores = dict.fromkeys(SPECIAL_TOKENS, _NEVER)
    for word, count in words.items():
        scores.setdefault(word, math.log(count / total))
    for character in sorted({*characters, *_ASCII}):
        scores.setdefault(character, math.log(1 / total))
    scores |= dict.fromkeys(_BYTES, _NEVER)

    unigram = models.Unigram(list(scores.items()), unk_id=SPECIAL_TOKENS.index("[UNK]"), byte_fallback=True)
    backend = Tokenizer(unigram)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="[MASK]",
        eos_token="[CLS]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        sep_token="[SEP]",
        split_special_tokens=True,  # "[CLS]" typed by a user is five letters
        clean_up_tokenization_spaces=False,  # it would turn "a ." into "a."
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=2**31 - 1,  # none of its own: the context belongs to the model
    )


def load(folder: Path | str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder (vocab/ or final_model/); raise RoomError where there is none."""
    if not (Path(folder) / "tokenizer.json").is_file():
        raise paths.RoomError(f"{folder} has no tokenizer.json: run notebook 02_vocab, or: python -m helpers.run vocab")
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _backend(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Tokenizer:
    """Return the Rust tokenizer, set to read special tokens as text, once the texts are known to be Unicode."""
    for number, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            where = f"text {number}, character {error.start}" if len(texts) > 1 else f"character {error.start}"
            raise ValueError(
                f"{where}: {text[error.start]!r} is half a surrogate pair, not a character. The text was decoded "
                "wrongly; read its file again with the right encoding"
            ) from None
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    return backend


def encode_batch(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, on all cores; no special token is added or read from the text."""
    backend = _backend(tokenizer, texts)
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of a user's text; decode gives exactly this text back. ValueError for a lone surrogate."""
    return encode_batch(tokenizer, [text])[0]


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """Return the text of ids; special tokens have none, and bytes that are not UTF-8 (models err) become U+FFFD."""
    return tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """Return the text cut where the tokenizer cuts it; unknown characters spelled in bytes are one piece together."""
    offsets = _backend(tokenizer, [text]).encode(text, add_special_tokens=False).offsets
    return [text[start:end] for start, end in dict.fromkeys(offsets)]


def scores(tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Return the score of every piece: a word's log frequency in nats."""
    return dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
