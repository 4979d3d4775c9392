"""Decoders that transformers computes, by name: which are tested, which are refused, and why."""

from __future__ import annotations

from collections.abc import Mapping

ENCODER = "its tokens see later ones, or a text of another model: it is an encoder, or has one"
LATENT = "its keys and values are made of a latent in a way of its own"
OWN_ATTENTION = "its attention is computed in its own code, where ours cannot take its place"
RECURRENT = "it has recurrent or convolutional layers of a kind that is not computed here"
SELECTED = "its tokens see blocks, chunks or selected positions, not all that lie before them"
ASSISTANT = "it guesses tokens for another model, whose keys and values it sees"
SEVERAL_READERS = "one of its layers attends more than once in a step"
NO_BODY = "its layers and its head cannot be told apart"
SEES = "it reads images, and nobody has tried its text alone"
HEARS = "it reads or writes sound"

REASONS: Mapping[str, tuple[str, ...]] = {
    ENCODER: (
        *("BartForCausalLM", "BertGenerationDecoder", "BertLMHeadModel", "BigBirdForCausalLM"),
        *("BigBirdPegasusForCausalLM", "BlenderbotForCausalLM", "BlenderbotSmallForCausalLM"),
        *("CamembertForCausalLM", "Data2VecTextForCausalLM", "DiffusionGemmaForBlockDiffusion"),
        *("ElectraForCausalLM", "ErnieForCausalLM", "MBartForCausalLM", "MarianForCausalLM"),
        *("MegatronBertForCausalLM", "MvpForCausalLM", "PLBartForCausalLM", "PegasusForCausalLM"),
        *("ProphetNetForCausalLM", "ReformerModelWithLMHead", "RemBertForCausalLM"),
        *("RoCBertForCausalLM", "RoFormerForCausalLM", "RobertaForCausalLM"),
        *("RobertaPreLayerNormForCausalLM", "T5Gemma2ForConditionalGeneration", "TrOCRForCausalLM"),
        *("UdopForConditionalGeneration", "VisionEncoderDecoderModel", "XLMRobertaForCausalLM"),
        *("XLMRobertaXLForCausalLM", "XLMWithLMHeadModel", "XLNetLMHeadModel", "XmodForCausalLM"),
    ),
    LATENT: ("LongcatFlashForCausalLM",),
    OWN_ATTENTION: (
        *("BloomForCausalLM", "BltForCausalLM", "CodeGenForCausalLM"),
        *("CpmAntForCausalLM", "DbrxForCausalLM", "DogeForCausalLM"),
        *("GPTNeoForCausalLM", "GPTNeoXJapaneseForCausalLM"),
        *("JetMoeForCausalLM", "MptForCausalLM"),
        *("OpenAIGPTLMHeadModel", "XGLMForCausalLM"),
    ),
    RECURRENT: (
        *("BailingHybridForCausalLM", "Inkling2ForCausalLM", "InklingForCausalLM"),
        *("Inkling2LoopForCausalLM", "LaraMiniForCausalLM", "Lfm3ForCausalLM"),
        "Qwen4ExpForCausalLM",
        *("Qwen4ExpForConditionalGeneration", "RecurrentGemmaForCausalLM", "RwkvForCausalLM"),
        *("ZambaForCausalLM", "ZayaForCausalLM", "xLSTMForCausalLM"),
    ),
    SELECTED: (
        *("AXK2ForCausalLM", "DeepseekV4ForCausalLM", "HYV4ForCausalLM"),
        *("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForCausalLM"),
    ),
    ASSISTANT: (*("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),),
    SEVERAL_READERS: ("DiffLlamaForCausalLM", "DoryForCausalLM", "HrmTextForCausalLM"),
    NO_BODY: ("ModernBertDecoderForCausalLM",),
    HEARS: (
        *("MoshiForCausalLM", "MossTranscribeDiarizeForConditionalGeneration"),
        *("MusicgenForCausalLM", "MusicgenMelodyForCausalLM", "WhisperForCausalLM"),
    ),
    SEES: (
        *("CohereCompassForCausalLM", "Dots3NoteForCausalLM", "Emu3ForCausalLM"),
        *("FuyuForCausalLM", "GitForCausalLM", "MllamaForCausalLM", "Phi4MultimodalForCausalLM"),
    ),
}
REFUSED = {name: reason for reason, names in REASONS.items() for name in names}
# Computed by transformers; what models/decoder.py computes is in registry.py.
TESTED_ARCHITECTURES = frozenset(
    {
        "PhimoeForCausalLM",
    }
)
