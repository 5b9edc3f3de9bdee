"""Where fine-tuning starts: roles that the model half knows, a template, the end of a turn."""

import pytest
import torch
from chats import CHATML, N_CTX, TALKS, qwen_folder, tiny_model

from helpers.chat.start import end_at_line_break, load_start
from helpers.manifest import RoomError
from helpers.train import checkpoint
from helpers.vocab import chat, tokenizer


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
    checkpoint.export_model(tmp_path / "theirs", tiny_model(own, architecture), own)
    model, tok, _ = load_start(chat_run, str(tmp_path / "theirs"))
    rows, (user, assistant) = model.embed_tokens.weight, tok.convert_tokens_to_ids(roles)
    assert len(rows) == len(tok) == model.config.vocab_size == len(own) + more
    assert torch.equal(rows[user], rows[own.bos_token_id])
    assert torch.equal(rows[assistant], rows[tokenizer.encode(own, "\n")[0]])
    assert not torch.equal(rows[own.unk_token_id], rows[assistant])
    assert model.lm_head.weight is rows
    assert {user, assistant} <= set(model.generation["suppress_tokens"])


def test_a_models_own_template_is_kept_and_says_what_ends_a_turn(chat_run, tmp_path):
    own = qwen_folder(tmp_path)
    model, tok, n_ctx = load_start(chat_run, str(tmp_path))
    assert tok.chat_template == CHATML and len(tok) == len(own) and n_ctx == model.config.n_ctx < 512
    end, noted = tok.convert_tokens_to_ids("<|im_end|>"), model.generation["suppress_tokens"]
    assert tok.eos_token_id == model.generation["eos_token_id"] == end and end not in noted
    assert model.generation["temperature"] == chat.ANSWER_SAMPLING["temperature"]
    end_at_line_break(model, tok, TALKS)  # its answers may have lines: it has learnt to end
    assert model.generation["suppress_tokens"] == noted


def test_without_a_base_model_an_error_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    with pytest.raises(RoomError, match="train"):
        load_start("nothing")
