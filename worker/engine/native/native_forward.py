"""The decoder in C++: one call a step."""

from __future__ import annotations

import ctypes
import weakref
from typing import NamedTuple, Self

import torch
from torch.nn import functional

from worker.engine.cpu.forward_batch import ForwardBatch, PagePlaces
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.stream_pool import StreamPool
from worker.engine.lora.lora_projection import LoraProjections, LoraWeights
from worker.engine.models.layer_config import HeadNormConfig
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.rotary import RotaryEmbedding
from worker.engine.native.native_experts import point_to
from worker.engine.native.native_library import (
    AnglesStruct,
    BatchStruct,
    LayerStruct,
    LinearStruct,
    PagePlacesStruct,
    ShapeStruct,
)
from worker.engine.native.native_lora import LoraStep, PackedLora
from worker.engine.native.native_weights import NativeWeights

KV_FORMATS = {torch.bfloat16: 0, torch.int8: 1}  # KVFormat of kv_pool.h
_NORM_KINDS = {"rms": 0, "layer": 1}  # NormKind of norms.h
_EACH_HEAD, _ALL_HEADS, _ROTATED_HEAD = 0, 1, 2  # HeadNorm of decoder.cpp


class StepAngles(NamedTuple):
    """Cosines and sines, [num_rows, head_dim / 2] float32 each, and which row each token has."""

    rows: torch.Tensor  # [num_tokens] int64
    cosines: torch.Tensor
    sines: torch.Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, rotary: RotaryEmbedding) -> Self:
        """Those of all positions, or of this step's alone where a position has three axes."""
        if batch.axis_positions is None:
            return cls(batch.positions, rotary.cos, rotary.sin)
        cosines, sines = rotary.angles(batch.axis_positions)
        rows = torch.arange(len(batch.positions))
        return cls(rows, cosines.contiguous(), sines.contiguous())


class GivenRows(NamedTuple):
    """What stands in the place of embeddings, of all images of a step."""

    row_of_token: torch.Tensor  # [num_tokens] int64; -1: none
    rows: torch.Tensor  # [1 + num_deep, num_rows, hidden_size] float32

    @classmethod
    def of(cls, batch: ForwardBatch) -> Self:
        """The given rows of a step that has some."""
        places = torch.cat([each.places for each in batch.image_rows])
        row_of_token = torch.full((len(batch.input_ids),), -1)
        row_of_token[places] = torch.arange(len(places))
        depth = max(len(each.rows) for each in batch.image_rows)
        rows = [
            functional.pad(each.rows.float(), (0, 0, 0, 0, 0, depth - len(each.rows)))
            for each in batch.image_rows
        ]
        return cls(row_of_token, torch.cat(rows, dim=1))


