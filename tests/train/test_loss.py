"""Room 04: the loss in chunks is the loss; a mixture's router is held to even work; wrappers change nothing."""

import functools

import pytest
import torch
import torch.nn.functional as F
from families import as_library
from models import FIRST, PAD, TOK, tiny
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from helpers.tokens.windows import IGNORE
from helpers.train import loss
from helpers.train.loss import Loss


def uneven_batch():
    """Six windows of 8, two of them padded at the right end."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(FIRST, len(TOK), (6, 8), generator=generator)
    labels = torch.randint(FIRST, len(TOK), (6, 8), generator=generator)
    for window, length in ((1, 2), (4, 5)):
        inputs[window, length:] = PAD
        labels[window, length:] = IGNORE
    return inputs, labels


def whole(model, inputs, labels):
    """Return summed cross-entropy and right guesses of each window by torch, from whole logits."""
    logits = model(inputs)
    each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
    return each.sum(1), (logits.argmax(-1) == labels).sum(1)


def gradients(model, objective) -> list[torch.Tensor]:
    model.zero_grad()
    objective.backward()
    return [p.grad.clone() for p in model.parameters()]


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the shapes of all matrix products, and of all tensors that are as wide as the vocabulary."""

    def __init__(self):
        super().__init__()
        self.products, self.wide = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mm:
            self.products.append((*args[0].shape, *args[1].shape))
        outs = out if isinstance(out, (tuple, list)) else [out]
        self.wide += [t.numel() for t in outs if isinstance(t, torch.Tensor) and t.shape[-1:] == (len(TOK),)]
        return out


def small_pieces(monkeypatch, rows: int, cached: int):
    monkeypatch.setattr(loss, "LOGIT_ROWS", rows)
    monkeypatch.setattr(loss, "CACHED", cached)
    monkeypatch.setattr(loss, "PAD_TO_MULTIPLE", min(rows, 4))


# ---- cross-entropy ----


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize(("rows", "cached"), [(1, 1), (3, 2 * len(TOK)), (100, 7 * len(TOK)), (512, 2**20)])
def test_the_loss_in_chunks_is_the_loss(monkeypatch, architecture, rows, cached):
    """Each window's value and right guesses, and all gradients: fp64, 1e-12, with a last chunk that is shorter."""
    small_pieces(monkeypatch, rows, cached)
    model = tiny(dtype=torch.float64, architecture=architecture)
    inputs, labels = uneven_batch()
    per_window, correct = whole(model, inputs, labels)
    wanted = gradients(model, per_window.sum())
    scores = Loss(model)(inputs, labels)
    torch.testing.assert_close(scores.objective, per_window.sum().detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(scores.loss, per_window.detach(), rtol=1e-12, atol=1e-14)
    assert torch.equal(scores.correct, correct)
    guesses = torch.where(labels == IGNORE, IGNORE, model(inputs).argmax(-1))  # random labels are hardly right
    assert torch.equal(Loss(model)(inputs, guesses).correct, (labels != IGNORE).sum(1))
    for grad, true in zip(gradients(model, scores.objective), wanted, strict=True):
        torch.testing.assert_close(grad, true, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 4e-3)])
def test_what_is_written_for_a_compiler_gives_the_same(dtype, tolerance):
    """Loss to the last digits of fp32 or fp64; the gradient to those of its own type; where the row is sure, too."""
    torch.manual_seed(0)
    logits = 5 * torch.randn(9, 50, dtype=dtype)
    logits[3, 7] = 300.0
    labels = torch.randint(50, (9,))
    labels[3] = 8
    wide = torch.promote_types(dtype, torch.float32)
    wanted, found = logits.clone(), logits.clone()
    losses, right = loss._at_once(wanted, labels, True)
    own_losses, own_right = loss._for_compiler(found, labels, True)
    assert own_losses.dtype == wide and torch.equal(own_right, right)
    torch.testing.assert_close(own_losses, losses, rtol=min(tolerance, 1e-6), atol=0)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert losses[3] == 300.0 - logits[3, 8].to(wide) and not torch.equal(wanted, logits)
    for way in (loss._at_once, loss._for_compiler):
        kept = logits.clone()
        way(kept, labels, False)
        assert torch.equal(kept, logits), "without a gradient the logits stay"


