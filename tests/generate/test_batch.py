"""A batch of rows: each is as if alone, whatever joins, leaves, or slides beside it."""

import copy
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from models import N_CTX, add_tools

from helpers.generate import generate, sampling
from helpers.generate.batch import DecodeBatch, Row, active_filters, banned, prompt_ids, window_start
from helpers.generate.constraints import Constraint
from helpers.generate.settings import Settings, TokenLogprob
from helpers.vocab.tokenizer import decode, encode

PROMPTS = ["绿萝怎么浇水？", "", "龟背竹喜欢散射光，冬天", "水"]
SAMPLED = Settings(max_new_tokens=30, temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.2, seed=3)


def test_window_start_slides_by_halves():
    starts = [window_start(length, 8) for length in range(1, 20)]
    assert starts == [0] * 8 + [5] * 5 + [10] * 5 + [15]
    for n_ctx in (1, 2, 3, 8, 9):
        for length in range(1, 100):
            assert 1 <= length - window_start(length, n_ctx) <= n_ctx


def test_rows_join_and_leave_without_a_trace(net, tok):
    """Same seed, same text, whatever else is in the batch: rows come, end, and are dropped around it."""
    ids = [prompt_ids(tok, prompt) for prompt in PROMPTS]
    alone = generate.generate(net, tok, PROMPTS[0], SAMPLED)[0]
    row = Row(ids[0], SAMPLED)
    others = [Row(ids[i % 4], Settings(max_new_tokens=2 + 3 * i, temperature=i / 3, top_k=i, seed=i)) for i in range(8)]
    batch = DecodeBatch(net, tok)
    batch.add(others[:3])
    batch.step()
    batch.add([row, others[3]])
    while row in batch.rows:
        batch.step()
        if others[4:]:
            batch.add([others.pop()])
        batch.drop([other for other in batch.rows if other is not row][:1] if len(batch.rows) > 3 else [])
    assert row.new == alone.tokens and row.finished == alone.finished


def write(net, tok, *settings, prompt="水"):
    """Return rows that continue a prompt with these settings in one batch."""
    rows = [Row(prompt_ids(tok, prompt), each) for each in settings]
    generate.write_rows(net, tok, rows)
    return rows


def test_noise_that_the_device_makes_is_each_rows_own(net, tok, monkeypatch):
    """As on a GPU: the same seed, the same text, whatever is beside it; another sample is another text."""
    monkeypatch.setattr("helpers.generate.batch.MADE_ON_CPU", set())
    settings = Settings(max_new_tokens=20, seed=7)
    three = generate.generate(net, tok, "水", settings, samples=3)
    assert len({each.text for each in three}) == 3
    assert write(net, tok, replace(settings, temperature=0.0), settings)[1].new == three[0].tokens


def test_only_who_asks_is_told_and_as_much_as_asked(net, tok):
    rows = write(net, tok, *(Settings(max_new_tokens=3, seed=0, logprobs=n) for n in (None, 0, 2, 1000)))
    counts = [[len(token.alternatives) for token in row.logprobs] for row in rows]
    size = net.config.vocab_size
    assert counts == [[], *([n] * len(row.new) for n, row in zip((0, 2, size), rows[1:], strict=True))]


@pytest.fixture
def no_end(tok, monkeypatch):
    """The document's end is never written."""
    end = torch.tensor([tok.eos_token_id])
    monkeypatch.setattr("helpers.generate.batch.banned", lambda *given: banned(*given).index_fill(0, end, True))


def test_the_mark_of_a_call_may_be_written_and_that_of_a_result_never(tok):
    tools = add_tools(copy.deepcopy(tok))
    size = SimpleNamespace(config=SimpleNamespace(vocab_size=len(tools)), generation={}, device="cpu")
    assert banned(size, tools)[tools.convert_tokens_to_ids(["<tool>", "<result>"])].tolist() == [False, True]


