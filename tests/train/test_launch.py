"""Room 04 in several processes: what they compute together is what one computes alone."""

import pytest
import torch
from models import settings, weights

from helpers import paths
from helpers.train import job, launch

pytestmark = pytest.mark.slow  # launches process groups


def test_two_processes_equal_one_with_the_doubled_batch(run):
    """Through torchrun's own launcher, gloo on the CPU: parameters within 1e-6 after the whole run.

    A LLaMA-like model: GPT-2's key biases have gradient 0, and AdamW blows up the rounding noise in them. `eps`
    keeps it from doing so to the rows of rare tokens, whose gradients are hardly larger than that noise.
    """
    same = dict(gradient_accumulation=1, architecture="llama", eps=1e-6)
    job.start(settings(run, batch_size=4, **same)).wait()
    alone = weights(run)
    training = launch.start(settings(run, batch_size=2, devices=2, **same))
    assert training.wait()["steps"] == training.total_steps
    for name, p in weights(run).items():
        torch.testing.assert_close(p, alone[name], rtol=1e-5, atol=1e-6)


def test_a_failing_process_is_an_error_here(run):
    given = settings(run, devices=2)
    job.prepare(given)
    for shard in paths.room(run, "tokenize").glob("*.bin"):
        shard.unlink()
    with pytest.raises(RuntimeError, match="training processes failed"):
        launch.run_job(given)
