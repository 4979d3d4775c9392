"""Embeddings of encoders beside transformers' own hidden states, pooled as their files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.pooled_files import EMBEDDERS
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.worker.engine.encoder.test_encoder_scores import CONTEXT_LEN, Rig
from tests.worker.engine.tiny_models import random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.models.registry import read_model_config

SIZE, DENSE_SIZE = 32, 20
# Of transformers' model types: what their configurations need beside the sizes of all.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {}),
    "gemma3_text": (
        "Gemma3TextModel",
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "use_bidirectional_attention": True,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "modernbert": ("ModernBertModel", {"global_attn_every_n_layers": 2, "local_attention": 16}),
    "nomic_bert": ("NomicBertModel", {}),
    "roberta": ("RobertaModel", {"type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRobertaModel", {"type_vocab_size": 1, "pad_token_id": 1}),
}


def save_tiny_embedder(path: Path, model_type: str, **overrides: Any) -> Path:
    from transformers import AutoConfig, AutoModel

    values = FAMILIES[model_type][1] | overrides
    is_shifted = values.get("pad_token_id") == 1
    sizes = {
        "vocab_size": 300,
        "hidden_size": SIZE,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT_LEN + 2 * is_shifted,
        "initializer_range": 0.3,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    auto_model: Any = AutoModel
    config = AutoConfig.for_model(model_type, **(sizes | values))
    auto_model.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def write_modules(path: Path, mode: str, *behind: str) -> None:
    """As sentence-transformers does; `behind` the pooling."""
    kinds = ["Transformer", "Pooling", *behind]
    modules = [
        {"idx": idx, "path": f"{idx}_{kind}" if idx else "", "type": f"any.models.{kind}"}
        for idx, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


def write_dense(folder: Path, activation: str = "torch.nn.modules.activation.Tanh") -> torch.Tensor:
    """Its weight."""
    folder.mkdir()
    weight = torch.randn(DENSE_SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    config = {
        "in_features": SIZE,
        "out_features": DENSE_SIZE,
        "bias": False,
        "activation_function": activation,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": weight}, folder / "model.safetensors")
    return weight


def hidden_states(path: Path, prompt: list[int]) -> torch.Tensor:
    """Of transformers, [num_tokens, hidden_size]."""
    from transformers import AutoModel

    auto_model: Any = AutoModel
    model = auto_model.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return torch.Tensor(model(torch.tensor([prompt])).last_hidden_state[0])


def encoded(*, normalize: bool = False, dimensions: int | None = None) -> PoolingParams:
    return PoolingParams(PoolingKind.ENCODED, normalize=normalize, dimensions=dimensions)


def test_all_families_are_tested() -> None:
    assert {architecture for architecture, _ in FAMILIES.values()} == EMBEDDERS.keys()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_encoder_embeds_as_transformers_does(tmp_path: Path, model_type: str) -> None:
    """Texts of several lengths are computed together, and long ones in several chunks."""
    path = save_tiny_embedder(tmp_path, model_type)
    write_modules(path, "mean_tokens")
    files = ModelFiles.read(path)
    card = files.card("m", TokenizerBundle({"tokenizer.json": b"{}"}))
    assert (card.can_generate, card.score, card.max_context_len) == (False, None, CONTEXT_LEN)
    assert card.embedding == EmbeddingCard(SIZE, PoolingKind.ENCODED, normalize=False)
    prompts = [random_prompt(length, length) for length in (1, 2, 31, 40, 100, CONTEXT_LEN)]
    rig = Rig(path, max_step_tokens=64, num_kv_tokens=512)
    rig.run(*(make_add(idx, prompt, pooling=encoded()) for idx, prompt in enumerate(prompts)))
    for idx, prompt in enumerate(prompts):
        theirs = hidden_states(path, prompt).mean(dim=0)
        assert rig.vector(idx) == pytest.approx(theirs.numpy(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("mode", ["cls_token", "lasttoken", "max_tokens"])
def test_other_ways_of_pooling(tmp_path: Path, mode: str) -> None:
    path = save_tiny_embedder(tmp_path, "bert")
    write_modules(path, mode)
    prompts = [random_prompt(length, length) for length in (20, 23)]
    rig = Rig(path)
    rig.run(*(make_add(idx, prompt, pooling=encoded()) for idx, prompt in enumerate(prompts)))
    for idx, prompt in enumerate(prompts):
        rows = hidden_states(path, prompt)
        theirs = {"cls_token": rows[0], "lasttoken": rows[-1], "max_tokens": rows.amax(dim=0)}
        assert rig.vector(idx) == pytest.approx(theirs[mode].numpy(), rel=1e-4, abs=1e-5)


def test_a_linear_layer_behind_the_pooling(tmp_path: Path) -> None:
    path = save_tiny_embedder(tmp_path, "bert")
    write_modules(path, "mean_tokens", "Dense", "Normalize")
    weight = write_dense(path / "2_Dense")
    card = ModelFiles.read(path).card("m", TokenizerBundle({"tokenizer.json": b"{}"}))
    assert card.embedding == EmbeddingCard(DENSE_SIZE, PoolingKind.ENCODED, normalize=True)
    prompt = random_prompt(20, 1)
    rig = Rig(path)
    rig.run(
        make_add(1, prompt, pooling=encoded(normalize=True)),
        make_add(2, prompt, pooling=encoded(normalize=True, dimensions=7)),
    )
    theirs = (weight @ hidden_states(path, prompt).mean(dim=0)).tanh()
    for run_id, vector in ((1, theirs), (2, theirs[:7])):
        expected = (vector / vector.norm()).numpy()
        assert rig.vector(run_id) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_request_that_names_its_pooling(tmp_path: Path) -> None:
    path = save_tiny_embedder(tmp_path, "bert")
    write_modules(path, "cls_token")
    prompt = random_prompt(20, 1)
    rig = Rig(path)
    rig.run(make_add(1, prompt, pooling=PoolingParams(PoolingKind.MEAN, normalize=False)))
    theirs = hidden_states(path, prompt).mean(dim=0)
    assert rig.vector(1) == pytest.approx(theirs.numpy(), rel=1e-4, abs=1e-5)


def test_the_layer_of_the_first_token_is_not_needed(tmp_path: Path) -> None:
    """Most checkpoints have it, some have not."""
    from safetensors.torch import load_file

    path = save_tiny_embedder(tmp_path, "bert")
    prompt = random_prompt(20, 1)
    with_it, without = Rig(path), path / "model.safetensors"
    weights = load_file(without)
    kept = {name: each for name, each in weights.items() if not name.startswith("pooler.")}
    assert len(kept) == len(weights) - 2
    save_file(kept, without, {"format": "pt"})
    rigs = [with_it, Rig(path)]
    for rig in rigs:
        rig.run(make_add(1, prompt, pooling=encoded()))
    assert rigs[0].vector(1).tobytes() == rigs[1].vector(1).tobytes()


def test_texts_are_as_long_as_sentence_transformers_has_them(tmp_path: Path) -> None:
    path = save_tiny_embedder(tmp_path, "bert")
    write_modules(path, "mean_tokens")
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 50}))
    assert ModelFiles.read(path).max_context_len == read_model_config(path).max_context_len == 50


def test_dummy_weights(tmp_path: Path) -> None:
    path = save_tiny_embedder(tmp_path, "bert")
    write_modules(path, "mean_tokens", "Dense")
    write_dense(path / "2_Dense")
    (path / "2_Dense/model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"2_Dense/model\.safetensors does not exist"):
        Rig(path)
    rig = Rig(path, load_format="dummy")
    rig.run(make_add(1, random_prompt(20, 1), pooling=encoded()))
    assert len(rig.vector(1)) == DENSE_SIZE


def test_what_is_refused(tmp_path: Path) -> None:
    path = save_tiny_embedder(tmp_path / "a", "gemma3_text", use_bidirectional_attention=False)
    with pytest.raises(ConfigError, match="without use_bidirectional_attention is a decoder"):
        read_model_config(path)
    path = save_tiny_embedder(tmp_path / "b", "bert")
    write_modules(path, "weightedmean_tokens")
    with pytest.raises(ConfigError, match="asks for pooling_mode_weightedmean_tokens"):
        read_model_config(path)
    path = save_tiny_embedder(tmp_path / "c", "bert")
    write_modules(path, "mean_tokens", "Dense")
    write_dense(path / "2_Dense", "torch.nn.modules.activation.GELU")
    with pytest.raises(ConfigError, match=r"activation_function='torch\.nn\.modules\.activation"):
        read_model_config(path)
