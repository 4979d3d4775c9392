"""The models that see, by architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from shared.checkpoint.vision.anyres import llava_next_sight, llava_onevision_sight
from shared.checkpoint.vision.gemma3 import gemma3_sight
from shared.checkpoint.vision.gemma4 import gemma4_sight
from shared.checkpoint.vision.idefics3 import idefics3_sight
from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.internvl import internvl_sight
from shared.checkpoint.vision.llama4 import llama4_sight
from shared.checkpoint.vision.llava import llava_sight
from shared.checkpoint.vision.mistral3 import mistral3_sight
from shared.checkpoint.vision.qwen_vl import qwen_vl_sight
from shared.protocol.sight_card import SightCard

ReadSight: TypeAlias = Callable[[Path, dict[str, Any]], SightCard]

# Computed as one model by transformers: all else is read as a text model, and a tower beside it.
WHOLE_FAMILIES: Mapping[str, ReadSight] = {"LlavaForConditionalGeneration": llava_sight}
TOWER_FAMILIES: Mapping[str, ReadSight] = {
    "Gemma3ForConditionalGeneration": gemma3_sight,
    "Gemma4ForConditionalGeneration": gemma4_sight,
    "Gemma4UnifiedForConditionalGeneration": gemma4_sight,
    "Idefics3ForConditionalGeneration": idefics3_sight,
    "InternVLForConditionalGeneration": internvl_sight,
    "Llama4ForConditionalGeneration": llama4_sight,
    "LlavaNextForConditionalGeneration": llava_next_sight,
    "LlavaOnevisionForConditionalGeneration": llava_onevision_sight,
    "Mistral3ForConditionalGeneration": mistral3_sight,
    "Qwen2VLForConditionalGeneration": qwen_vl_sight,
    "Qwen2_5_VLForConditionalGeneration": qwen_vl_sight,
    "Qwen3VLForConditionalGeneration": qwen_vl_sight,
    "Qwen3VLMoeForConditionalGeneration": qwen_vl_sight,
    "Qwen3_5ForConditionalGeneration": qwen_vl_sight,
    "Qwen3_5MoeForConditionalGeneration": qwen_vl_sight,
    "SmolVLMForConditionalGeneration": idefics3_sight,
}


def sight_card(path: Path, config: dict[str, Any]) -> SightCard | None:
    """None for a model that takes no images: also where its text is a model of its own, and its
    folder has no image processor. Raises ConfigError for one that is not supported.
    """
    architectures = config.get("architectures") or [""]
    architecture = str(architectures[0])
    if architecture in WHOLE_FAMILIES:
        return WHOLE_FAMILIES[architecture](path, config)
    if architecture in TOWER_FAMILIES and ImageProcessor.is_in(path):
        return TOWER_FAMILIES[architecture](path, config)
    return None
