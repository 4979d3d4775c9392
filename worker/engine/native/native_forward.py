"""The decoder in C++: one call a step."""

from __future__ import annotations

import ctypes
import weakref

import torch

from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.lora.lora_projection import LoraProjections, LoraWeights
from worker.engine.models.rotary import RotaryEmbedding
from worker.engine.native.native_library import BatchStruct, LayerStruct, ShapeStruct
from worker.engine.native.native_lora import LoraStep, PackedLora
from worker.engine.native.native_weights import NativeWeights

KV_FORMATS = {torch.bfloat16: 0, torch.int8: 1}  # KVFormat of kv_pool.h


class NativeForward:
    """Weights in bfloat16, sums and the residual stream in float32.

    A token's hidden state and logits are the same, bit for bit, alone and in any batch, in a
    prefill chunk and by itself. The pool's pages hold keys and values in an order of their own
    (kv_pool.h).
    """

    def __init__(
        self, weights: NativeWeights, pool: KVCachePool, max_context_len: int, num_threads: int
    ) -> None:
        config = weights.config
        rotary = RotaryEmbedding(config.rope, pool.group.head_dim, max_context_len, torch.float32)
        self._library = weights.library
        self._kept = (weights, pool, rotary)  # the C++ side points into them
        self._config = config
        self._hidden_size = config.hidden_size
        self._num_outputs = config.num_outputs
        shape = ShapeStruct(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=pool.group.num_kv_heads,
            head_dim=pool.group.head_dim,
            page_size=pool.group.page_size,
            kv_format=KV_FORMATS[pool.group.dtype],
            norm_eps=config.norm.eps,
            embedding_scale=config.embedding_scale,
            embeddings=weights.embeddings,
            cosines=rotary.cos.data_ptr(),
            sines=rotary.sin.data_ptr(),
            final_norm=weights.final_norm,
            lm_head=weights.lm_head,
        )
        layers = (LayerStruct * config.num_layers)(*weights.layers)
        for layer_id, layer in enumerate(layers):
            keys, values = pool.keys_and_values(layer_id)
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
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
        step = BatchStruct(
            num_tokens=len(batch.input_ids),
            num_rows=num_rows,
            max_pages=max_pages,
            input_ids=batch.input_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            out_loc=batch.out_loc.data_ptr(),
            query_lens=query_lens.data_ptr(),
            page_table=batch.page_table.data_ptr(),
            hidden=hidden.data_ptr(),
            loras=None if loras is None else loras.address,
        )
        self._library.forward(self._decoder, ctypes.byref(step))
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] float32 -> [num_rows, num_outputs] float32."""
        logits = torch.empty(len(hidden), self._num_outputs)
        self._library.logits(
            self._decoder, hidden.contiguous().data_ptr(), len(hidden), logits.data_ptr()
        )
        if self._config.logits_divisor != 1.0:
            logits.div_(self._config.logits_divisor)
        return logits

    def lora_projections(self, weights: LoraWeights) -> LoraProjections:
        """Raises ConfigError."""
        return PackedLora(self._config, weights)
