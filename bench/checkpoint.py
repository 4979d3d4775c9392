"""Makes the checkpoint that the engine's benchmark runs: random weights, seeded, bfloat16.

    python -m bench.checkpoint FOLDER

A Llama of 135 million parameters in Hugging Face format, with a byte-level BPE tokenizer whose
merges are written down and not trained: pairs, triples and quadruples of letters.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path

import cyclopts

from bench.model_shape import LLAMA_135M, ModelShape

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>")
SEED = 20261120
STANDARD_DEVIATION = 0.02
CONTEXT_LEN = 8192
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: "
    "{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def ensure_checkpoint(folder: Path) -> None:
    """Make it unless it is there. The last file written is config.json."""
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, LLAMA_135M.vocab_size)
    write_weights(folder, LLAMA_135M)
    write_config(folder, LLAMA_135M)


def write_weights(folder: Path, shape: ModelShape) -> None:
    """model.safetensors."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(SEED)

    def random(*size: int) -> torch.Tensor:
        values = torch.empty(*size).normal_(0.0, STANDARD_DEVIATION, generator=generator)
        return values.to(torch.bfloat16)

    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": random(shape.vocab_size, hidden),
        "model.norm.weight": ones.clone(),
    }
    for idx in range(shape.num_layers):
        layer = f"model.layers.{idx}"
        tensors |= {
            f"{layer}.input_layernorm.weight": ones.clone(),
            f"{layer}.post_attention_layernorm.weight": ones.clone(),
            f"{layer}.self_attn.q_proj.weight": random(q_size, hidden),
            f"{layer}.self_attn.k_proj.weight": random(kv_size, hidden),
            f"{layer}.self_attn.v_proj.weight": random(kv_size, hidden),
            f"{layer}.self_attn.o_proj.weight": random(hidden, q_size),
            f"{layer}.mlp.gate_proj.weight": random(inner, hidden),
            f"{layer}.mlp.up_proj.weight": random(inner, hidden),
            f"{layer}.mlp.down_proj.weight": random(hidden, inner),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(folder: Path, shape: ModelShape) -> None:
    """config.json and generation_config.json, in words that transformers 4 and 5 read."""
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": STANDARD_DEVIATION,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": CONTEXT_LEN,
        "mlp_bias": False,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
        **ids,
    }
    _write_json(folder / "generation_config.json", ids)
    _write_json(folder / "config.json", config)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """tokenizer.json and tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: idx for idx, token in enumerate(SPECIAL_TOKENS)}
    for char in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[char] = len(vocab)
    merges: list[tuple[str, str]] = []
    for left, right in _letter_merges():
        if len(vocab) == vocab_size:
            break
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    bos, eos, pad = SPECIAL_TOKENS
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": eos,
            "pad_token": pad,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_LEN,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _letter_merges() -> Iterator[tuple[str, str]]:
    """a+b, then ab+c, then abc+d: each left side is made by an earlier merge."""
    for length in (2, 3, 4):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters[:-1]), letters[-1]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    cyclopts.run(ensure_checkpoint)
