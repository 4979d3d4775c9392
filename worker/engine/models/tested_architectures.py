"""Which models a test compares with transformers' own forward; docs/models.md lists the same."""

# Computed by transformers; what models/decoder.py computes is in registry.py.
TESTED_ARCHITECTURES = frozenset(
    {
        "PhimoeForCausalLM",
    }
)
