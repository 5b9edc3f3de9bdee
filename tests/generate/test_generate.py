"""One loop against the plainest one: a full forward pass for every token, one text at a time."""

import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers import paths
from helpers.generate import batch as generate_batch
from helpers.generate import generate, inference, sampling
from helpers.generate.batch import DecodeBatch, Row, banned, prompt_ids, window_start
from helpers.generate.detokenize import Detokenizer
from helpers.generate.settings import Settings
from helpers.manifest import RoomError, write_manifest
from helpers.train.model import ARCHITECTURES, build_model, make_config
from helpers.vocab.tokenizer import build as build_tokenizer
from helpers.vocab.tokenizer import decode, encode

N_CTX = 24
TEXT = "绿萝怎么浇水？看土，干透了再浇。龟背竹喜欢散射光，冬天少浇水。"
PROMPTS = ["绿萝怎么浇水？", "", "龟背竹喜欢散射光，冬天", "水"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tok():
    return build_tokenizer({"绿萝": 5, "浇水": 4, "怎么": 3, "龟背竹": 2, "散射光": 2}, set(TEXT))


def build(architecture: str, tok):
    cfg = make_config(architecture, tok, n_ctx=N_CTX, n_embd=32, n_layer=2, n_head=4, n_kv_head=2)
    cfg.vocab_size += 8  # as in models whose table is rounded up: ids without a token
    net = build_model(cfg, seed=0).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)  # far from uniform, so that a wrong mask shows
    return net.requires_grad_(False)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def net(request, tok):
    return build(request.param, tok)


@torch.inference_mode()
def naive_logits(net, tok, ids: list[int]) -> torch.Tensor:
    """No cache, no batch, no padding: the logits (1, V) after the ids that the model sees."""
    window = torch.tensor([ids[window_start(len(ids), N_CTX) :]])
    return net(input_ids=window, use_cache=False).logits[:, -1].masked_fill(banned(net, tok), -torch.inf)


def naive(net, tok, prompt: str, settings: Settings, number: int = 0) -> list[int]:
    """The new ids by the plainest loop."""
    ids = [tok.bos_token_id, *encode(tok, prompt)]
    new, chance = [], np.random.default_rng([settings.seed, number])
    while len(new) < settings.max_new_tokens:
        seen = torch.tensor([ids[window_start(len(ids), N_CTX) :]])
        logits = naive_logits(net, tok, ids)
        if settings.repetition_penalty != 1:
            logits = sampling.repetition_penalty(logits, seen, settings.repetition_penalty)
        logits = sampling.temperature(logits, settings.temperature)
        logits = sampling.top_p(sampling.top_k(logits, settings.top_k), settings.top_p)
        waits = chance.standard_exponential(logits.shape[-1]) if settings.temperature else 1.0
        token = (torch.as_tensor(waits) / logits[0].double().softmax(-1)).argmin().item()
        if token == tok.eos_token_id:
            break
        ids.append(token)
        new.append(token)
    return new


SAMPLED = Settings(max_new_tokens=30, temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.2, seed=3)


@pytest.mark.parametrize("settings", [Settings(max_new_tokens=30, temperature=0.0, seed=0), SAMPLED])
def test_cache_and_batch_change_nothing(net, tok, settings):
    """The text of the cached, padded batch is that of the plain loop, prompt by prompt."""
    batch = generate.generate_batch(net, tok, PROMPTS, settings)
    for prompt, sample in zip(PROMPTS, batch, strict=True):
        assert sample.tokens == naive(net, tok, prompt, settings)
        assert sample == generate.generate(net, tok, prompt, settings)[0]


@pytest.mark.parametrize("length", [1, N_CTX - 1, N_CTX, N_CTX + 1, 3 * N_CTX])
def test_logits_equal_those_without_cache_past_the_window(net, tok, length):
    """A prompt of any length, and a text that grows past the context, is no crash: the window slides as documented.

    Every logit at every length agrees with a full forward pass to 1e-4.
    """
    short = Row([tok.bos_token_id, 9, 10], Settings(max_new_tokens=3 * N_CTX + 2, seed=1))
    long = Row(range(8, 8 + length), Settings(max_new_tokens=3 * N_CTX + 2, seed=2))
    batch = DecodeBatch(net, tok)
    batch.add([short])
    batch.step()
    batch.add([long])
    while long in batch.rows and short in batch.rows:
        for row, logits in zip(batch.rows, batch.logits, strict=True):
            torch.testing.assert_close(logits[None], naive_logits(net, tok, row.ids), atol=1e-4, rtol=1e-4)
        batch.step()
    assert len(short.new) > 2 or short.finished


