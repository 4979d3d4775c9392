"""Each kernel against plain torch, or against the CPU's own sampler."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from worker.engine.cuda.batch.gpu_batch import StepRows
from worker.engine.cuda.batch.key_splits import KeySplits, count_splits, list_pieces
from worker.engine.cuda.batch.query_blocks import QueryBlocks, cut_queries
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.layer_ops import add_rms_norm as plain_add_rms_norm
from worker.engine.models.layer_ops import norm_rotate
from worker.engine.models.layer_ops import silu_mul as plain_silu_mul
from worker.engine.sampling.counter_hash import CounterHash, gumbel_of
from worker.engine.sampling.gumbel_max import GumbelMax
from worker.engine.sampling.kept_set import kept_threshold

PAGE_SIZE = 16


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Pool:
    """Keys and values of some requests, in pages that are mixed up."""

    def __init__(
        self,
        seq_lens: list[int],
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        *,
        has_latents: bool = False,
    ) -> None:
        num_pages = [-(-seq_len // PAGE_SIZE) for seq_len in seq_lens]
        order = np.random.default_rng(0).permutation(sum(num_pages)).astype(np.int32)
        shape = (sum(num_pages) + 1, PAGE_SIZE, num_kv_heads, head_dim)
        self.seq_lens = seq_lens
        self.keys, self.values = (random(*shape, seed=seed).to(dtype) for seed in (1, 2))
        if has_latents:
            self.values = self.keys
        self.page_table = torch.full((len(seq_lens), max(num_pages)), sum(num_pages)).int()
        for row, (start, count) in enumerate(
            zip(np.cumsum([0, *num_pages]), num_pages, strict=False)
        ):
            self.page_table[row, :count] = torch.from_numpy(order[start : start + count])

    def attend(self, row: int, q: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
        """The last len(q) queries of a request: [num_queries, num_heads, head_dim]."""
        seq_len = self.seq_lens[row]
        keys, values = (
            data[self.page_table[row]]
            .flatten(0, 1)[:seq_len]
            .float()
            .repeat_interleave(layer.group, dim=1)
            for data in (self.keys, self.values)
        )
        values = values[..., : layer.num_values]
        scores = torch.einsum("qhd,khd->hqk", q, keys) * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        positions = torch.arange(seq_len - len(q), seq_len)
        distance = positions[:, None] - torch.arange(seq_len)
        is_hidden = distance < 0
        if layer.window is not None:
            is_hidden |= distance >= layer.window
        if layer.chunk is not None:
            is_hidden |= torch.arange(seq_len) < (positions // layer.chunk * layer.chunk)[:, None]
        scores = scores.masked_fill(is_hidden, -torch.inf)
        if layer.sinks is not None:
            sinks = layer.sinks[:, None, None].expand(-1, len(q), 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


LAYERS = {
    "plain": AttentionLayer(4, 2, 16, 0.25),
    "one head each": AttentionLayer(3, 3, 24, 0.2),
    "window": AttentionLayer(4, 2, 16, 0.25, window=20),
    "chunk": AttentionLayer(4, 2, 16, 0.25, chunk=24),
    "soft cap": AttentionLayer(8, 2, 16, 0.25, soft_cap=2.0),
    "sinks": AttentionLayer(4, 2, 16, 0.25, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])),
    "latents": AttentionLayer(20, 1, 520, 0.05, latent_dim=512),  # more heads than a program has
}


CASES = [  # and the dtype of keys and values
    *((name, torch.float32) for name in LAYERS),
    ("plain", torch.float8_e4m3fn),
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_decode_attention(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Rows in one piece and in several; one that nobody has stays as it was."""
    from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention

    layer = LAYERS[name]
    seq_lens = [1, 15, 16, 130, 67, 1200]
    has_latents = layer.latent_dim is not None
    pool = Pool(seq_lens, layer.num_kv_heads, layer.head_dim, dtype, has_latents=has_latents)
    q = random(7, layer.num_heads, layer.head_dim)
    splits = count_splits(np.array([*seq_lens, 0]), 20)
    assert splits.tolist() == [1, 1, 1, 2, 1, 17, 0]
    pieces, ends = list_pieces(splits, 27)
    output = torch.full((*q.shape[:2], layer.num_values), 77.0, device=device)
    decode_attention(
        q.to(device),
        pool.keys.to(device),
        pool.values.to(device),
        pool.page_table.to(device),
        torch.tensor([*seq_lens, 0], dtype=torch.int32, device=device),
        on(layer, device),
        KeySplits(torch.from_numpy(pieces).to(device), torch.from_numpy(ends).int().to(device)),
        DecodeScratch.of(27, layer.num_heads, layer.num_values, device),
        32,
        output,
    )
    wanted = torch.cat([pool.attend(row, q[row : row + 1], layer) for row in range(6)])
    torch.testing.assert_close(output[:6].cpu(), wanted, rtol=1e-4, atol=1e-4)
    assert (output[6] == 77.0).all()


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_extend_attention(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Blocks without queries end at once; the tokens of rows that decode are not written."""
    from worker.engine.cuda.kernels.extend_attention import extend_attention

    layer = LAYERS[name]
    seq_lens, query_lens = [7, 40, 70, 9], [1, 40, 21, 1]
    has_latents = layer.latent_dim is not None
    pool = Pool(seq_lens, layer.num_kv_heads, layer.head_dim, dtype, has_latents=has_latents)
    q = random(sum(query_lens), layer.num_heads, layer.head_dim)
    nothing = torch.empty(0)
    rows = StepRows(1, np.array(query_lens), np.array(seq_lens), nothing, nothing)
    table = np.concatenate([cut_queries(rows, 8), np.zeros((3, 4), np.int32)])
    output = torch.full((*q.shape[:2], layer.num_values), 77.0, device=device)
    extend_attention(
        q.to(device),
        pool.keys.to(device),
        pool.values.to(device),
        pool.page_table.to(device),
        QueryBlocks(torch.from_numpy(table).to(device), 8),
        on(layer, device),
        32,
        output,
    )
    starts = np.cumsum([0, *query_lens]).tolist()
    for row in range(1, 4):
        tokens = slice(starts[row], starts[row + 1])
        wanted = pool.attend(row, q[tokens], layer)
        torch.testing.assert_close(output[tokens].cpu(), wanted, rtol=1e-4, atol=1e-4)
    assert (output[0] == 77.0).all()


def on(layer: AttentionLayer, device: torch.device) -> AttentionLayer:
    sinks = None if layer.sinks is None else layer.sinks.to(device)
    return dataclasses.replace(layer, sinks=sinks)


def test_add_rms_norm(device: torch.device) -> None:
    from worker.engine.cuda.kernels.layer_kernels import add_rms_norm

    delta, residual, weight = random(5, 48), random(5, 48, seed=1), random(48, seed=2)
    found = add_rms_norm(delta.to(device), residual.to(device), weight.to(device), 1e-6)
    for one, wanted in zip(found, plain_add_rms_norm(delta, residual, weight, 1e-6), strict=True):
        torch.testing.assert_close(one.cpu(), wanted)


def test_silu_mul(device: torch.device) -> None:
    from worker.engine.cuda.kernels.layer_kernels import silu_mul

    gate_up = random(3, 2 * 1500)
    torch.testing.assert_close(silu_mul(gate_up.to(device)).cpu(), plain_silu_mul(gate_up))


@pytest.mark.parametrize("has_norm", [True, False])
def test_rotate_and_append(has_norm: bool, device: torch.device) -> None:
    from worker.engine.cuda.kernels.layer_kernels import rotate_and_append

    num_tokens, num_heads, num_kv_heads, head_dim = 5, 4, 2, 24
    qkv = random(num_tokens, num_heads + 2 * num_kv_heads, head_dim)
    norm = random(num_heads + num_kv_heads, head_dim, seed=1) if has_norm else None
    angles = random(50, head_dim // 2, seed=2)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.tensor([3, 49, 0, 7, 8])
    out_loc = torch.tensor([17, 3, 47, 0, 20])
    keys, values = (
        torch.zeros(4, PAGE_SIZE, num_kv_heads, head_dim, device=device) for _ in range(2)
    )
    queries = rotate_and_append(
        qkv.to(device),
        None if norm is None else norm.to(device),
        1e-6,
        cos.to(device),
        sin.to(device),
        positions.to(device),
        keys,
        values,
        out_loc.to(device),
    )
    both = (cos[positions].unsqueeze(1), sin[positions].unsqueeze(1))
    rotated = norm_rotate(qkv[:, : num_heads + num_kv_heads], norm, 1e-6, both)
    torch.testing.assert_close(queries.cpu(), rotated[:, :num_heads])
    wanted = torch.zeros(4 * PAGE_SIZE, num_kv_heads, head_dim)
    wanted[out_loc] = rotated[:, num_heads:]
    torch.testing.assert_close(keys.flatten(0, 1).cpu(), wanted)
    wanted[out_loc] = qkv[:, num_heads + num_kv_heads :]
    torch.testing.assert_close(values.flatten(0, 1).cpu(), wanted)


def test_a_pool_in_eight_bits_gets_what_it_can_hold(device: torch.device) -> None:
    """All values but those beyond its range are ones that it has."""
    from worker.engine.cuda.kernels.layer_kernels import rotate_and_append

    fp8 = torch.float8_e4m3fn
    qkv = (random(3, 4, 16) * 100).to(fp8).float()
    qkv[1, 2, 3], qkv[1, 3, 4], qkv[2, 3, 5], qkv[2, 2, 6] = 1e6, 449.0, -torch.inf, -500.0
    keys, values = (torch.zeros(1, PAGE_SIZE, 1, 16, dtype=fp8, device=device) for _ in range(2))
    queries = rotate_and_append(
        qkv.to(device),
        None,
        1e-6,
        torch.ones(4, 8, device=device),  # no rotation
        torch.zeros(4, 8, device=device),
        torch.tensor([0, 1, 2], device=device),
        keys,
        values,
        torch.tensor([4, 0, 9], device=device),
    )
    assert torch.equal(queries.cpu(), qkv[:, :2])
    for data, head in ((keys, 2), (values, 3)):
        slots = data.flatten(0, 1)[[4, 0, 9], 0].cpu()
        assert torch.equal(slots.float(), qkv[:, head].clamp(-448.0, 448.0))


def test_the_hash_has_the_same_bits_as_on_a_cpu(device: torch.device) -> None:
    from tests.worker.engine.cuda.hash_kernel import hash_ids

    for seed, position in [(0, 0), (1, 2), (0xDEADBEEF_12345678, 70_000), ((1 << 64) - 1, 5)]:
        signed = seed - (1 << 64) if seed >> 63 else seed
        wanted = CounterHash(256).hash_all(seed, position).astype(np.int64)
        assert hash_ids(signed, position, 256, device) == wanted.tolist()


def test_draws_are_those_of_the_cpu(device: torch.device) -> None:
    from worker.engine.cuda.kernels.kept_thresholds import find_kept_thresholds
    from worker.engine.cuda.kernels.sampling_kernels import draw

    vocab_size, num_rows = 5000, 12
    logits = 3 * random(num_rows, vocab_size)
    temperatures = torch.tensor([0.0, 0.5, 1.0, 1.7] * 3)
    top_k = torch.tensor([0, 0, 5, 50, 0, 1, 0, 4999, 0, 20, 3, 0])
    top_p = torch.tensor([1.0, 1.0, 1.0, 0.9, 0.5, 0.3, 0.95, 1.0, 1.0, 0.99, 0.1, 0.7])
    min_p = torch.tensor([0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.02, 0.0, 0.5, 0.0, 0.0, 0.01])
    seeds = list(range(100, 100 + num_rows))
    positions = list(range(7, 7 + num_rows))
    thresholds = find_kept_thresholds(
        *(one.to(device) for one in (logits, temperatures, top_k, top_p, min_p))
    )
    token_ids = draw(
        logits.to(device),
        temperatures.to(device),
        thresholds,
        torch.tensor(seeds, device=device),
        torch.tensor(positions, device=device),
    ).tolist()
    cpu = GumbelMax(vocab_size)
    for row in range(num_rows):
        temperature = float(temperatures[row])
        if temperature == 0.0:
            assert token_ids[row] == int(logits[row].argmax())
            assert thresholds[row] == -torch.inf
            continue
        scaled = logits[row].numpy() / temperatures[row].numpy()
        largest = float(scaled.max())
        threshold = kept_threshold(
            scaled, largest, int(top_k[row]), float(top_p[row]), float(min_p[row])
        )
        kept = scaled >= threshold
        found = scaled >= float(thresholds[row])
        assert kept.sum() == found.sum(), row
        assert token_ids[row] == cpu.draw(scaled, largest, threshold, seeds[row], positions[row])


def test_the_noise_is_the_cpu_s_to_the_last_bits(device: torch.device) -> None:
    """With single precision alone; the largest noise has the finest steps."""
    from tests.worker.engine.cuda.hash_kernel import noise_of

    num_hashes = 1 << 16
    near_one = 2**32 - 1 - np.unique(np.geomspace(1, 2**31, num_hashes // 2).astype(np.int64) - 1)
    near_half = np.arange(2**31 - 512, 2**31 + 512)
    low = np.unique(np.geomspace(1, 2**31, num_hashes // 4).astype(np.int64) - 1)
    hashes = np.concatenate((near_one, near_half, low))
    drawn = np.random.default_rng(1).integers(0, 2**32, num_hashes - len(hashes))
    hashes = np.concatenate((hashes, drawn))
    ours = noise_of(torch.from_numpy(hashes).to(device)).cpu().numpy()
    theirs = gumbel_of(hashes.astype(np.uint32))
    steps = np.spacing(np.maximum(np.abs(theirs), 1.0))
    assert np.all(np.abs(ours - theirs) <= 4 * steps)
    assert np.mean(ours == theirs) > 0.75


def test_kept_thresholds_of_all_shapes_of_rows(device: torch.device) -> None:
    """Peaks, plains, ties, masks: what the CPU keeps is kept, or rounding alone tells otherwise."""
    from worker.engine.cuda.kernels.kept_thresholds import find_kept_thresholds

    vocab_size = 9000  # two programs a row
    noise = random(vocab_size)
    flat, wide, equal = 0.01 * noise, 20 * noise, noise.round()
    masked = torch.where(noise > 1.5, noise, -torch.inf)
    peak = 30 * (torch.arange(vocab_size) == 8_500) + noise
    cases = [  # a row, top_k, top_p, min_p
        *((flat, 0, 0.5, 0.0), (flat, 7000, 0.99, 0.0)),
        *((wide, 0, 0.95, 0.0), (wide, 40, 0.9, 0.05), (wide, 9000, 1.0, 0.3)),
        *((equal, 0, 0.01, 0.0), (equal, 40, 1.0, 0.0)),
        *((masked, 0, 0.99999, 0.0), (masked, 5000, 1.0, 0.0)),
        *((peak, 0, 0.9, 0.0), (peak, 1, 1.0, 1.0)),
    ]
    rows, *settings = zip(*cases, strict=True)
    top_k, top_p, min_p = (torch.tensor(each, device=device) for each in settings)
    ones = torch.ones(len(rows), device=device)
    logits = torch.stack(rows).to(device)
    found = find_kept_thresholds(logits, ones, top_k, top_p, min_p).tolist()
    for bound, (row, k, p, least) in zip(found, cases, strict=True):
        values = row.numpy()
        largest = float(values.max())
        wanted = kept_threshold(values, largest, k, p, least)
        assert bound <= largest
        weights = np.exp(values - np.float32(largest)).astype(np.float64)
        kept, kept_on_cpu = (float(weights[values >= each].sum()) for each in (bound, wanted))
        assert kept == pytest.approx(kept_on_cpu, rel=2e-4 if p < 1 else 0.0), (k, p)


def test_rows_without_a_token_to_draw_are_told(device: torch.device) -> None:
    from worker.engine.cuda.kernels.draw_code import NOT_A_NUMBER, NOTHING_ALLOWED
    from worker.engine.cuda.kernels.sampling_kernels import draw

    logits = random(4, 9000)
    logits[0, 8000] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    logits[3, :] = -torch.inf
    logits[3, 8999] = 1.0
    rows = torch.zeros(4, dtype=torch.int64, device=device)
    for temperature in (0.0, 1.0):
        temperatures = torch.full((4,), temperature, device=device)
        keep_all = torch.full((4,), -torch.inf, device=device)
        token_ids = draw(logits.to(device), temperatures, keep_all, rows, rows)
        assert token_ids.tolist() == [NOT_A_NUMBER, NOTHING_ALLOWED, NOT_A_NUMBER, 8999]


def test_list_pages(device: torch.device) -> None:
    from worker.engine.cuda.kernels.page_lists import list_pages

    table = torch.arange(5 * 300).view(5, 300).int()
    rows, num_pages = [3, 0, 4], [1, 260, 128]
    starts = torch.tensor([0, 1, 261, 389], dtype=torch.int32)
    pages = torch.full((400,), -1, dtype=torch.int32, device=device)
    list_pages(table.to(device), torch.tensor(rows, device=device), starts.to(device), 260, pages)
    wanted = [table[row, :count] for row, count in zip(rows, num_pages, strict=True)]
    assert pages[:389].tolist() == torch.cat(wanted).tolist()
    assert pages[389:].unique().tolist() == [-1], "nothing is written behind"
