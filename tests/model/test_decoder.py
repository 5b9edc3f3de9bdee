"""The step of writing against the model itself: every family, every length, rows of all lengths in one batch.

A CUDA graph is tried on a CPU, where replaying is doing it again.
"""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import models
import pytest
import torch
from families import CONFIGS, N_CTX, V

from helpers.generate.batch import DecodeBatch, Row
from helpers.generate.settings import Settings
from helpers.model import decoder
from helpers.model.cache import Cache
from helpers.model.decoder import GraphedStep, decoder_of
from helpers.model.gpt import GPT
from helpers.model.huggingface import config_from


def build(name: str) -> GPT:
    net = GPT(config_from(CONFIGS[name])).init_weights(0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():  # far from the start of training, where many mistakes do not show
            weight.mul_(3).add_(0.1 * torch.randn(weight.shape, generator=generator))
    return net.requires_grad_(False)


def empty(net: GPT) -> Cache:
    return Cache(net.config, net.embed_tokens.weight)


@torch.inference_mode()
def reference(net: GPT, ids: list[int]) -> torch.Tensor:
    """Return the logits of a pass over all ids, computed in fp64."""
    exact = GPT(net.config).double().eval()
    exact.load_state_dict(net.state_dict())
    return exact(torch.tensor([ids]))[0, -1].float()


def random_ids(*lengths: int) -> list[list[int]]:
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(V, (length,), generator=dice).tolist() for length in lengths]


def read(net: GPT, cache: Cache, texts: list[list[int]], rows=None) -> torch.Tensor:
    width = max(map(len, texts))
    ids = torch.tensor([text + [7] * (width - len(text)) for text in texts])
    return decoder_of(net).read(ids, [len(text) for text in texts], cache, rows or [(i, i) for i in range(len(texts))])


@pytest.fixture(params=["plain", "packed"])
def weights(request, monkeypatch):
    """Let also small matrices be packed, and met so by any number of rows."""
    if request.param == "packed":
        monkeypatch.setattr(decoder, "PACKED_FROM", 0)
        monkeypatch.setattr(decoder, "PLAIN_UP_TO", 0)


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_a_pass_over_everything(name):
    """Three rows of unequal length, read and then stepped to the end of the context: 1e-4 at every length."""
    net = build(name)
    most = net.config.window
    cache, texts = empty(net), random_ids(6, 3, 8) if most < 20 else random_ids(9, 3, 14)
    logits = read(net, cache, texts)
    for token in range(most - len(texts[2])):
        for text, row in zip(texts, logits, strict=True):
            if token % 20 == 0 or len(text) in (63, 64, 65, most - 1, most):
                torch.testing.assert_close(row, reference(net, text), atol=1e-4, rtol=1e-4)
        logits = decoder_of(net).advance(torch.tensor([token] * 3), cache)
        for text in texts:
            text.append(token)
        assert cache.lengths == [len(text) for text in texts]


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("name", ["gpt2", "llama, biases", "qwen3"])
def test_in_bf16_a_step_is_as_near_to_the_truth_as_the_model(name):
    """The truth: the same rounded weights, computed in fp64."""
    net = build(name).bfloat16()
    cache, text = empty(net), random_ids(40)[0]
    read(net, cache, [text[:5]])
    stepped = torch.cat([decoder_of(net).advance(torch.tensor([each]), cache) for each in text[5:]])
    true = torch.stack([reference(net, text[: 6 + i]) for i in range(len(stepped))])
    plain = net(torch.tensor([text]))[0, 5:].float()
    assert (stepped - true).norm() < 1.5 * (plain - true).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("plain_up_to", "few"), [(2**19, 2), (2**20, 32)], ids=["any processor", "Intel's"])
def test_a_matrix_is_kept_in_the_layouts_that_its_size_and_its_rows_need(dtype, plain_up_to, few, monkeypatch):
    """Small: plain. Middle: plain for few rows, packed for many; in bf16 packed. Large: packed alone."""
    monkeypatch.setattr(decoder, "PLAIN_UP_TO", plain_up_to)
    monkeypatch.setattr(decoder, "FEW", few)
    fits = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    both = {"plain", "packed"} if dtype == torch.float32 else {"packed"}
    for side, layouts in ((100, {"plain"}), (400, both), (1100, {"packed"})):
        layouts = layouts if fits else {"plain"}
        weight, bias = torch.randn(side, side, dtype=dtype) / side**0.5, torch.randn(side, dtype=dtype)
        linear = decoder.Linear(weight, bias)
        kept = {"plain": linear._plain, "packed": linear._packed}
        assert {name for name, matrix in kept.items() if matrix is not None} == layouts
        for rows in (1, 2, 3, 33):
            x, residual = torch.randn(2, rows, side, dtype=dtype)
            exact = x.double() @ weight.double().T + bias.double()
            tolerance = dict(atol=1e-4, rtol=1e-4) if dtype == torch.float32 else dict(atol=0.05, rtol=0.02)
            torch.testing.assert_close(linear(x).double(), exact, **tolerance)
            torch.testing.assert_close(linear.plus(residual, x).double(), residual.double() + exact, **tolerance)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [((6, 11), [(0, 1), (1, 0), (2, 1), (3, 1)]), ((5, 5), [(0, 0), (1, 1)])],
    ids=["shared", "equal"],
)
def test_a_text_is_read_once_for_several_rows_and_rows_of_equal_length_take_the_same_way(lengths, rows):
    net, texts = build("llama, biases"), random_ids(*lengths)
    cache = empty(net)
    read(net, cache, texts, rows)
    logits = decoder_of(net).advance(torch.arange(len(rows)), cache)
    for token, (row, text) in enumerate(rows):
        torch.testing.assert_close(logits[row], reference(net, [*texts[text], token]), atol=1e-4, rtol=1e-4)


