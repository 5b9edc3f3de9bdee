"""The KV cache: with it the scores are those of a pass over everything."""

import pytest
import torch
from families import CONFIGS, TOKENS, V, lively

from helpers.model.cache import Cache
from helpers.model.config import make_config


@pytest.mark.parametrize("name", CONFIGS)
def test_with_a_cache_the_scores_are_the_same(name):
    """In pieces of several sizes, for two rows; what was kept is what a pass over all computes."""
    net, ids = lively(name), torch.randint(V, (2, 60))
    ids = ids[:, : net.config.window]
    cache, pieces = Cache(net.config, net.embed_tokens.weight), []
    for piece in ids.split([3, 1, 1, 4] if net.config.window < 60 else [20, 1, 1, 38], 1):
        pieces.append(net(piece, cache=cache))
    torch.testing.assert_close(torch.cat(pieces, 1), net(ids))
    assert cache.lengths == [ids.shape[1]] * 2


def test_a_cache_grows_by_doubling_and_keeps_what_it_holds():
    cache = Cache(make_config("llama", 9, n_ctx=260, n_embd=16, n_layer=1, n_head=4, n_kv_head=2), torch.zeros(1))
    shapes = []
    for length in (1, 64, 65, 130, 260):
        cache.make_room(3, length)
        shapes.append(cache.layers[0].shape[3])
        cache.layers[0][0, 2, :, 0] = 5
    assert shapes == [64, 64, 128, 256, 260]
    cache.make_room(4, 10)
    assert cache.layers[0].shape == (2, 6, 2, 260, 4)
    assert cache.layers[0][0, 2, :, 0].eq(5).all() and cache.layers[0].sum() == 5 * 8
    with pytest.raises(ValueError, match="sees 260 tokens at once"):
        cache.make_room(1, 261)


def test_a_cache_of_rows_that_are_not_equally_long_is_refused():
    net = lively("llama")
    cache = Cache(net.config, net.embed_tokens.weight)
    net(TOKENS[:2], cache=cache)
    cache.lengths[1] = 3
    with pytest.raises(ValueError, match="several lengths"):
        net(TOKENS[:2], cache=cache)
