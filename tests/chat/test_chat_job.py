"""One fine-tuning run: it learns, it writes a room, and after a stop or a kill it goes on to the bit."""

import math
import shutil
from dataclasses import replace

import pytest
import torch
from chats import TALKS
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import paths
from helpers.chat import job
from helpers.chat.job import ChatSettings
from helpers.vocab import chat
from helpers.vocab.tokenizer import build_bytes

SHORT = dict(run="t", epochs=2, batch_size=4, gradient_accumulation=1, lr=1e-2, device="cpu", precision="fp32")
SHORT |= dict(eval_step=0, checkpoint_step=5)


def weights(run: str) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(paths.room(run, "chat") / "final_model").state_dict()


def fine_tune(**changes) -> dict:
    return job.prepare_tuning(ChatSettings(**(SHORT | changes))).run()


@pytest.mark.parametrize("rank", [0, 4])
def test_it_learns_to_answer_and_writes_a_plain_folder(chat_run, rank):
    tuning = job.prepare_tuning(ChatSettings(**SHORT, lora_rank=rank))
    before = tuning.trainer.milestones.score()["bits_per_char"]
    figures = tuning.run()
    assert figures["val_bits_per_char"] < before - (0.1 if rank else 0.3)
    folder = paths.room(chat_run, "chat") / "final_model"
    model, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = chat.encode_messages(tok, TALKS[0][:1], True).ids
    assert tok.apply_chat_template(TALKS[0][:1], add_generation_prompt=True, return_dict=False) == ids
    scores = tuning.trainer.milestones.score()["bits_per_char"]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits, tuning.trainer.model(torch.tensor([ids]))]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4)
    assert scores == pytest.approx(figures["val_bits_per_char"], rel=1e-6)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_stopped_run_goes_on_to_the_bit(chat_run, rank):
    whole = fine_tune(lora_rank=rank)
    want = weights(chat_run)
    shutil.rmtree(paths.room(chat_run, "chat"))  # what is there, or in chat-previous/, would be taken up again
    tuning = job.prepare_tuning(ChatSettings(**SHORT, lora_rank=rank))
    tuning.trainer.stop = lambda: tuning.trainer.progress.step == 7
    assert tuning.run()["steps"] == 8  # asked in the middle of an update
    figures = fine_tune(lora_rank=rank)
    assert figures["steps"] == whole["steps"] > 8
    got = weights(chat_run)
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_other_settings_begin_anew_and_keep_what_was_there(chat_run):
    fine_tune(epochs=1)
    first = weights(chat_run)["lm_head.weight"]
    tuning = job.prepare_tuning(ChatSettings(**(SHORT | dict(epochs=1, replay=0.0))))
    assert tuning.trainer.progress.step == 0
    kept = paths.room(chat_run, "chat").with_name("chat-previous") / "final_model"
    assert torch.equal(AutoModelForCausalLM.from_pretrained(kept).state_dict()["lm_head.weight"], first)


def test_a_pretrained_model_that_changed_in_its_folder_is_begun_with_again(chat_run, tmp_path):
    shutil.copytree(paths.room(chat_run, "train") / "final_model", base := tmp_path / "base")
    given = SHORT | dict(epochs=1, pretrained_model=str(base))
    job.prepare_tuning(ChatSettings(**given)).run()
    assert job.prepare_tuning(ChatSettings(**given)).trainer.progress.step > 0
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    model.save_pretrained(base)
    assert job.prepare_tuning(ChatSettings(**given)).trainer.progress.step == 0


def test_conversations_that_fit_into_no_window_are_not_passed_over_in_silence(chat_run):
    """Plain documents beside them would be learnt, and the model would be called a chat model."""
    with pytest.raises(ValueError, match="no conversation fits into a window of 8 tokens"):
        job.prepare_tuning(ChatSettings(**(SHORT | {"n_ctx": 8, "replay": 1.0})))
    assert not paths.room(chat_run, "chat").exists()


def test_exchanges_that_no_window_holds_are_counted(chat_run):
    lessons = job.load_lessons(chat_run, 0, 0)
    longer = [*lessons.train, [{"role": "user", "content": "浇水？" * 60}, {"role": "assistant", "content": "好。"}]]
    tuning = job.prepare_tuning(ChatSettings(**(SHORT | {"epochs": 1})), replace(lessons, train=longer))
    assert tuning.exchanges_left_out == 1 == tuning.run()["exchanges_left_out"]


@pytest.mark.parametrize("windows, taken", [(10, (3, 1, 1)), (200, (2, 4, 1)), (480, (2, 4, 2)), (800, (1, 4, 2))])
def test_the_rules_for_epochs_windows_and_rate(windows, taken):
    settings = ChatSettings(batch_size=4, gradient_accumulation=2)
    ruled, given = settings.for_trainer(windows), replace(settings, epochs=7).for_trainer(windows)
    assert (ruled.epochs, ruled.batch_size, ruled.gradient_accumulation) == taken
    assert (given.epochs, given.gradient_accumulation, settings.for_trainer(1).warmup_steps) == (7, 2, 0)
    rates = [ChatSettings(pretrained_model=m, lora_rank=r).for_trainer(windows).lr for m in ("", "m") for r in (0, 8)]
    assert rates == [4e-3, 4e-3, 2e-5, 2e-4]


@pytest.mark.parametrize("rank", [0, 4])
def test_a_forecast_counts_what_is_trained_and_changes_nothing(chat_run, rank):
    tuning = job.prepare_tuning(ChatSettings(**SHORT, lora_rank=rank, conversations=50))
    model, optimizers = tuning.trainer.model, tuning.trainer.optimizers
    before, expected = {name: weight.clone() for name, weight in model.state_dict().items()}, tuning.forecast()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert expected["steps"] == tuning.run()["steps"] and expected["seconds"] > 0
    moments = [moment for each in optimizers for state in each.state.values() for moment in state.values()]
    assert expected["memory"] > 4 * sum(each.numel() for each in (*before.values(), *moments))


@pytest.mark.parametrize("name", ["conversations", "replay", "n_ctx", "lora_rank", "epochs", "lr"])
def test_a_number_below_its_range_is_refused(name):
    with pytest.raises(ValueError, match=name):
        ChatSettings(**{name: -1})


def test_plain_text_is_judged_as_in_room_04_unless_a_model_reads_other_tokens(chat_run):
    model, tok, _ = job.load_start(chat_run)
    assert 8 < job.plain_bits(chat_run, model, tok) < 12  # random, over a thousand characters: log2 of their number
    assert math.isnan(job.plain_bits(chat_run, model, build_bytes()))