@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_sure_and_wrong_has_a_finite_loss_and_a_true_gradient(scale):
    """Where p of the right word is 0 in fp32, log p would be infinite."""
    hidden = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * scale
    weight = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, int((hidden[1] @ weight.T).argmax()), 3, 4])

    def run(function, dtype):
        h, w = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        value = function(h, w)
        value.backward()
        return value.detach(), h.grad, w.grad

    def ours(h, w):
        return loss._ChunkedCrossEntropy.apply(h, w, labels, h.dtype, loss._at_once)[0]

    def torchs(h, w):
        return F.cross_entropy(h @ w.T, labels, reduction="sum")

    for one, two in zip(run(ours, torch.float32), run(torchs, torch.float64), strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-4)


def test_chunks_are_added_in_fp32(monkeypatch):
    """A sum kept in bf16 stands still after 256 equal terms: here 2,000 chunks of one row, right to 1 %."""
    small_pieces(monkeypatch, 1, 2**20)
    hidden = torch.ones(2000, 4)
    weight = torch.zeros(8, 4, requires_grad=True)
    labels = torch.zeros(2000, dtype=torch.long)
    loss._ChunkedCrossEntropy.apply(hidden, weight, labels, torch.bfloat16, loss._at_once)[0].backward()
    wanted = torch.full((8, 4), 2000 / 8)
    wanted[0] -= 2000
    torch.testing.assert_close(weight.grad, wanted, rtol=1e-2, atol=0)


def test_the_logits_never_stand_whole(monkeypatch):
    """No tensor of a forward and backward pass is as large as the logits; torch's own way makes several."""
    small_pieces(monkeypatch, 16, 64)
    model = tiny(n_ctx=128)
    inputs = torch.randint(FIRST, len(TOK), (8, 128))
    with Products() as ours:
        Loss(model)(inputs, inputs).objective.backward()
    with Products() as theirs:
        whole(model, inputs, inputs)[0].sum().backward()
    assert max(ours.wide) <= 16 * len(TOK) and max(theirs.wide) == inputs.numel() * len(TOK)