@pytest.mark.parametrize("beyond", [-1, 0, 1, 2 * N_CTX])
def test_prompts_around_the_window(net, tok, beyond):
    prompt = ("浇水" * (N_CTX + beyond - 1))[: 2 * (N_CTX + beyond - 1)]  # with the document's start: n_ctx + beyond
    assert len(prompt_ids(tok, prompt)) == N_CTX + beyond
    settings = Settings(max_new_tokens=5, seed=4)
    sample = generate.generate(net, tok, prompt, settings)[0]
    assert sample.text.startswith(prompt) and sample.tokens == naive(net, tok, prompt, settings)


def test_window_start_slides_by_halves():
    starts = [window_start(length, 8) for length in range(1, 20)]
    assert starts == [0] * 8 + [5] * 5 + [10] * 5 + [15]
    for n_ctx in (1, 2, 3, 8, 9):
        for length in range(1, 100):
            assert 1 <= length - window_start(length, n_ctx) <= n_ctx


def test_greedy_is_that_of_transformers(net, tok):
    for prompt in PROMPTS:
        ids = prompt_ids(tok, prompt)
        suppressed = banned(net, tok).nonzero().flatten().tolist()
        expected = net.generate(
            torch.tensor([ids]), max_new_tokens=10, do_sample=False, suppress_tokens=suppressed, pad_token_id=3,
            attention_mask=torch.ones(1, len(ids)), repetition_penalty=1.3,
        )[0, len(ids) :].tolist()  # fmt: skip
        sample = generate.generate(net, tok, prompt, Settings(10, temperature=0.0, repetition_penalty=1.3))[0]
        assert sample.tokens == [token for token in expected if token != tok.eos_token_id]


def test_rows_join_and_leave_without_a_trace(net, tok):
    """Same seed, same text, whatever else is in the batch: rows come, end, and are dropped around it."""
    ids = [prompt_ids(tok, prompt) for prompt in PROMPTS]
    alone = generate.generate(net, tok, PROMPTS[0], SAMPLED)[0]
    row = Row(ids[0], SAMPLED)
    others = [Row(ids[i % 4], Settings(2 + 3 * i, temperature=i / 3, top_k=i, seed=i)) for i in range(8)]
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


def watched(net, monkeypatch) -> tuple[list, list]:
    """Return two lists that fill with the shapes of what the model's decoder reads, and steps."""
    seen, ours = ([], []), inference.of(net)
    for shapes, name, work in zip(seen, ("read", "step"), (ours.read, ours.step), strict=True):
        see = lambda ids, *rest, shapes=shapes, work=work: (shapes.append(tuple(ids.shape)), work(ids, *rest))[1]  # noqa: E731
        monkeypatch.setattr(ours, name, see)
    return seen


def test_samples_come_from_one_prefill_and_differ(net, tok, monkeypatch):
    """n samples are one batch: the prompt is encoded once, and the samples are not n times the same text."""
    reads, steps = watched(net, monkeypatch)
    samples = generate.generate(net, tok, PROMPTS[0], Settings(5, seed=0), samples=6)
    assert reads == [(1, len(prompt_ids(tok, PROMPTS[0])))]
    assert len(steps) <= 4 and all(shape <= (6,) for shape in steps)
    assert len({tuple(sample.tokens) for sample in samples}) == 6
    assert generate.generate(net, tok, PROMPTS[0], Settings(5, seed=0), samples=2) == samples[:2]


def test_prefill_tracks_no_gradients(net, tok):
    ids, logits = generate.next_logits(net, tok, PROMPTS[0])
    assert logits.is_inference() and not logits.requires_grad
    assert ids.tolist() == [prompt_ids(tok, PROMPTS[0])]


def test_a_batch_is_never_wider_than_its_limit_and_keeps_its_order(net, tok, monkeypatch):
    monkeypatch.setattr(generate_batch, "MAX_ROWS", 4)
    _, steps = watched(net, monkeypatch)
    prompts = [TEXT[i : i + 3] for i in range(11)]
    samples = generate.generate_batch(net, tok, prompts, SAMPLED)
    assert max(steps) == (4,)
    assert samples == [generate.generate(net, tok, prompt, SAMPLED)[0] for prompt in prompts]


# ---- what may be written, where it ends, what is shown ----


