"""The estimate of what training takes, against what it took."""

import subprocess
import sys
from pathlib import Path

import pytest
from families import small_config

from helpers import paths
from helpers.model.config import ARCHITECTURES, make_config
from helpers.train import loss
from helpers.train.loss import training_memory

MEMORY = """
import torch
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.train import optim
from helpers.train.loss import Loss
from helpers.train.loss import training_memory
from helpers.train.settings import TrainSettings

def two_updates(cfg, batch_size):
    model = GPT(cfg).init_weights(0)
    optimizers = optim.make_optimizers(model, TrainSettings(optimizer="adamw", lr=1e-3))
    for _ in range(2):
        ids = torch.randint(5, cfg.vocab_size, (batch_size, cfg.n_ctx))
        with torch.autocast("cpu", torch.bfloat16):
            objective = Loss(model)(ids, ids).objective
        objective.backward()
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        optim.clip_gradient(optimizers, list(model.parameters()), 1.0, scaler)
        optim.step(optimizers, scaler, finite=True)
        model.zero_grad()

def peak():  # not ru_maxrss: on Linux a new program inherits the peak of the one that started it
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

two_updates(make_config("gpt2", 4000, n_ctx=8, n_embd=16, n_layer=1, n_head=4), 1)  # what any run takes
before = peak()
cfg = make_config("gpt2", 4000, n_ctx=256, n_embd=256, n_layer=3, n_head=4)
two_updates(cfg, 8)
print(training_memory(cfg, 8) / (peak() - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of one program")
def test_the_memory_estimate_is_near_what_is_taken():
    """Within 30 % of the growth of a fresh process's peak."""
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=paths.repo_root(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.7 < float(done.stdout) < 1.3


def test_the_memory_estimate_knows_what_it_depends_on():
    assert (loss.LOGIT_ROWS, loss.CACHED) == (512, 2**20)  # the estimate counts on them
    for architecture in ARCHITECTURES:
        cfg = small_config(architecture)
        usual = training_memory(cfg, 8)
        assert training_memory(cfg, 8, optimizer="muon") <= usual < training_memory(cfg, 16)
        assert training_memory(cfg, 64) < training_memory(cfg, 64, precision="fp32")
        assert training_memory(cfg, 64, n_ctx=4) < training_memory(cfg, 64)


def test_the_memory_estimate_of_a_gpu_is_near_what_an_h200_took():
    """GPT-2's 124 million in bf16 with Muon: 23.4 GiB with 64 windows of 1,024 tokens, within 15 %."""
    cfg = make_config("gpt2", 50_000, n_ctx=1024, n_embd=768, n_layer=12, n_head=12)
    found = training_memory(cfg, 64, optimizer="muon", device="cuda") / 2**30
    assert found == pytest.approx(23.4, rel=0.15)
