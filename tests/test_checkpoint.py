"""A checkpoint is whole or absent, and says so when it is damaged."""

import errno

import pytest
import torch
from safetensors.torch import save_file

from helpers import checkpoint, tokenizer
from helpers import model as models

TOK = tokenizer.build({"浇水": 3}, "今天浇水很热。")


def small(seed: int = 0):
    model = models.build(models.config("gpt2", TOK, n_ctx=8, n_embd=16, n_layer=1, n_head=2), seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer


def step(model, optimizer):
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_what_is_restored_goes_on_bit_for_bit(tmp_path):
    """Weights, moments and step counts return: the next updates equal those of an unbroken run."""
    model, optimizer = small()
    step(model, optimizer)
    folder = checkpoint.save(tmp_path, 1, model, [optimizer], {"position": 3})
    step(model, optimizer)

    again, fresh = small(seed=9)
    assert checkpoint.verify(folder)["position"] == 3
    checkpoint.restore(folder, again, [fresh])
    step(again, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert again.lm_head.weight is again.transformer.wte.weight


def test_the_newest_are_kept(tmp_path):
    model, optimizer = small()
    for number in range(5):
        checkpoint.save(tmp_path, number, model, [optimizer], {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_damage_is_found_named_and_passed_over(tmp_path, name, damage):
    """torch.load and safetensors read a flipped bit without a word; the checksum does not."""
    model, optimizer = small()
    step(model, optimizer)
    checkpoint.save(tmp_path, 1, model, [optimizer], {})
    newest = checkpoint.save(tmp_path, 2, model, [optimizer], {})
    data = bytearray((newest / name).read_bytes())
    if damage == "remove":
        (newest / name).unlink()
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        (newest / name).write_bytes({"flip": flipped, "truncate": data[:-7], "empty": b""}[damage])
    named = "step-00000002" if name == "checksums.json" else name  # a damaged list accuses the file it lists
    with pytest.raises(checkpoint.BadCheckpoint, match=named):
        checkpoint.verify(newest)
    folder, state, complaints = checkpoint.latest(tmp_path)
    assert (folder.name, state["step"], len(complaints)) == ("step-00000001", 1, 1)


def test_a_full_disk_leaves_no_debris(tmp_path, monkeypatch):
    model, optimizer = small()
    checkpoint.save(tmp_path, 1, model, [optimizer], {})

    def full(tensors, path):
        save_file(dict(list(tensors.items())[:2]), path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, model, [optimizer], {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_another_shape_is_refused(tmp_path):
    model, optimizer = small()
    folder = checkpoint.save(tmp_path, 1, model, [optimizer], {})
    other = models.build(models.config("gpt2", TOK, n_ctx=8, n_embd=32, n_layer=1, n_head=2), 0)
    with pytest.raises(checkpoint.BadCheckpoint, match="another shape"):
        checkpoint.restore(folder, other, [torch.optim.AdamW(other.parameters())])


def test_no_checkpoint_is_none_and_all_damaged_is_an_error(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "step-00000001").mkdir()
    with pytest.raises(checkpoint.BadCheckpoint, match="no checkpoint is whole"):
        checkpoint.latest(tmp_path)


def test_export_is_a_plain_folder(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, _ = small()
    checkpoint.export(tmp_path / "final_model", model, TOK)
    checkpoint.export(tmp_path / "final_model", model, TOK)  # a second export replaces the first
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final_model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "final_model")) == len(TOK)
    assert [path.name for path in tmp_path.iterdir()] == ["final_model"]
