"""Room 04: what a 0 becomes, for the built-in corpus and for any other text, time and machine."""

import functools
import math
from dataclasses import asdict, replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import TOK, make_trainer, settings

from helpers import paths
from helpers.manifest import write_manifest
from helpers.model.gpt import GPT
from helpers.train import plan, rules
from helpers.train.initial import config_from_settings
from helpers.train.rules import FIXED, Machine, Text, choose_numbers
from helpers.train.settings import TrainSettings

V = 4000
NOVEL, POEMS = Text(700_000, 5500), Text(1_700_000, 21_000)
BUILT_IN = Text(1_100_000, 26_000, built_in=True)
LAPTOP, CARD = 1e11, 2e14  # operations per second in training


def size(n_embd, n_layer):
    return 12 * n_layer * n_embd**2


def speed(rate):
    return lambda n_embd, n_layer: rate / (6.0 * (V * n_embd + size(n_embd, n_layer)))


def choose(text=NOVEL, rate=LAPTOP, device="cpu", **changes):
    return choose_numbers(TrainSettings(**changes), text, Machine(size, speed(rate), device))


def numbers(text=NOVEL, rate=LAPTOP, device="cpu", **changes):
    return choose(text, rate, device, **changes).settings


def per_update(given_settings):
    return given_settings.batch_size * given_settings.gradient_accumulation * given_settings.devices


# ---- the built-in corpus ----


@pytest.mark.parametrize("rate", [1.0, LAPTOP, CARD])
def test_the_built_in_corpus_has_numbers_that_no_machine_changes(rate):
    """Its outputs are committed: they can only be compared if every machine trains the same model equally long."""
    found = choose(BUILT_IN, rate)
    assert {name: getattr(found.settings, name) for name in FIXED} == FIXED == dict(
        n_embd=192, n_layer=2, n_head=3, dropout=0.0, epochs=2, batch_size=64, gradient_accumulation=1, lr=1e-2
    )  # fmt: skip
    assert found.settings.max_minutes == 0 and len(found.reasons) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_built_in_corpus_has_the_same_updates_for_any_number_of_processes(device):
    for devices in (1, 2, 4, 64):
        assert per_update(numbers(BUILT_IN, CARD, device, devices=devices)) == 64


def test_by_the_clock_the_built_in_corpus_says_so():
    found = choose(BUILT_IN, max_minutes=30)
    assert "epochs" not in found.reasons[0] and "max_minutes 30: the time decides" in found.reasons[1]


@pytest.mark.parametrize(("given", "moves"), [
    (dict(n_embd=256), dict(n_head=4)), (dict(n_embd=100), dict(n_head=1)), (dict(optimizer="adamw"), dict(lr=3e-3)),
    (dict(batch_size=16), dict(gradient_accumulation=4)), (dict(gradient_accumulation=8), dict(batch_size=8)),
])  # fmt: skip
def test_a_given_number_of_the_built_in_corpus_moves_those_that_hang_on_it(given, moves):
    found = numbers(Text(1000, 10, built_in=True), **given)
    assert {name: getattr(found, name) for name in moves} == moves


# ---- any other text ----

GIVEN = st.fixed_dictionaries(
    {},
    optional=dict(
        n_embd=st.sampled_from([32, 96, 200, 256]), n_layer=st.integers(1, 6), epochs=st.integers(1, 9),
        batch_size=st.integers(1, 64), gradient_accumulation=st.integers(1, 9), lr=st.sampled_from([1e-4, 1e-2]),
        max_minutes=st.sampled_from([0.5, 30.0]), devices=st.integers(1, 4),
    ),
)  # fmt: skip


