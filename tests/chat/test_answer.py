"""Answers to many conversations at once are those to each alone, and end where the model ends its turn."""

import torch
from chats import TALKS, characters_tokenizer, tiny_model

from helpers.chat.answer import answer_batch, ask
from helpers.generate.settings import Settings
from helpers.vocab import chat

TOK = characters_tokenizer()
chat.add_template(TOK)
MODEL = tiny_model(TOK).eval()


def test_together_as_alone():
    talks = [ask("绿萝怎么浇水？"), TALKS[0][:1], [*TALKS[1][:2], *ask("喜欢晒太阳吗？")]]
    settings = Settings(max_new_tokens=12, seed=3)
    together = answer_batch(MODEL, TOK, talks, settings)
    assert [each.text for each in together] == [answer_batch(MODEL, TOK, [talk], settings)[0].text for talk in talks]


def test_the_answer_begins_after_the_prompt_and_ends_with_the_turn():
    ids = chat.encode_messages(TOK, ask("绿萝怎么浇水？"), True).ids
    with torch.no_grad():
        logits = MODEL(torch.tensor([ids])).logits[0, -1]
    logits[TOK.all_special_ids] = -torch.inf
    (sample,) = answer_batch(MODEL, TOK, [ask("绿萝怎么浇水？")], Settings(max_new_tokens=1, temperature=0.0))
    assert sample.tokens == [int(logits.argmax())]