def test_products_of_few_shapes(monkeypatch):
    """oneDNN compiles a product for each shape it meets, and keeps it: batches of any number of labels share a few."""
    monkeypatch.setattr(loss, "LOGIT_ROWS", 128)
    hidden, weight = torch.randn(300, 4, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    with Products() as seen:
        for n in range(1, 300):
            labels = torch.full((300,), IGNORE).index_fill(0, torch.randperm(300)[:n], 5)
            loss._ChunkedCrossEntropy.apply(hidden, weight, labels, torch.float32, loss._at_once)
    wanted = {s for rows in (64, 128) for s in ((rows, 4, 4, 8), (rows, 8, 8, 4), (8, rows, rows, 4))}
    assert set(seen.products) == wanted


def test_pieces_of_logits_on_a_gpu_are_even_and_fill_its_share_of_memory():
    assert loss.rows_at_once(50_000, "cuda", 6) == 5368 and loss.rows_at_once(50_000, "cuda", 2) == 16_106
    assert loss.rows_at_once(50_000, "cpu", 2) == loss.LOGIT_ROWS and loss.rows_at_once(2**31, "cuda", 6) == 1
    assert [loss._evenly(count, 10) for count in (0, 1, 10, 11, 21)] == [10, 1, 10, 6, 7]


def test_a_batch_without_labels_has_loss_and_gradient_0():
    model = tiny()
    inputs, labels = uneven_batch()
    scores = Loss(model)(inputs, torch.full_like(labels, IGNORE))
    assert scores.objective == 0 and not scores.loss.any() and not scores.correct.any()
    assert not any(grad.any() for grad in gradients(model, scores.objective))


def test_a_second_backward_is_refused_in_words():
    scores = Loss(tiny())(*uneven_batch())
    scores.objective.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run the forward pass again"):
        scores.objective.backward()


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_validation_leaves_no_graph_and_makes_no_gradient(context):
    """Our own function makes its gradients in the forward pass: also the table's, unless nobody wants them."""
    model = tiny()
    words, width = model.lm_head.weight.shape
    with context(), Products() as seen:
        scores = Loss(model)(*uneven_batch())
    of_table = [(a, d) for a, b, c, d in seen.products if (a, d) == (words, width)]
    assert bool(of_table) == scores.objective.requires_grad == (context is torch.enable_grad)


# ---- mixtures of experts ----


@pytest.mark.parametrize("chosen", [1, 2])
def test_a_mixtures_objective_is_the_librarys(chosen):
    """transformers sums over layers before it multiplies: with one layer the two are the same. fp64, rel 1e-6, as
    transformers counts in fp32. Padding has no part in it."""
    model = tiny(
        dtype=torch.float64, architecture="moe", n_layer=1, n_experts=4, experts_per_token=chosen, aux_loss_coef=0.3
    )
    inputs, labels = uneven_batch()
    mask = (inputs != PAD).long()
    library = as_library(model)
    out = library(input_ids=inputs, attention_mask=mask, output_router_logits=True)
    cross_entropy = F.cross_entropy(out.logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="sum")
    aux = load_balancing_loss_func(out.router_logits, 4, chosen, mask)
    unmasked = load_balancing_loss_func(out.router_logits, 4, chosen)
    assert aux.item() != pytest.approx(unmasked.item(), rel=1e-6)
    (cross_entropy + 0.3 * aux * (labels != IGNORE).sum()).backward()
    wanted = library.get_input_embeddings().weight.grad, library.model.layers[0].mlp.gate.weight.grad
    scores = Loss(model)(inputs, labels)
    torch.testing.assert_close(scores.loss.sum(), cross_entropy.detach(), rtol=1e-8, atol=0)  # pure cross-entropy
    scores.objective.backward()
    for weight, true in zip((model.embed_tokens.weight, model.layers[0].mlp.gate.weight), wanted, strict=True):
        torch.testing.assert_close(weight.grad, true, rtol=1e-5, atol=1e-5)


def test_each_layer_is_balanced_by_itself():
    """Two layers that use one expert each, not the same one: worst for both, though over both the work is even."""
    model = tiny(architecture="moe", n_experts=2, experts_per_token=1)
    one_sided = torch.tensor([[50.0, -50.0]]).expand(10, 2)
    real = torch.ones(10, dtype=torch.bool)
    assert Loss(model)._balance((one_sided, one_sided.flip(1)), real) == pytest.approx(2.0)
    even = torch.tensor([[1e-3, -1e-3], [-1e-3, 1e-3]]).repeat(5, 1)
    assert Loss(model)._balance((even, even), real) == pytest.approx(1.0, abs=1e-5)


def test_the_experts_load_is_counted_in_training_only():
    model = tiny(architecture="moe", n_layer=3, n_experts=4, experts_per_token=2)
    loss_of = Loss(model).train()
    inputs, labels = uneven_batch()
    real = int((inputs != PAD).sum())
    loss_of(inputs, labels)
    loss_of(inputs, labels)
    assert loss_of.expert_load.shape == (3, 4)
    assert (loss_of.expert_load.sum(1) == 2 * 2 * real).all()  # two batches, two experts a token
    shares = loss_of.expert_shares()
    assert [sum(layer) for layer in shares] == pytest.approx([1.0] * 3)
    assert loss_of.expert_shares() is None  # it counts anew
    loss_of.eval()(inputs, labels)
    assert loss_of.expert_load is None and Loss(tiny()).expert_shares() is None


# ---- wrapped ----


@pytest.mark.slow
def test_a_compiled_body_is_the_same_model(monkeypatch):
    """Names of the weights, the tie, the scores: all as without. fp32, 1e-5; traced, but not translated into C++."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = tiny()
    batch = uneven_batch()
    plain, compiled = Loss(model), Loss(model, compile=True)
    wanted, scores = plain(*batch), compiled(*batch)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1  # it was not passed by
    torch.testing.assert_close(scores.objective, wanted.objective, rtol=1e-5, atol=0)
    true = gradients(model, wanted.objective)
    for grad, want in zip(gradients(model, scores.objective), true, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-5, atol=1e-5)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    assert model.lm_head.weight is model.embed_tokens.weight
