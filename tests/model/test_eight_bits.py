"""Weights in 8 bits: off by half a scale at most, a quarter of the bytes, and the same model when they are read."""

import pytest
import torch
from families import lively

from helpers.model.eight_bits import from_eight_bits, read_packed, to_eight_bits, write_packed

IDS = torch.arange(20)[None]


def test_each_row_has_its_scale_and_its_largest_weight_is_exact():
    weights = {"w": torch.tensor([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0], [1e-6, 2e-6, -3e-6]]), "b": torch.ones(3)}
    packed = to_eight_bits(weights)
    assert packed["w"].tolist() == [[127, -50, 0], [0, 0, 0], [42, 85, -127]] and packed["w"].dtype == torch.int8
    found = from_eight_bits(packed)
    assert found.keys() == weights.keys() and torch.equal(found["b"], weights["b"])
    scales = weights["w"].abs().amax(1, keepdim=True) / 127
    assert ((found["w"] - weights["w"]).abs() <= scales / 2 + 1e-12).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3_moe"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_model_that_is_written_is_the_model_that_is_read(tmp_path, name, exact):
    net = lively(name).float()
    net.generation = {"temperature": 0.5}
    write_packed(tmp_path, net, {"said": "乙"}, exact)
    found = read_packed(tmp_path)
    assert (found.config, found.generation, found.training) == (net.config, net.generation, False)
    assert torch.equal(found(IDS), net(IDS)) == exact
    bits = 8 * (tmp_path / "model.safetensors").stat().st_size / net.config.sizes()["parameters"]
    assert bits < (36 if exact else 16)  # these have narrow rows, and a scale and a name for each