@given(GIVEN, st.integers(1_000, 10**9), st.integers(16, 1024), st.floats(1e9, 1e15))
def test_what_is_given_stays_and_nothing_is_left_open(changes, tokens, length, rate):
    found = choose(Text(tokens, -(-tokens // length)), rate, **changes)
    chosen = asdict(found.settings)
    kept = {name: value for name, value in changes.items() if name != "max_minutes" or "epochs" in changes}
    assert {name: chosen[name] for name in kept} == kept
    assert not found.settings.undecided() and found.reasons
    assert chosen["n_embd"] % chosen["n_head"] == 0
    assert chosen["max_minutes"] <= changes.get("max_minutes", rules.MINUTES)


@given(st.floats(1e9, 1e15), st.floats(1.0, 100.0), st.sampled_from([NOVEL, POEMS, Text(10**8, 10**5)]))
def test_a_faster_machine_never_gets_a_smaller_model(rate, times, text):
    slow, fast = numbers(text, rate), numbers(text, rate * times)
    assert (slow.n_embd, slow.n_layer) <= (fast.n_embd, fast.n_layer)


def test_a_long_text_ends_with_the_time_and_a_short_one_before_it_is_learnt_by_heart():
    long, short = numbers(Text(10**8, 10**6)), numbers(Text(10_000, 80))
    assert long.max_minutes == rules.MINUTES == 6
    assert short.max_minutes == 0 and short.epochs == rules.most_epochs(10_000)
    assert numbers(Text(10_000, 80), max_minutes=60.0).max_minutes == 0
    assert numbers(POEMS, max_minutes=1.0).max_minutes == 1


def test_a_longer_time_or_a_card_gives_a_larger_model():
    sizes = [
        math.prod((each.n_embd, each.n_embd, each.n_layer))
        for each in (numbers(POEMS, max_minutes=0.5), numbers(POEMS, max_minutes=8.0))
    ]
    assert sizes[0] < sizes[1]
    assert numbers(Text(10**9, 10**6), CARD).n_embd >= 512


def test_the_updates_are_neither_few_nor_small():
    for text in (NOVEL, POEMS):
        found = numbers(text)
        tokens = min(360 * speed(LAPTOP)(found.n_embd, found.n_layer), rules.FRESH * text.tokens)
        updates = tokens / (per_update(found) * text.tokens / text.windows)
        assert rules.UPDATES / 1.5 < updates < rules.UPDATES * 1.5
    assert per_update(numbers(NOVEL, devices=4, epochs=3)) % 4 == 0
    assert {per_update(numbers(NOVEL, gradient_accumulation=n)) for n in (1, 2, 4)} == {per_update(numbers(NOVEL))}


def test_more_epochs_do_not_make_larger_updates():
    """Of a text that is read again and again, small updates learn more (benchmarks/README.md)."""
    three, eight = (numbers(NOVEL, epochs=epochs, n_embd=64, n_layer=2) for epochs in (3, 8))
    assert per_update(three) == per_update(eight)
    assert per_update(numbers(NOVEL, epochs=1, n_embd=64, n_layer=2)) < per_update(three)


@pytest.mark.parametrize("length", [32, 128, 1000])
def test_a_forward_pass_has_about_as_many_tokens_whatever_the_window(length):
    found = numbers(Text(10**9, 10**9 // length), CARD)
    assert found.gradient_accumulation > 1
    assert rules.PASS_TOKENS / 1.5 < found.batch_size * length < rules.PASS_TOKENS * 1.5


def test_a_gpu_takes_all_windows_of_an_update_at_once():
    """There a pass of 64 windows takes hardly longer than one of 32: the same updates, in fewer passes."""
    found = numbers(BUILT_IN, CARD, "cuda")
    assert (found.batch_size, found.gradient_accumulation) == (64, 1)
    assert numbers(BUILT_IN, CARD, "cuda", batch_size=16).gradient_accumulation == 4
    on_cpu, on_gpu = (numbers(POEMS, CARD, device) for device in ("cpu", "cuda"))
    assert per_update(on_gpu) == per_update(on_cpu) and on_gpu.gradient_accumulation == 1 < on_cpu.gradient_accumulation


@pytest.mark.parametrize("changes, dropout", [
    ({"epochs": 4}, 0.0), ({"epochs": 5}, 0.1), ({"epochs": 8}, 0.1), ({"epochs": 9}, 0.2),
    ({"epochs": 9, "max_minutes": 0.5}, 0.0),  # there is no time for them
    ({"epochs": 1, "max_minutes": 90.0}, 0.2),  # the clock decides alone
    ({"epochs": 9, "dropout": 0.0}, 0.0), ({"epochs": 1, "dropout": 0.3}, 0.3),
])  # fmt: skip
def test_the_more_often_a_text_is_read_the_more_is_dropped(changes, dropout):
    assert numbers(NOVEL, n_embd=64, n_layer=2, **changes).dropout == dropout


def test_epochs_that_take_longer_than_the_usual_time_are_trained_all_the_same():
    quick, slow = (numbers(NOVEL, rate, epochs=12, n_embd=64, n_layer=2) for rate in (LAPTOP, LAPTOP / 1000))
    assert quick == slow and slow.dropout == 0.2 and slow.max_minutes == 0


def test_a_pretrained_model_keeps_its_shape_and_is_changed_gently():
    asked = TrainSettings(pretrained_model="somebody/model")
    found = choose_numbers(
        asked, NOVEL, Machine(lambda *_: 10**8, lambda *_: 200.0)
    ).settings  # its own size, whatever the shape says
    assert found.lr == pytest.approx(1e-3) and found.n_embd == 0 and not found.undecided()


def test_shapes_are_measured_from_the_smallest_to_the_first_that_is_too_large():
    """Measuring the largest would take a small machine minutes."""
    asked = []
    machine = Machine(size, lambda *shape: asked.append(shape) or speed(LAPTOP)(*shape))
    found = choose_numbers(TrainSettings(), POEMS, machine).settings
    measured = list(dict.fromkeys(asked))
    assert measured == list(rules.MODEL_SHAPES[: len(measured)])
    assert measured[-2] == (found.n_embd, found.n_layer)


def test_a_given_number_of_heads_leaves_the_widths_that_it_divides():
    assert numbers(POEMS, n_head=6).n_embd % 6 == 0
    assert numbers(POEMS, n_head=6, n_embd=100).n_embd == 100  # what is given stays; `make_config` says what is wrong


@hypothesis.settings(max_examples=40)
@given(
    st.sampled_from(["gpt2", "llama", "moe"]),
    st.sampled_from([0, 0, 64, 100, 150, 192, 250, 768]),
    st.sampled_from([0, 0, 1, 2, 3, 4]),
    st.sampled_from([NOVEL, POEMS, Text(1000, 10, built_in=True)]),
)
def test_every_choice_of_heads_can_be_built(architecture, n_embd, n_kv_head, text):
    """Wherever any number of heads can be: the width of a head is even for rotary positions, and key heads share."""
    chosen = numbers(text, architecture=architecture, n_embd=n_embd, n_kv_head=n_kv_head)
    config = functools.partial(config_from_settings, tokenizer=TOK, n_ctx=16)
    if any(_can(config, replace(chosen, n_head=n_head)) for n_head in range(1, chosen.n_embd + 1)):
        GPT(config(replace(chosen, n_layer=1))).init_weights(0)


def _can(config, settings):
    try:
        return bool(config(settings))
    except ValueError:
        return False


def test_what_does_not_depend_on_the_time_is_decided_without_measuring():
    given = dict(n_embd=128, n_layer=2, epochs=3, batch_size=8, gradient_accumulation=1)
    found = choose_numbers(TrainSettings(**given), NOVEL, Machine(size, lambda *_: pytest.fail("measured")))
    assert (found.settings.n_head, found.settings.lr) == (2, 1e-2) and found.reasons == ["n_head 2, dropout 0, lr 0.01"]


def test_the_reasons_name_what_the_run_uses():
    """Also where a number was given: they are printed, and kept with the model."""
    by_rule, rate, batch, epochs = (
        choose(**given).reasons
        for given in ({}, dict(lr=0.5), dict(batch_size=8, gradient_accumulation=2), dict(epochs=3))
    )
    assert by_rule[-1].endswith("lr 0.01") and "so that there are about 500 updates" in by_rule[-1]
    assert rate[-1].endswith("lr 0.5")
    assert batch[-1] == "16 windows per update; lr 0.01"
    assert by_rule[0].startswith("6 min 00 s at ") and epochs[0] == by_rule[0].split(" at ")[1]


@pytest.mark.parametrize("text", [Text(600, 5), Text(600, 5, built_in=True), Text(13_000, 300, built_in=True)])
def test_a_tiny_text_has_epochs_enough_for_the_warm_up(text):
    found = numbers(text)
    assert found.epochs * math.ceil(text.windows / per_update(found)) >= 2 * found.warmup_steps
    assert numbers(text, epochs=1).epochs == 1
    assert numbers(text, warmup_steps=0).epochs == (2 if text.built_in else rules.most_epochs(text.tokens))


# ---- in a run ----


def test_a_run_keeps_its_choice_when_the_machine_is_slower_today(monkeypatch, run):
    write_manifest(run, "corpus", parameters={}, inputs=[], outputs=[], result={"documents": 40})
    asked = replace(settings(run), n_embd=0, n_layer=0, n_head=0, epochs=0, batch_size=0, lr=0.0, max_minutes=0.0)
    monkeypatch.setattr(plan, "measure_update", lambda *_: plan.UpdateTime(1e-4, 0.0))
    first = rules.decide(asked)
    assert not first.settings.undecided() and first.settings.gradient_accumulation == asked.gradient_accumulation
    monkeypatch.setattr(plan, "measure_update", lambda *_: plan.UpdateTime(1e3, 0.0))
    assert rules.decide(asked) == first
    other = rules.decide(replace(asked, max_minutes=0.001))  # another question
    assert other.settings != first.settings
    (paths.run_dir(run) / "choice.json").unlink()
    assert rules.decide(asked).settings != first.settings
    assert rules.decide(settings(run)).settings == settings(run)


def test_the_trainer_takes_no_zero_for_a_number(tmp_path):
    with pytest.raises(ValueError, match="batch_size, lr: 0 leaves them to a rule"):
        make_trainer(tmp_path, batch_size=0, lr=0.0)
