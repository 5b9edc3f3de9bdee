"""Conversations in windows: answers only have labels, none sees another, and none is lost."""

import numpy as np
import pytest
import torch
from chats import N_CTX, TALKS, characters_tokenizer, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from helpers.chat.data import Conversations, fitting, pack_windows
from helpers.tokens.windows import IGNORE
from helpers.train.loss import Loss
from helpers.vocab import chat

TOK = characters_tokenizer()
chat.add_template(TOK)
ENCODED = [chat.encode_messages(TOK, talk) for talk in TALKS[:40]]
ARCHITECTURES = pytest.mark.parametrize("architecture", ["llama", "gpt2", "moe"])


def test_every_answer_is_a_label_once_and_nothing_else_is():
    windows = Conversations(ENCODED, N_CTX, TOK.pad_token_id)
    labels = np.concatenate([windows[i][1] for i in range(len(windows))])
    learnt = sorted(i for each in ENCODED for i, own in zip(*each, strict=True) if own)
    assert sorted(labels[labels != IGNORE].tolist()) == learnt
    assert windows.count_labels(np.arange(len(windows))) == len(learnt) == int(windows.labels.sum())
    assert max(len(each.ids) for each in ENCODED) <= N_CTX + 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(50, 90))
def test_packing_loses_nothing_and_overfills_nothing(sizes, n_ctx):
    sizes = np.array(sizes)
    windows = pack_windows(sizes, n_ctx)
    assert sorted(number for window in windows for number in window) == list(range(len(sizes)))
    assert all(0 < sizes[window].sum() <= n_ctx for window in windows)
    # no two windows could be one: each holds what has no room in those before it
    halves = [window for window in windows if 2 * sizes[window].sum() <= n_ctx]
    assert len(halves) <= 1


@ARCHITECTURES
def test_a_packed_batch_equals_its_conversations_one_by_one(architecture):
    model = tiny_model(TOK, architecture).double().eval()
    loss_of = Loss(model)
    with torch.no_grad():
        packed = Conversations(ENCODED, N_CTX, TOK.pad_token_id)
        assert max(map(len, packed.windows)) > 1
        scores = loss_of(*packed.batch(range(len(packed))))
        alone = []
        for ids, is_answer in ENCODED:
            labels = torch.tensor([[i if own else IGNORE for i, own in zip(ids[1:], is_answer[1:], strict=True)]])
            alone.append(loss_of(torch.tensor([ids[:-1]]), labels).loss[0])
    want = torch.stack([torch.stack([alone[i] for i in members]).sum() for members in packed.windows])
    torch.testing.assert_close(scores.loss, want, rtol=0, atol=1e-12 * float(want.max()))


def test_a_long_conversation_becomes_pieces_of_whole_exchanges():
    system = {"role": "system", "content": "你是园丁。"}
    talk = [system, *(message for each in TALKS[:6] for message in each[:2])]
    pieces = list(fitting(TOK, [talk], N_CTX))
    assert len(pieces) > 1 and all(len(each.ids) <= N_CTX + 1 for each in pieces)
    prefix = chat.encode_messages(TOK, [system, talk[1]]).ids[: 1 + len("你是园丁。")]
    assert all(each.ids[: len(prefix)] == prefix for each in pieces)
    answers = [[i for i, own in zip(*each, strict=True) if own] for each in pieces]
    assert sum(answers, []) == [i for i, own in zip(*chat.encode_messages(TOK, talk), strict=True) if own]


def test_an_exchange_that_no_window_holds_is_left_out():
    long = [{"role": "user", "content": "浇水？" * 60}, {"role": "assistant", "content": "好。"}]
    left_out = []
    assert list(fitting(TOK, [long], N_CTX, left_out)) == [] and left_out == [long]
    kept = list(fitting(TOK, [[*TALKS[0][:2], *long, *TALKS[1][:2]]], N_CTX, left_out))
    assert left_out == [long, long]
    assert kept == [chat.encode_messages(TOK, TALKS[0][:2]), chat.encode_messages(TOK, TALKS[1][:2])]


def test_where_older_answers_change_each_is_learnt_after_those_before_it():
    tok = characters_tokenizer()
    chat.add_template(tok)
    tok.chat_template = tok.chat_template.replace(
        "message.content + eos_token", "('' if loop.last else '好') + message.content + eos_token"
    )
    talk = [message for each in TALKS[:6] for message in each[:2]]
    pieces = list(fitting(tok, [talk], N_CTX))
    assert len(pieces) == 6 and all(len(each.ids) <= N_CTX + 1 for each in pieces)
    for number, piece in enumerate(pieces, 1):
        begins = (chat.encode_messages(tok, talk[at : 2 * number - 1], True).ids for at in range(0, 2 * number, 2))
        asked = next(ids for ids in begins if len(ids) + sum(piece.is_answer) <= N_CTX + 1)
        assert piece.ids[: piece.is_answer.index(True)] == asked


def test_a_conversation_that_the_template_refuses_ends_nothing_unless_it_refuses_all():
    tok = characters_tokenizer()
    chat.add_template(tok)
    tok.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + tok.chat_template
    )
    refused, left_out = [{"role": "system", "content": "你是园丁。"}, *TALKS[0]], []
    assert list(fitting(tok, [refused, *TALKS[:3]], N_CTX, left_out)) == ENCODED[:3] and left_out == [refused]
    with pytest.raises(chat.ChatError, match="refuses these messages"):
        list(fitting(tok, [refused], N_CTX))


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="no conversation"):
        Conversations([], N_CTX, 0)
    with pytest.raises(ValueError, match="a window of 8"):
        Conversations(ENCODED, 8, 0)
