"""Paged attention in plain torch: the reference for other backends, and the CPU's own."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from worker.engine.cpu.attention_products import ROW_STEP, scored, weighted_sum
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.layers.attention_backend import AttentionLayer

EXTEND_ROWS = 128  # queries of a prefill chunk that are computed together
MAX_SHORT_ROWS = 16  # up to so many queries, requests with as many are computed together
WIDTH_STEP = 8  # of a head's values; else float32 may take another kernel, which rounds differently


class _Reach(NamedTuple):
    """Which tokens one sees: as an `AttentionLayer` has it."""

    window: int | None
    chunk: int | None
    is_causal: bool

    @classmethod
    def of(cls, layer: AttentionLayer) -> Self:
        return cls(layer.window, layer.chunk, layer.is_causal)


class _Pages(NamedTuple):
    """Which pages a layer has, and how they are divided."""

    num_kv_heads: int
    has_window: bool  # they are numbered by themselves


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests, or a piece of one, whose attention is two batched matrix products.

    num_matrices is requests times KV heads; the matrix of a KV head has one row for each query and
    each of the query heads that share it.
    """

    tokens: torch.Tensor  # [num_reqs * num_queries] int64, into the step's tokens
    num_reqs: int
    # [num_matrices * num_pages] int64: page and head, of the pool.
    kv_idx: dict[_Pages, torch.Tensor]
    # [num_reqs, 1, num_queries, 1, kv_len]: 0, or -inf for what the query cannot see.
    biases: dict[_Reach, torch.Tensor]


