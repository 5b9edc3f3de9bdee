"""GRPO and DPO take the steps of `trl`, Hugging Face's trainers, on the answers that these have drawn or tokenized."""

import random

import datasets
import torch
import trl
from chats import characters_tokenizer, tiny_model
from families import as_library
from transformers import TrainerCallback

from helpers.corpus import built_in
from helpers.model.huggingface import to_library
from helpers.reward import losses, policy
from helpers.reward.rollout import Group

TOK = characters_tokenizer()
QUESTIONS = [built_in.ask_story(combination, random.Random(0)) for combination in built_in.combinations()[:3]]
# cut to one number of tokens: trl pads on the left and gives a model with learnt positions the wrong ones there
ASKED = [TOK(question.prompt).input_ids for question in QUESTIONS]
PROMPTS = [TOK.decode(ids[1 : min(map(len, ASKED))]) for ids in ASKED]  # after <bos>, which the tokenizer puts first
assert len({len(TOK(prompt).input_ids) for prompt in PROMPTS}) == 1
DRAWN, LONGEST, BETA = 6, 8, 0.3


class Gradients(TrainerCallback):
    """Keeps the gradient of the first step."""

    def __init__(self):
        self.kept: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def config(cls, folder, **options):
    return cls(
        output_dir=str(folder), max_steps=1, report_to=[], use_cpu=True, bf16=False, save_strategy="no",
        logging_strategy="no", max_grad_norm=0.0, disable_tqdm=True, **options,
    )  # fmt: skip


def recorded(trainer_class, **options):
    """Return what the trainer's loss was computed from and its gradient, after one step."""
    inputs, gradients = {}, Gradients()

    class Recorder(trainer_class):
        def _compute_loss(self, model, batch, *rest):
            inputs.update(batch)
            return super()._compute_loss(model, batch, *rest)

    Recorder(processing_class=TOK, callbacks=[gradients], **options).train()
    assert gradients.kept
    return inputs, gradients.kept


def same(model, gradients):
    ours = to_library(model.config, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert ours.keys() == gradients.keys()
    for name, gradient in ours.items():
        assert gradient.any(), name
        # the models are of fp64, but trl keeps some of its sums in fp32
        torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-5 * float(gradient.abs().max()), msg=name)


def model():
    # LLaMA's norm computes in fp32, a GPT-2's in the type of the weights
    return tiny_model(TOK, "gpt2").double().eval()


def test_grpo_takes_the_step_of_trl(tmp_path):
    def even(completion_ids, **_):  # a reward of what was drawn: which of its ids are even
        return [sum(i % 2 == 0 for i in ids) / LONGEST for ids in completion_ids]

    batch, gradients = recorded(
        trl.GRPOTrainer,
        model=as_library(model()),
        reward_funcs=even,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        args=config(
            trl.GRPOConfig, tmp_path, num_generations=DRAWN, per_device_train_batch_size=len(QUESTIONS) * DRAWN,
            max_completion_length=LONGEST, loss_type="dr_grpo", scale_rewards="none", beta=0.0,
        ),
    )  # fmt: skip
    # the same answers as groups
    prompts = [ids[seen.bool()].tolist() for ids, seen in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
    answers = [
        ids[real.bool()].tolist() for ids, real in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    ]
    drawn: dict[tuple[int, ...], list[list[int]]] = {}  # trl shuffles what it has drawn
    for prompt, ids in zip(prompts, answers, strict=True):
        drawn.setdefault(tuple(prompt), []).append(ids)
    assert [len(each) for each in drawn.values()] == [DRAWN] * len(QUESTIONS)
    groups = [
        Group(QUESTIONS[0], list(prompt), endings, ["" for _ in endings], even(endings))
        for prompt, endings in drawn.items()
    ]
    assert all(group.mixed for group in groups)
    ours = model()
    scored = policy.score_endings(ours, [(group.opening, group.endings) for group in groups])
    # trl divides by the answers and by the longest that an answer may become, we by the answers alone
    loss = losses.policy_loss(scored, groups) / LONGEST
    loss.backward()
    same(ours, gradients)


def test_dpo_takes_the_step_of_trl(tmp_path):
    endings = [("浇水。", "别浇。"), ("放在窗边。", "不用。"), ("看土，干透了再浇。", "多浇。")]
    rows = [
        {"prompt": prompt, "chosen": won, "rejected": lost}
        for prompt, (won, lost) in zip(PROMPTS, endings, strict=True)
    ]
    before = tiny_model(TOK, "gpt2", seed=1).double().eval()
    batch, gradients = recorded(
        trl.DPOTrainer,
        model=as_library(model()),
        ref_model=as_library(before),
        train_dataset=datasets.Dataset.from_list(rows),
        args=config(trl.DPOConfig, tmp_path, per_device_train_batch_size=len(rows), beta=BETA),
    )
    prompt = batch["completion_mask"] == 0
    split = [
        (ids[seen & ask].tolist(), ids[seen & ~ask].tolist())
        for ids, seen, ask in zip(batch["input_ids"], batch["attention_mask"].bool(), prompt, strict=True)
    ]
    won, lost = split[: len(rows)], split[len(rows) :]  # trl puts all that won before all that lost
    found = [losses.Pair(opening, a, b) for (opening, a), (_, b) in zip(won, lost, strict=True)]
    texts = {TOK.decode(ids) for pair in found for ids in (pair.won, pair.lost)}
    assert texts == {text + TOK.eos_token for pair in endings for text in pair}
    ours, branches = model(), [(pair.opening, (pair.won, pair.lost)) for pair in found]
    with torch.no_grad():
        reference = losses.ending_totals(policy.score_endings(before, branches), 2 * len(found))
    losses.preference_loss(
        losses.ending_totals(policy.score_endings(ours, branches), 2 * len(found)), reference, BETA
    ).backward()
    same(ours, gradients)
