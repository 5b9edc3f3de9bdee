"""A training run: it raises what earned more, stays near the start, and touches nothing but the blocks."""

import json
from dataclasses import replace

import pytest
import torch
from chats import characters_tokenizer, tiny_model

from helpers import paths
from helpers.corpus.find import BUILT_IN
from helpers.manifest import RoomError, write_manifest
from helpers.model.huggingface import save_model
from helpers.reward import job, judge, losses, policy, rollout
from helpers.vocab import chat
from helpers.vocab.tokenizer import encode

TOK = characters_tokenizer()
chat.add_template(TOK)
SETTINGS = job.RewardSettings(steps=12, questions=4, answers=4, warmup_steps=1, lr=3e-2, dpo_lr=3e-2, device="cpu")
OPENING = [1, 20, 21, 22]
FAVOURITE = encode(TOK, "水")[0]  # the token that the tests' judge likes at the beginning of an answer


def build_learner(**changes):
    return job.Learner(tiny_model(TOK).eval().requires_grad_(False), TOK, judge.reward, replace(SETTINGS, **changes))


def probability(model, token=FAVOURITE):
    """Return how likely an answer is to begin with a token, after one fixed opening."""
    return float(policy.score_endings(model, [(OPENING, [[token]])]).chosen.detach().exp())


@pytest.fixture
def liking(monkeypatch):
    """A world of one opening and answers of one token: half are the favourite, which earns a reward."""

    def draw_groups(model, tokenizer, questions, answers, judge, rng):
        groups = []
        for each in questions:
            endings = [[FAVOURITE if i % 2 else rng.randrange(10, 60)] for i in range(answers)]
            rewards = [float(i % 2) for i in range(answers)]
            groups.append(rollout.Group(each, OPENING, endings, [""] * answers, rewards))
        return groups

    monkeypatch.setattr(job, "draw_groups", draw_groups)


def learn(learner, method):
    return list(learner.grpo() if method == "grpo" else learner.dpo(losses.preference_pairs(learner.draw())))


@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_what_earns_a_reward_becomes_likelier(liking, method):
    learner = build_learner(kl_weight=0.0)
    before = probability(learner.start)
    rows = learn(learner, method)
    assert probability(learner.model) > 1.4 * before == 1.4 * probability(learner.start)
    assert [row["step"] for row in rows] == list(range(1, 13)) and json.loads(json.dumps(rows)) == rows
    if method == "grpo":
        assert all(row["reward"] == 0.5 and row["mixed"] == row["length"] == 1 for row in rows)
        assert rows[0]["kl"] == 0 and rows[-1]["entropy"] < rows[0]["entropy"]
    else:
        assert rows[0]["won"] == rows[0]["lost"] == 0 and rows[-1]["won"] > rows[-1]["lost"]


def test_the_anchor_holds_the_model(liking):
    drifts = []
    for weight in (0.0, 100.0):
        learner = build_learner(kl_weight=weight)
        learn(learner, "grpo")
        drifts.append(learner.loss(learner.draw())[1]["kl"])
    assert 0 < drifts[1] < 0.2 * drifts[0]


def test_only_the_matrices_of_the_blocks_are_trained(liking):
    learner = build_learner()
    learn(learner, "grpo")
    for name, p in learner.model.named_parameters():
        same = torch.equal(p, learner.start.get_parameter(name))
        assert same == (p.ndim < 2 or not name.startswith("layers.")), name


def test_where_all_earn_the_same_only_the_anchor_pulls(liking):
    learner = build_learner()
    groups = [replace(each, rewards=[0.0] * 4) for each in learner.draw()]
    gradients = torch.autograd.grad(learner.loss(groups)[0], learner.trained)
    assert all(each.abs().max() < 1e-6 for each in gradients)  # it has not moved yet


def test_the_same_seed_learns_the_same():
    """With the model's own answers."""
    weights = []
    for seed in (1, 1, 2):
        learner = build_learner(seed=seed, steps=2, questions=2)
        learner.judge = lambda question, text: float(len(text) % 2)
        learn(learner, "grpo")
        weights.append(torch.cat([p.detach().flatten() for p in learner.trained]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    "changes, words",
    [({"answers": 1}, "at least 2"), ({"steps": 0}, "at least 1"), ({"begin": "reward"}, "auto, base, chat")],
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
