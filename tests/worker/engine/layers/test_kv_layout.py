from __future__ import annotations

import pytest
import torch

from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVGroup, KVLayout

CPU = torch.device("cpu")


def make_layer(
    num_kv_heads: int, head_dim: int, num_heads: int = 8, kv_layer_id: int | None = None
) -> AttentionLayer:
    return AttentionLayer(num_heads, num_kv_heads, head_dim, scale=1.0, kv_layer_id=kv_layer_id)


def test_layers_of_one_shape_are_one_group() -> None:
    layout = KVLayout.of([make_layer(2, 16), make_layer(2, 16, num_heads=4)], torch.bfloat16, 4)
    assert layout.groups == (KVGroup(2, 2, 16),)
    assert layout.bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_a_second_shape_is_a_group_of_its_own() -> None:
    layers = [make_layer(2, 16), make_layer(1, 64), make_layer(2, 16)]
    layout = KVLayout.of(layers, torch.float32, 4)
    assert layout.groups == (KVGroup(2, 2, 16), KVGroup(1, 1, 64))
    assert [layout.places[layer_id] for layer_id in range(3)] == [(0, 0), (1, 0), (0, 1)]
    assert layout.bytes_per_token == 4 * (2 * 2 * 2 * 16 + 2 * 64)


def test_a_latent_is_kept_once_and_is_a_shape_of_its_own() -> None:
    latent = AttentionLayer(8, 1, 24, scale=1.0, latent_dim=16)
    layout = KVLayout.of([latent, latent], torch.float32, 4)
    assert layout.bytes_per_token == 2 * 24 * 4
    (vectors,) = KVCachePool(layout, num_pages=3).vectors(1)
    assert vectors.shape == (4, 1, 4, 24)
    assert len(KVLayout.of([latent, make_layer(1, 24)], torch.float32, 4).groups) == 2


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_page_of_a_pool_has_a_part_for_each_shape(on_gpu: bool) -> None:
    """And what a layer shares lies where the other layer's is."""
    layers = [make_layer(2, 16), make_layer(1, 64), make_layer(2, 16), make_layer(1, 64, 4, 1)]
    layout = KVLayout.of(layers, torch.float32, 4)
    pool = GpuKVPool(layout, 3, CPU) if on_gpu else KVCachePool(layout, 3)
    for layer_id, value in enumerate((1.0, 2.0, 3.0)):
        pool.keys_and_values(layer_id)[1].fill_(value)
    values = [pool.keys_and_values(layer_id)[1] for layer_id in range(4)]
    sizes = [(data.numel(), float(data.max())) for data in values]
    assert sizes == [(4 * 4 * 32, 1.0), (4 * 4 * 64, 2.0), (4 * 4 * 32, 3.0), (4 * 4 * 64, 2.0)]
    assert pool.keys_and_values(3)[0].data_ptr() == pool.keys_and_values(1)[0].data_ptr()
    if isinstance(pool, KVCachePool):
        pool.wipe([2])
        for data in values:
            assert float(data[2].abs().max()) == 0.0 < float(data[1].min())
