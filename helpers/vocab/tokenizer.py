"""Tokenizers of words, characters, BPE merges or bytes, or of a pretrained model; text becomes ids, ids become text.

All are Hugging Face fast tokenizers. Ours cut any text without loss and without thulac: what they have not seen they
spell in UTF-8 bytes. Words and characters are the pieces of a Unigram model (Kudo 2018, "Subword Regularization"): each
piece has a score, its log frequency, and a text is cut into the pieces whose scores have the highest sum.

A saved tokenizer puts a document's start token in front of a text, so that a plain `transformers` pipeline begins where
the model begins; the functions here add no special token. Knows nothing of corpora, windows or models.
"""

import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from helpers.manifest import RoomError

TOKEN_KINDS = ("words", "characters", "bpe", "bytes")
PRETRAINED_KINDS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")  # of models that can be trained further
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ASCII = ["\t", "\n", "\r", *map(chr, range(32, 127))]
# Pieces are matched in plain text. With this score neither "<bos>" nor "<0x41>" in a user's text ever wins over the
# same text letter by letter: six letters, each seen once in a corpus of 10^12 words, cost 6 × ln(10^12) = 166.
_NEVER = -1e4
_NEEDED = {"pad": "padding", "bos": "a document's start", "eos": "a document's end", "unk": "what is unknown"}
# a merge holds no space, punctuation or symbol, so no piece is "，我", "<bos>" or "<0x41>"
_RUNS = r"[^\s\p{P}\p{S}]+|[\s\p{P}\p{S}]"
# written without spaces: Chinese and Japanese characters, their punctuation, full-width forms
_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\x{3000}-\x{303F}\x{FF00}-\x{FFEF}"


def parse_special_tokens(text: str) -> dict[str, str]:
    """Read special tokens, "pad:<pad> bos:<bos> …": return the name of each meaning, in the order of the ids.

    pad, bos, eos and unk are required; other meanings are registered too. Raises ValueError.
    """
    names: dict[str, str] = {}
    for part in text.split():
        meaning, colon, name = part.partition(":")
        mark = any(unicodedata.category(letter)[0] in "PS" for letter in name)  # no merge of BPE crosses one
        why = ""
        if not colon or not re.fullmatch("[a-z_]+", meaning):
            why = f"'{part}' is not written as meaning:name, like bos:<bos>, in lower-case letters and without spaces"
        elif meaning in names or name in names.values():
            why = f"'{meaning if meaning in names else name}' comes twice: give each meaning one name, and each its own"
        elif len(name) < 2 or not mark or set(name) & set(":$") or name in _BYTES:
            why = (
                f"'{name}' cannot be the name of {meaning}: take two characters or more, among them a mark as in "
                f"<{meaning}> or [{meaning.upper()}], but neither ':' nor '$', and not the name of a byte"
            )
        if why:
            raise ValueError(f"special_tokens: {why}")
        names[meaning] = name
    for meaning, what in _NEEDED.items():
        if meaning not in names:
            raise ValueError(f"special_tokens: the token for {what} is missing: add {meaning}:<{meaning}>")
    return names


# ids 0-5; the last two are kept for the roles of a conversation
SPECIAL_TOKENS = parse_special_tokens("pad:<pad> bos:<bos> eos:<eos> unk:<unk> user:<user> assistant:<assistant>")


def build_words(
    words: Mapping[str, int],
    characters: Iterable[str],
    special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
    order: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Make the tokenizer "words" of a word list: first come special tokens, then words, characters and bytes.

    `words` maps a word to its count, in the order of the ids; `characters` that are not among them score like a word
    seen once. `special_tokens` maps a meaning to a name (see `parse_special_tokens`). `order`, the tokens of a
    `word_file`, comes first instead; what it alone names is special too.
    """
    total = sum(words.values()) or 1
    nameless = [token for token in order if token not in words and token not in special_tokens.values()]
    scores = dict.fromkeys([*(order or special_tokens.values()), *special_tokens.values()], _NEVER)
    for word, count in words.items():
        if word not in special_tokens.values():
            scores[word] = math.log(count / total)
    for character in sorted({*characters, *_ASCII}):
        scores.setdefault(character, math.log(1 / total))
    scores |= dict.fromkeys(_BYTES, _NEVER)
    unk = list(scores).index(special_tokens["unk"])
    return _lossless(models.Unigram(list(scores.items()), unk_id=unk, byte_fallback=True), special_tokens, nameless)


def build_characters(
    counts: Mapping[str, int], special_tokens: Mapping[str, str] = SPECIAL_TOKENS
) -> PreTrainedTokenizerFast:
    """Make the tokenizer "characters": all that were counted, most frequent first; then ASCII and bytes."""
    return build_words(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))), (), special_tokens)


def build_bpe(
    texts: Iterable[str],
    vocab_size: int,
    min_count: int = 1,
    special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
    characters: Collection[str] | None = None,
) -> PreTrainedTokenizerFast:
    """Make the tokenizer "bpe": the most frequent pair of neighbours becomes a token, again and again (Sennrich 2016).

    At most `vocab_size` tokens, but always the special tokens, bytes, ASCII and every character seen, or only
    `characters`, the most frequent ones. A pair seen less than `min_count` times is not merged. No merge crosses a
    space, a punctuation mark or a symbol.
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(_RUNS), "isolated")
    learnt_size = max(0, vocab_size - len(special_tokens) - len(_BYTES))
    limit: dict[str, Any] = {} if characters is None else {"limit_alphabet": len({*characters, *_ASCII})}
    trainer = trainers.BpeTrainer(
        vocab_size=learnt_size, min_frequency=min_count, initial_alphabet=_ASCII, special_tokens=[],
        show_progress=False, **limit,
    )  # fmt: skip
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    # sorted by id: the alphabet, then the merges in the order in which they are made
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].get)
    return _bpe(pieces, [tuple(pair) for pair in learnt["merges"]], special_tokens)


