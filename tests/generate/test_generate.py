"""One loop against the plainest one: a full forward pass for every token, one text at a time."""

import copy
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from models import N_CTX, PLANTS, naive_logits, plants_model
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from helpers import paths
from helpers.generate import generate, sampling
from helpers.generate.batch import banned, prompt_ids, window_start
from helpers.generate.settings import Settings
from helpers.manifest import RoomError, write_manifest
from helpers.model.decoder import decoder_of
from helpers.model.huggingface import save_model
from helpers.train.checkpoint import export_model
from helpers.vocab.tokenizer import decode, encode

PROMPTS = ["绿萝怎么浇水？", "", "龟背竹喜欢散射光，冬天", "水", PLANTS, PLANTS * 3]  # the last two exceed the context


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
        noise = chance.standard_exponential(logits.shape[-1]) if settings.temperature else 1.0
        token = (torch.as_tensor(noise) / logits[0].double().softmax(-1)).argmin().item()
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


@pytest.fixture
def lettered(net, tok):
    """The model without its bytes: it writes whole characters (we leave half a character out, the library does not)."""
    net = copy.deepcopy(net)
    net.lm_head.weight[tok.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in range(256)])] = 0
    net.generation["suppress_tokens"] = banned(net, tok).nonzero().flatten().tolist()  # as training saves it
    return net


def test_a_plain_pipeline_and_generate_write_our_greedy_text(lettered, tok, tmp_path):
    """The saved folder begins a text with the document's start by itself, as training and `prompt_ids` do."""
    export_model(tmp_path / "final_model", lettered, tok)
    folder = str(tmp_path / "final_model")
    model, theirs = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    write = pipeline("text-generation", model=folder, device="cpu")
    for prompt in ("绿萝怎么浇水？", "<eos>绿萝<user>", "看", "绿 é<0x41>", ""):
        expected = generate.generate(lettered, tok, prompt, Settings(max_new_tokens=10, temperature=0.0))[0]
        assert len(expected.tokens) > 2 or not prompt
        ids = theirs(prompt, return_tensors="pt")  # of no prompt the document's start alone
        assert ids["input_ids"].tolist() == [prompt_ids(tok, prompt)]
        written = model.generate(**ids, max_new_tokens=10, do_sample=False)[0]
        assert theirs.decode(written, skip_special_tokens=True) == expected.text
        if prompt:  # a pipeline asks for one
            assert write(prompt, max_new_tokens=10, do_sample=False)[0]["generated_text"] == expected.text


def watched(net, monkeypatch) -> tuple[list, list]:
    """Return two lists that fill with the shapes of what the model's decoder reads, and steps."""
    seen, ours = ([], []), decoder_of(net)
    for shapes, name, work in zip(seen, ("read", "advance"), (ours.read, ours.advance), strict=True):
        see = lambda ids, *rest, shapes=shapes, work=work: (shapes.append(tuple(ids.shape)), work(ids, *rest))[1]  # noqa: E731
        monkeypatch.setattr(ours, name, see)
    return seen


def test_samples_come_from_one_prefill_and_differ(net, tok, monkeypatch):
    """n samples are one batch: the prompt is encoded once, and the samples are not n times the same text."""
    reads, steps = watched(net, monkeypatch)
    samples = generate.generate(net, tok, PROMPTS[0], Settings(max_new_tokens=5, seed=0), samples=6)
    assert reads == [(1, len(prompt_ids(tok, PROMPTS[0])))]
    assert len(steps) <= 4 and all(shape <= (6,) for shape in steps)
    assert len({tuple(sample.tokens) for sample in samples}) == 6
    assert generate.generate(net, tok, PROMPTS[0], Settings(max_new_tokens=5, seed=0), samples=2) == samples[:2]


def test_prefill_tracks_no_gradients(net, tok):
    ids, logits = generate.next_logits(net, tok, PROMPTS[0])
    assert logits.is_inference() and not logits.requires_grad
    assert ids.tolist() == [prompt_ids(tok, PROMPTS[0])]