class TorchAttentionBackend:
    """Gathers each request's pages, and multiplies: queries with keys, weights with values.

    The query heads that share a KV head are rows of one matrix. In float32 each row's result is
    independent, bit for bit, of the other rows, of the padding, and of whether a token comes in a
    prefill chunk or by itself: matrices have a multiple of ROW_STEP rows, sums are divided at fixed
    places, and masked weights are exact zeros.
    """

    def __init__(self, pool: KVCachePool, layers: Sequence[AttentionLayer]) -> None:
        self._pool = pool
        self._layers = layers
        self._reaches = {*map(_Reach.of, layers)}
        self._pages = [
            _Pages(layer.num_kv_heads, pool.has_window(layer_id))
            for layer_id, layer in enumerate(layers)
        ]
        self._groups: list[_Group] = []
        # By indexer, the last that has chosen: of each group the biases of what it chose.
        self._choices: dict[int, list[torch.Tensor | None]] = {}
        self._is_one_group = False
        # [num_tokens * num_kv_heads] int64: token and head, of the pool.
        self._write_idx: dict[_Pages, torch.Tensor] = {}

    def plan(self, batch: ForwardBatch) -> None:
        """Once a step, before the first layer."""
        if not self._layers:
            return
        self._write_idx = {each: self._places_to_write(batch, each) for each in {*self._pages}}
        self._groups = [*self._short_groups(batch), *self._extend_groups(batch)]
        self._is_one_group = len(self._groups) == 1  # then it has all tokens, in their order

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer_id: int,
    ) -> torch.Tensor:
        """Writes `k` and `v`, if there are any; gives what a layer's backend gives."""
        layer = self._layers[layer_id]
        kept = self._write(layer_id, k, v)
        choices: list[torch.Tensor | None] = [None] * len(self._groups)
        if layer.indexer_id is not None:
            choices = self._choices[layer.indexer_id]
        q = q * layer.scale
        if self._is_one_group:
            return self._attend(layer_id, q, kept, self._groups[0], choices[0]).flatten(1)
        output = q.new_empty(*q.shape[:2], layer.num_values)
        for group, choice in zip(self._groups, choices, strict=True):
            output[group.tokens] = self._attend(layer_id, q[group.tokens], kept, group, choice)
        return output.flatten(1)

    def choose(
        self, q: torch.Tensor, weights: torch.Tensor, k: torch.Tensor, layer_id: int
    ) -> None:
        """As a `ChoosingAttention`."""
        (pages,) = self._write(layer_id, k)
        self._choices = {
            layer_id: [
                self._choice(layer_id, q[group.tokens], weights[group.tokens], pages, group)
                for group in self._groups
            ]
        }

    def _write(self, layer_id: int, *vectors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """What the layer keeps, with these; of a latent, the value is a part of the key."""
        kept = self._pool.vectors(layer_id)
        write_idx = self._write_idx[self._pages[layer_id]]
        for pages, new in zip(kept, vectors, strict=False):
            if new is not None:
                pages.view(-1, new.shape[-1]).index_copy_(0, write_idx, new.flatten(0, 1))
        return kept

    def _choice(
        self,
        layer_id: int,
        q: torch.Tensor,
        weights: torch.Tensor,
        pages: torch.Tensor,
        group: _Group,
    ) -> torch.Tensor | None:
        """[num_reqs, 1, num_queries, 1, kv_len], as a group's biases. None: there are not more
        positions than it chooses.
        """
        layer = self._layers[layer_id]
        causal = group.biases[_Reach.of(layer)].squeeze(3).squeeze(1)
        num_reqs, num_queries, kv_len = causal.shape[0], causal.shape[1], causal.shape[2]
        assert layer.num_chosen is not None, "it is an indexer"
        if kv_len <= layer.num_chosen:
            return None
        keys = self._gather(layer, pages, group.kv_idx[self._pages[layer_id]], num_reqs)
        rows = _whole(_padded(q.reshape(num_reqs, -1, layer.head_dim).float()))
        scores = scored(rows, _whole(keys.float()))[:, : num_queries * layer.num_heads]
        by_head = scores.view(num_reqs, num_queries, layer.num_heads, kv_len).relu_()
        by_head *= weights.view(num_reqs, num_queries, layer.num_heads, 1)
        total = functools.reduce(operator.add, by_head.unbind(2))  # in order, however many rows
        return self._bias(_is_not_best(total + causal, layer.num_chosen))

    def _attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        kept: tuple[torch.Tensor, ...],  # keys and values, or latents
        group: _Group,
        choice: torch.Tensor | None,  # None: no indexer hides anything
    ) -> torch.Tensor:
        layer = self._layers[layer_id]
        num_reqs, num_queries = group.num_reqs, len(q) // group.num_reqs
        num_kv_heads, head_dim = layer.num_kv_heads, layer.head_dim
        num_shared = layer.num_heads // num_kv_heads  # query heads of one KV head
        num_rows = num_queries * num_shared
        by_query = q.view(num_reqs, num_queries, num_kv_heads, num_shared, head_dim)
        rows = _whole(_padded(by_query.transpose(1, 2).reshape(-1, num_rows, head_dim)))
        kv_idx = group.kv_idx[self._pages[layer_id]]
        keys, *others = (self._gather(layer, pages, kv_idx, num_reqs) for pages in kept)
        values = others[0] if others else keys[..., : layer.latent_dim]
        scores = scored(rows, _whole(keys))
        real_scores = scores[:, :num_rows].view(num_reqs, num_kv_heads, num_queries, num_shared, -1)
        if layer.soft_cap is not None:
            real_scores.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
        real_scores += group.biases[_Reach.of(layer)]
        if choice is not None:
            real_scores += choice
        weights = _softmax(layer, scores, num_rows).to(q.dtype)
        rows = weighted_sum(weights, _whole(values))[:, :num_rows, : values.shape[-1]]
        by_head = rows.reshape(num_reqs, num_kv_heads, num_queries, num_shared, -1)
        return by_head.transpose(1, 2).reshape(*q.shape[:2], -1)

    def _gather(
        self, layer: AttentionLayer, pages: torch.Tensor, kv_idx: torch.Tensor, num_reqs: int
    ) -> torch.Tensor:
        """[num_matrices, kv_len, head_dim]."""
        flat = pages.view(-1, self._pool.page_size * layer.head_dim)
        gathered = flat.index_select(0, kv_idx)
        return gathered.view(num_reqs * layer.num_kv_heads, -1, layer.head_dim)

    def _places_to_write(self, batch: ForwardBatch, pages: _Pages) -> torch.Tensor:
        page_size, (out_loc, _) = self._pool.page_size, batch.places(has_window=pages.has_window)
        first = _head_pages(out_loc // page_size, pages.num_kv_heads) * page_size
        return (first + (out_loc % page_size)[:, None]).view(-1)

    def _short_groups(self, batch: ForwardBatch) -> list[_Group]:
        """Rows of a few tokens, with rows of as many and about as long: little is padded."""
        buckets: dict[tuple[int, int], list[int]] = {}
        for row, query_len in enumerate(batch.query_lens):
            if query_len <= MAX_SHORT_ROWS:
                num_pages = self._num_pages(batch.seq_lens[row])
                buckets.setdefault((query_len, num_pages.bit_length()), []).append(row)
        token_starts = _starts(batch.query_lens)
        groups = []
        for (query_len, _), rows in buckets.items():
            queries = torch.arange(query_len)
            seq_lens = torch.tensor([batch.seq_lens[row] for row in rows])
            num_pages = self._num_pages(int(seq_lens.max()))
            starts = torch.tensor([token_starts[row] for row in rows])
            tokens = (starts[:, None] + queries).view(-1)
            positions = (seq_lens - query_len)[:, None] + queries
            groups.append(self._group(batch, tokens, rows, num_pages, positions))
        return groups

    def _extend_groups(self, batch: ForwardBatch) -> list[_Group]:
        """A chunk of prefill in pieces of EXTEND_ROWS queries."""
        token_starts = _starts(batch.query_lens)
        groups = []
        for row, (query_len, seq_len) in enumerate(
            zip(batch.query_lens, batch.seq_lens, strict=True)
        ):
            if query_len <= MAX_SHORT_ROWS:
                continue
            for start in range(0, query_len, EXTEND_ROWS):
                end = min(start + EXTEND_ROWS, query_len)
                past_len = seq_len - query_len
                tokens = torch.arange(token_starts[row] + start, token_starts[row] + end)
                kv_len = past_len + end
                if batch.reach is not None:
                    kv_len = int(batch.reach[tokens].max()) + 1
                num_pages = self._num_pages(kv_len)
                positions = torch.arange(past_len + start, past_len + end).view(1, -1)
                groups.append(self._group(batch, tokens, [row], num_pages, positions))
        return groups

    def _group(
        self,
        batch: ForwardBatch,
        tokens: torch.Tensor,
        rows: list[int],
        num_pages: int,
        positions: torch.Tensor,
    ) -> _Group:
        """A group of the first pages of rows; `positions` [num_rows, num_queries] of the tokens."""
        kv_idx = {}
        for pages in {*self._pages}:
            page_table = batch.places(has_window=pages.has_window).page_table[rows, :num_pages]
            kv_idx[pages] = _head_pages(page_table, pages.num_kv_heads).transpose(1, 2).reshape(-1)
        kv_positions = torch.arange(num_pages * self._pool.page_size)
        positions = positions.unsqueeze(-1)
        is_later = is_unseen = kv_positions > positions  # [num_reqs, num_queries, kv_len]
        if batch.reach is not None:
            is_unseen = kv_positions > batch.reach[tokens].view(positions.shape)
        biases = {}
        for each in self._reaches:
            is_hidden = is_later if each.is_causal else is_unseen
            if each.window is not None:
                is_hidden = is_hidden | (positions - kv_positions >= each.window)
            if each.chunk is not None:
                is_hidden = is_hidden | (kv_positions < positions // each.chunk * each.chunk)
            biases[each] = self._bias(is_hidden)
        return _Group(tokens, len(rows), kv_idx, biases)

    def _bias(self, is_hidden: torch.Tensor) -> torch.Tensor:
        bias = torch.zeros(is_hidden.shape, dtype=self._pool.layout.dtype)
        return bias.masked_fill_(is_hidden, -torch.inf)[:, None, :, None]

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pool.page_size)


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """[num_matrices, num_rows, size], with rows of zeros up to a multiple of ROW_STEP."""
    num_missing = -rows.shape[1] % ROW_STEP
    return torch.nn.functional.pad(rows, (0, 0, 0, num_missing)) if num_missing else rows


def _is_not_best(scores: torch.Tensor, num_best: int) -> torch.Tensor:
    """All of a row but its highest scores; of equals, the first are better."""
    least = scores.topk(num_best, dim=-1).values[..., -1:]
    is_above, is_least = scores > least, scores == least
    num_left = num_best - is_above.sum(dim=-1, keepdim=True)
    return ~(is_above | (is_least & (is_least.cumsum(dim=-1) <= num_left)))


def _softmax(layer: AttentionLayer, scores: torch.Tensor, num_rows: int) -> torch.Tensor:
    """[num_matrices, rows, kv_len] -> the same, float32."""
    weights = scores.softmax(dim=-1, dtype=torch.float32)
    if layer.sinks is None:
        return weights
    by_kv_head = layer.sinks.view(layer.num_kv_heads, 1, -1)  # rows: queries, then shared heads
    num_shared = by_kv_head.shape[-1]
    sinks = by_kv_head.expand(-1, num_rows // num_shared, -1).reshape(layer.num_kv_heads, num_rows)
    sinks = torch.nn.functional.pad(sinks, (0, scores.shape[1] - num_rows))
    sinks = sinks.repeat(len(scores) // layer.num_kv_heads, 1).unsqueeze(-1)
    # What the sink adds to a row's sum, beside that sum: by the row's largest score and its weight,
    # which do not depend on how the sum is taken.
    largest = scores.amax(dim=-1, keepdim=True).float()
    share = torch.exp(sinks - largest) * weights.amax(dim=-1, keepdim=True)
    return weights / (1.0 + share)


def _whole(vectors: torch.Tensor) -> torch.Tensor:
    """[..., size], with zeros up to WIDTH_STEP."""
    missing = -vectors.shape[-1] % WIDTH_STEP
    return torch.nn.functional.pad(vectors, (0, missing)) if missing else vectors


def _head_pages(pages: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """The pages of each KV head, in a last dimension."""
    return pages.unsqueeze(-1) * num_kv_heads + torch.arange(num_kv_heads)


def _starts(lens: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lens)][:-1]
