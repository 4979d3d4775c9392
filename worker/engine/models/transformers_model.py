"""A decoder that transformers computes, over our paged attention."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from shared.checkpoint.stored_format import MadeFormat
from shared.errors import ConfigError
from shared.gguf.gguf_model import holds_gguf
from shared.protocol.image_sizes import PixelSize
from shared.protocol.sight_card import SightCard
from worker.engine.formats.stored_checkpoint import StoredCheckpoint, check_unread, open_checkpoint
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.dummy_weights import fill_parameters
from worker.engine.models.expert_modules import PlacedExperts
from worker.engine.models.expert_weights import ExpertProducts
from worker.engine.models.gguf_experts import find_gguf_experts
from worker.engine.models.gguf_reader import GgufReader
from worker.engine.models.loader import OnProgress
from worker.engine.models.model import ModelInput
from worker.engine.models.model_config import is_classifier
from worker.engine.models.model_lora import ModuleLoras
from worker.engine.models.stored_experts import find_experts
from worker.engine.models.transformers_attention import PagedStep, register_attention
from worker.engine.models.transformers_config import (
    MODEL_ERRORS,
    NUM_TRIAL_TOKENS,
    TransformersConfig,
    attention_names,
    auto_model,
    choose_experts,
    fix_rope,
    forget_padding,
    make_model,
    trial,
)
from worker.engine.models.vision.image_norm import ImageNorm
from worker.engine_link.engine_config import LoadFormat

log = logging.getLogger(__name__)


class TransformersModel:
    """The body gives hidden states; the head, whose body has been taken out, gives logits of them.

    So whatever a family does to its logits (scales, soft caps) is done by its own code.
    """

    def __init__(self, model: Any, max_context_len: int, sight: SightCard | None = None) -> None:
        device = next(model.parameters()).device
        self._image_norm = None if sight is None else ImageNorm.of(sight, device)
        forget_padding(model)
        fix_rope(model, max_context_len)
        # On a CPU one product for each expert, of any shape and without copies; on a GPU all
        # experts in one, so that the host need not wait to hear who was chosen.
        choose_experts(model, "eager" if device.type == "cpu" else "grouped_mm")
        self._attention_layers = _checked_layers(model)
        self._body = model.get_decoder()
        names = {module: name for name, module in model.named_modules()}
        self._loras = ModuleLoras(names[self._body], self._body)
        model.set_submodule(names[self._body], _GivenBody())
        self._head = model

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]:
        return self._attention_layers

    @property
    def num_bytes(self) -> int:
        """The bytes of its parameters, tied ones once."""
        parts = {part for module in (self._body, self._head) for part in module.parameters()}
        return sum(part.nbytes for part in parts)

    def hidden(self, batch: ModelInput, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size], after the last norm."""
        with ExitStack() as hooks:
            if batch.loras is not None:
                hooks.enter_context(self._loras.applied(batch.loras))
            output = self._body(
                **self._inputs(batch),
                position_ids=batch.positions[None],
                use_cache=False,
                jetflock_step=PagedStep(attention),
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _inputs(self, batch: ModelInput) -> dict[str, torch.Tensor]:
        """Token ids; where there are images, embeddings with their features in them."""
        if not batch.image_rows:
            return {"input_ids": batch.input_ids[None]}
        embeddings = self._body.get_input_embeddings()(batch.input_ids)
        for each in batch.image_rows:
            each.put_into(embeddings)
        return {"inputs_embeds": embeddings[None]}

    def image_features(
        self, pixels: torch.Tensor, _: PixelSize, num_frames: int = 0
    ) -> torch.Tensor:
        """[height, width, 3] uint8, on the model's device -> [1, num_features, hidden_size]."""
        assert self._image_norm is not None, "it takes no images"
        assert not num_frames, "it takes no videos"
        pixel_values = self._image_norm.apply(pixels)[None].to(self._head.dtype)
        features: torch.Tensor = self._head.get_image_features(pixel_values).pooler_output[0]
        return features[None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs], in the model's dtype."""
        if is_classifier(type(self._head).__name__):  # its forward would take the last row alone
            scores: torch.Tensor = self._head.score(hidden)
            return scores
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        return self._loras.projections(weights)


class _GivenBody(torch.nn.Module):
    """In the place of a body: what it is given has been through one."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _GivenHidden:
        return _GivenHidden(inputs_embeds)


class _GivenHidden:
    """What a body returns, by attribute, place or key; all that is not a hidden state is None."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, key: int | str) -> torch.Tensor:
        return (self.last_hidden_state,)[self.keys().index(key) if isinstance(key, str) else key]

    def keys(self) -> list[str]:
        return ["last_hidden_state"]


def load_transformers_model(
    config: TransformersConfig,
    model_path: Path,
    load_format: LoadFormat,
    dtype: torch.dtype,
    max_context_len: int,
    on_progress: OnProgress,
    device: torch.device,
    experts: ExpertProducts | None = None,
) -> TransformersModel:
    """Loads it. With `experts`, those that are stored in codes are multiplied by them.

    Raises ConfigError for a checkpoint that does not fit its configuration.
    """
    if load_format == "dummy":
        with device:
            model = make_model(copy.deepcopy(config.hf_config), dtype)
        fill_parameters(model, on_progress)
    elif holds_gguf(model_path):
        model = load_from_gguf(config.hf_config, model_path, dtype, on_progress, device, experts)
    else:
        register_attention()
        model = load_pretrained(
            auto_model(config.hf_config),
            model_path,
            config.hf_config,
            dtype,
            on_progress,
            device,
            attention=attention_names(config.hf_config),
            experts=experts,
            made_format=config.made_format,
        )
    try:
        return TransformersModel(model, max_context_len, config.sight)
    except MODEL_ERRORS as exc:
        raise ConfigError(f"{config.architecture} cannot be served: {exc}") from exc


def load_pretrained(
    auto_model: Any,
    model_path: Path,
    hf_config: Any,
    dtype: torch.dtype,
    on_progress: OnProgress,
    device: torch.device,
    *,
    attention: str | dict[str, str],
    options: Mapping[str, bool] = MappingProxyType({}),
    experts: ExpertProducts | None = None,
    made_format: MadeFormat | None = None,
) -> Any:
    """Each tensor is read once, into its place; `options` are what its class is made with.
    `made_format`: what those experts are to be made that are stored in 16 bits.

    Raises ConfigError.
    """
    from transformers.utils.import_utils import is_accelerate_available

    reads_to_device = device.type == "cuda" and is_accelerate_available()
    if device.type == "cuda" and not reads_to_device:
        log.warning("accelerate is not installed: the weights go through the host's memory")
    try:
        with open_checkpoint(model_path) as checkpoint, _progress(on_progress):
            placed = PlacedExperts({})
            if experts is not None:
                found = find_experts(checkpoint, made_format)
                placed = PlacedExperts.of(hf_config, dtype, found)
                _check_made(model_path, placed, made_format)
            source = auto_model, hf_config, model_path, dtype
            maker, weights = _weights(checkpoint, *source, is_given=bool(placed.sources))
            model, loading = placed.maker(maker).from_pretrained(
                **placed.without(weights),
                config=copy.deepcopy(hf_config),
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                device_map={"": device} if reads_to_device else None,
                **options,
            )
            model = model.to(device).eval()
            check_unread(checkpoint.files, _stored_names(checkpoint, loading["unexpected_keys"]))
            if experts is not None:
                placed.read(model, experts)
    except MODEL_ERRORS as exc:
        raise ConfigError(f"cannot load {model_path}: {exc}") from exc
    if loading["missing_keys"]:
        names = sorted(loading["missing_keys"])
        raise ConfigError(
            f"the checkpoint in {model_path} has no tensor {names[0]!r}"
            + (f", and {len(names) - 1} more" if len(names) > 1 else "")
        )
    return model


def _weights(
    checkpoint: StoredCheckpoint,
    auto_model: Any,
    hf_config: Any,
    model_path: Path,
    dtype: torch.dtype,
    *,
    is_given: bool,
) -> tuple[Any, dict[str, Any]]:
    """Transformers reads the files itself, or is given what it cannot read, not by these names, or
    not all of it: then the class of the model must be named, for transformers finds it by a path
    alone.
    """
    if not checkpoint.heads.quantized and not checkpoint.files.is_renamed and not is_given:
        return auto_model, {"pretrained_model_name_or_path": model_path}
    import transformers

    names = [*checkpoint.heads.plain_names, *checkpoint.heads.quantized]
    weights = {name: _LazyWeight(checkpoint, name, dtype) for name in names}
    maker = getattr(transformers, hf_config.architectures[0])
    return maker, {"pretrained_model_name_or_path": None, "state_dict": weights}


def _check_made(model_path: Path, placed: PlacedExperts, made_format: MadeFormat | None) -> None:
    """Raises ConfigError where codes are to be made of experts that only transformers can read."""
    if made_format is not None and (placed.num_left or not placed.sources):
        raise ConfigError(
            f"quantization={made_format} is not possible with {model_path}: it does not store each "
            "weight of each expert by itself; leave it out"
        )


class _LazyWeight:
    """In the place of a tensor: read when it is taken, as transformers takes those of files."""

    def __init__(self, checkpoint: StoredCheckpoint, name: str, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._name = name
        self._dtype = dtype

    def __getitem__(self, idx: Any) -> torch.Tensor:
        return self._checkpoint.read(self._name, self._dtype)[idx]


def _stored_names(checkpoint: StoredCheckpoint, names: Iterable[str]) -> list[str]:
    """As the files have them; transformers may have changed a name."""
    return [stored for name in names for stored in checkpoint.heads.stored_names(name)]


def _checked_layers(model: Any) -> tuple[AttentionLayer, ...]:
    """The layers with sinks that have been loaded. Raises ConfigError when positions are not
    heeded.
    """
    here, there = trial(model), trial(model, first_position=NUM_TRIAL_TOKENS)
    if all(torch.equal(a, b) for a, b in zip(here.keys, there.keys, strict=True)):
        raise ConfigError("it takes no heed of the positions of its tokens: not supported")
    return here.layers


@contextmanager
def _progress(on_progress: OnProgress) -> Iterator[None]:
    """transformers' own bar, told to us instead."""
    from transformers.utils.logging import set_tqdm_hook

    def make_bar(_: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _Bar(args[0] if args else kwargs.get("iterable", ()), on_progress)

    previous = set_tqdm_hook(make_bar)
    try:
        yield
    finally:
        set_tqdm_hook(previous)


class _Bar:
    """Iterates, and tells how far it is."""

    def __init__(self, items: Any, on_progress: OnProgress) -> None:
        self._items = list(items)
        self._on_progress = on_progress

    def __iter__(self) -> Iterator[Any]:
        for idx, item in enumerate(self._items, start=1):
            yield item
            self._on_progress(idx / len(self._items))


def load_from_gguf(
    hf_config: Any,
    model_path: Path,
    dtype: torch.dtype,
    on_progress: OnProgress,
    device: torch.device,
    experts: ExpertProducts | None = None,
) -> Any:
    """Each tensor goes into its place as soon as it is read. Raises ConfigError."""
    from transformers.initialization import no_init_weights

    with GgufReader(model_path, dtype, on_progress, torch.get_num_threads()) as reader:
        try:
            placed = PlacedExperts({})
            if experts is not None:
                placed = PlacedExperts.of(hf_config, dtype, find_gguf_experts(reader))
            with device, no_init_weights():
                model = make_model(copy.deepcopy(hf_config), dtype)
            placed.put_into(model)
            model.tie_weights()
        except MODEL_ERRORS as exc:
            raise ConfigError(f"cannot load {model_path}: {exc}") from exc
        for name, parameter in model.named_parameters():
            parameter.data.copy_(reader.read(name, *parameter.shape))
        if experts is not None:
            placed.read(model, experts)
    return model