def test_a_batch_is_never_wider_than_its_limit_and_keeps_its_order(net, tok, monkeypatch):
    _, steps = watched(net, monkeypatch)
    prompts = [PLANTS[i : i + 3] for i in range(11)]
    samples = generate.generate_batch(net, tok, prompts, SAMPLED, max_rows=4)
    assert max(steps) == (4,)
    assert samples == [generate.generate(net, tok, prompt, SAMPLED)[0] for prompt in prompts]


def test_prompts_may_be_ids_and_each_a_sample_of_its_own(small, tok):
    samples = generate.generate(small, tok, "水", SAMPLED, samples=3)
    numbered = generate.generate_batch(small, tok, ["水", prompt_ids(tok, "水"), "水"], SAMPLED, numbered=True)
    assert [each.tokens for each in numbered] == [each.tokens for each in samples]
    assert [each.text for each in numbered] == [samples[0].text, samples[1].text[1:], samples[2].text]


# ---- what may be written, where it ends, what is shown ----


@pytest.fixture
def forced(tok, monkeypatch):
    """A model that is made to write given ids after an empty prompt: forced(ids) -> model."""

    def make(ids: list[int]):
        net = plants_model("gpt2", tok)
        ours = decoder_of(net)

        def force(logits, lengths):
            for row, length in zip(logits, lengths, strict=False):
                if length <= len(ids):
                    row[ids[length - 1]] += 1e4
            return logits

        read, advance = ours.read, ours.advance
        monkeypatch.setattr(ours, "read", lambda ids, lengths, *rest: force(read(ids, lengths, *rest), lengths))
        monkeypatch.setattr(ours, "advance", lambda ids, cache: force(advance(ids, cache), cache.lengths))
        return net

    return make


def test_special_tokens_are_never_sampled(tok, forced):
    """Special tokens are out of the choice, instead of being sampled and then deleted from the text."""
    unwanted = [i for i in tok.all_special_ids if i != tok.eos_token_id] + [len(tok), len(tok) + 7]
    assert {tok.user_token_id, tok.assistant_token_id} < set(unwanted)  # the roles of a conversation, not trained yet
    sample = generate.generate(forced(unwanted), tok, "", Settings(max_new_tokens=len(unwanted), seed=0), samples=20)
    assert not {token for s in sample for token in s.tokens} & set(unwanted)


def test_no_character_is_ever_cut_in_two(tok, forced):
    """Neither in a stream nor at the last token."""
    whole = "看土𠮷🌱é浇"  # three are spelled in bytes: four, four, two
    ids = [*encode(tok, whole), tok.eos_token_id]
    for length in range(2, len(ids) + 1):
        settings = Settings(max_new_tokens=length, temperature=0.0)
        text = generate.generate(forced(ids), tok, "", settings)[0].text
        assert whole.startswith(text) and text.startswith("看土") and "\ufffd" not in text
        pieces = list(generate.stream_text(forced(ids), tok, "", settings))
        assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
    assert text == whole


@hypothesis_settings(max_examples=25)
@given(seed=st.integers(0, 10**6), length=st.integers(0, 40))
@example(seed=0, length=0)
def test_pieces_add_up_to_the_text(tok, seed, length):
    """Also when the model writes byte pieces that are no characters, as an untrained one does."""
    net, settings = plants_model("gpt2", tok), Settings(max_new_tokens=length, seed=seed)
    sample = generate.generate(net, tok, "浇水", settings)[0]
    assert sample.text == "浇水" + "".join(generate.stream_text(net, tok, "浇水", settings))
    assert len(sample.tokens) == length or sample.finished


# ---- where a text ends, by wish ----


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("。浇",), "看土"),  # across two tokens
        (("热", "土。浇水", "。浇水，再"), "看"),  # the first that ends wins; of those, the one that begins first
        (("没有",), "看土。浇水，再浇🌱水"),
        (("🌱",), "看土。浇水，再浇"),  # spelled in bytes
    ],
)
def test_a_text_ends_before_a_stop_string(tok, forced, stop, text):
    ids = [*encode(tok, "看土。浇水，再浇🌱水"), tok.eos_token_id]
    net, settings = forced(ids), Settings(max_new_tokens=40, temperature=0.0, stop=stop)
    sample = generate.generate(net, tok, "", settings)[0]
    assert sample.text == text and sample.finished and sample.reason == ("end" if stop == ("没有",) else "stop")
    assert decode(tok, sample.tokens).startswith(text)
    assert decode(tok, sample.tokens[:-1]) != text  # no token after the end, none before it left out
    pieces = [piece.text for piece in generate.stream_chunks(net, tok, "", settings)]
    assert "".join(pieces) == text  # what may become a stop string is held back