@pytest.mark.parametrize("prompt", ["水", "浇水" * 2 * N_CTX], ids=["short", "long"])
def test_no_ngram_comes_twice(net, tok, no_end, prompt):
    """In all of the text, also where the window has slid over what the model no longer sees."""
    pairs_once = Settings(max_new_tokens=4 * N_CTX, temperature=0.3, seed=1, no_repeat_ngram=2)
    row, _ = write(net, tok, pairs_once, Settings(max_new_tokens=9, seed=2, no_repeat_ngram=3), prompt=prompt)
    pairs = list(pairwise(row.ids))
    assert len(row.new) == 4 * N_CTX
    for at, pair in enumerate(pairs[row.prompt_length - 1 :], row.prompt_length - 1):
        assert pair not in pairs[:at]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_of_what_was_written_outlast_the_window(net, tok, no_end, name):
    """A penalty that forbids: each token once, until none is left that has not come; the prompt does not count."""
    settings = Settings(max_new_tokens=6 * N_CTX, temperature=0.0, **{name: 100.0})
    (row,) = write(net, tok, settings, prompt=PROMPTS[0])
    assert len(row.new) == 6 * N_CTX == len(set(row.new)) and set(row.new) & set(row.ids[: row.prompt_length])


def test_the_repetition_penalty_forgets_what_the_model_no_longer_sees(small, tok, no_end):
    """As it is documented: in a long text every common token would be penalized at last."""
    settings = Settings(max_new_tokens=3 * N_CTX, temperature=0.0, repetition_penalty=100.0)
    row = Row(prompt_ids(tok, PROMPTS[0]), settings)
    batch = DecodeBatch(small, tok)
    batch.add([row])
    while batch.rows:
        wanted = sampling.repetition_penalty(batch.logits, batch.ids, 100.0).argmax().item()
        batch.step()
        assert row.ids[-1] == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("more", [{}, {"top_k": 3, "presence_penalty": 1.0}])
def test_a_model_whose_training_diverged_writes_nothing(net, tok, temperature, more):
    """The likeliest of logits that are all NaN would be the first one, which ends the text."""
    broken = copy.deepcopy(net)
    broken.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="diverged"):
        write(broken, tok, *[Settings(max_new_tokens=5, temperature=temperature, seed=0, **more)] * 2)


def test_filters_that_shape_the_distribution_do_not_change_a_greedy_text(net, tok):
    """Alone they are left out, beside a row that is drawn they are not: typical_p would remove the likeliest token."""
    plain = Settings(max_new_tokens=12, temperature=0.0, repetition_penalty=1.3)
    shaped = replace(plain, top_k=3, typical_p=0.1, min_p=0.5)
    row, _ = write(net, tok, shaped, Settings(max_new_tokens=12, seed=1))
    assert row.new == write(net, tok, shaped)[0].new == write(net, tok, plain)[0].new


def test_a_constraint_is_obeyed_and_ends_the_text(net, tok):
    lines, plain = Constraint("看水", 3, ends=("。",)), Settings(max_new_tokens=20, seed=3)
    row, other = write(net, tok, replace(plain, constraint=lines), plain)
    assert re.fullmatch(r"看\w\w。水\w\w。", decode(tok, row.new)) and row.reason == "stop"
    assert other.new == write(net, tok, plain)[0].new


def test_filters_that_are_off_in_all_rows_are_left_out():
    """Greedy rows are rows at temperature 0, whatever their top_p; a row that does not use a filter has it off."""
    rows = [Settings(), Settings(top_p=0, top_k=3), Settings(temperature=0.5, min_p=0.1)]
    columns = {name: values.tolist() for name, values in active_filters(rows).items()}
    assert columns == {"temperature": [1, 0, 0.5], "top_k": [0, 3, 0], "min_p": [0, 0, 0.1]}
    assert active_filters([Settings()]) == {}


@pytest.mark.parametrize("streamed", [True, False])
def test_bytes_of_one_character_begin_where_it_does(tok, streamed):
    ids = encode(tok, "绿萝饕水")
    row = Row([tok.bos_token_id], Settings(max_new_tokens=40, logprobs=0), streamed=streamed)
    row.begin(tok)
    for token in ids:
        row.write(token, False, TokenLogprob(token, "?", -1.0, 1, ()))
    row.reason = "end"
    told = row.take().logprobs if streamed else row.result(tok, "").logprobs
    starts = [each.start for each in told]
    assert "绿萝饕水"[starts[-1]] == "水" and len(starts) == len(ids) > 4
    assert starts.count("绿萝饕水".index("饕")) == 3  # its bytes in UTF-8
