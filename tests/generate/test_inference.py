"""Our own forward pass against the library's: every family, every length, rows of all lengths in one batch.

A CUDA graph is tried on a CPU, where replaying is doing it again.
"""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import models
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from helpers.chat import lora
from helpers.generate import inference
from helpers.generate.batch import DecodeBatch, Row
from helpers.generate.inference import GraphedStep
from helpers.generate.settings import Settings

N_CTX = 80
IDS = {"bos_token_id": 0, "eos_token_id": 0}
GPT2 = dict(vocab_size=90, n_embd=32, n_layer=2, n_head=4, n_positions=N_CTX, **IDS)
OTHERS = dict(
    vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=N_CTX,
    intermediate_size=48, **IDS,
)  # fmt: skip
FEW = OTHERS | {"num_key_value_heads": 2}
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gpt2, attention scaled by layer": lambda: GPT2LMHeadModel(
        GPT2Config(scale_attn_by_inverse_layer_idx=True, activation_function="gelu_pytorch_tanh", **GPT2)
    ),
    "gpt2, attention not scaled": lambda: GPT2LMHeadModel(GPT2Config(scale_attn_weights=False, **GPT2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**OTHERS)),
    "llama, shared keys, biases, tied": lambda: LlamaForCausalLM(
        LlamaConfig(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **FEW)
    ),
    "llama, stretched positions": lambda: LlamaForCausalLM(
        LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, **FEW)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(head_dim=16, **FEW)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=16, **FEW)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, **FEW)
    ),
}


def build(name: str):
    torch.manual_seed(0)
    net = MODELS[name]().eval()
    with torch.no_grad():
        for weight in net.parameters():  # far from the start of training, where many mistakes do not show
            weight.mul_(3).add_(0.1 * torch.randn_like(weight))
    return net


@torch.inference_mode()
def reference(net, ids: list[int]) -> torch.Tensor:
    """Return the library's logits, computed in fp64: in fp32 its own rounding would be as large as the tolerance."""
    exact = copy.deepcopy(net).double()
    if "Moe" in type(net).__name__:
        exact.set_experts_implementation("eager")  # the quick one knows no fp64
    return exact(torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def random_ids(*lengths: int) -> list[list[int]]:
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(90, (length,), generator=dice).tolist() for length in lengths]


def read(ours, cache, texts: list[list[int]], rows=None) -> torch.Tensor:
    width = max(map(len, texts))
    ids = torch.tensor([text + [7] * (width - len(text)) for text in texts])
    return ours.read(ids, [len(text) for text in texts], cache, rows or [(i, i) for i in range(len(texts))])


@pytest.fixture(params=["plain", "packed"])
def weights(request, monkeypatch):
    """Let also small matrices be packed, and met so by any number of rows."""
    if request.param == "packed":
        monkeypatch.setattr(inference, "PACKED_FROM", 0)
        monkeypatch.setattr(inference, "PLAIN_UP_TO", 0)


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_library(name):
    """Three rows of unequal length, read and then stepped to the end of the context: 1e-4 at every length."""
    net = build(name).requires_grad_(False)
    ours = inference.of(net)
    assert ours.n_ctx == N_CTX
    cache, texts = ours.cache(), random_ids(9, 3, 14)
    logits = read(ours, cache, texts)
    for token in range(N_CTX - 14):
        for text, row in zip(texts, logits, strict=True):
            if token % 20 == 0 or len(text) in (63, 64, 65, N_CTX - 1, N_CTX):
                torch.testing.assert_close(row, reference(net, text), atol=1e-4, rtol=1e-4)
        logits = ours.step(torch.tensor([token] * 3), [len(text) for text in texts], cache)
        for text in texts:
            text.append(token)


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("name", ["gpt2", "llama, shared keys, biases, tied", "qwen3"])
def test_in_bf16_we_are_as_near_to_the_truth_as_the_library(name):
    """The truth: the same rounded weights, computed in fp64."""
    net = build(name).bfloat16().requires_grad_(False)
    ours, text = inference.of(net), random_ids(20)[0]
    cache = ours.cache()
    read(ours, cache, [text[:5]])
    for length in range(5, 20):
        logits = ours.step(torch.tensor([text[length]]), [length], cache)
    true, theirs = reference(net, text), net(torch.tensor([text])).logits[0, -1].float()
    assert (logits[0] - true).norm() < 1.5 * (theirs - true).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("plain_up_to", "few"), [(2**19, 2), (2**20, 32)], ids=["any processor", "Intel's"])
def test_a_matrix_is_kept_in_the_layouts_that_its_size_and_its_rows_need(dtype, plain_up_to, few, monkeypatch):
    """Small: plain. Middle: plain for few rows, packed for many; in bf16 packed. Large: packed alone."""
    monkeypatch.setattr(inference, "PLAIN_UP_TO", plain_up_to)
    monkeypatch.setattr(inference, "FEW", few)
    fits = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    both = {"plain", "packed"} if dtype == torch.float32 else {"packed"}
    for side, layouts in ((100, {"plain"}), (400, both), (1100, {"packed"})):
        layouts = layouts if fits else {"plain"}
        weight, bias = torch.randn(side, side, dtype=dtype) / side**0.5, torch.randn(side, dtype=dtype)
        linear = inference.Linear(weight, bias)
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
    net = build("llama, shared keys, biases, tied").requires_grad_(False)
    ours, texts = inference.of(net), random_ids(*lengths)
    cache = ours.cache()
    read(ours, cache, texts, rows)
    logits = ours.step(torch.arange(len(rows)), [lengths[text] for _, text in rows], cache)
    for token, (row, text) in enumerate(rows):
        torch.testing.assert_close(logits[row], reference(net, [*texts[text], token]), atol=1e-4, rtol=1e-4)