def test_a_text_ends_after_a_sentence(tok, forced):
    """What counts as one, the tests of the detokenizer say."""
    net = forced([*encode(tok, "“看土。”浇水"), tok.eos_token_id])
    settings = Settings(max_new_tokens=60, temperature=0.0, sentence=True)
    sample = generate.generate(net, tok, "", settings)[0]
    assert (sample.text, sample.reason) == ("“看土。”", "stop")
    assert "".join(generate.stream_text(net, tok, "", settings)) == sample.text


# ---- what the model thought ----


def test_logprobs_are_what_the_model_thought_before_the_filters(net, tok):
    """Probability, rank and alternatives of every token, also past the context: as a plain forward pass has them."""
    settings = Settings(max_new_tokens=2 * N_CTX, temperature=0.7, top_k=5, seed=2, logprobs=3)
    sample = generate.generate(net, tok, "浇水", settings)[0]
    plain = Settings(max_new_tokens=2 * N_CTX, temperature=0.7, top_k=5, seed=2)
    assert sample.tokens == generate.generate(net, tok, "浇水", plain)[0].tokens
    ids = prompt_ids(tok, "浇水")
    assert [written.token for written in sample.logprobs] == sample.tokens
    for written in sample.logprobs:
        logprobs = naive_logits(net, tok, ids)[0].log_softmax(-1)
        assert written.logprob == pytest.approx(float(logprobs[written.token]), abs=1e-4)
        best = logprobs.sort(descending=True)
        assert best.indices[written.rank - 1] == written.token and written.rank <= 5
        assert [logprob for _, logprob in written.alternatives] == pytest.approx(best.values[:3].tolist(), abs=1e-4)
        names = [decode(tok, [i]) if i != tok.eos_token_id else "" for i in best.indices[:3].tolist()]
        assert [text for text, _ in written.alternatives] == names
        ids.append(written.token)


def test_same_seed_same_text_and_no_global_dice(net, tok):
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    one, two = (generate.generate(net, tok, "水", Settings(max_new_tokens=20, seed=7))[0].text for _ in range(2))
    assert one == two
    assert len({generate.generate(net, tok, "水", Settings(max_new_tokens=20))[0].text for _ in range(3)}) == 3
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


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


def test_names_that_nothing_has_are_refused_in_words():
    with pytest.raises(ValueError, match="a run has no model 'chatt'; did you mean 'chat'"):
        generate.load("mine", "chatt")
    for name in ("runs/mine/model/final_model", "runs\\mine"):
        with pytest.raises(ValueError, match=r"is no name of a run: to load a model from a folder, give Path\('runs"):
            generate.load(name)


def test_load_checks_the_room(net, tok, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    with pytest.raises(RoomError, match="04_train"):
        generate.load("mine")
    folder = paths.room("mine", "train") / "final_model"
    save_model(folder, net)
    tok.save_pretrained(folder)
    write_manifest("mine", "train", parameters={}, inputs=[], outputs=folder.iterdir(), result={})
    write_manifest("mine", "tools", parameters={}, inputs=[], outputs=[], result={})
    loaded, vocabulary = generate.load("mine", generate.latest_model("mine"))  # tools is taken only by name
    assert not loaded.training and loaded.lm_head.weight.dtype == torch.float32
    settings = Settings(max_new_tokens=8, seed=0)
    assert generate.generate(loaded.cpu(), vocabulary, "水", settings) == generate.generate(net, tok, "水", settings)
    assert generate.load(folder)[0].config.vocab_size == net.config.vocab_size
    (folder / "config.json").write_text("{}")
    with pytest.raises(RoomError, match="04_train"):
        generate.load("mine")
    with pytest.raises(RoomError, match="no model"):
        generate.load(tmp_path / "nowhere")
