"""An answer ends where the model ends its turn, or where another would begin."""

import pytest
import torch
from chats import characters_tokenizer, tiny_model

from helpers.chat.start import end_at_line_break
from helpers.generate.batch import DecodeBatch, Row, end_ids
from helpers.generate.dialogue import as_messages
from helpers.generate.settings import Settings
from helpers.train.initial import note_special_tokens
from helpers.vocab import chat

TOK = characters_tokenizer()
chat.add_template(TOK)
MODEL = tiny_model(TOK).eval()


@pytest.mark.parametrize("token", ["<eos>", "<user>", "<assistant>", "<unk>", "\n", "好"])
def test_an_answer_ends_where_another_turn_would_begin(token):
    """A line break begins none where answers with line breaks are learnt, and is never written where none has one."""
    for answer, breaks in (("好。\n好。", True), ("好。", False)):
        model = tiny_model(TOK).eval()
        note_special_tokens(model, TOK)
        end_at_line_break(model, TOK, [[*as_messages("好\n吗？"), {"role": "assistant", "content": answer}]])
        batch = DecodeBatch(model, TOK)
        row = Row(TOK.convert_tokens_to_ids(["<bos>", "<user>"]), Settings(max_new_tokens=9))
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
    model.generation["eos_token_id"] = [*ids, 10**6]
    assert end_ids(model, plain) == {ids[0], ids[1]}
