"""A step that a CUDA graph can hold: the same texts as without, on a CPU, where replaying is doing it again."""

import pytest
import torch
from models import N_CTX, plants_model, plants_tokenizer

from helpers.generate import inference
from helpers.generate.batch import DecodeBatch, Row
from helpers.generate.cuda_graph import GraphedStep, rounded_up
from helpers.generate.settings import Settings


class Again:
    """In the place of a CUDA graph: its replay does the recorded step again, with the same tensors."""

    def __init__(self, step: GraphedStep) -> None:
        self.step = step

    def replay(self) -> None:
        own = self.step
        own._logits.copy_(own._step(own._ids, own._positions))


@pytest.fixture
def recorded(monkeypatch):
    """Make `GraphedStep` work without a GPU; return the rows of all steps that were recorded."""
    rows = []

    def record(self):
        self._logits = self._step(self._ids, self._positions).fill_(torch.nan)
        self._graph = Again(self)
        rows.append(len(self._ids))

    monkeypatch.setattr(GraphedStep, "_record", record)
    return rows


def write(architecture: str, graphed: bool) -> list[list[int]]:
    """Return what rows of several lengths write, which join late, leave early, and pass the end of the window."""
    tok = plants_tokenizer()
    model = plants_model(architecture, tok)
    inference.of(model)._is_graphed = graphed
    batch = DecodeBatch(model, tok)
    batch.eos = -1
    rows = [
        Row([1, 7 + n, 8][: 2 + n % 2], Settings(max_new_tokens=length, seed=0), n)
        for n, length in enumerate((5, 2 * N_CTX, 9, N_CTX, 3))
    ]
    batch.add(rows[:3])
    for _ in range(4):
        batch.step()
    batch.add(rows[3:])
    while batch.rows:
        batch.step()
    return [row.new for row in rows]


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_texts_are_the_same_and_few_steps_are_recorded(architecture, recorded):
    """Rows come and go: a step is recorded for 3 rows, in a larger cache for 4, and for the last ones."""
    wanted = write(architecture, graphed=False)
    assert not recorded
    assert write(architecture, graphed=True) == wanted
    assert recorded == [3, 4, 2, 1]


def test_rows_are_rounded_up_to_a_power_of_two_that_the_cache_has():
    assert [rounded_up(rows, 64) for rows in (1, 2, 3, 5, 33, 64)] == [1, 2, 4, 8, 64, 64]
    assert rounded_up(5, 6) == 6


def test_a_cache_that_grows_forgets_its_graphs(recorded):
    tok = plants_tokenizer()
    decoder = inference.of(plants_model("llama", tok))
    decoder._is_graphed = True
    cache = decoder.cache()
    decoder.read(torch.tensor([[1, 7]]), [2], cache, [(0, 0)])
    decoder.step(torch.tensor([8]), [2], cache)
    decoder.step(torch.tensor([9]), [3], cache)
    assert recorded == [1] and list(cache.graphs) == [1]
    decoder.read(torch.tensor([[1, 9]]), [2], cache, [(1, 0)])
    assert not cache.graphs
    decoder.step(torch.tensor([9, 9]), [4, 2], cache)
    assert recorded == [1, 2]


def test_a_mixture_is_not_recorded():
    """Which experts a token needs is known only when it is there."""
    tok = plants_tokenizer()
    with torch.device("meta"):
        models = {kind: plants_model(kind, tok) for kind in ("llama", "moe")}
    assert not inference.of(models["moe"])._is_graphed
    assert not inference.of(models["llama"])._is_graphed, "nor anything that is not on a GPU"
