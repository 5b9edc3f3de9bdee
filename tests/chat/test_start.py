"""Where fine-tuning starts: roles that the model half knows, a template, the end of a turn."""

import pytest
import torch
from chats import N_CTX, characters_tokenizer, tiny_model

from helpers.chat.start import load_start
from helpers.manifest import RoomError
from helpers.train import checkpoint
from helpers.vocab import chat, tokenizer


def folder_of(folder, tok, architecture="llama", template=""):
    """Write a pretrained model with a tokenizer and perhaps a template of its own."""
    tok.chat_template = template or None
    checkpoint.export_model(folder, tiny_model(tok, architecture), tok)
    return str(folder)


def test_a_runs_own_model_knows_the_roles_by_what_stood_in_their_places(chat_run):
    model, tok, n_ctx = load_start(chat_run)
    rows = model.embed_tokens.weight
    assert torch.equal(rows[tok.user_token_id], rows[tok.bos_token_id])
    assert torch.equal(rows[tok.assistant_token_id], rows[tokenizer.encode(tok, "\n")[0]])
    assert n_ctx == N_CTX and chat.has_template(tok)
    assert load_start(chat_run, n_ctx=64)[2] == 64 and load_start(chat_run, n_ctx=4096)[2] == N_CTX


@pytest.mark.parametrize(
    ("named", "roles", "architecture", "more"),
    [("", ["<user>", "<assistant>"], "gpt2", 2), (" user:[USER] assistant:[BOT]", ["[USER]", "[BOT]"], "llama", 0)],
)
def test_roles_that_are_missing_or_have_other_names_are_begun_too(chat_run, tmp_path, named, roles, architecture, more):
    names = tokenizer.parse_special_tokens("pad:[PAD] bos:[CLS] eos:[SEP] unk:[UNK]" + named)
    own = tokenizer.build_words({"浇水": 3}, "今天浇水很热。", names)
    model, tok, _ = load_start(chat_run, folder_of(tmp_path / "theirs", own, architecture))
    rows, (user, assistant) = model.embed_tokens.weight, tok.convert_tokens_to_ids(roles)
    assert len(rows) == len(tok) == model.config.vocab_size == len(own) + more
    assert torch.equal(rows[user], rows[own.bos_token_id])
    assert torch.equal(rows[assistant], rows[tokenizer.encode(own, "\n")[0]])
    assert not torch.equal(rows[own.unk_token_id], rows[assistant])
    assert model.lm_head.weight is rows
    assert {user, assistant} <= set(model.generation["suppress_tokens"])


def test_a_models_own_template_is_kept_and_says_what_ends_a_turn(chat_run, tmp_path):
    own = characters_tokenizer()
    own.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    template = (
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    model, tok, _ = load_start(chat_run, folder_of(tmp_path / "theirs", own, template=template))
    assert tok.chat_template == template and len(tok) == len(own)
    end = tok.convert_tokens_to_ids("<|im_end|>")
    assert tok.eos_token_id == model.generation["eos_token_id"] == end
    assert end not in model.generation["suppress_tokens"]
    assert model.generation["temperature"] == chat.ANSWER_SAMPLING["temperature"]


def test_without_a_base_model_an_error_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    with pytest.raises(RoomError, match="train"):
        load_start("nothing")
