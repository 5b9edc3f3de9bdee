"""A run small enough to fine-tune in a second: conversations, a tokenizer of characters, a random base model."""

import json
from collections import Counter
from itertools import islice

from families import library_model
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.chat.data import exchange_messages
from helpers.corpus import built_in
from helpers.manifest import write_manifest
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.tokens.shards import write_shards
from helpers.train import checkpoint
from helpers.vocab import tokenizer

N_CTX = 128
CHATML = """{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def text_of(messages) -> str:
    return "\n".join(message["content"] for message in messages)


drawn = map(exchange_messages, built_in.draw_conversations(900))
TALKS = list(islice((talk for talk in drawn if 30 < len(text_of(talk)) < 80), 220))  # they fit into a window


def characters_tokenizer():
    return tokenizer.build_characters(Counter("".join(map(text_of, TALKS))) + Counter("\n"))


def tiny_model(tok, architecture: str = "llama", seed: int = 0):
    return GPT(make_config(architecture, len(tok), n_ctx=N_CTX, n_embd=32, n_layer=2, n_head=2)).init_weights(seed)


def qwen_folder(folder) -> PreTrainedTokenizerFast:
    """Write a random model in the form of a Qwen2.5-…-Instruct, whose template has a system line of its own."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(map(text_of, TALKS), 700, show_progress=False)
    names = dict(eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=["<|im_start|>"])
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(bpe.to_str()), chat_template=CHATML, **names)
    tok.save_pretrained(folder)
    library_model("qwen2", vocab_size=len(tok) + 8).save_pretrained(folder)  # it has rows to spare
    return tok


def make_chat_run(run: str = "t", conversations: bool = True) -> str:
    """Make a run whose corpus, tokens and base model are ready."""
    corpus = paths.room(run, "corpus")
    corpus.mkdir(parents=True)
    tok = characters_tokenizer()
    for split, talks in (("train", TALKS[:200]), ("val", TALKS[200:])):
        rows = [
            {"text": text_of(talk), "source": "a"} | ({"messages": talk} if conversations else {}) for talk in talks
        ]
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (corpus / f"{split}-00000.jsonl").write_text("".join(lines), "utf-8")
    result = {"source": "talks.jsonl", "documents": len(TALKS)}
    write_manifest(run, "corpus", parameters={}, inputs=[], outputs=corpus.glob("*.jsonl"), result=result)
    tok.save_pretrained(paths.room(run, "vocab"))
    write_shards(run, 1, workers=1)
    result = dict(n_ctx=N_CTX, stride=N_CTX, dtype="uint16", windows=200, packing="documents", val_chars_per_token=1.0)
    outputs = paths.room(run, "tokenize").glob("*.bin")
    write_manifest(run, "tokenize", parameters={}, inputs=[], outputs=outputs, result=result)
    final = paths.room(run, "train") / "final_model"
    checkpoint.export_model(final, tiny_model(tok), tok)
    write_manifest(run, "train", parameters={}, inputs=[], outputs=sorted(final.iterdir()), result={})
    return run
