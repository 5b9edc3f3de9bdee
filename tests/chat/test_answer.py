"""Answers to many conversations at once are those to each alone, and end where the model ends its turn."""

from chats import TALKS, characters_tokenizer, tiny_model

from helpers.generate.batch import Row
from helpers.generate.dialogue import answer_batch, as_messages
from helpers.generate.generate import write_rows
from helpers.generate.settings import Settings
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
