"""Which models a test compares with transformers' own forward; docs/models.md lists the same."""

# Computed by transformers; what models/decoder.py computes is in registry.py.
TESTED_ARCHITECTURES = frozenset(
    {
        "AfmoeForCausalLM",
        "Cohere2MoeForCausalLM",
        "ExaoneMoeForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "HYV3ForCausalLM",
        "MiMoV2FlashForCausalLM",
        "PhimoeForCausalLM",
        "SolarOpenForCausalLM",
    }
)
