"""A checkpoint is whole or absent, and says so when it is damaged."""

import shutil

import faults
import pytest
import torch
from models import tiny

from helpers import files
from helpers.model.config import ARCHITECTURES
from helpers.train import checkpoint


def small(seed: int = 0):
    model = tiny(seed, n_layer=1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def names(folder) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in sorted(folder.iterdir())]


def save(root, step: int, identity: str = "a", keep: int = 2, **state):
    model, optimizer = small(step)
    return checkpoint.save(root, step, model, [optimizer], {"identity": identity} | state, keep)


def flip(file) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters_are_all_that_a_model_is(architecture):
    """A buffer would not be saved."""
    assert not list(tiny(architecture=architecture).buffers())


def test_the_newest_and_the_best_are_kept(tmp_path):
    losses = [3.0, 1.0, 2.0, None, float("nan"), 4.0]
    for number, loss in enumerate(losses):
        save(tmp_path, number, val_loss=loss)
    assert names(tmp_path) == [1, 4, 5]
    assert checkpoint.verify_checkpoint(tmp_path / "step-00000001")["val_loss"] == 1.0  # the best
    save(tmp_path, 6, val_loss=0.5)
    assert names(tmp_path) == [5, 6]


def test_a_damaged_one_takes_no_sound_ones_place(tmp_path):
    """Three are there, the newest damaged: after the next save two sound ones are left, whatever their numbers."""
    save(tmp_path, 1), save(tmp_path, 2)
    flip(save(tmp_path, 9) / "model.safetensors")
    save(tmp_path, 3)
    assert names(tmp_path) == [2, 3]


def test_another_runs_checkpoint_is_named_and_left_alone(tmp_path):
    save(tmp_path, 1), save(tmp_path, 2, identity="b", val_loss=0.0)
    folder, _, complaints = checkpoint.latest(tmp_path, "a")
    assert folder.name == "step-00000001"
    assert "step-00000002" in complaints[0] and "other data or parameters" in complaints[0]
    for number in (3, 4):
        save(tmp_path, number, val_loss=1.0)
    assert names(tmp_path) == [2, 3, 4]
    with pytest.raises(checkpoint.BadCheckpoint, match="other data or parameters"):
        checkpoint.latest(tmp_path, "c")


def test_a_disk_that_loses_a_bit_costs_no_older_checkpoint(tmp_path, monkeypatch):
    """What is written is read back before anything is removed or replaced."""
    save(tmp_path, 1, keep=1)
    real = files.sync

    def bad_disk(path):
        real(path)
        if path.name == "optimizer.safetensors":
            flip(path)

    monkeypatch.setattr(files, "sync", bad_disk)
    for number in (1, 2):
        with pytest.raises(OSError, match="optimizer.safetensors is damaged"):
            save(tmp_path, number, keep=1)
    assert names(tmp_path) == [1]
    checkpoint.verify_checkpoint(tmp_path / "step-00000001")


def test_leftovers_of_a_killed_process_are_cleared_and_never_read(tmp_path):
    """A folder half-written; an old one not yet removed; and one put aside by a process that got no further."""
    one, two = save(tmp_path, 1), save(tmp_path, 2)
    for begin in (lambda: checkpoint.latest(tmp_path, "a"), lambda: save(tmp_path, 3, keep=3)):
        shutil.copytree(two, tmp_path / ".step-00000007.part")
        shutil.copytree(one, tmp_path / ".step-00000001.old")
        two.rename(tmp_path / ".step-00000002.old")
        assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["step-00000001"]
        begin()
        assert names(tmp_path)[:2] == [1, 2]
        assert not faults.debris(tmp_path)


def test_a_folder_of_the_users_own_stays(tmp_path):
    (tmp_path / "step-by-step").mkdir()
    for number in range(3):
        save(tmp_path, number, keep=1)
    assert (tmp_path / "step-by-step").is_dir()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_what_is_no_safetensors_file_is_refused_although_its_checksum_fits(tmp_path, name):
    """A pickle, above all: nothing else is ever opened (test_huggingface: nor run)."""
    folder, (model, optimizer) = save(tmp_path, 1), small()
    torch.save({"state": torch.ones(3)}, folder / name)
    with pytest.raises(checkpoint.BadCheckpoint, match=f"{name} is not a safetensors file"):
        checkpoint.restore(folder, model, [optimizer])


def test_another_shape_is_refused(tmp_path):
    model, optimizer = small()
    folder = checkpoint.save(tmp_path, 1, model, [optimizer], {})
    other = tiny(n_embd=32, n_layer=1)
    with pytest.raises(checkpoint.BadCheckpoint, match="another shape"):
        checkpoint.restore(folder, other, [torch.optim.AdamW(other.parameters())])


def test_no_checkpoint_is_none_and_all_damaged_is_an_error(tmp_path):
    assert checkpoint.latest(tmp_path, "a") is None
    (tmp_path / "step-00000001").mkdir()
    with pytest.raises(checkpoint.BadCheckpoint, match="no checkpoint can be used"):
        checkpoint.latest(tmp_path, "a")
