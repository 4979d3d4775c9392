"""Models from GGUF files: the families, beside transformers with the checkpoints they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.gguf.gguf_file import GgufTensor
from shared.gguf.gguf_model import GgufModel
from shared.gguf.tensor_types import TENSOR_TYPES
from tests.gguf_files import add_tokenizer, all_f32, matrices_as, stored_folder, write_gguf
from tests.worker.engine.families import LLAMA3_ROPE, LONGROPE, MOE, WINDOW, YARN_ROPE
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.models.gguf_reader import GgufReader
from worker.engine.models.gguf_tensor import read_tensor

Bytes = NDArray[np.uint8]

BF16 = gguf.GGMLQuantizationType.BF16
DEMO = Path(__file__).parents[4] / "deploy" / "demo_model" / "checkpoint"
GRANITE = {
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
}
OSS_YARN = YARN_ROPE | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}},
    ),
    "llama llama3": (
        "llama",
        {"rope_parameters": LLAMA3_ROPE | {"original_max_position_embeddings": 8192}},
    ),
    "llama yarn": ("llama", {"rope_parameters": YARN_ROPE}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": ("qwen3_moe", MOE | {"moe_intermediate_size": 32, "norm_topk_prob": True}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 16},
    ),
    "phi3": ("phi3", {"head_dim": 8, "pad_token_id": None}),
    "phi3 part": (
        "phi3",
        {
            "pad_token_id": None,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
            "head_dim": 8,
        },
    ),
    "phi3 longrope": (
        "phi3",
        {
            "pad_token_id": None,
            "head_dim": 16,
            "hidden_size": 96,
            "original_max_position_embeddings": 8,
            "rope_parameters": LONGROPE,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        MOE | {"sliding_window": WINDOW, "rope_parameters": OSS_YARN},
    ),
    "granite": ("granite", GRANITE | {"head_dim": 8}),
}


def saved(tmp_path: Path, family: str) -> Path:
    model_type, overrides = FAMILIES[family]
    return save_tiny_model(tmp_path / "model", model_type, **overrides)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_in_float32_gives_the_logits_of_its_checkpoint(tmp_path: Path, family: str) -> None:
    path = saved(tmp_path, family)
    folder = stored_folder(write_gguf(path, tmp_path / "model.gguf"))
    rig = Rig(folder)
    prompt = random_prompt(60, seed=1)
    output = rig.run(make_add(1, prompt, max_tokens=12, ignore_eos=True))[1]
    assert len(output) == 12
    assert_like_reference(path, rig, 1, prompt + output)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "BF16", "F16"])
def test_a_quantised_file_gives_the_logits_of_its_weights(tmp_path: Path, kind: str) -> None:
    """Beside the same model with weights that gguf-py has made of the same blocks."""
    from transformers import AutoModelForCausalLM

    quantised = gguf.GGMLQuantizationType[kind]
    overrides: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
    }
    path = save_tiny_model(tmp_path / "model", "llama", **overrides)
    choose = matrices_as(quantised)
    folder = stored_folder(write_gguf(path, tmp_path / "model.gguf", choose))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for parameter in model.parameters():
        values = parameter.detach().numpy()
        if choose("", values) == quantised:
            blocks = gguf.quantize(values, quantised)
            parameter.data.copy_(torch.from_numpy(gguf.dequantize(blocks, quantised)))
    rounded = tmp_path / "rounded"
    model.save_pretrained(rounded)
    rig = Rig(folder, dtype="float32")
    prompt = random_prompt(40, seed=2)
    output = rig.run(make_add(1, prompt, max_tokens=8, ignore_eos=True))[1]
    assert_like_reference(rounded, rig, 1, prompt + output)


def finite_blocks(kind: gguf.GGMLQuantizationType, num_blocks: int) -> Bytes:
    """Random bytes, of which this type makes numbers: [num_blocks, block_bytes]."""
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    source = np.random.default_rng(0)
    found = np.empty((0, block_bytes), np.uint8)
    while len(found) < num_blocks:
        blocks = source.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            is_finite = np.isfinite(gguf.dequantize(blocks, kind)).all(axis=1)
        found = np.concatenate([found, blocks[is_finite]])
    return found[:num_blocks]


def write_tensor(path: Path, blocks: Bytes, kind: gguf.GGMLQuantizationType) -> GgufTensor:
    writer: Any = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("odd", np.ones(5, np.float32))
    numbers = {"F32": np.float32, "F16": np.float16}.get(kind.name)
    if numbers is None:
        writer.add_tensor("x", blocks, raw_dtype=kind)
    else:
        writer.add_tensor("x", blocks.view(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufModel.read(path).tensors["x"]


@pytest.mark.parametrize("kind", [each.name for each in TENSOR_TYPES.values()])
def test_blocks_become_the_numbers_of_gguf_py(tmp_path: Path, kind: str) -> None:
    """Bit for bit, before they are rounded; from random bytes, over more than one chunk."""
    quantised = gguf.GGMLQuantizationType[kind]
    rows, columns = 550, 512
    num_blocks = rows * columns // gguf.GGML_QUANT_SIZES[quantised][0]
    blocks = finite_blocks(quantised, num_blocks).reshape(rows, -1)
    tensor = write_tensor(tmp_path / "model.gguf", blocks, quantised)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(blocks, quantised)
    ours = read_tensor(tensor, torch.float32).numpy()
    assert ours.shape == expected.shape == (rows, columns)
    assert (ours.view(np.uint32) == expected.view(np.uint32)).all()
    rounded = read_tensor(tensor, torch.bfloat16)
    theirs = torch.from_numpy(expected).bfloat16()
    assert torch.equal(rounded.view(torch.int16), theirs.view(torch.int16))


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    blocks = gguf.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    blocks[2, :2] = np.array([np.nan], np.float16).view(np.uint8)
    tensor = write_tensor(tmp_path / "model.gguf", blocks, gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(ConfigError, match="tensor 'x' has scales that are no numbers"):
        read_tensor(tensor, torch.float32)


def test_the_demo_model_says_the_same_from_a_file(tmp_path: Path) -> None:
    """Tokens, text and template, with its own tokenizer in the file."""
    folder = stored_folder(
        write_gguf(
            DEMO, tmp_path / "demo.gguf", matrices_as(BF16), metadata=add_tokenizer(DEMO, "smollm")
        )
    )
    ours, theirs = (TokenizerBundle.from_model_dir(each) for each in (folder, DEMO))
    assert ours.chat_template == theirs.chat_template
    prompt = "<|user|>Tell me a story about a dog and 12 cats.<|end_of_turn|>\n"
    prompt_ids = theirs.tokenizer().encode(prompt).ids
    assert ours.tokenizer().encode(prompt).ids == prompt_ids
    outputs = [Rig(each).run(make_add(1, prompt_ids, max_tokens=32))[1] for each in (folder, DEMO)]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 8
    assert ours.tokenizer().decode(outputs[0]) == theirs.tokenizer().decode(outputs[1])


def test_a_split_file_is_one_model(tmp_path: Path) -> None:
    path = saved(tmp_path, "llama")
    write_gguf(path, tmp_path / "m-00001-of-00003.gguf", part_tensors=8)
    whole = write_gguf(path, tmp_path / "whole.gguf")
    parts = GgufModel.read(tmp_path / "m-00002-of-00003.gguf")
    assert len(parts.paths) == 3
    assert parts.tensors.keys() == GgufModel.read(whole).tensors.keys()
    read, expected = (
        GgufReader(stored_folder(each), torch.float32, lambda _: None)
        for each in (tmp_path / "m-00001-of-00003.gguf", whole)
    )
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(read.read(name, 300, 48), expected.read(name, 300, 48))
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ConfigError, match=r"not all 3 files of m: m-00003-of-00003\.gguf is"):
        GgufModel.read(tmp_path / "m-00001-of-00003.gguf")


def test_progress_is_told_and_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = stored_folder(write_gguf(saved(tmp_path, "llama"), tmp_path / "model.gguf", all_f32))
    told: list[float] = []
    with GgufReader(folder, torch.float32, told.append) as reader:
        reader.read("model.norm.weight", 48)
        with pytest.raises(ConfigError, match=r"has no tensor 'model.layers.7.mlp.up_proj.weight'"):
            reader.read("model.layers.7.mlp.up_proj.weight", 100, 48)
        with pytest.raises(ConfigError, match=r"has shape \(48,\), config.json says \(47,\)"):
            reader.read("model.norm.weight", 47)
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] == 1.0
