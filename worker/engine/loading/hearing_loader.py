"""Models that hear, on a CPU."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from shared.errors import ConfigError
from shared.protocol.hearing_card import NUM_SOUNDS, WINDOW_FRAMES
from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine.cache.page_allocator import num_kv_pages
from worker.engine.cache.req_to_token_pool import PageTables
from worker.engine.cpu.cross_cache import CrossCache, CrossShape, HearingRunner
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import ModelRunner, TorchForward
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.loading.memory_check import check_memory, pool_needs
from worker.engine.loading.model_loader import LoadedModel, LoadSite
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_loading import open_weights
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.speech.whisper_config import WhisperConfig
from worker.engine.models.speech.whisper_model import WhisperDecoder, WhisperEncoder
from worker.engine.request.req_window import Ears
from worker.engine.request.step_result import BatchRunner


class HearingLoader:
    """The `ModelLoader` of what hears: an encoder, and a decoder in torch."""

    def __init__(self, site: LoadSite) -> None:
        self._site = site

    def suits(self, model: ModelConfig) -> bool:
        return isinstance(model, WhisperConfig)

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        config, site, dtype = setup.config, self._site, setup.dtype
        assert isinstance(config, WhisperConfig), "it suits no other"
        self._check(config)
        check_memory(site.config, config, dtype, setup.max_context_len)
        site.progress.enter(LOAD_WEIGHTS)
        num_rows = site.step.max_running
        head_dim = config.hidden_size // config.num_heads
        shape = CrossShape(config.num_layers, config.num_heads, NUM_SOUNDS, head_dim)
        cross = CrossCache(shape, num_rows, dtype)
        path, load_format = Path(site.config.model_path), site.config.load_format
        with open_weights(config, path, load_format, dtype, site.progress.on_weights) as reader:
            encoder = WhisperEncoder(config, reader, dtype)
            decoder = WhisperDecoder(config, reader, choose_linears(dtype), cross)
        begin = time.monotonic()
        encoder.keys_and_values(np.zeros((config.card.num_mel_bins, WINDOW_FRAMES), np.float32))
        window_s = time.monotonic() - begin
        needs = pool_needs(site.config, config, dtype, setup.max_context_len)
        layout = KVLayout.of(config.attention_layers, dtype, site.config.page_size)
        pool = KVCachePool(layout, *num_kv_pages(site.config, needs))
        forward = TorchForward(decoder, TorchAttentionBackend(pool, config.attention_layers))

        def make_runner(tables: PageTables) -> BatchRunner:
            runner = ModelRunner(forward, pool, tables, config.num_outputs, grammars)
            return HearingRunner(runner, cross, encoder.keys_and_values)

        def release_cache() -> None:
            pool.release()
            cross.release()

        return LoadedModel(
            pool,
            make_runner,
            forward.lora_projections,
            ears=Ears(config.card),
            min_step_s=window_s,
            remark=f"a window of 30 s of audio is heard in {window_s:.2f} s",
            release_cache=release_cache,
        )

    def _check(self, model: WhisperConfig) -> None:
        """Raises ConfigError."""
        config = self._site.config
        for name, value, usual in (
            ("speculate", config.speculate, "off"),
            ("kv_dtype", config.kv_dtype, "auto"),
            ("quantization", config.quantization, None),
            (
                "max_context_len",
                config.max_context_len or model.max_context_len,
                model.max_context_len,
            ),
            ("tp", config.tp, 1),
            ("pp", config.pp, 1),
        ):
            if value != usual:
                raise ConfigError(
                    f"{name}={value} is not possible with {model.architecture}; leave it out"
                )
        if self._site.gpu is not None:
            raise ConfigError(
                f"{model.architecture} is not possible on a GPU: what its layers hear is kept by "
                "CPUs alone; device=cpu serves it"
            )
