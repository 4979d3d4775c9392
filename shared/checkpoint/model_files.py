"""A model on disk: found by path or hub id, and described by a model card."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.checkpoint.hearing_files import hearing_card, hears, sound_card
from shared.checkpoint.hub import fetch, is_hub_id
from shared.checkpoint.json_file import read_json
from shared.checkpoint.mistral_folder import is_mistral_folder, mistral_folder
from shared.checkpoint.model_options import PLAIN, ModelOptions
from shared.checkpoint.model_shape import why_no_checkpoint
from shared.checkpoint.pooled_files import (
    classifier_card,
    embedding_card,
    encoder_context_len,
    is_classifier,
    is_embedder,
    is_encoder,
    score_card,
    yes_no_card,
)
from shared.checkpoint.recurrent_text import DEFAULT_CONTEXT_LEN, is_endless, keeps_states
from shared.checkpoint.stored_format import (
    HEAD_FORMAT,
    MadeFormat,
    made_format,
    modelopt_config,
    stored_format,
)
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.checkpoint.vision.vision_families import sight_card
from shared.checkpoint.vision.vision_text import text_config
from shared.errors import ConfigError
from shared.gguf.checkpoint_folder import checkpoint_folder
from shared.gguf.gguf_choice import gguf_file_at
from shared.gguf.gguf_model import model_stem
from shared.protocol.model_cards import ClassifierCard, ModelCard, ScoreCard, VisionCard
from shared.subjects import pool_slug

Number = TypeVar("Number", int, float)

# What a request may ask for, too: frontend/fields/sampling_fields.py.
_DEFAULT_LIMITS = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (-1, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
_SAMPLE_BYTES = 1 << 20
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "model_max_length",
    "max_target_positions",
)


def resolve_model(model: str) -> Path:
    """The folder of a local checkpoint, or of a hub id, downloaded. Raises ConfigError.

    Of GGUF files and of Mistral's own layout it is one in the user's cache, which links to them.
    """
    path = Path(model).expanduser()
    if path.exists():
        return local_checkpoint(path)
    if not is_hub_id(model):
        raise ConfigError(
            f"no model at {model!r}; give a folder in Hugging Face format, a GGUF file, or a hub "
            "id (owner/name)"
        )
    return local_checkpoint(fetch(model))


def local_checkpoint(path: Path) -> Path:
    """The folder to read of what lies at `path`: itself, or one made of a GGUF file or of Mistral's
    own layout.

    Raises ConfigError.
    """
    if (file := gguf_file_at(path)) is not None:
        return checkpoint_folder(file)
    if is_mistral_folder(path):
        return mistral_folder(path)
    if not (path / "config.json").is_file():
        raise ConfigError(why_no_checkpoint(path))
    return path


def served_name(model: str) -> str:
    """The name under which MODEL is served when none is given."""
    path = Path(model).expanduser()
    return model_stem(path.resolve().name) if path.exists() else model


def weight_files(path: Path) -> list[Path]:
    """The files of weights in a checkpoint's folder."""
    found = (sorted(filter(Path.is_file, path.glob(f"*.{end}"))) for end in ("safetensors", "gguf"))
    return next(filter(None, found), [])


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The JSON side of a checkpoint."""

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    has_dummy_weights: bool = False  # random ones are served instead of the files'
    stretched_context_len: int | None = None  # wanted, beyond what config.json names
    made_format: MadeFormat | None = None  # of weights that are stored in 16 bits
    options: ModelOptions = PLAIN

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        options: ModelOptions = PLAIN,
        has_dummy_weights: bool = False,
    ) -> ModelFiles:
        """Raises ConfigError."""
        files = cls(
            path,
            read_json(path / "config.json", dict),
            read_json(path / "generation_config.json", dict, {}),
            has_dummy_weights,
            options=options,
        )
        if options.quantization is not None and not stored_format(path, files.config):
            files = dataclasses.replace(files, made_format=options.quantization)
        wanted = options.max_context_len
        if wanted is None or wanted <= files.max_context_len:
            return files
        return dataclasses.replace(files, stretched_context_len=wanted)

    def tokenizer_bundle(self) -> TokenizerBundle:
        """The bundle with the chat template that was wanted in place of its own.

        With dummy weights a tokenizer may be missing: then each token's text is its number.

        Raises ConfigError.
        """
        if self.has_dummy_weights and not TokenizerBundle.is_in(self.path):
            return TokenizerBundle.of_numbers(self.vocab_size)
        bundle = TokenizerBundle.from_model_dir(self.path)
        template = self.options.template_source()
        return bundle if template is None else bundle.with_chat_template(template)

    @property
    def num_weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in weight_files(self.path))

    @property
    def revision(self) -> str:
        """Names the weights: a hash of config and samples of every weight file.

        A stretched context counts, since some models turn their positions by it, and so does what
        weights are made when they are loaded, what keys, values and activations are rounded to, and
        the file of logits processors: all that chooses the tokens of a request which another worker
        goes on with.
        """
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        if self.stretched_context_len is not None:
            digest.update(f"context:{self.stretched_context_len}".encode())
        if self.made_format is not None:
            head = HEAD_FORMAT[self.made_format]
            digest.update(f"quantization:{self.made_format}, head {head}".encode())
        if self.options.kv_dtype != "auto":
            digest.update(f"kv_dtype:{self.options.kv_dtype}".encode())
        if self.options.cpu_activations != "auto":
            digest.update(f"cpu_activations:{self.options.cpu_activations}".encode())
        if (processors := self.options.processor_file()) is not None:
            digest.update(f"logits_processors:{processors.digest}".encode())
        if beside := modelopt_config(self.path):
            digest.update(json.dumps(beside, sort_keys=True).encode())
        if self.has_dummy_weights:
            return f"dummy-{digest.hexdigest()[:16]}"
        for file in weight_files(self.path):
            size = file.stat().st_size
            digest.update(f"{file.name}:{size}".encode())
            with file.open("rb") as stream:
                for start in range(0, size, max(_SAMPLE_BYTES, size // 16)):
                    stream.seek(start)
                    digest.update(stream.read(_SAMPLE_BYTES))
                stream.seek(max(0, size - _SAMPLE_BYTES))
                digest.update(stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()[:16]

    @property
    def max_context_len(self) -> int:
        if self.stretched_context_len is not None:
            return self.stretched_context_len
        if is_encoder(self.config):
            return encoder_context_len(self.path, self.config)
        for key in _CONTEXT_KEYS:
            if isinstance(value := self._text_config.get(key), int):
                return value
        if is_endless(self.config):
            return DEFAULT_CONTEXT_LEN
        raise ConfigError(f"{self.path}/config.json names no context length ({_CONTEXT_KEYS[0]})")

    @property
    def vocab_size(self) -> int:
        value = self._text_config.get("vocab_size")
        if not isinstance(value, int):
            raise ConfigError(f"{self.path}/config.json has no vocab_size")
        return value

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids of generation_config.json, else those of config.json."""
        value = self.generation_config.get("eos_token_id")
        if value is None:
            value = self._text_config.get("eos_token_id", self.config.get("eos_token_id"))
        if value is None:
            return ()
        return tuple(value) if isinstance(value, list) else (int(value),)

    def _default_temperature(self) -> float | None:
        """`do_sample: false` means greedy, whatever stands beside it."""
        if self.generation_config.get("do_sample") is False:
            return 0.0
        return self._default("temperature", float)

    def _default(self, name: str, kind: type[Number]) -> Number | None:
        """A sampling default of generation_config.json."""
        value = self.generation_config.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != kind(value):
            raise ConfigError(
                f"{self.path}/generation_config.json: {name!r} must be a number, not {value!r}"
            )
        low, high = _DEFAULT_LIMITS[name]
        if not low <= value <= high:
            raise ConfigError(
                f"{self.path}/generation_config.json: {name!r} is {value}, "
                f"not between {low:g} and {high:g}"
            )
        return kind(value)

    @property
    def _has_head(self) -> bool:
        """`LlamaForCausalLM` has one, `LlamaModel` has not."""
        architectures = self.config.get("architectures") or [""]
        name = str(architectures[0])
        return not name.endswith("Model") or name.endswith("LMHeadModel")

    @property
    def _text_config(self) -> dict[str, Any]:
        return text_config(self.config)

    def card(self, name: str, bundle: TokenizerBundle) -> ModelCard:
        """The model card under which this checkpoint is served. Raises ConfigError."""
        classifier = None
        if is_classifier(self.config):
            classifier = classifier_card(self.path, self.config)
        processors = self.options.processor_file()
        hearing = hearing_card(self.path, self.config)
        sight = sight_card(self.path, self.config)
        vision = VisionCard.maybe_of(sight)
        return ModelCard(
            name=name,
            pool=pool_slug(name),
            revision=self.revision,
            tokenizer_hash=bundle.content_hash,
            max_context_len=self.max_context_len,
            vocab_size=self.vocab_size,
            eos_token_ids=self.eos_token_ids,
            created=int(time.time()),
            default_temperature=self._default_temperature(),
            default_top_p=self._default("top_p", float),
            default_top_k=self._default("top_k", int),
            default_min_p=self._default("min_p", float),
            default_repetition_penalty=self._default("repetition_penalty", float),
            can_generate=self._can_generate,
            embedding=(
                None if classifier or hearing else embedding_card(self.path, self._text_config)
            ),
            score=self._score_card(bundle, classifier),
            classifier=classifier,
            vision=vision,
            stored_format=self._format,
            num_weight_bytes=0 if self.has_dummy_weights else self.num_weight_bytes,
            kv_dtype=_unless_auto(self.options.kv_dtype),
            activations=_unless_auto(self.options.cpu_activations),
            keeps_states=keeps_states(self.config),
            logits_processors=() if processors is None else processors.names,
            own_sight=sight if vision is None else None,
            hearing=hearing,
            sound=sound_card(self.path, self.config),
        )

    @property
    def _format(self) -> str:
        if self.made_format is not None:
            told = made_format(self.made_format)
            return f"experts {told}" if self._is_mixture else told
        return stored_format(self.path, self.config)

    @property
    def _is_mixture(self) -> bool:
        """Whether it is a mixture of experts: they alone are made codes."""
        return any(self._text_config.get(key) for key in _EXPERT_KEYS)

    @property
    def _can_generate(self) -> bool:
        reads_alone = is_classifier(self.config) or is_embedder(self.path) or hears(self.config)
        return self._has_head and not reads_alone

    def _score_card(
        self, bundle: TokenizerBundle, classifier: ClassifierCard | None
    ) -> ScoreCard | None:
        if classifier is not None:
            return score_card(classifier)
        return yes_no_card(bundle, self.vocab_size) if self._can_generate else None


def _unless_auto(name: str) -> str:
    return "" if name == "auto" else name