def build_bytes(special_tokens: Mapping[str, str] = SPECIAL_TOKENS) -> PreTrainedTokenizerFast:
    """Make the tokenizer "bytes": the special tokens and the 256 bytes, in which UTF-8 spells any text."""
    return _bpe([], [], special_tokens)


def _bpe(
    pieces: list[str], merges: list[tuple[str, str]], special_tokens: Mapping[str, str]
) -> PreTrainedTokenizerFast:
    ids = {piece: i for i, piece in enumerate([*special_tokens.values(), *pieces, *_BYTES])}
    # without the learner's pre-tokenizer: no merge crosses its cuts, so it changes no token, and takes half of the time
    model = models.BPE(vocab=ids, merges=merges, unk_token=special_tokens["unk"], byte_fallback=True)
    return _lossless(model, special_tokens)


def _lossless(
    model: models.Model, special_tokens: Mapping[str, str], others: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(backend, special_tokens, others)


def _wrap(backend: Tokenizer, special_tokens: Mapping[str, str], others: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return the Hugging Face tokenizer; `special_tokens` have meanings, `others` are special and have none."""
    start = special_tokens["bos"]
    # as in front of each document in training; no end, because a prompt goes on
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, backend.token_to_id(start))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        split_special_tokens=True,  # "<bos>" typed by a user is five letters
        clean_up_tokenization_spaces=False,  # it would turn "a ." into "a."
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=2**31 - 1,  # no limit of its own: the context length belongs to the model
        extra_special_tokens=list(others),
        # the roles too, so that tokenizer.user_token_id is there, as tokenizer.bos_token_id is
        **{f"{meaning}_token": name for meaning, name in special_tokens.items()},
    )


def load_pretrained_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a pretrained model, a local folder or a Hub name, set up to work like ours.

    A document starts and ends with bos and eos, or else with [CLS] and [SEP] as in BERT; the end stands in for a
    missing start or padding token. What the model's own normalisation changes (BERT: capitals, newlines) is lost.
    Raises ValueError where there is no usable tokenizer.
    """
    try:
        original = _load_original(fetch_settings(name))
    except (OSError, ValueError, ImportError) as error:
        why = str(error).strip().split("\n")[0][:200]
        raise ValueError(
            f"pretrained_model: no tokenizer could be read from '{name}' ({why}). Give a folder with tokenizer.json or "
            "vocab.txt, or a Hub name while you are online"
        ) from None
    names = {kind.removesuffix("_token"): token for kind, token in original.special_tokens_map.items()}
    end = names.get("eos") or names.get("sep")
    if not end:
        raise ValueError(
            f"pretrained_model: the tokenizer of '{name}' names no token that ends a document: write the eos_token "
            "that its model was trained with into tokenizer_config.json"
        )
    start = names.get("bos") or names.get("cls") or end
    names |= {"bos": start, "eos": end, "pad": names.get("pad") or end}
    others = [str(token) for token in original.added_tokens_decoder.values() if token.special]

    # no truncation, no padding, no spaces between Chinese characters
    backend = original.backend_tokenizer
    backend.no_truncation()  # some folders keep the settings of their last batch
    backend.no_padding()
    if isinstance(backend.decoder, decoders.WordPiece):
        spaces = f"(?<=[{_NO_SPACES}]) +| +(?=[{_NO_SPACES}])|^##"  # a text that starts inside a word starts with ##
        join = [decoders.WordPiece(prefix="##", cleanup=True), decoders.Fuse(), decoders.Replace(Regex(spaces), "")]
        backend.decoder = decoders.Sequence(join)
    tokenizer = _wrap(backend, names, [token for token in others if token not in names.values()])
    tokenizer.chat_template = original.chat_template
    # the name of a special token must stay text where a user types it
    for token in {start, end}:
        if tokenizer.convert_tokens_to_ids(token) in encode(tokenizer, token):
            raise ValueError(
                f"pretrained_model: the tokenizer of '{name}' reads '{token}' in a text as a special token, so any "
                "text could end a document: it cannot be used here"
            )
    return tokenizer


def fetch_settings(name: str) -> Path:
    """Return the folder with all files of a model but its weights: `name` itself, or what the Hub has by this name.

    One look-up, so that without a network the reason comes at once. Raises OSError, and ValueError for a model of a
    kind that this course cannot train.
    """
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.txt", "*.model", "*.jinja"]))
    try:
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    except OSError:  # a tokenizer may be alone
        return folder
    if kind not in PRETRAINED_KINDS:
        raise ValueError(f"the model is of the kind '{kind}': this course trains {', '.join(PRETRAINED_KINDS)}")
    return folder


def _load_original(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer that the folder holds; AutoTokenizer alone would go by the model's kind."""
    # imported here: they import torch, which the workers of rooms 02 and 03 do not need
    from transformers import AutoTokenizer, BertTokenizer

    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    if (folder / "vocab.txt").is_file():
        return BertTokenizer.from_pretrained(folder)
    if (folder / "vocab.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ValueError("it has no fast version; save one as tokenizer.json")
        return tokenizer
    if pieces := [each.name for each in folder.glob("*.model")]:
        raise ValueError(
            f"{pieces[0]} alone is not read here: look for a tokenizer.json of the same model, or make one where the "
            "package sentencepiece is installed, with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    raise ValueError("none of tokenizer.json, vocab.txt, vocab.json is there")


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder (vocab/ or final_model/); raise RoomError if there is none."""
    if not (Path(folder) / "tokenizer.json").is_file():
        raise RoomError(f"{folder} has no tokenizer.json: notebook 02_vocab writes it, and 04_train beside a model")
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _backend_for(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Tokenizer:
    """Check that the texts can be encoded as UTF-8; return the Rust tokenizer, set to read special tokens as text."""
    for number, text in enumerate(texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            where = f"text {number}, " if len(texts) > 1 else ""
            raise ValueError(
                f"{where}character {error.start}: {text[error.start]!r} is half a surrogate pair, not a character: "
                "read the file of this text with the right encoding"
            ) from None
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    return backend


def encode_batch(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], inside: bool = False) -> list[list[int]]:
    """Return the ids of each text; no special token is added to or read from it. ValueError for a lone surrogate.

    inside: the texts stand behind a special token; to some models of SentencePiece only the first one begins a word.
    """
    backend = _backend_for(tokenizer, texts)
    if inside:
        backend = _inside(tokenizer, len(tokenizer)) or backend
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


@lru_cache(4)
def _inside(tokenizer: PreTrainedTokenizerFast, size: int) -> Tokenizer | None:
    """Return a copy that puts no space before a text, if `tokenizer` does so at the very beginning only."""
    if '"prepend_scheme":"first"' not in (whole := tokenizer.backend_tokenizer.to_str()):
        return None
    copied = json.loads(whole)
    scheme = json.dumps(copied["pre_tokenizer"]).replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    backend = Tokenizer.from_str(json.dumps(copied | {"pre_tokenizer": json.loads(scheme)}))
    backend.encode_special_tokens = True
    return backend


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of one text, as `encode_batch` does; for our own tokenizers decode(encode(text)) == text."""
    return encode_batch(tokenizer, [text])[0]


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """Return the text of ids without special tokens; bytes that are not UTF-8 (a model may err) become U+FFFD."""
    return tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)


def to_pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """Return the pieces of a text, which joined are it; a character's bytes are one, and so is what is skipped."""
    offsets = _backend_for(tokenizer, [text]).encode(text, add_special_tokens=False).offsets
    cut, at = [], 0
    for start, end in [*offsets, (len(text), len(text))]:
        cut += [text[at:start], text[max(at, start) : end]]
        at = max(at, end)
    return [piece for piece in cut if piece]


def readable_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return the token of each id with ␣ for every space in it: one line of vocab_user.txt per id."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return ["".join("␣" if character.isspace() else character for character in token or "␣") for token in tokens]


def piece_scores(tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Return the score of every piece of the tokenizers "words" and "characters": its log frequency, in nats."""
    return dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