def test_what_memory_held_before_does_not_matter():
    """Behind a row's end the cache may hold anything, also what is left of a longer text."""
    net, (long, short) = build("qwen3"), random_ids(40, 4)
    cache = empty(net)
    read(net, cache, [long, long])
    read(net, cache, [short], [(1, 0)])
    logits = decoder_of(net).advance(torch.tensor([1, 2]), cache)
    torch.testing.assert_close(logits[1], reference(net, [*short, 2]), atol=1e-4, rtol=1e-4)
    cache.move(1, 0)
    logits = decoder_of(net).advance(torch.tensor([8]), cache)
    torch.testing.assert_close(logits[0], reference(net, [*short, 2, 8]), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="only that can go on"):  # its keys have another order
        net(torch.tensor([[1]]), cache=cache)
    net(torch.tensor([[1]]), cache=(own := empty(net)))
    with pytest.raises(ValueError, match="only it can go on"):
        decoder_of(net).advance(torch.tensor([1]), own)
    torch.testing.assert_close(decoder_of(net).advance(torch.tensor([3]), empty(net))[0], reference(net, [3]))


@pytest.mark.usefixtures("weights")
def test_threads_share_a_step():
    """The panel draws its bars, or an engine writes, while a notebook writes with the same model."""
    net = build("llama")

    def write(text: list[int]) -> list[torch.Tensor]:
        cache = empty(net)
        logits = [read(net, cache, [text])]
        for length in range(len(text), N_CTX):
            logits.append(decoder_of(net).advance(torch.tensor([length]), cache))
        return logits

    texts = random_ids(3, 30, 17, 8)
    alone = [write(text) for text in texts]
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in range(5):
            for one, many in zip(alone, pool.map(write, texts), strict=True):
                torch.testing.assert_close(torch.cat(one), torch.cat(many), atol=1e-4, rtol=1e-4)


def test_a_model_that_learns_is_read_as_it_is_now():
    """Weights that were copied would be those of before: a step is kept only where nothing is trained any more."""
    net = build("llama").requires_grad_(True)

    def after(ids):
        cache = empty(net)
        read(net, cache, [ids[:-1]])
        return decoder_of(net).advance(torch.tensor(ids[-1:]), cache)[0]

    before = after([1, 2])
    with torch.no_grad():
        net.layers[0].mlp.down_proj.weight.mul_(2)
    assert not torch.allclose(before, after([1, 2]))
    torch.testing.assert_close(after([1, 2]), reference(net, [1, 2]), atol=1e-4, rtol=1e-4)
    net.requires_grad_(False)
    assert decoder_of(net) is decoder_of(net)
    net.load_state_dict({name: 1.5 * weight for name, weight in net.state_dict().items()})
    torch.testing.assert_close(after([1, 2]), reference(net, [1, 2]), atol=1e-4, rtol=1e-4)


def test_a_step_does_not_keep_its_model_alive():
    net = build("llama")
    decoder_of(net)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


# ---- a step as a CUDA graph ----


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
        rows.append(len(self._ids))
        return Again(self)

    monkeypatch.setattr(GraphedStep, "_record", record)
    return rows


def write(architecture: str, graphed: bool) -> list[list[int]]:
    """Return what rows of several lengths write, which join late, leave early, and pass the end of the window."""
    tok = models.plants_tokenizer()
    model = models.plants_model(architecture, tok)
    decoder_of(model)._is_graphed = graphed
    batch = DecodeBatch(model, tok)
    batch.eos = -1
    lengths = (5, 2 * models.N_CTX, 9, models.N_CTX, 3)
    rows = [Row([1, 7 + n, 8][: 2 + n % 2], Settings(max_new_tokens=new, seed=0), n) for n, new in enumerate(lengths)]
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


def test_a_cache_that_grows_forgets_its_graphs(recorded):
    net = build("llama")
    decoder_of(net)._is_graphed = True
    cache = empty(net)
    read(net, cache, [[1, 7]])
    decoder_of(net).advance(torch.tensor([8]), cache)
    decoder_of(net).advance(torch.tensor([9]), cache)
    assert recorded == [1] and list(cache.graphs) == [1]
    read(net, cache, [[1, 9]], [(1, 0)])
    assert not cache.graphs
    decoder_of(net).advance(torch.tensor([9, 9]), cache)
    assert recorded == [1, 2]


def test_neither_a_mixture_nor_a_model_off_the_gpu_is_recorded():
    """Which experts a token needs is known only when it is there."""
    tok = models.plants_tokenizer()
    with torch.device("meta"):
        nets = [models.plants_model(kind, tok) for kind in ("llama", "moe")]
    assert not any(decoder_of(net)._is_graphed for net in nets)
