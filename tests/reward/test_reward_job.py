"""A training run: it raises what earned more, stays where all is right, and touches nothing but the blocks."""

import json
from dataclasses import replace

import pytest
import torch
from chats import characters_tokenizer, tiny_model

from helpers import paths
from helpers.corpus.find import BUILT_IN
from helpers.manifest import RoomError, write_manifest
from helpers.model.huggingface import save_model
from helpers.reward import job, policy, rollout
from helpers.vocab import chat
from helpers.vocab.tokenizer import encode

TOK = characters_tokenizer()
chat.add_template(TOK)
SETTINGS = job.RewardSettings(
    steps=12, questions=4, answers=4, warmup_steps=1, lr=1e-2, dpo_lr=1e-2, precision="fp32", device="cpu"
)
FAVOURITE = encode(TOK, "水")[0]  # the token that the tests' judge likes at the beginning of an ending


def build_learner(**changes):
    return job.Learner(tiny_model(TOK).eval().requires_grad_(False), TOK, replace(SETTINGS, **changes))


def probability(model, token=FAVOURITE):
    """Return how likely an ending is to begin with a token, after one fixed opening."""
    scored = policy.score_endings(model, [([1, 20, 21, 22], [[token]])])
    return float(scored.chosen.detach().exp())


@pytest.fixture
def liking(monkeypatch):
    """A world of one opening and endings of one token: half are the favourite, which earns a reward."""

    def write_openings(model, tokenizer, questions, rng):
        return [rollout.AnswerOpening(each, [1, 20, 21, 22], "它") for each in questions]

    def write_endings(model, tokenizer, openings, answers, rng):
        groups = []
        for number, each in enumerate(openings):
            tokens = [FAVOURITE if i % 2 else rng.randrange(10, 60) for i in range(answers)]
            rewards = [float(i % 2) if number else 1.0 for i in range(answers)]  # the first group is all right
            groups.append(rollout.Group(each, [[t] for t in tokens], ["" for _ in tokens], rewards))
        return groups

    monkeypatch.setattr(job, "write_openings", write_openings)
    monkeypatch.setattr(job, "write_endings", write_endings)


@pytest.mark.parametrize("method", job.METHODS)
def test_what_earns_a_reward_becomes_likelier(liking, method):
    learner = build_learner(kl_weight=0.0, lr=3e-2, dpo_lr=3e-2)
    before = probability(learner.start)
    rows = list(learner.learn(method))
    assert probability(learner.model) > 1.4 * before == 1.4 * probability(learner.start)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert all({"kl", "entropy", "grad_norm"} <= row.keys() for row in rows[-3:])
    assert all(row["reward"] == pytest.approx(0.625) for row in rows if "reward" in row)
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize("method", job.METHODS)
def test_the_anchor_holds_the_model(liking, method):
    drifts = []
    for weight in (0.0, 100.0):
        learner = build_learner(kl_weight=weight)
        list(learner.learn(method))
        branches = learner.anchors(learner.draw())
        drifts.append(float(learner.score_both([], branches)[1]))
    assert 0 < drifts[1] < 0.2 * drifts[0]


def start_of(learner):
    names = {id(p): name for name, p in learner.model.named_parameters()}
    return [learner.start.get_parameter(names[id(p)]) for p in learner.trained]


def test_only_the_matrices_of_the_blocks_are_trained(liking):
    learner = build_learner()
    list(learner.learn("grpo"))
    for name, p in learner.model.named_parameters():
        same = torch.equal(p, learner.start.get_parameter(name))
        assert same == (p.ndim < 2 or not name.startswith("layers.")), name
        assert not p.requires_grad


def test_the_weights_at_the_end_are_the_mean_of_the_last_part(liking):
    learner = build_learner()
    kept = []
    update = learner.update

    def watched(loss, lr):
        progress = learner.progress
        norm = update(loss, lr)
        if progress >= 1 - job.AVERAGED:
            kept.append([p.detach().clone() for p in learner.trained])
        return norm

    learner.update = watched
    list(learner.learn("grpo"))
    assert len(kept) == 4  # updates 9 to 12: before each of them 0.6 of the run was over
    for p, *old in zip(learner.trained, *kept, strict=True):
        torch.testing.assert_close(p.detach(), torch.stack(old).mean(0))


def test_a_model_whose_answers_are_all_alike_stays_as_it_is(liking, monkeypatch):
    write = job.write_endings
    monkeypatch.setattr(
        job, "write_endings", lambda *given: [replace(each, rewards=[0.0] * 4) for each in write(*given)]
    )
    learner = build_learner()
    rows = list(learner.learn("grpo"))
    assert len(rows) == 12 and all(row["mixed"] == 0 for row in rows)
    assert all(torch.equal(p, q) for p, q in zip(learner.trained, start_of(learner), strict=True))


def test_half_precision_loses_no_small_gradient(liking):
    """Of a loss so small that its gradient is below the smallest number of fp16: scaled, it is that of fp32."""
    norms = []
    for precision in ("fp32", "fp16"):
        learner = build_learner(precision=precision)
        scored, _, _ = learner.score_both([([1, 20, 21, 22], [[FAVOURITE]])], [])
        norms.append(learner.update(1e-8 * scored.chosen.sum(), 1e-3))
    assert 1e-12 < norms[0] == pytest.approx(norms[1], rel=0.02)


@pytest.mark.parametrize("method", job.METHODS)
def test_the_clock_ends_a_run(method):
    """With the model's own answers: it has learnt nothing, so none earns anything."""
    rows = list(build_learner(steps=0, minutes=0.005, questions=2, answers=2).learn(method))
    assert rows and rows[-1]["seconds"] >= 0.3


def test_the_same_seed_learns_the_same(liking):
    weights = []
    for seed in (1, 1, 2):
        learner = build_learner(seed=seed)
        list(learner.learn("grpo"))
        weights.append(torch.cat([p.detach().flatten() for p in learner.trained]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"answers": 1}, "at least 2"),
        ({"steps": 0, "minutes": 0.0}, "above 0"),
        ({"focus": 1.5}, "focus is 1.5: it must be at most 1"),
        ({"begin": "reward"}, "auto, base, chat"),
    ],
)
def test_settings_that_make_no_sense(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(SETTINGS, **changes)


# ---- what it begins with ----


def test_on_a_corpus_of_ones_own_nothing_can_judge(chat_run):
    with pytest.raises(RoomError, match="a reward needs a judge"):
        job.load_beginning(replace(SETTINGS, run=chat_run))


def test_it_begins_with_the_chat_model_if_there_is_one(chat_run):
    outputs = list(paths.room(chat_run, "corpus").glob("*.jsonl"))
    write_manifest(chat_run, "corpus", parameters={}, inputs=[], outputs=outputs, result={"source": BUILT_IN})
    settings = replace(SETTINGS, run=chat_run)
    model, tokenizer, begun = job.load_beginning(settings)
    assert begun == "base" and tokenizer.chat_template and not model.training
    final = paths.room(chat_run, "chat") / "final_model"
    save_model(final, model)
    tokenizer.save_pretrained(final)
    write_manifest(chat_run, "chat", parameters={}, inputs=[], outputs=sorted(final.iterdir()), result={})
    assert job.load_beginning(settings)[2] == "chat"
    assert job.load_beginning(replace(settings, begin="base"))[2] == "base"
    assert not any(p.requires_grad for p in job.load_beginning(settings)[0].parameters())
