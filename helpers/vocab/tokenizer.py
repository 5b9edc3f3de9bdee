"""Words, characters, merges or bytes, or a pretrained model's vocabulary, become a Hugging Face fast tokenizer.

And text becomes ids, and ids text. Ours cut any text without loss and without thulac: what they have not seen they
spell as UTF-8 bytes. Words and characters are the pieces of a Unigram model (Kudo 2018, "Subword Regularization"): each
has a score, its log frequency, and a text is cut into the pieces whose scores add up highest.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import cached_file

from helpers.manifest import RoomError
from helpers.wording import run_again

KINDS = ("words", "characters", "bpe", "bytes")
SPECIAL_TOKENS = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]"]  # ids 0-4, names as in the book
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ASCII = ["\t", "\n", "\r", *map(chr, range(32, 127))]
# Pieces are matched in plain text. With this score neither "[CLS]" nor "<0x41>" in a user's text ever beats the
# same text letter by letter: 1e4 is more than any six letters cost together.
_NEVER = -1e4
_NAMES = {"bos_token": "[MASK]", "eos_token": "[CLS]", "pad_token": "[PAD]", "unk_token": "[UNK]", "sep_token": "[SEP]"}
# a merge never holds a blank, a mark or a sign: so "，我" is no piece, and none is called "[CLS]" or "<0x41>"
_RUNS = r"[^\s\p{P}\p{S}]+|[\s\p{P}\p{S}]"
# what is written without blanks: Chinese and Japanese characters, their punctuation, full-width forms
_NO_BLANKS = r"\p{Han}\p{Hiragana}\p{Katakana}\x{3000}-\x{303F}\x{FF00}-\x{FFEF}"


def build(words: dict[str, int], characters: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make the tokenizer "words", of a word list: ids 0-4 special tokens, then the words, characters, and bytes.

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

    return _ours(models.Unigram(list(scores.items()), unk_id=SPECIAL_TOKENS.index("[UNK]"), byte_fallback=True))


def build_characters(counts: dict[str, int]) -> PreTrainedTokenizerFast:
    """Make the tokenizer "characters": each character that was seen is a token, commonest first, then ASCII and bytes.

    `counts` says how often each was seen (`vocab.characters`).
    """
    return build(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))), ())


def build_bpe(texts: Iterable[str], vocab_size: int, min_count: int = 1) -> PreTrainedTokenizerFast:
    """Make the tokenizer "bpe": the commonest pair of neighbours becomes one token, again and again (Sennrich 2016).

    It has at most `vocab_size` tokens, special tokens, bytes, ASCII and every character seen among them; these stay
    even if they are more. A pair seen less than `min_count` times is not merged. No merge crosses a blank, a
    punctuation mark or a sign. The same texts give the same tokenizer.
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(_RUNS), "isolated")
    room = max(0, vocab_size - len(SPECIAL_TOKENS) - len(_BYTES))
    trainer = trainers.BpeTrainer(
        vocab_size=room, min_frequency=min_count, initial_alphabet=_ASCII, special_tokens=[], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    # sorted by id: the alphabet, then the merges in the order in which they are made
    return _bpe(sorted(learnt["vocab"], key=learnt["vocab"].get), [tuple(pair) for pair in learnt["merges"]])


def build_bytes() -> PreTrainedTokenizerFast:
    """Make the tokenizer "bytes": the special tokens, and the 256 bytes of which UTF-8 spells any text."""
    return _bpe([], [])


def _bpe(pieces: list[str], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    ids = {piece: i for i, piece in enumerate([*SPECIAL_TOKENS, *pieces, *_BYTES])}
    # without the learner's cut into runs: it costs half of the time, and as no merge crosses it, changes no token
    return _ours(models.BPE(vocab=ids, merges=merges, unk_token="[UNK]", byte_fallback=True))


def _ours(model) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(backend, _NAMES)


def _wrap(backend: Tokenizer, special_tokens: dict) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        split_special_tokens=True,  # "[CLS]" typed by a user is five letters
        clean_up_tokenization_spaces=False,  # it would turn "a ." into "a."
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=2**31 - 1,  # none of its own: the context belongs to the model
        **special_tokens,
    )


def pretrained(name: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a pretrained model, a local folder or a Hub name, that works like ours.

    Document start and end are bos and eos where the model has them, else [CLS] and [SEP] as in BERT; padding falls
    back on the end, the start too. What the model's own normalisation changes (BERT: capitals, newlines) is lost:
    decode(encode(x)) == x does not hold for all. Raises ValueError with what to do about it.
    """
    try:
        theirs = _theirs(name)
    except (OSError, ValueError, ImportError) as error:
        why = str(error).strip().split("\n")[0][:200]
        raise ValueError(
            f"pretrained_model: no tokenizer could be read from '{name}' ({why}). Give a folder with tokenizer.json or "
            "vocab.txt (and tokenizer_config.json, where there is one), or a Hub name while you are online"
        ) from None
    names = {f"{kind}_token": getattr(theirs, f"{kind}_token") for kind in "bos eos pad unk sep cls mask".split()}
    end = names["eos_token"] or names["sep_token"]
    if not end:
        raise ValueError(
            f"pretrained_model: the tokenizer of '{name}' names no token that ends a document (eos_token, sep_token): "
            "write the one that its model was trained with into tokenizer_config.json"
        )
    start = names["bos_token"] or names["cls_token"] or end
    names |= {"bos_token": start, "eos_token": end, "pad_token": names["pad_token"] or end}
    others = [str(token) for token in theirs.added_tokens_decoder.values() if token.special]
    names["extra_special_tokens"] = [token for token in others if token not in names.values()]

    backend = theirs.backend_tokenizer
    backend.no_truncation()  # some folders carry the settings of their last batch
    backend.no_padding()
    backend.post_processor = processors.Sequence([])  # start and end are ours to set: a prompt has no end
    if isinstance(backend.decoder, decoders.WordPiece):
        blanks = f"(?<=[{_NO_BLANKS}]) +| +(?=[{_NO_BLANKS}])|^##"  # ## begins a text that goes on inside a word
        join = [decoders.WordPiece(prefix="##", cleanup=True), decoders.Fuse(), decoders.Replace(Regex(blanks), "")]
        backend.decoder = decoders.Sequence(join)
    tok = _wrap(backend, {kind: token for kind, token in names.items() if token})
    for token in {start, end}:
        if tok.convert_tokens_to_ids(token) in encode(tok, token):
            raise ValueError(
                f"pretrained_model: the tokenizer of '{name}' reads '{token}' in a text as its own signal, so any text "
                "could end a document: it cannot be used here"
            )
    return tok


def _theirs(name: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer from what the folder has; AutoTokenizer goes by the model's kind, and would take GPT-2's."""
    # not at the top: they import torch, which the workers of rooms 02 and 03 don't need
    from transformers import AutoTokenizer, BertTokenizer

    def has(file: str) -> bool:
        return cached_file(name, file, _raise_exceptions_for_missing_entries=False) is not None

    if has("tokenizer.json"):
        return PreTrainedTokenizerFast.from_pretrained(name)
    if has("vocab.txt"):
        return BertTokenizer.from_pretrained(name)
    if has("vocab.json") or has("tokenizer.model"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    raise ValueError("none of tokenizer.json, vocab.txt, vocab.json, tokenizer.model is there")


def load(folder: Path | str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder (vocab/ or final_model/); raise RoomError where there is none."""
    if not (Path(folder) / "tokenizer.json").is_file():
        raise RoomError(f"{folder} has no tokenizer.json: {run_again('vocab')}")
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
    """Return the ids of a user's text; of ours, decode gives exactly it back. ValueError for a lone surrogate."""
    return encode_batch(tokenizer, [text])[0]


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """Return the text of ids; special tokens have none, and bytes that are not UTF-8 (models err) become U+FFFD."""
    return tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """Return the text cut where the tokenizer cuts it; unknown characters spelled in bytes are one piece together.

    The pieces, joined, are the text: what a pretrained tokenizer passes over, blanks mostly, is a piece as well.
    """
    cut, at = [], 0
    for start, end in [*_backend(tokenizer, [text]).encode(text, add_special_tokens=False).offsets, (len(text),) * 2]:
        cut += [text[at:start], text[max(at, start) : end]]
        at = max(at, end)
    return [piece for piece in cut if piece]


def listed(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return a line for each id, its token, with ␣ for every blank in it: for people to read."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return ["".join("␣" if character.isspace() else character for character in token or "␣") for token in tokens]


def scores(tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Return the score of every piece of "words" or "characters": its log frequency in nats."""
    return dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
