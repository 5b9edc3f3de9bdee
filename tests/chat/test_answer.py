"""Answers to many conversations at once are those to each alone, and end where the model ends its turn."""

import pytest
import torch
from chats import TALKS, characters_tokenizer, tiny_model

from helpers.chat.start import end_at_line_break
from helpers.generate.batch import DecodeBatch, Row, end_ids
from helpers.generate.dialogue import answer_batch, as_messages
from helpers.generate.generate import write_rows
from helpers.generate.settings import Settings
from helpers.train.model import suppress_special_tokens
from helpers.vocab import chat

TOK = characters_tokenizer()
chat.add_template(TOK)
MODEL = tiny_model(TOK).eval()


def test_together_as_alone():
    talks = [as_messages("绿萝怎么浇水？"), TALKS[0][:1], [*TALKS[1][:2], *as_messages("喜欢晒太阳吗？")]]
    settings = Settings(max_new_tokens=12, temperature=0.0)
    together = answer_batch(MODEL, TOK, talks, settings)
    assert [each.text for each in together] == [answer_batch(MODEL, TOK, [talk], settings)[0].text for talk in talks]


def test_a_seed_gives_each_conversation_random_numbers_of_its_own():
    """The same question eight times: eight answers, those of the samples 0 to 7, and the next call gives them again."""
    settings, talk = Settings(max_new_tokens=12, seed=3), as_messages("绿萝怎么浇水？")
    answers = [each.tokens for each in answer_batch(MODEL, TOK, [talk] * 8, settings)]
    assert len(set(map(tuple, answers))) == 8
    rows = [Row(chat.encode_messages(TOK, talk, True).ids, settings, number) for number in range(8)]
    write_rows(MODEL, TOK, rows, 1)  # one after the other
    assert answers == [row.new for row in rows]
    assert answers == [each.tokens for each in answer_batch(MODEL, TOK, [talk] * 8, settings)]


@pytest.mark.parametrize("token", ["<eos>", "<user>", "<assistant>", "<unk>", "\n", "好"])
def test_an_answer_ends_where_another_turn_would_begin(token):
    """A line break begins none where answers with line breaks are learnt, and is never written where none has one."""
    for answer, breaks in (("好。\n好。", True), ("好。", False)):
        model = tiny_model(TOK).eval()
        suppress_special_tokens(model, TOK)
        end_at_line_break(model, TOK, [[*as_messages("好\n吗？"), {"role": "assistant", "content": answer}]])
        batch, row = (
            DecodeBatch(model, TOK),
            Row(TOK.convert_tokens_to_ids(["<bos>", "<user>"]), Settings(max_new_tokens=9)),
        )
        batch.add([row])
        wanted = TOK.convert_tokens_to_ids(token)
        is_possible = bool(batch.logits[0, wanted] > -torch.inf)
        assert is_possible == (token != "<unk>" and (breaks or token != "\n"))
        if is_possible:
            batch.logits = torch.full_like(batch.logits, -torch.inf).index_fill_(1, torch.tensor([wanted]), 0.0)
            assert bool(batch.step()) == (row.reason == "end") == (token in TOK.all_special_tokens)


def test_what_a_models_own_settings_name_as_an_end_is_one_if_it_is_a_special_token():
    model, ids = tiny_model(TOK).eval(), TOK.convert_tokens_to_ids(["<eos>", "<unk>", "好"])
    plain = characters_tokenizer()
    assert end_ids(model, plain) == {ids[0]}
    model.generation_config.eos_token_id = [*ids, 10**6]
    assert end_ids(model, plain) == {ids[0], ids[1]}