def test_what_memory_held_before_does_not_matter():
    """Behind a row's end the cache may hold anything, also what is left of a longer text."""
    net = build("qwen3").requires_grad_(False)
    ours, (long, short) = inference.of(net), random_ids(40, 4)
    cache = ours.cache()
    read(ours, cache, [long, long])
    read(ours, cache, [short], [(1, 0)])
    logits = ours.step(torch.tensor([1, 2]), [40, 4], cache)
    torch.testing.assert_close(logits[1], reference(net, [*short, 2]), atol=1e-4, rtol=1e-4)
    cache.move(1, 0, 5)
    logits = ours.step(torch.tensor([8]), [5], cache)
    torch.testing.assert_close(logits[0], reference(net, [*short, 2, 8]), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("weights")
def test_threads_share_a_decoder():
    """The panel draws its bars, or an engine writes, while a notebook writes with the same model."""
    net = build("llama").requires_grad_(False)
    ours = inference.of(net)

    def write(text: list[int]) -> list[torch.Tensor]:
        cache = ours.cache()
        logits = [read(ours, cache, [text])]
        for length in range(len(text), N_CTX):
            logits.append(ours.step(torch.tensor([length]), [length], cache))
        return logits

    texts = random_ids(3, 30, 17, 8)
    alone = [write(text) for text in texts]
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in range(5):
            for one, many in zip(alone, pool.map(write, texts), strict=True):
                torch.testing.assert_close(torch.cat(one), torch.cat(many), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_the_cache_grows_by_doubling_and_keeps_what_it_holds():
    cache = inference.KVCache(1, 2, 4, torch.zeros(1))
    shapes = []
    for length in (1, 64, 65, 130, 300):
        cache.make_room(3, length, 260)
        shapes.append(cache.layers[0].shape[3])
        cache.layers[0][0, 2, :, 0] = 5
    assert shapes == [64, 64, 128, 256, 260]
    cache.make_room(4, 10, 260)
    assert cache.layers[0].shape == (2, 6, 2, 260, 4)
    assert cache.layers[0][0, 2, :, 0].eq(5).all() and cache.layers[0].sum() == 5 * 8


def test_a_model_that_learns_is_read_as_it_is_now():
    """Weights that were copied would be those of before: a decoder is kept only where nothing is trained any more."""
    net = build("llama")
    before = read(inference.of(net), inference.of(net).cache(), [[1, 2]])
    with torch.no_grad():
        net.model.layers[0].mlp.down_proj.weight.mul_(2)
    after = read(inference.of(net), inference.of(net).cache(), [[1, 2]])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after[0], reference(net, [1, 2]), atol=1e-4, rtol=1e-4)
    net.requires_grad_(False)
    assert inference.of(net) is inference.of(net)
    net.load_state_dict({name: 1.5 * weight for name, weight in net.state_dict().items()})
    other = read(inference.of(net), inference.of(net).cache(), [[1, 2]])
    assert not torch.allclose(after, other)
    torch.testing.assert_close(other[0], reference(net, [1, 2]), atol=1e-4, rtol=1e-4)


def test_a_decoder_does_not_keep_its_model_alive():
    net = build("llama").requires_grad_(False)
    inference.of(net)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_a_sliding_window_bounds_the_context():
    """Mistral's attention sees the last `sliding_window` ids: within that many, our full attention is the same."""
    net = MistralForCausalLM(MistralConfig(sliding_window=10, **FEW)).eval()
    assert inference.of(net).n_ctx == inference.context_length(net.config) == 10
    assert inference.context_length(MistralConfig(sliding_window=None, **FEW)) == N_CTX
    assert inference.context_length(MistralConfig(sliding_window=10 * N_CTX, **FEW)) == N_CTX
    assert inference.context_length(GPT2Config(**GPT2)) == N_CTX


def test_what_cannot_be_read_is_refused_in_words():
    adapted, net = build("llama"), build("llama").train()
    lora.add_lora(adapted, 2, seed=0)
    other = BloomForCausalLM(BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2)).eval()
    for refused, do, words in (
        (adapted.eval(), inference.of, "LoRA adapters: load its final_model"),
        (other, inference.of, "'bloom' are not known here, only gpt2, llama"),
        (net, inference.check_eval, r"model\.eval\(\)"),
    ):
        with pytest.raises(ValueError, match=words):
            do(refused)


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
    inference.of(model)._is_graphed = graphed
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


def test_rows_are_rounded_up_to_a_power_of_two_that_the_cache_has():
    assert [inference.rounded_up(rows, 64) for rows in (1, 2, 3, 5, 33, 64)] == [1, 2, 4, 8, 64, 64]
    assert inference.rounded_up(5, 6) == 6


def test_a_cache_that_grows_forgets_its_graphs(recorded):
    decoder = inference.of(build("llama").requires_grad_(False))
    decoder._is_graphed = True
    cache = decoder.cache()
    read(decoder, cache, [[1, 7]])
    decoder.step(torch.tensor([8]), [2], cache)
    decoder.step(torch.tensor([9]), [3], cache)
    assert recorded == [1] and list(cache.graphs) == [1]
    read(decoder, cache, [[1, 9]], [(1, 0)])
    assert not cache.graphs
    decoder.step(torch.tensor([9, 9]), [4, 2], cache)
    assert recorded == [1, 2]


def test_neither_a_mixture_nor_a_model_off_the_gpu_is_recorded():
    """Which experts a token needs is known only when it is there."""
    tok = models.plants_tokenizer()
    with torch.device("meta"):
        nets = [models.plants_model(kind, tok) for kind in ("llama", "moe")]
    assert not any(inference.of(net)._is_graphed for net in nets)
