from __future__ import annotations

import pytest
import torch

from shared.errors import ConfigError
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_group import kv_groups, one_kv_group


def make_layer(num_kv_heads: int, head_dim: int, num_heads: int = 8) -> AttentionLayer:
    return AttentionLayer(num_heads, num_kv_heads, head_dim, scale=1.0)


def test_layers_of_one_shape_are_one_group() -> None:
    group = one_kv_group([make_layer(2, 16), make_layer(2, 16, num_heads=4)], torch.bfloat16, 4)
    assert group.layer_ids == (0, 1)
    assert group.bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_a_second_shape_is_a_group_of_its_own_and_refused_by_name() -> None:
    layers = [make_layer(2, 16), make_layer(1, 64), make_layer(2, 16)]
    groups = kv_groups(layers, torch.float32, 4)
    assert [group.layer_ids for group in groups] == [(0, 2), (1,)]
    assert [(group.num_kv_heads, group.head_dim) for group in groups] == [(2, 16), (1, 64)]
    with pytest.raises(ConfigError, match="num_kv_heads=1 and head_dim=64 in layer 1"):
        one_kv_group(layers, torch.float32, 4)


def test_a_latent_is_kept_once_and_is_a_shape_of_its_own() -> None:
    latent = AttentionLayer(8, 1, 24, scale=1.0, latent_dim=16)
    group = one_kv_group([latent, latent], torch.float32, 4)
    assert group.bytes_per_token == 2 * 24 * 4
    pool = KVCachePool(group, num_pages=3)
    (vectors,) = pool.vectors(1)
    assert vectors.shape == (4, 1, 4, 24)
    assert len(kv_groups([latent, make_layer(1, 24)], torch.float32, 4)) == 2


def test_a_pool_knows_its_layers_by_their_ids() -> None:
    layers = [make_layer(2, 16), make_layer(1, 64), make_layer(2, 16)]
    pool = KVCachePool(kv_groups(layers, torch.float32, 4)[0], num_pages=3)
    keys, values = pool.keys_and_values(2)
    values.fill_(1.0)
    assert keys.shape == (4, 2, 4, 16)
    assert float(pool.keys_and_values(0)[1].sum()) == 0.0
    with pytest.raises(KeyError):
        pool.keys_and_values(1)
