"""Beam search against transformers' own, and against all texts there are."""

import copy

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from helpers.generate import beam
from helpers.generate.batch import banned, prompt_ids, window_start
from helpers.generate.constraints import Constraint
from helpers.generate.settings import Settings
from helpers.train.model import build_model, make_config
from helpers.vocab import tokenizer

N_CTX = 24
TOK = tokenizer.build_words({"绿萝": 5, "浇水": 4, "怎么": 3}, "绿萝怎么浇水看土干透了再，。")
EOS = TOK.eos_token_id

pytestmark = pytest.mark.usefixtures("one_thread")


def build(architecture: str, scale: float = 3.0):
    """A random model, far from uniform, whose texts end now and then."""
    net = build_model(make_config(architecture, TOK, n_ctx=N_CTX, n_embd=32, n_layer=2, n_head=4), seed=1).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(scale if weight.dim() > 1 else 1)
        net.get_input_embeddings().weight[EOS] *= {"gpt2": 3, "llama": 10}[architecture]
    return net


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def net(request):
    return build(request.param)


class Banned(LogitsProcessor):
    """Special tokens have no probability, as everywhere in this course; the others share it."""

    def __init__(self, mask):
        self.mask = mask

    def __call__(self, input_ids, scores):
        return scores.masked_fill(self.mask, -torch.inf).log_softmax(-1)


def theirs(net, prompt: str, new: int, beams: int, length_penalty: float):
    """Return transformers' (text, score) pairs."""
    ids = torch.tensor([prompt_ids(TOK, prompt)])
    out = net.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=beams, num_return_sequences=beams, do_sample=False,
        max_new_tokens=new, length_penalty=length_penalty, return_dict_in_generate=True, output_scores=True,
        logits_processor=LogitsProcessorList([Banned(banned(net, TOK))]),
    )  # fmt: skip
    texts = [tokenizer.decode(TOK, row[ids.shape[1] :].tolist()) for row in out.sequences]
    return list(zip(texts, out.sequences_scores.tolist(), strict=True))


@pytest.mark.parametrize(
    ("beams", "new", "length_penalty"), [(2, 12, 1.0), (4, 12, 0.0), (4, 12, 1.0), (3, 12, 2.0), (5, 1, 1.0)]
)
def test_texts_and_scores_are_those_of_transformers(net, beams, new, length_penalty):
    """Also where texts end at different lengths, as some do, and where there is one token to write."""
    lengths, reasons = set(), set()
    for prompt in ("绿萝", "", "看土浇水"):
        found = beam.search(net, TOK, prompt, Settings(max_new_tokens=new), beams, length_penalty)
        expected = theirs(net, prompt, new, beams, length_penalty)
        for mine, (text, score) in zip(found, expected, strict=True):
            assert mine.score == pytest.approx(score, abs=1e-4)
            assert tokenizer.decode(TOK, mine.tokens) == text and mine.finished == (mine.reason == "end")
        lengths |= {len(one.tokens) for one in found}
        reasons |= {one.reason for one in found}
    assert length_penalty or (reasons == {"end", "length"} and len(lengths) > 2)


@torch.inference_mode()
@pytest.mark.parametrize("length", [N_CTX - 1, N_CTX, N_CTX + 1, 3 * N_CTX])
def test_beyond_the_window_the_model_sees_what_generate_shows_it(net, length):
    """The score of a text that outgrows the context is the sum over its windows, each read from scratch."""
    settings, prompt = Settings(max_new_tokens=N_CTX), "水" * (length - N_CTX // 2)
    found = beam.search(net, TOK, prompt, settings, beams=3, length_penalty=0.0)[0]
    ids, total = prompt_ids(TOK, prompt), 0.0
    for token in [*found.tokens, EOS][: len(found.tokens) + found.finished]:
        seen = torch.tensor([ids[window_start(len(ids), N_CTX) :]])
        logits = net(input_ids=seen, use_cache=False).logits[0, -1].masked_fill(banned(net, TOK), -torch.inf)
        total += float(logits.log_softmax(-1)[token])
        ids.append(token)
    assert found.score == pytest.approx(total, abs=1e-3)


def test_what_beams_cannot_do_is_refused_in_words(net):
    broken = copy.deepcopy(net)
    with torch.no_grad():
        broken.get_output_embeddings().weight.fill_(float("nan"))
    for model, settings, beams, words in (
        (net, Settings(stop=("。",)), 4, "knows no stop"),
        (net, Settings(sentence=True), 4, "knows no stop"),
        (net, Settings(logprobs=2), 4, "knows no stop"),
        (net, Settings(constraint=Constraint(heads="绿")), 4, "knows no stop"),
        (net, Settings(), 0, "beams is 0"),
        (broken, Settings(max_new_tokens=3), 4, "smaller lr"),
    ):
        with pytest.raises(ValueError, match=words):
            beam.search(model, TOK, "绿萝", settings, beams)
    assert [one.text for one in beam.search(net, TOK, "看", Settings(max_new_tokens=0))] == ["看"]
