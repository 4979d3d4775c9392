"""From a checkpoint folder to the configuration and the class of its model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.checkpoint.formats.quantization import Quantization
from shared.checkpoint.formats.quantization_files import read_quantization
from shared.checkpoint.hearing_files import HEARING_ARCHITECTURE, sound_card
from shared.checkpoint.json_file import read_json
from shared.checkpoint.pooled_files import EMBEDDERS, ENCODERS, class_labels
from shared.checkpoint.recurrent_text import SAME_ARCHITECTURES
from shared.checkpoint.stored_format import MadeFormat, gguf_format
from shared.checkpoint.vision.vision_families import sight_card
from shared.checkpoint.vision.vision_text import TEXT_ARCHITECTURES
from shared.errors import ConfigError
from shared.gguf.gguf_model import holds_gguf
from shared.gguf.metadata import CONFIG_SECTION
from worker.engine.models.coded_values import (
    CodedWeights,
    gguf_weights,
    made_weights,
    stored_weights,
)
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.encoder_config import read_encoder_config
from worker.engine.models.families.afmoe import afmoe_config
from worker.engine.models.families.apertus import apertus_config
from worker.engine.models.families.arcee import arcee_config
from worker.engine.models.families.aria import aria_text_config
from worker.engine.models.families.bamba import bamba_config
from worker.engine.models.families.cohere import cohere_config
from worker.engine.models.families.cohere2 import cohere2_config
from worker.engine.models.families.cohere2_moe import cohere2_moe_config
from worker.engine.models.families.deepseek import (
    axk1_config,
    deepseek_v2_config,
    deepseek_v3_config,
    glm4_moe_lite_config,
    mistral4_config,
)
from worker.engine.models.families.deepseek_sparse import deepseek_v32_config, glm_moe_dsa_config
from worker.engine.models.families.ernie import ernie_config
from worker.engine.models.families.ernie_moe import ernie_moe_config
from worker.engine.models.families.exaone4 import exaone4_config, exaone_moe_config
from worker.engine.models.families.falcon import falcon_config
from worker.engine.models.families.falcon_h1 import falcon_h1_config
from worker.engine.models.families.gemma import gemma_config
from worker.engine.models.families.gemma2 import gemma2_config, gemma3_config, vaultgemma_config
from worker.engine.models.families.gemma3n import gemma3n_config
from worker.engine.models.families.gemma4 import gemma4_config
from worker.engine.models.families.glm import glm4_config, glm_config
from worker.engine.models.families.glm4_moe import dots1_config, glm4_moe_config
from worker.engine.models.families.gpt2 import gpt2_config, gpt_bigcode_config
from worker.engine.models.families.gpt_neox import gpt_neox_config, persimmon_config
from worker.engine.models.families.gpt_oss import gpt_oss_config
from worker.engine.models.families.gptj import gptj_config
from worker.engine.models.families.granite import (
    granite_config,
    granite_swa_config,
    hyperclovax_config,
)
from worker.engine.models.families.granite_hybrid import granite_hybrid_config
from worker.engine.models.families.granite_moe import granite_moe_config
from worker.engine.models.families.helium import helium_config
from worker.engine.models.families.hunyuan import hunyuan_config
from worker.engine.models.families.hunyuan3 import hunyuan3_config
from worker.engine.models.families.hunyuan_moe import hunyuan_moe_config
from worker.engine.models.families.jamba import jamba_config
from worker.engine.models.families.kimi_linear import kimi_linear_config
from worker.engine.models.families.latent import minicpm3_config, youtu_config
from worker.engine.models.families.lfm2 import lfm2_config, lfm2_moe_config
from worker.engine.models.families.llama import llama_config
from worker.engine.models.families.llama4 import llama4_config
from worker.engine.models.families.mimo_v2 import mimo_v2_config
from worker.engine.models.families.minimax import minimax_config
from worker.engine.models.families.mistral import (
    ministral3_config,
    ministral_config,
    mistral_config,
)
from worker.engine.models.families.mixtral import minimax_m2_config, mixtral_config
from worker.engine.models.families.nanochat import nanochat_config
from worker.engine.models.families.nemotron import jais2_config, nemotron_config
from worker.engine.models.families.nemotron_h import nemotron_h_config
from worker.engine.models.families.olmo import olmo2_config, olmo3_config, olmo_hybrid_config
from worker.engine.models.families.olmo1 import olmo1_config
from worker.engine.models.families.olmoe import flex_olmo_config, olmoe_config
from worker.engine.models.families.opt import biogpt_config, opt_config
from worker.engine.models.families.phi import phi_config
from worker.engine.models.families.phi3 import phi3_config
from worker.engine.models.families.pure_mamba import mamba1_config, mamba2_config
from worker.engine.models.families.qwen import qwen2_config, qwen3_config
from worker.engine.models.families.qwen3_5 import (
    qwen3_5_config,
    qwen3_5_moe_config,
    qwen3_next_config,
)
from worker.engine.models.families.qwen3_moe import qwen3_moe_config, qwen3_vl_moe_config
from worker.engine.models.families.qwen_moe import qwen2_moe_config
from worker.engine.models.families.seed_oss import seed_oss_config
from worker.engine.models.families.smollm3 import smollm3_config
from worker.engine.models.families.solar_open import solar_open_config
from worker.engine.models.families.stablelm import stablelm_config
from worker.engine.models.families.starcoder2 import starcoder2_config
from worker.engine.models.families.zamba2 import zamba2_config
from worker.engine.models.model_config import (
    ConfigFile,
    ModelConfig,
    NotFused,
    is_classifier,
    token_ids_of,
)
from worker.engine.models.speech.whisper_config import read_whisper_config
from worker.engine.models.transformers_config import (
    read_hf_config,
    read_text_config,
    read_transformers_config,
)
from worker.engine.models.vision.tower import read_tower_config

log = logging.getLogger(__name__)

ReadConfig = Callable[[ConfigFile], DecoderConfig]

# Computed by models/decoder.py; all others by transformers.
_PLAIN: dict[str, ReadConfig] = {
    "LlamaForCausalLM": llama_config,
    "MistralForCausalLM": mistral_config,
    "Qwen2ForCausalLM": qwen2_config,
    "Qwen3ForCausalLM": qwen3_config,
}
# Read with the defaults of transformers' classes, many of which are their own.
_COMPLETED: dict[str, ReadConfig] = {
    "CwmForCausalLM": ministral_config,
    "Ernie4_5ForCausalLM": ernie_config,
    "GlmForCausalLM": glm_config,
    "GraniteForCausalLM": granite_config,
    "HeliumForCausalLM": helium_config,
    "MinistralForCausalLM": ministral_config,
    "Phi3ForCausalLM": phi3_config,
    "SeedOssForCausalLM": seed_oss_config,
}
# So are these: DecoderConfig.beyond_llama says what is more in them.
_BEYOND_LLAMA: dict[str, ReadConfig] = {
    "ApertusForCausalLM": apertus_config,
    "ArceeForCausalLM": arcee_config,
    "BioGptForCausalLM": biogpt_config,
    "Cohere2ForCausalLM": cohere2_config,
    "CohereForCausalLM": cohere_config,
    "Exaone4ForCausalLM": exaone4_config,
    "FalconForCausalLM": falcon_config,
    "GPT2LMHeadModel": gpt2_config,
    "GPTBigCodeForCausalLM": gpt_bigcode_config,
    "GPTJForCausalLM": gptj_config,
    "GPTNeoXForCausalLM": gpt_neox_config,
    "Gemma2ForCausalLM": gemma2_config,
    "Gemma3ForCausalLM": gemma3_config,
    "Gemma3nForCausalLM": gemma3n_config,
    "Gemma4ForCausalLM": gemma4_config,
    "Gemma4UnifiedForCausalLM": gemma4_config,
    "GemmaForCausalLM": gemma_config,
    "Glm4ForCausalLM": glm4_config,
    "GraniteSWAForCausalLM": granite_swa_config,
    "HunYuanDenseV1ForCausalLM": hunyuan_config,
    "HyperCLOVAXForCausalLM": hyperclovax_config,
    "Jais2ForCausalLM": jais2_config,
    "Llama4ForCausalLM": llama4_config,
    "Ministral3ForCausalLM": ministral3_config,
    "NanoChatForCausalLM": nanochat_config,
    "NemotronForCausalLM": nemotron_config,
    "OPTForCausalLM": opt_config,
    "Olmo2ForCausalLM": olmo2_config,
    "Olmo3ForCausalLM": olmo3_config,
    "OlmoForCausalLM": olmo1_config,
    "PersimmonForCausalLM": persimmon_config,
    "PhiForCausalLM": phi_config,
    "SmolLM3ForCausalLM": smollm3_config,
    "StableLmForCausalLM": stablelm_config,
    "Starcoder2ForCausalLM": starcoder2_config,
    "VaultGemmaForCausalLM": vaultgemma_config,
}
# And these, mixtures of experts.
_MIXTURES: dict[str, ReadConfig] = {
    "AfmoeForCausalLM": afmoe_config,
    "AriaTextForCausalLM": aria_text_config,
    "Cohere2MoeForCausalLM": cohere2_moe_config,
    "Dots1ForCausalLM": dots1_config,
    "Ernie4_5_MoeForCausalLM": ernie_moe_config,
    "ExaoneMoeForCausalLM": exaone_moe_config,
    "FlexOlmoForCausalLM": flex_olmo_config,
    "Glm4MoeForCausalLM": glm4_moe_config,
    "GptOssForCausalLM": gpt_oss_config,
    "GraniteMoeForCausalLM": granite_moe_config,
    "GraniteMoeSharedForCausalLM": granite_moe_config,
    "HYV3ForCausalLM": hunyuan3_config,
    "HunYuanMoEV1ForCausalLM": hunyuan_moe_config,
    "MiMoV2FlashForCausalLM": mimo_v2_config,
    "MiniMaxM2ForCausalLM": minimax_m2_config,
    "MixtralForCausalLM": mixtral_config,
    "OlmoeForCausalLM": olmoe_config,
    "Qwen2MoeForCausalLM": qwen2_moe_config,
    "Qwen3MoeForCausalLM": qwen3_moe_config,
    "SolarOpenForCausalLM": solar_open_config,
}
# And these, some of whose layers keep a state beside keys and values.
_RECURRENT: dict[str, ReadConfig] = {
    "BambaForCausalLM": bamba_config,
    "FalconH1ForCausalLM": falcon_h1_config,
    "FalconMambaForCausalLM": mamba1_config,
    "GraniteMoeHybridForCausalLM": granite_hybrid_config,
    "JambaForCausalLM": jamba_config,
    "KimiLinearForCausalLM": kimi_linear_config,
    "Lfm2ForCausalLM": lfm2_config,
    "Lfm2MoeForCausalLM": lfm2_moe_config,
    "Mamba2ForCausalLM": mamba2_config,
    "MambaForCausalLM": mamba1_config,
    "MiniMaxForCausalLM": minimax_config,
    "NemotronHForCausalLM": nemotron_h_config,
    "OlmoHybridForCausalLM": olmo_hybrid_config,
    "Qwen3NextForCausalLM": qwen3_next_config,
    "Qwen3_5ForCausalLM": qwen3_5_config,
    "Qwen3_5MoeForCausalLM": qwen3_5_moe_config,
    "Zamba2ForCausalLM": zamba2_config,
}
# And these, which keep a latent of each token; nothing else computes them.
_LATENT: dict[str, ReadConfig] = {
    "AXK1ForCausalLM": axk1_config,
    "DeepseekV2ForCausalLM": deepseek_v2_config,
    "DeepseekV32ForCausalLM": deepseek_v32_config,
    "DeepseekV3ForCausalLM": deepseek_v3_config,
    "Glm4MoeLiteForCausalLM": glm4_moe_lite_config,
    "GlmMoeDsaForCausalLM": glm_moe_dsa_config,
    "MiniCPM3ForCausalLM": minicpm3_config,
    "Mistral4ForCausalLM": mistral4_config,
    "YoutuForCausalLM": youtu_config,
}
# And these, of experts and positions of three axes: likewise.
_SEEING: dict[str, ReadConfig] = {"Qwen3VLMoeForConditionalGeneration": qwen3_vl_moe_config}
FUSED_ARCHITECTURES = (
    _PLAIN | _COMPLETED | _BEYOND_LLAMA | _MIXTURES | _RECURRENT | _LATENT | _SEEING
)
# The same without a head: for embeddings alone.
HEADLESS_ARCHITECTURES: dict[str, ReadConfig] = {
    "LlamaModel": llama_config,
    "MistralModel": mistral_config,
    "Qwen2Model": qwen2_config,
    "Qwen3Model": qwen3_config,
}
# With a head of labels: for scores and classes alone.
CLASSIFIER_ARCHITECTURES: dict[str, ReadConfig] = {
    "LlamaForSequenceClassification": llama_config,
    "MistralForSequenceClassification": mistral_config,
    "Qwen2ForSequenceClassification": qwen2_config,
    "Qwen3ForSequenceClassification": qwen3_config,
}
_RAW = _PLAIN | HEADLESS_ARCHITECTURES | CLASSIFIER_ARCHITECTURES


def read_model_config(
    model_path: Path, made_format: MadeFormat | None = None, *, on_gpu: bool = False
) -> ModelConfig:
    """The configuration of a checkpoint. `made_format`: what its projections are to be made when
    they are loaded. `on_gpu`: for one; what has no kernels there is left to transformers.

    Raises ConfigError, with a sentence, for a folder or a model that we cannot serve.
    """
    if not model_path.is_dir():
        raise ConfigError(f"the model path {str(model_path)!r} is not a folder")
    config = ConfigFile.read(model_path / "config.json")
    quantization = read_quantization(model_path)
    model = _read_architecture(model_path, config, on_gpu=on_gpu)
    if is_classifier(model.architecture):
        labels = class_labels(model_path, read_json(config.path, dict))
        model = dataclasses.replace(model, num_labels=len(labels))
    if quantization is not None:
        _check_equal(model_path, quantization, made_format)
        model = dataclasses.replace(model, quantization=quantization.name)
        return _with_codes(model, stored_weights(model_path, model, quantization))
    if holds_gguf(model_path):
        told = gguf_format(config.get(CONFIG_SECTION, {}))
        model = dataclasses.replace(model, quantization=told)
        model = _with_codes(model, gguf_weights(model_path, model))
    return model if made_format is None else _to_be_made(model_path, model, made_format)


def _with_codes(model: ModelConfig, codes: CodedWeights) -> ModelConfig:
    return dataclasses.replace(model, coded_values=codes.values, has_coded_table=codes.has_table)


def _check_equal(path: Path, quantization: Quantization, wanted: MadeFormat | None) -> None:
    """Raises ConfigError where another format is wanted than the checkpoint has."""
    names = [rule.format.name for rule in quantization.rules]
    if wanted is not None and not all(name.startswith(wanted) for name in names):
        raise _already_quantized(path, quantization.name, wanted)


def _to_be_made(path: Path, model: ModelConfig, wanted: MadeFormat) -> ModelConfig:
    """Raises ConfigError where that would spoil the model, or nothing would be won by it."""
    if model.quantization:
        raise _already_quantized(path, model.quantization, wanted)
    if (obstacle := _obstacle_to_making(path, model)) is not None:
        raise ConfigError(
            f"quantization={wanted} is not possible with {model.architecture}: {obstacle} in 16 "
            "bits, so that nothing would be saved; leave it out"
        )
    model = dataclasses.replace(model, made_format=wanted)
    return _with_codes(model, made_weights(model, wanted))


def _obstacle_to_making(path: Path, model: ModelConfig) -> str | None:
    """What of it would be computed in 16 bits; nothing of experts, which stand by themselves."""
    if model.num_expert_values > 0:
        is_read_whole = holds_gguf(path) and not isinstance(model, DecoderConfig)
        return "experts of GGUF files are computed" if is_read_whole else None
    if not isinstance(model, DecoderConfig):
        return "it is computed by transformers"
    if model.beyond_native is not None and model.beyond_codes is not None:
        return f"torch computes {model.beyond_codes}"
    return None


def _already_quantized(path: Path, name: str, wanted: MadeFormat) -> ConfigError:
    return ConfigError(
        f"quantization={wanted} is not possible: the weights in {path} are quantised already "
        f"({name}); leave it out, or take the original in 16 bits"
    )


def _read_architecture(model_path: Path, config: ConfigFile, *, on_gpu: bool) -> ModelConfig:
    architecture = SAME_ARCHITECTURES.get(config.architecture, config.architecture)
    eos_token_ids = _eos_token_ids(model_path, config)
    if architecture in ENCODERS | EMBEDDERS:
        return read_encoder_config(model_path, architecture)
    if architecture == HEARING_ARCHITECTURE:
        return read_whisper_config(model_path, architecture)
    if architecture in TEXT_ARCHITECTURES:
        return _read_text_model(model_path, architecture, eos_token_ids, on_gpu=on_gpu)
    if architecture in _RAW:
        return _RAW[architecture](_named(config, architecture, eos_token_ids))
    return _read_completed(model_path, architecture, eos_token_ids, on_gpu=on_gpu)


def _read_text_model(
    model_path: Path, architecture: str, eos_token_ids: tuple[int, ...], *, on_gpu: bool
) -> ModelConfig:
    """A checkpoint that sees or hears; where its tower is not known, only its text is served."""
    hf_config = read_text_config(model_path, architecture)
    (text_architecture,) = hf_config.architectures
    model = _read_completed(model_path, text_architecture, eos_token_ids, hf_config, on_gpu=on_gpu)
    told = read_json(model_path / "config.json", dict)
    sight, sound = sight_card(model_path, told), sound_card(model_path, told)
    if sight is None and sound is None:
        return model
    if (
        sight is not None
        and sight.has_axes
        and not (isinstance(model, DecoderConfig) and model.rope.axes)
    ):
        raise ConfigError(
            f"{model_path}/config.json: images of {architecture} need positions of three axes, and "
            "its rope has no 'mrope_section', or is of a kind that transformers computes"
        )
    tower = read_tower_config(model_path, architecture)
    return dataclasses.replace(model, sight=sight, sound=sound, tower=tower)


def _read_completed(
    model_path: Path,
    architecture: str,
    eos_token_ids: tuple[int, ...],
    hf_config: Any = None,
    *,
    on_gpu: bool,
) -> ModelConfig:
    """Reads config.json with what it leaves to the classes of transformers."""
    if architecture in FUSED_ARCHITECTURES:
        hf_config = hf_config or read_hf_config(model_path)
        values = ConfigFile(model_path / "config.json", hf_config.to_dict())
        try:
            model = FUSED_ARCHITECTURES[architecture](_named(values, architecture, eos_token_ids))
            obstacle = _obstacle_on_gpus(model) if on_gpu else None
            if obstacle is None:
                return model
            if architecture in _LATENT:
                raise ConfigError(f"{architecture} is computed on CPUs alone: {obstacle}")
            log.info("%s goes through transformers: %s, on a GPU", architecture, obstacle)
        except NotFused as exc:
            if architecture in _LATENT | _SEEING:
                raise
            log.info("%s goes through transformers: %s", architecture, exc)
    return read_transformers_config(model_path, architecture, eos_token_ids, hf_config)


def _named(config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]) -> ConfigFile:
    """As the reader of a family finds it: with what other files say of the same."""
    return config.replaced(architectures=[architecture], eos_token_id=[*eos_token_ids])


def _obstacle_on_gpus(model: DecoderConfig) -> str | None:
    """Why transformers is to compute it there. What it cannot either is refused later, by name."""
    if model.query_growth is not None and model.query_growth.is_of_rotated:
        return "its queries grow where they are rotated"
    return None


def _eos_token_ids(model_path: Path, config: ConfigFile) -> tuple[int, ...]:
    """generation_config.json knows the end-of-turn token; config.json may only know the text's."""
    generation_path = model_path / "generation_config.json"
    if generation_path.exists():
        token_ids = token_ids_of(ConfigFile.read(generation_path), "eos_token_id")
        if token_ids is not None:
            return token_ids
    text_config = config.section("text_config") or config
    return token_ids_of(text_config, "eos_token_id") or token_ids_of(config, "eos_token_id") or ()
