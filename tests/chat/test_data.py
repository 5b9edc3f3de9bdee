"""What there is to learn from: a run's own conversations, the grammar's, and plain documents."""

import math

import pytest
from chats import N_CTX, TALKS, characters_tokenizer, make_chat_run, text_of

from helpers import paths
from helpers.chat.data import VALIDATION, exchange_messages, load_lessons, plain_documents
from helpers.corpus import built_in
from helpers.manifest import RoomError, write_manifest
from helpers.vocab.tokenizer import decode, encode


def test_the_conversations_of_a_corpus_keep_their_split(chat_run):
    lessons = load_lessons(chat_run, 0, seed=0)
    assert lessons.train == TALKS[:200] and lessons.val == TALKS[200:]
    assert lessons.floor_bits_per_char is None
    assert load_lessons(chat_run, 7, seed=0).train == TALKS[:7]


def test_a_corpus_without_conversations_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    with pytest.raises(RoomError, match="question and answer"):
        load_lessons(make_chat_run(conversations=False), 0, seed=0)


def test_the_grammar_gives_any_number_and_the_floor_of_their_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    paths.room("t", "corpus").mkdir(parents=True)
    write_manifest("t", "corpus", parameters={}, inputs=[], outputs=[], result={"source": "sample"})
    lessons = load_lessons("t", 300, seed=0)
    assert len(lessons.train) == 300 and len(lessons.val) == VALIDATION
    learnt = set(map(text_of, lessons.train))
    assert len(learnt) == 300 and not learnt & set(map(text_of, lessons.val))
    drawn = {text_of(exchange_messages(each)): each for each in built_in.draw_conversations(VALIDATION, 1)}
    bits = [exchange.bits for talk in lessons.val for exchange in drawn[text_of(talk)]]
    characters = sum(len(m["content"]) for talk in lessons.val for m in talk[1::2])
    assert lessons.floor_bits_per_char == pytest.approx(math.fsum(bits) / characters, rel=1e-12)


def test_plain_documents_are_learnt_whole(chat_run):
    tok = characters_tokenizer()
    found = plain_documents(chat_run, tok, 50, N_CTX, seed=0)
    texts = {text_of(talk) for talk in TALKS[:200]}
    whole = [ids for ids, _ in found if decode(tok, ids) in texts]
    # but not that a question follows an answer
    left_out = [[i for i, own in zip(*each, strict=True) if not own] for each in found if each.ids in whole]
    assert [len(each) for each in left_out] == [decode(tok, ids).count("\n") // 2 for ids in whole]
    assert {i for each in left_out for i in each} == set(encode(tok, "\n"))
    assert 40 <= len(whole) <= len(found) == 50  # a few are longer than a window
    assert all((ids[0], ids[-1]) == (tok.bos_token_id, tok.eos_token_id) for ids in whole)
    assert all(len(ids) <= N_CTX + 1 for ids, _ in found)
    assert [plain_documents(chat_run, tok, 50, N_CTX, seed) == found for seed in (0, 1)] == [True, False]
    assert [len(plain_documents(chat_run, tok, 10**6, N_CTX, 0, own)) for own in (True, False)] == [200, 0]


def test_of_a_document_longer_than_a_window_one_window_is_learnt(chat_run):
    """A novel is longer than any window: left out, replay would be nothing at all."""
    tok, n_ctx = characters_tokenizer(), 16
    texts = [f"<{text_of(talk)}>" for talk in TALKS[:200]]
    found = plain_documents(chat_run, tok, 50, n_ctx, seed=0)
    assert len(found) == 50 and all(len(ids) == n_ctx + 1 for ids, _ in found)
    begins, ends = (tok.bos_token_id, tok.eos_token_id)
    for ids, _ in found:
        piece = "<" * (ids[0] == begins) + decode(tok, ids) + ">" * (ids[-1] == ends)
        assert any(piece in text for text in texts)
    assert any(ids[0] != begins and ids[-1] != ends for ids, _ in found)
