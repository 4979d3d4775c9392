"""A decoder of the Llama shape, with fused projections, over paged attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from worker.engine.attention.attention_backend import AttentionBackend
from worker.engine.attention.attention_layer import AttentionLayer
from worker.engine.forward_batch import ForwardBatch
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layer_ops import add_rms_norm, norm_rotate, silu_mul
from worker.engine.models.linear import Linear, choose_linears
from worker.engine.models.loader import CheckpointReader
from worker.engine.models.rotary import RotaryEmbedding

Angles = tuple[torch.Tensor, torch.Tensor]  # cosine and sine, [num_tokens, 1, head_dim / 2]


class DecoderModel:
    """Llama, Mistral, Qwen 2 and 3: one computation, told apart by the configuration.

    Reads its weights when it is made; afterwards nothing of it changes.
    """

    def __init__(
        self,
        config: DecoderConfig,
        checkpoint: CheckpointReader,
        dtype: torch.dtype,
        max_context_len: int,
    ) -> None:
        weights = _Weights(config, checkpoint, dtype)
        self._attention_layers = config.attention_layers
        self._eps = config.rms_norm_eps
        self._rotary = RotaryEmbedding(config.rope, config.head_dim, max_context_len, dtype)
        self._embeddings = weights.embeddings()  # [vocab_size, hidden_size]
        self._layers = [DecoderLayer(config, weights, idx) for idx in range(config.num_layers)]
        self._norm = weights.read("model.norm.weight", config.hidden_size)
        self._lm_head = weights.lm_head(self._embeddings)

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]:
        return self._attention_layers

    def hidden(self, batch: ForwardBatch, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size], after the last norm."""
        residual = functional.embedding(batch.input_ids, self._embeddings)
        delta = torch.zeros_like(residual)
        angles = self._rotary.angles(batch.positions)
        for layer in self._layers:
            delta, residual = layer.forward(delta, residual, angles, batch, attention)
        return add_rms_norm(delta, residual, self._norm, self._eps)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, vocab_size] float32."""
        return self._lm_head(hidden).float()


class DecoderLayer:
    """Attention and MLP. What each adds is given on, for the next norm to add."""

    def __init__(self, config: DecoderConfig, weights: _Weights, layer_id: int) -> None:
        prefix = f"model.layers.{layer_id}."
        self._layer_id = layer_id
        self._eps = config.rms_norm_eps
        self._head_dim = config.head_dim
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads
        hidden_size = config.hidden_size
        self._attention_norm = weights.read(prefix + "input_layernorm.weight", hidden_size)
        self._qkv = weights.qkv(prefix + "self_attn.")
        self._qk_norm = weights.qk_norm(prefix + "self_attn.") if config.has_qk_norm else None
        self._output = weights.output(prefix + "self_attn.")
        self._mlp_norm = weights.read(prefix + "post_attention_layernorm.weight", hidden_size)
        self._gate_up = weights.gate_up(prefix + "mlp.")
        self._down = weights.down(prefix + "mlp.")

    def forward(
        self,
        delta: torch.Tensor,  # [num_tokens, hidden_size], of the layer before
        residual: torch.Tensor,  # the same shape: the sum without it
        angles: Angles,
        batch: ForwardBatch,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = add_rms_norm(delta, residual, self._attention_norm, self._eps)
        delta = self._output(self._attend(self._qkv(x), angles, batch, attention))
        x, residual = add_rms_norm(delta, residual, self._mlp_norm, self._eps)
        return self._down(silu_mul(self._gate_up(x))), residual

    def _attend(
        self, qkv: torch.Tensor, angles: Angles, batch: ForwardBatch, attention: AttentionBackend
    ) -> torch.Tensor:
        heads = qkv.view(len(qkv), -1, self._head_dim)  # queries, then keys, then values
        rotated = norm_rotate(heads[:, : self._num_rotated], self._qk_norm, self._eps, angles)
        return attention.forward(
            rotated[:, : self._num_heads],
            rotated[:, self._num_heads :],
            heads[:, self._num_rotated :],
            self._layer_id,
            batch,
        )


class _Weights:
    """Reads a checkpoint's tensors and joins those that are multiplied together."""

    def __init__(
        self, config: DecoderConfig, checkpoint: CheckpointReader, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._linears = choose_linears(dtype)

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._checkpoint.read(name, *shape)

    def embeddings(self) -> torch.Tensor:
        config = self._config
        return self.read("model.embed_tokens.weight", config.vocab_size, config.hidden_size)

    def lm_head(self, embeddings: torch.Tensor) -> Linear:
        if self._config.has_tied_embeddings:
            return self._linears.make(embeddings, None)
        return self._linears.make(self.read("lm_head.weight", *embeddings.shape), None)

    def qkv(self, prefix: str) -> Linear:
        config = self._config
        kv_size = config.num_kv_heads * config.head_dim
        sizes = {
            "q_proj": config.num_heads * config.head_dim,
            "k_proj": kv_size,
            "v_proj": kv_size,
        }
        return self._linear(prefix, sizes, config.hidden_size, has_bias=config.has_qkv_bias)

    def qk_norm(self, prefix: str) -> torch.Tensor:
        """[num_heads + num_kv_heads, head_dim]: all query heads share one norm, all keys one."""
        config = self._config
        q = self.read(prefix + "q_norm.weight", config.head_dim).expand(config.num_heads, -1)
        k = self.read(prefix + "k_norm.weight", config.head_dim).expand(config.num_kv_heads, -1)
        return torch.cat([q, k])

    def output(self, prefix: str) -> Linear:
        config = self._config
        in_features = config.num_heads * config.head_dim
        sizes = {"o_proj": config.hidden_size}
        return self._linear(prefix, sizes, in_features, has_bias=config.has_output_bias)

    def gate_up(self, prefix: str) -> Linear:
        config = self._config
        sizes = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        return self._linear(prefix, sizes, config.hidden_size, has_bias=config.has_mlp_bias)

    def down(self, prefix: str) -> Linear:
        config = self._config
        sizes = {"down_proj": config.hidden_size}
        in_features = config.intermediate_size
        return self._linear(prefix, sizes, in_features, has_bias=config.has_mlp_bias)

    def _linear(
        self, prefix: str, sizes: dict[str, int], in_features: int, *, has_bias: bool
    ) -> Linear:
        """One layer of several, each with its number of output features."""
        weight = torch.cat(
            [self.read(f"{prefix}{name}.weight", size, in_features) for name, size in sizes.items()]
        )
        if not has_bias:
            return self._linears.make(weight, None)
        bias = torch.cat([self.read(f"{prefix}{name}.bias", size) for name, size in sizes.items()])
        return self._linears.make(weight, bias)
