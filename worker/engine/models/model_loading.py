"""From a configuration to a model with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from shared.checkpoint.stored_format import MadeFormat
from shared.gguf.gguf_model import holds_gguf
from shared.telemetry.log import get_logger
from worker.engine.formats.stored_checkpoint import open_checkpoint
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.dummy_weights import CPU, DummyWeights
from worker.engine.models.expert_weights import CodedProducts, ExpertMaker
from worker.engine.models.experts.coded_experts import CodedExperts, ExpertReader
from worker.engine.models.experts.expert_mlp import LinearExpertMaker
from worker.engine.models.gguf_experts import find_gguf_experts
from worker.engine.models.gguf_reader import GgufReader
from worker.engine.models.layer_ops import TorchLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.loader import (
    CheckpointReader,
    CodeReader,
    MadeCodes,
    OnProgress,
    QuantizingReader,
    StoredReader,
)
from worker.engine.models.model import Model
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.renaming_reader import RenamingCodeReader, renamed
from worker.engine.models.transformers_config import TransformersConfig
from worker.engine.models.transformers_model import load_transformers_model
from worker.engine_link.engine_config import LoadFormat

NOT_OURS = "the model's layers are its own: a row's bits may depend on its company"

log = get_logger(__name__)


def load_model(
    config: ModelConfig,
    model_path: Path,
    load_format: LoadFormat,
    dtype: torch.dtype,
    max_context_len: int,
    on_progress: OnProgress,
    products: CodedProducts | None = None,
) -> Model:
    """On the CPU; with `products`, what is in codes is multiplied by them.

    Raises ConfigError for a checkpoint that does not fit its configuration.
    """
    if isinstance(config, TransformersConfig):
        log.info("matrix_products", by="transformers", because=NOT_OURS)
        return load_transformers_model(
            config, model_path, load_format, dtype, max_context_len, on_progress, CPU, products
        )
    assert isinstance(config, DecoderConfig)
    with open_weights(config, model_path, load_format, dtype, on_progress) as weights:
        ropes = LayerRopes.of(config, max_context_len, dtype)
        linears = choose_linears(dtype)
        ops = TorchLayerOps(ropes, config.attention_layers, linears, products)
        maker: ExpertMaker = LinearExpertMaker(ops.projection)
        codes = None
        if products is not None:
            codes = RenamingCodeReader(weights, config.stored_names)
            experts = expert_reader(config, weights)
            others = LinearExpertMaker(ops.projection, experts.weight)
            maker = CodedExperts(products, experts, others)
        model = DecoderModel(config, weights, ops, maker, codes=codes)
    if linears.is_used:
        log.info("matrix_products", by=linears.name, because=linears.account())
    return model


def expert_reader(config: DecoderConfig, weights: CodeReader) -> ExpertReader:
    """Reads experts from what `open_weights` gives. Raises ConfigError."""
    sources = find_gguf_experts(weights) if isinstance(weights, GgufReader) else {}
    return ExpertReader(RenamingCodeReader(weights, config.stored_names), sources)


@contextmanager
def open_weights(
    config: ModelConfig,
    model_path: Path,
    load_format: LoadFormat,
    dtype: torch.dtype,
    on_progress: OnProgress,
    device: torch.device = CPU,
    num_threads: int | None = None,
) -> Iterator[CodeReader]:
    """The checkpoint's, on the CPU; or random ones, made on the device. `num_threads`: that read;
    None: as many as torch has.

    All of it is to be read inside. Raises ConfigError.
    """
    num_threads = num_threads or torch.get_num_threads()
    if load_format == "dummy":
        opened: AbstractContextManager[StoredReader] = nullcontext(
            DummyWeights(config.num_parameters, dtype, on_progress, device)
        )
    elif holds_gguf(model_path):
        opened = GgufReader(model_path, dtype, on_progress, num_threads)
    else:
        opened = _open_checkpoint(config, model_path, dtype, on_progress)
    with opened as reader:
        if config.made_format is None:
            yield reader
        else:
            made = _made_codes(config, config.made_format)
            yield QuantizingReader(reader, made, dtype, num_threads)


def _made_codes(config: ModelConfig, made_format: MadeFormat) -> MadeCodes:
    if config.num_expert_values:
        experts = config.experts if isinstance(config, DecoderConfig) else ()
        is_turned = any(each is not None and each.is_stored_transposed for each in experts)
        return MadeCodes(made_format, is_turned=is_turned)
    assert isinstance(config, DecoderConfig), "others have been refused"
    ours = config.projection_names  # which some write in the place of their own
    return MadeCodes(
        made_format,
        ours.union(renamed(each, config.stored_names) for each in ours),
        renamed(config.head_name or "", config.stored_names),
        is_turned=config.is_stored_transposed,
    )


@contextmanager
def _open_checkpoint(
    config: ModelConfig, model_path: Path, dtype: torch.dtype, on_progress: OnProgress
) -> Iterator[StoredReader]:
    with open_checkpoint(model_path) as checkpoint:
        reader = CheckpointReader(checkpoint, dtype, on_progress)
        yield reader
        reader.finish(config.unread_prefixes, config.unread_parts)
