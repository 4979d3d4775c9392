"""Which models a test compares with transformers' own forward; docs/models.md lists the same."""

# Computed by transformers; what models/decoder.py computes is in registry.py.
TESTED_ARCHITECTURES = frozenset(
    {
        "ApertusForCausalLM",
        "BioGptForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTNeoXForCausalLM",
        "MiMoV2FlashForCausalLM",
        "Ministral3ForCausalLM",
        "NanoChatForCausalLM",
        "OPTForCausalLM",
        "PersimmonForCausalLM",
        "PhiForCausalLM",
        "PhimoeForCausalLM",
        "VaultGemmaForCausalLM",
    }
)
