"""Codes that are made when a 16-bit checkpoint is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.checkpoint.stored_format import HEAD_FORMAT, MadeFormat
from shared.errors import ConfigError
from tests.worker.engine.families import FUSED_IN_TORCH, LATENT, RECURRENT
from tests.worker.engine.formats.quantized_copies import PROJECTION, save_quantized
from tests.worker.engine.native.test_native import MAX_ERROR, native_rig, needs_bfloat16
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.cuda.tensor_parallel.rank_share import RankShare
from worker.engine.formats.made_codes import make_codes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_loading import open_weights
from worker.engine.models.registry import read_model_config
from worker.engine.native.coded_layout import CODES4, CODES8, coded_layout
from worker.engine.native.native_products import NativeLinear

KINDS: tuple[MadeFormat, ...] = get_args(MadeFormat)
# Of a normal distribution, relative: half a step of 127, three bits of mantissa, a step of 15.
LARGEST_ERROR = {"int8": 0.01, "fp8": 0.03, "int4": 0.12}


FILE = "model.safetensors"
HEADS = ("lm_head.weight", "model.embed_tokens.weight")  # and its embeddings where they are tied
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("source") / "model", "llama", **SIZES)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tied") / "model"
    return save_tiny_model(path, "llama", tie_word_embeddings=True, **SIZES)


def made_of(name: str, kind: MadeFormat, names: Iterable[str]) -> MadeFormat | None:
    """What a weight of a checkpoint with these names is made; None: it stays as it is."""
    head = next(each for each in HEADS if each in names)
    if name == head:
        return HEAD_FORMAT[kind]
    return kind if PROJECTION.fullmatch(name) else None


@pytest.mark.parametrize("kind", KINDS)
def test_near_and_never_outside_of_its_codes(kind: MadeFormat) -> None:
    torch.manual_seed(3)
    weight = torch.randn(64, 320)
    weight[5] = 0.0  # as the rows that pad a vocabulary
    weight[6] = weight[6].abs() + 1.0  # on one side of zero
    weight[7, 0] = 1e30
    codes = make_codes(kind, weight)
    values = codes.dense(torch.float32)
    assert torch.equal(values[5], torch.zeros(320))
    usual = [row for row in range(64) if row != 7]
    error = (values - weight)[usual].norm() / weight[usual].norm()
    assert error <= LARGEST_ERROR[kind]
    layout = coded_layout(codes)
    assert layout is not None
    assert layout.layout == (CODES4 if kind == "int4" else CODES8)


@pytest.mark.parametrize("kind", KINDS)
def test_projections_and_heads_are_made_codes(kind: MadeFormat, source: Path) -> None:
    config = read_model_config(source, kind)
    stored = load_file(source / FILE)
    dtype = torch.bfloat16
    with open_weights(config, source, "safetensors", dtype, lambda _: None) as reader:
        for name, tensor in stored.items():
            codes = reader.read_codes(name, *tensor.shape)
            values = reader.read(name, *tensor.shape)
            expected = tensor
            made = made_of(name, kind, stored)
            assert (codes is None) == (made is None)
            if made is not None:
                expected = make_codes(made, tensor.float()).dense(dtype)
            assert torch.equal(values, expected.to(dtype)), name


def test_a_rank_has_its_share_of_the_same_values(source: Path) -> None:
    """Not codes of its share: columns of another rank belong to the same group."""
    config = read_model_config(source, "int4")
    name, shape = "model.layers.0.mlp.down_proj.weight", (64, 160)
    with open_weights(config, source, "dummy", torch.float32, lambda _: None) as reader:
        whole = reader.read(name, *shape)
        assert isinstance(config, DecoderConfig)
        readers = [RankShare(config, rank, 2).reader(reader) for rank in range(2)]
        shares = [each.read(name, 64, 80) for each in readers]
    assert torch.equal(torch.cat(shares, dim=1), whole)


@needs_bfloat16
@pytest.mark.parametrize(
    ("kind", "model"), [("int8", "source"), ("int4", "source"), ("int4", "tied"), ("fp8", "tied")]
)
def test_our_own_products_are_those_of_the_values(
    kind: MadeFormat, model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(model)
    dense = save_made(source, tmp_path / "dense", kind)
    rig = native_rig(source, quantization=kind)
    prompt = random_prompt(40, 1)
    add = make_add(0, prompt, max_tokens=16, ignore_eos=True)
    assert_like_reference(dense, rig, 0, prompt + rig.run(add)[0], MAX_ERROR)


@needs_bfloat16
@pytest.mark.parametrize("model_type", ["glm", "phi3"])
def test_codes_follow_heads_in_another_order_and_projections_in_one(
    model_type: str, tmp_path: Path
) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    source = save_tiny_model(tmp_path / "source", model_type, pad_token_id=2, rope_parameters=rope)
    dense = save_made(source, tmp_path / "dense", "int4")
    rig = native_rig(source, quantization="int4")
    prompt = random_prompt(40, 1)
    add = make_add(0, prompt, max_tokens=16, ignore_eos=True)
    assert_like_reference(dense, rig, 0, prompt + rig.run(add)[0], MAX_ERROR)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_computes_the_same_values(kind: MadeFormat, source: Path, tmp_path: Path) -> None:
    dense = save_made(source, tmp_path / "dense", kind)
    add = make_add(0, random_prompt(20, 1), max_tokens=24)
    made = Rig(source, dtype="float32", quantization=kind).run(add)
    assert made == Rig(dense, dtype="float32").run(add)


def test_a_quantized_checkpoint_is_left_as_it_is(source: Path, tmp_path: Path) -> None:
    quantized = save_quantized(source, tmp_path / "quantized", "int8 by channel")
    own, equal = read_model_config(quantized), read_model_config(quantized, "int8")
    assert equal.made_format is None
    assert own.quantization == equal.quantization == "compressed-tensors: int8 by channel"
    with pytest.raises(ConfigError, match=r"quantization=fp8 is not possible.*quantised already"):
        read_model_config(quantized, "fp8")


@pytest.mark.parametrize(
    ("model_type", "changes", "sentence"),
    [
        ("gpt2", {"activation_function": "quick_gelu"}, "GPT2LMHeadModel: it is computed by trans"),
        (*RECURRENT["falcon_h1"], "FalconH1ForCausalLM: torch computes its factors of weights in"),
    ],
)
def test_what_our_cpp_does_not_multiply_is_not_made_codes(
    tmp_path: Path, model_type: str, changes: dict[str, Any], sentence: str
) -> None:
    path = save_tiny_model(tmp_path, model_type, **changes)
    sentence = f"not possible with {sentence}"
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(path, "int8")


@needs_bfloat16
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("gemma3", "int4"),  # tied, which int4 makes int8
        ("gpt2", "int8"),  # stored transposed
        pytest.param(
            "gpt_neox", "fp8", marks=pytest.mark.nightly
        ),  # by head, in an order of its own
        ("cohere", "int4"),
        pytest.param("starcoder2", "int8", marks=pytest.mark.nightly),  # biases
        ("gemma4", "int4"),  # inputs of each layer
        ("minicpm3", "int8"),  # latents, whose rows are rotated
        ("lfm2 biases", "fp8"),  # short convolutions, biases
    ],
)
def test_of_heads_that_torch_computes(family: str, kind: MadeFormat, tmp_path: Path) -> None:
    """All projections and the head, a row's bits the same in any company."""
    model_type, changes = (FUSED_IN_TORCH | RECURRENT | LATENT)[family]
    if family in FUSED_IN_TORCH:  # our C++ computes heads of whole sixteens alone
        changes = changes | {"head_dim": 8}
    source = save_tiny_model(tmp_path / "source", model_type, **changes)
    config = read_model_config(source, kind)
    dense = Path(shutil.copytree(source, tmp_path / "dense"))
    with open_weights(config, source, "safetensors", torch.float32, lambda _: None) as reader:
        shapes = {name: each.shape for name, each in load_file(dense / FILE).items()}
        values = {name: reader.read(name, *shape) for name, shape in shapes.items()}
    save_file(values, dense / FILE, {"format": "pt"})
    assert isinstance(config, DecoderConfig)
    rigs = [
        Rig(source, dtype="bfloat16", quantization=kind, max_step_tokens=size) for size in (33, 160)
    ]
    for rig in rigs:
        assert rig.decoder._exit is not None
        head = rig.decoder._exit._lm_head
        assert isinstance(head, NativeLinear)
        assert head._owner.num_coded == config.num_coded_projection_values
        assert "multiplied as such" in rig.loop._ready.remark
        assert "; all weights take" in rig.loop._ready.remark
    one, other = rigs
    prompt = random_prompt(40, 1)
    add = make_add(0, prompt, max_tokens=16, ignore_eos=True)
    output = one.run(add, make_add(1, random_prompt(50, 2), max_tokens=9))[0]
    assert other.run(add)[0] == output
    assert all(torch.equal(one.logits[key], each) for key, each in other.logits.items())
    assert_like_reference(dense, one, 0, prompt + output, MAX_ERROR)


def save_made(source: Path, target: Path, kind: MadeFormat) -> Path:
    """What the codes stand for, in float32."""
    target.mkdir()
    tensors = load_file(source / FILE)
    made = {name: made_of(name, kind, tensors) for name in tensors}
    tensors = {
        name: tensor.float()
        if (own := made[name]) is None
        else make_codes(own, tensor.float()).dense(torch.float32)
        for name, tensor in tensors.items()
    }
    save_file(tensors, target / FILE, {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config))
    return target
