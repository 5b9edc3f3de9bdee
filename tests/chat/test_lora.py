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
def test_adapters_alone_are_trained_at_first_add_nothing_and_can_be_merged(architecture, tmp_path):
    plain = tiny_model(TOK, architecture).double().eval()
    assert torch.equal(with_adapters(architecture, noise=0.0)(IDS), plain(IDS)) and not lora.is_lora(plain)
    model = with_adapters(architecture)
    model(IDS).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (".lora_" in name), name
    assert (model(IDS) - plain(IDS)).abs().max() > 1e-2 and lora.is_lora(model)  # the adapters do something
    merged = lora.merged_weights(model)
    assert merged.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(merged, strict=False)
    torch.testing.assert_close(plain(IDS), model(IDS), rtol=0, atol=1e-9)
    checkpoint.export_model(tmp_path / "final_model", model, TOK, weights=merged)
    loaded = load_model(tmp_path / "final_model")
    torch.testing.assert_close(loaded(IDS), model(IDS), rtol=0, atol=1e-9)
    assert not lora.is_lora(loaded) and "lora" not in (tmp_path / "final_model" / "config.json").read_text("utf-8")