@pytest.fixture
def forced(tok, monkeypatch):
    """A model that is made to write given ids after an empty prompt: forced(ids) -> model."""

    def make(ids: list[int]):
        net = build("gpt2", tok)
        ours = inference.of(net)

        def force(logits, lengths):
            for row, length in zip(logits, lengths, strict=True):
                if length <= len(ids):
                    row[ids[length - 1]] += 1e4
            return logits

        read, step = ours.read, ours.step
        monkeypatch.setattr(ours, "read", lambda ids, lengths, *rest: force(read(ids, lengths, *rest), lengths))
        monkeypatch.setattr(
            ours, "step", lambda ids, known, cache: force(step(ids, known, cache), [n + 1 for n in known])
        )
        return net

    return make


def test_stops_at_the_end_of_the_document(tok, forced):
    ids = [*encode(tok, "看土。"), tok.eos_token_id, *encode(tok, "浇水")]
    sample = generate.generate(forced(ids), tok, "", Settings(20, temperature=0.0))[0]
    assert (sample.text, sample.finished, sample.tokens) == ("看土。", True, ids[:-2])


def test_special_tokens_are_never_sampled(tok, forced):
    """Special tokens are out of the choice, instead of being sampled and then deleted from the text."""
    unwanted = [i for i in tok.all_special_ids if i != tok.eos_token_id] + [len(tok), len(tok) + 7]
    sample = generate.generate(forced(unwanted), tok, "", Settings(len(unwanted), seed=0), samples=20)
    assert not {token for s in sample for token in s.tokens} & set(unwanted)


def test_a_special_token_typed_by_a_user_is_text(net, tok):
    ids = prompt_ids(tok, "[CLS][MASK]")
    assert ids[0] == tok.bos_token_id and not set(ids[1:]) & set(tok.all_special_ids)
    assert generate.generate(net, tok, "[CLS]", Settings(3))[0].text.startswith("[CLS]")


RARE = "𠮷🌱é"  # spelled in bytes: four, four, two


def test_streaming_never_cuts_a_character_in_two(tok, forced):
    ids = [*encode(tok, "绿萝" + RARE + "浇水"), tok.eos_token_id]
    pieces = list(generate.stream(forced(ids), tok, "", Settings(40, temperature=0.0)))
    assert pieces == ["绿萝", RARE + "浇水"] or "".join(pieces) == "绿萝" + RARE + "浇水"
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_half_written_at_the_last_token_is_left_out(tok, forced):
    ids = encode(tok, "看土" + RARE)
    for length in range(2, len(ids) + 1):
        settings = Settings(length, temperature=0.0)
        text = generate.generate(forced(ids), tok, "", settings)[0].text
        assert ("看土" + RARE).startswith(text) and text.startswith("看土") and "\ufffd" not in text
        assert "".join(generate.stream(forced(ids), tok, "", settings)) == text


@hypothesis_settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(0, 40))
def test_pieces_add_up_to_the_text(tok, seed, length):
    """Also when the model writes byte pieces that are no characters, as an untrained one does."""
    net, settings = build("gpt2", tok), Settings(length, seed=seed)
    sample = generate.generate(net, tok, "浇水", settings)[0]
    assert sample.text == "浇水" + "".join(generate.stream(net, tok, "浇水", settings))
    assert len(sample.tokens) == length or sample.finished