class NativeForward:
    """Weights in bfloat16, sums and the residual stream in float32.

    A token's hidden state and logits are the same, bit for bit, alone and in any batch, in a
    prefill chunk and by itself. The pool's pages hold keys and values in an order of their own
    (kv_pool.h).
    """

    def __init__(
        self,
        weights: NativeWeights,
        pool: KVCachePool,
        max_context_len: int,
        num_threads: int,
        streams: StreamPool | None = None,  # None: nobody reads them
    ) -> None:
        config = weights.config
        self._streams = streams
        self._stream_layers = torch.tensor(() if streams is None else streams.layers)
        self._ropes = LayerRopes.of(config, max_context_len, torch.float32)
        by_layer = [self._ropes.rotary(layer_id) for layer_id in range(config.num_layers)]
        self._rotaries = [*dict.fromkeys(each for each in by_layer if each is not None)]
        self._library = weights.library
        self._config = config
        self._hidden_size = config.hidden_size
        self._embedding_scale = config.embedding_factor(torch.bfloat16)
        self._num_outputs = config.num_outputs
        shape = ShapeStruct(
            hidden_size=config.hidden_size,
            page_size=pool.page_size,
            kv_format=KV_FORMATS[pool.layout.dtype],
            head_norm=_head_norm(config.head_norm),
            norm_kind=_NORM_KINDS[config.norm.kind],
            norm_eps=config.norm.eps,
            is_parallel=config.is_parallel,
            norms_embeddings=config.norms_embeddings,
            qkv_bound=config.qkv_bound or 0.0,
            embedding_scale=self._embedding_scale,
            embeddings=weights.placed.embeddings,
            positions=weights.placed.positions,
            final_norm=weights.placed.final_norm,
            lm_head=weights.placed.lm_head,
        )
        layers = (LayerStruct * config.num_layers)(*weights.placed.layers)
        experts = (LinearStruct * len(weights.placed.experts))(*weights.placed.experts)
        self._growing_layer: int | None = None  # one of those whose queries grow
        self._kept = (weights, pool, experts)  # the C++ side points into them
        address = ctypes.addressof(experts)
        for layer_id, (layer, rotary) in enumerate(zip(layers, by_layer, strict=True)):
            layer.rope = -1 if rotary is None else self._rotaries.index(rotary)
            keys, values = pool.keys_and_values(layer_id)
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
            layer.has_window_pages = pool.has_window(layer_id)
            address = point_to(layer.experts, address)
            if layer.grows_queries:
                self._growing_layer = layer_id
        self._decoder = self._library.decoder_new(
            ctypes.byref(shape), layers, config.num_layers, num_threads
        )
        weakref.finalize(self, self._library.decoder_free, self._decoder)

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """[num_tokens, hidden_size] float32."""
        query_lens = torch.tensor(batch.query_lens, dtype=torch.int32)
        hidden = torch.empty(len(batch.input_ids), self._hidden_size)
        num_rows, max_pages = batch.page_table.shape
        loras = None if batch.loras is None else LoraStep(batch.loras)
        angles = [StepAngles.of(batch, rotary) for rotary in self._rotaries]
        angle_structs = (AnglesStruct * len(angles))(*map(_angles_struct, angles))
        factors = self._query_factors(batch)
        given = None if not batch.image_rows else GivenRows.of(batch)
        num_streams = len(self._stream_layers)
        streams = torch.empty(len(batch.input_ids), num_streams * self._hidden_size)
        step = BatchStruct(
            num_tokens=len(batch.input_ids),
            num_rows=num_rows,
            max_pages=max_pages,
            input_ids=batch.input_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            reach=None if batch.reach is None else batch.reach.data_ptr(),
            angles=ctypes.addressof(angle_structs),
            query_factors=None if factors is None else factors.data_ptr(),
            given_rows=None if given is None else given.row_of_token.data_ptr(),
            given=None if given is None else given.rows.data_ptr(),
            num_given=0 if given is None else given.rows.shape[1],
            num_deep=0 if given is None else len(given.rows) - 1,
            query_lens=query_lens.data_ptr(),
            places=_point_to(batch.places(has_window=False)),
            window_places=_point_to(batch.places(has_window=batch.windows is not None)),
            hidden=hidden.data_ptr(),
            streams=streams.data_ptr(),
            stream_layers=self._stream_layers.data_ptr(),
            num_streams=num_streams,
            loras=None if loras is None else loras.address,
        )
        self._library.forward(self._decoder, ctypes.byref(step))
        if self._streams is not None:
            self._streams.write(batch.out_loc, streams)
        return hidden

    def _query_factors(self, batch: ForwardBatch) -> torch.Tensor | None:
        """[num_tokens, 1, 1] float32, of the layers whose queries grow; None: none grow."""
        if self._growing_layer is None:
            return None
        self._ropes.begin(batch.positions)
        return self._ropes.query_factors(self._growing_layer)

    def embeddings(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size] float32."""
        rows = torch.empty(len(input_ids), self._hidden_size)
        self._library.read_rows(
            self._kept[0].placed.embeddings,
            self._embedding_scale,
            input_ids.data_ptr(),
            len(input_ids),
            rows.data_ptr(),
        )
        return rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs] float32."""
        rows, logits = hidden.float().contiguous(), torch.empty(len(hidden), self._num_outputs)
        self._library.logits(self._decoder, rows.data_ptr(), len(rows), logits.data_ptr())
        if self._config.logits_divisor != 1.0:
            logits.div_(self._config.logits_divisor)
        if (soft_cap := self._config.logits_soft_cap) is not None:
            logits.div_(soft_cap).tanh_().mul_(soft_cap)
        return logits

    def lora_projections(self, weights: LoraWeights) -> LoraProjections:
        """Raises ConfigError."""
        return PackedLora(self._config, weights)


def _angles_struct(angles: StepAngles) -> AnglesStruct:
    return AnglesStruct(*(each.data_ptr() for each in angles))


def _point_to(places: PagePlaces) -> PagePlacesStruct:
    return PagePlacesStruct(places.out_loc.data_ptr(), places.page_table.data_ptr())


def _head_norm(config: HeadNormConfig | None) -> int:
    """Where there is none, no layer has weights for it."""
    if config is not None and config.is_after_rope:
        return _ROTATED_HEAD
    return _ALL_HEADS if config is not None and config.scope == "whole" else _EACH_HEAD
