"""Which models a test compares with transformers' own forward; docs/models.md lists the same."""

# Computed by transformers; what models/decoder.py computes is in registry.py.
TESTED_ARCHITECTURES = frozenset(
    {
        "ApertusForCausalLM",
        "ArceeForCausalLM",
        "BioGptForCausalLM",
        "Dots1ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "FlexOlmoForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTNeoXForCausalLM",
        "Glm4MoeForCausalLM",
        "GptOssForCausalLM",
        "GraniteMoeForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "MixtralForCausalLM",
        "NanoChatForCausalLM",
        "OPTForCausalLM",
        "OlmoForCausalLM",
        "OlmoeForCausalLM",
        "PersimmonForCausalLM",
        "PhiForCausalLM",
        "PhimoeForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "VaultGemmaForCausalLM",
    }
)