# ---- where a text ends, by wish ----


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("水",), "看土。浇"),  # in the middle of a token
        (("。浇",), "看土"),  # across two tokens
        (("热", "土。浇水", "。浇水，再"), "看"),  # the first that ends wins; of those, the one that begins first
        (("没有",), "看土。浇水，再浇🌱水"),
        (("🌱",), "看土。浇水，再浇"),  # spelled in bytes
    ],
)
def test_a_text_ends_before_a_stop_string(tok, forced, stop, text):
    ids = [*encode(tok, "看土。浇水，再浇🌱水"), tok.eos_token_id]
    net, settings = forced(ids), Settings(40, temperature=0.0, stop=stop)
    sample = generate.generate(net, tok, "", settings)[0]
    assert sample.text == text and sample.finished and sample.reason == ("end" if stop == ("没有",) else "stop")
    assert decode(tok, sample.tokens).startswith(text)
    assert decode(tok, sample.tokens[:-1]) != text  # no token after the end, none before it left out
    pieces = [piece.text for piece in generate.stream_chunks(net, tok, "", settings)]
    assert "".join(pieces) == text  # what may become a stop string is held back


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("看土。浇水", "看土。"),
        ("“看土。”浇水", "“看土。”"),  # the closing quote belongs to the sentence
        ("看土？！……浇水", "看土？！……"),
        ("\n\n看土\n浇水", "\n\n看土\n"),  # an empty line is no sentence, a line is one
        ("看土，浇水", "看土，浇水"),
        ("看土。", "看土。"),
    ],
)
def test_a_text_ends_after_a_sentence(tok, forced, written, text):
    ids = [*encode(tok, written), tok.eos_token_id]
    settings = Settings(60, temperature=0.0, sentence=True)
    sample = generate.generate(forced(ids), tok, "", settings)[0]
    assert (sample.text, sample.finished) == (text, True)
    assert "".join(generate.stream(forced(ids), tok, "", settings)) == text


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    words=st.lists(st.sampled_from(["绿萝", "浇", "水", "浇水", "。", "é", "🌱", "a"]), max_size=12),
    stop=st.lists(st.text("绿萝浇水。é🌱a", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_writing_is_a_search_in_the_text(tok, words, stop):
    """Whatever the cuts: the text ends where the first stop string to be complete begins; nothing settled changes."""
    whole, writing, settled = "".join(words), Detokenizer(tok, tuple(stop)), ""
    for token in encode(tok, whole):
        ended = writing.push(token)
        assert writing.text.startswith(settled)
        settled = writing.text[: writing.settled]
        if ended:
            break
    complete = [end for end in range(len(whole) + 1) if any(whole[:end].endswith(each) for each in stop)]
    assert writing.stopped == bool(complete)
    if not complete:
        assert writing.text == whole
    else:  # a token may complete several: then the one that begins first
        assert not any(each in writing.text for each in stop)
        assert whole.startswith(writing.text) and len(writing.text) <= complete[0]


# ---- what the model thought ----


def test_choices_are_what_the_model_thought_before_the_filters(net, tok):
    """Probability, rank and alternatives of every token, also past the context: as a plain forward pass has them."""
    settings = Settings(2 * N_CTX, temperature=0.7, top_k=5, seed=2, logprobs=3)
    sample = generate.generate(net, tok, "浇水", settings)[0]
    plain = Settings(2 * N_CTX, temperature=0.7, top_k=5, seed=2)
    assert sample.tokens == generate.generate(net, tok, "浇水", plain)[0].tokens
    ids = prompt_ids(tok, "浇水")
    assert [choice.token for choice in sample.choices] == sample.tokens
    for choice in sample.choices:
        logprobs = naive_logits(net, tok, ids)[0].log_softmax(-1)
        assert choice.logprob == pytest.approx(float(logprobs[choice.token]), abs=1e-4)
        best = logprobs.sort(descending=True)
        assert best.indices[choice.rank - 1] == choice.token and choice.rank <= 5
        assert [logprob for _, logprob in choice.alternatives] == pytest.approx(best.values[:3].tolist(), abs=1e-4)
        names = [decode(tok, [i]) if i != tok.eos_token_id else "" for i in best.indices[:3].tolist()]
        assert [text for text, _ in choice.alternatives] == names
        ids.append(choice.token)


def test_only_who_asks_is_told_and_as_much_as_asked(net, tok):
    rows = [Row(prompt_ids(tok, "水"), Settings(3, seed=0, logprobs=n)) for n in (None, 0, 2, 1000)]
    batch = DecodeBatch(net, tok)
    batch.add(rows)
    while batch.rows:
        batch.step()
    counts = [[len(choice.alternatives) for choice in row.choices] for row in rows]
    size = net.config.vocab_size
    assert counts == [[], *([n] * len(row.new) for n, row in zip((0, 2, size), rows[1:], strict=True))]


# ---- settings that look back ----


def test_penalties_count_what_was_written_not_the_prompt(net, tok):
    """With a presence penalty that forbids, no token comes twice; the prompt's own tokens may come."""
    prompt = TEXT[:6]
    settings = Settings(N_CTX - 10, temperature=0.0, presence_penalty=100.0)
    tokens = generate.generate(net, tok, prompt, settings)[0].tokens
    assert len(tokens) == len(set(tokens)) > 3
    before = Settings(1, temperature=0.0, presence_penalty=-100.0)
    assert (
        generate.generate(net, tok, prompt, before)[0]
        == generate.generate(net, tok, prompt, Settings(1, temperature=0.0))[0]
    )


@pytest.mark.parametrize("length", [N_CTX - 2, 2 * N_CTX])
def test_no_ngram_comes_twice(net, tok, length):
    """Within what the model sees; beyond the window it has forgotten."""
    settings = Settings(length, temperature=0.3, seed=1, no_repeat_ngram=2)
    row = Row(prompt_ids(tok, "水"), settings)
    batch = DecodeBatch(net, tok)
    batch.add([row])
    while batch.rows:
        seen = batch.ids[0].tolist()
        batch.step()
        if not row.finished:
            assert (seen[-1], row.ids[-1]) not in zip(seen, seen[1:], strict=False)


class Only:
    """A constraint: these tokens, in this order."""

    def __init__(self, tokens):
        self.tokens = tokens

    def begin(self, tokenizer, eos, max_new_tokens):
        self.left, self.size = list(self.tokens), len(tokenizer)
        return self

    def allowed(self):
        return torch.arange(self.size) == self.left[0]

    def advance(self, token):
        assert token == self.left.pop(0)

    @property
    def done(self):
        return not self.left


def test_a_constraint_is_obeyed_and_ends_the_text(net, tok):
    wanted = encode(tok, "龟背竹喜欢浇水")
    rows = [Row(prompt_ids(tok, "水"), Settings(20, seed=3, constraint=Only(wanted)))]
    rows.append(Row(prompt_ids(tok, "水"), Settings(20, seed=3)))
    batch = DecodeBatch(net, tok)
    batch.add(rows)
    while batch.rows:
        batch.step()
    assert rows[0].new == wanted and rows[0].reason == "stop"
    assert rows[1].new == generate.generate(net, tok, "水", Settings(20, seed=3))[0].tokens


def test_stream_stops_when_asked(net, tok):
    stop, seen = threading.Event(), 0
    for _ in generate.stream(net, tok, "", Settings(1000, seed=0), stop):
        seen += 1
        if seen == 3:
            stop.set()
    assert seen <= 4  # one more: what was held back


def test_same_seed_same_text_and_no_global_dice(net, tok):
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    one, two = (generate.generate(net, tok, "水", Settings(20, seed=7))[0].text for _ in range(2))
    assert one == two
    assert len({generate.generate(net, tok, "水", Settings(20))[0].text for _ in range(3)}) == 3
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_no_new_tokens_is_the_prompt(net, tok):
    assert [s.text for s in generate.generate_batch(net, tok, ["水", ""], Settings(0))] == ["水", ""]
    assert list(generate.stream(net, tok, "水", Settings(0))) == []


def test_filtered_applies_the_settings(net, tok):
    ids, logits = generate.next_logits(net, tok, "水")
    assert generate.filtered(logits, ids, Settings()) is logits
    assert generate.filtered(logits, ids, Settings(top_k=5)).isfinite().sum() == 5
    assert generate.filtered(logits, ids, Settings(top_p=0)).isfinite().sum() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", -1), ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
     ("top_k", -1), ("top_p", 1.1), ("top_p", -0.1), ("repetition_penalty", 0), ("min_p", 2), ("typical_p", 0),
     ("presence_penalty", float("nan")), ("frequency_penalty", 101), ("no_repeat_ngram", -1), ("stop", ("",)),
     ("stop", "水"), ("logprobs", -1)],
)  # fmt: skip
def test_settings_out_of_range_are_refused_in_words(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*: it must be"):
        Settings(**{name: value})


def test_impossible_wishes_are_refused_in_words(net, tok):
    with pytest.raises(ValueError, match="samples is 0"):
        generate.generate(net, tok, "", samples=0)
    with pytest.raises(ValueError, match="no prompt"):
        generate.generate_batch(net, tok, [])
    net.train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        generate.generate(net, tok, "")
    net.eval()


# ---- loading ----


def test_load_checks_the_room(net, tok, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    with pytest.raises(RoomError, match="04_train"):
        generate.load("mine")
    folder = paths.room("mine", "train") / "final_model"
    net.save_pretrained(folder)
    tok.save_pretrained(folder)
    write_manifest("mine", "train", parameters={}, inputs=[], outputs=folder.iterdir(), result={})
    loaded, vocabulary = generate.load("mine")
    assert not loaded.training and loaded.dtype == torch.float32
    settings = Settings(8, seed=0)
    assert generate.generate(loaded.cpu(), vocabulary, "水", settings) == generate.generate(net, tok, "水", settings)
    assert generate.load(folder)[0].config.vocab_size == net.config.vocab_size
    (folder / "config.json").write_text("{}")
    with pytest.raises(RoomError, match="04_train"):
        generate.load("mine")
    with pytest.raises(RoomError, match="no model"):
        generate.load(tmp_path / "nowhere")
