"""LoRA: what peft computes; at first adapters add nothing, only they are trained, and merged they compute the same."""

import peft
import pytest
import torch
from chats import characters_tokenizer, tiny_model
from transformers import AutoModelForCausalLM

from helpers.chat import lora
from helpers.model.huggingface import load_model, save_model
from helpers.train import checkpoint

TOK = characters_tokenizer()
IDS = torch.arange(6, 46).view(2, 20)
ARCHITECTURES = pytest.mark.parametrize("architecture", ["llama", "gpt2", "moe"])


def with_adapters(architecture: str, rank: int = 4, noise: float = 0.1):
    """Return a model in fp64 whose adapters are as if they were trained."""
    model = tiny_model(TOK, architecture).double().eval()
    lora.add_lora(model, rank)
    model.double()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_(std=noise)
    return model


def test_scores_and_gradients_are_those_of_peft(tmp_path):
    """The same numbers in the adapters of the library's LLaMA."""
    ours = with_adapters("llama")
    save_model(tmp_path, ours, lora.merged_weights(tiny_model(TOK, "llama").double()))
    library = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    theirs = peft.get_peft_model(library, config).eval()
    name_of = lambda name: "base_model.model.model." + name + ".default.weight"  # noqa: E731
    own = {name: p for name, p in ours.named_parameters() if p.requires_grad}
    found = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    assert {name_of(name) for name in own} == found.keys()
    for name, p in own.items():
        found[name_of(name)].data.copy_(p.data)
    ours(IDS).square().mean().backward()
    theirs(IDS).logits.square().mean().backward()
    torch.testing.assert_close(ours(IDS), theirs(IDS).logits, atol=1e-6, rtol=1e-6)
    for name, p in own.items():
        torch.testing.assert_close(p.grad, found[name_of(name)].grad, atol=1e-8, rtol=1e-4)


@ARCHITECTURES
def test_at_first_the_adapters_add_nothing(architecture):
    plain = tiny_model(TOK, architecture).eval()
    model = tiny_model(TOK, architecture).eval()
    lora.add_lora(model, 4)
    assert torch.equal(model(IDS), plain(IDS))
    assert lora.is_lora(model) and not lora.is_lora(plain)


@ARCHITECTURES
def test_only_adapters_are_trained(architecture):
    model = with_adapters(architecture)
    model(IDS).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (".lora_" in name), name


@ARCHITECTURES
def test_merged_equals_unmerged(architecture, tmp_path):
    model = with_adapters(architecture)
    plain = tiny_model(TOK, architecture).double().eval()
    assert (model(IDS) - plain(IDS)).abs().max() > 1e-2  # the adapters do something
    merged = lora.merged_weights(model)
    assert merged.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(merged, strict=False)
    torch.testing.assert_close(plain(IDS), model(IDS), rtol=0, atol=1e-9)
    # and so does the folder that is written
    checkpoint.export_model(tmp_path / "final_model", model, TOK, weights=merged)
    loaded = load_model(tmp_path / "final_model")
    torch.testing.assert_close(loaded(IDS), model(IDS), rtol=0, atol=1e-9)
    assert not lora.is_lora(loaded) and "lora" not in (tmp_path / "final_model" / "config.json").read_text("utf-8")


def test_a_rank_decides_how_many_numbers_are_trained():
    counts = [sum(p.numel() for p in with_adapters("llama", rank).parameters() if p.requires_grad) for rank in (2, 4)]
    assert counts[1] == 2 * counts[0]
    with pytest.raises(ValueError, match="1 or more"):
        lora.add_lora(tiny_model(TOK), 0)
