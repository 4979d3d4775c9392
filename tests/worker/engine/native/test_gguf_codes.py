"""GGUF's blocks as our C++ multiplies them: gguf-py's numbers, and the logits that they give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from bench.products import Product
from shared.errors import ConfigError
from tests.gguf_files import Choose, Values, matrices_as, stored_folder, write_gguf
from tests.worker.engine.models.test_gguf_models import finite_blocks, write_tensor
from tests.worker.engine.native.test_native import MAX_ERROR, native_rig, needs_bfloat16, weights_of
from tests.worker.engine.tiny_models import assert_like_reference, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.formats.scaled_weight import KEPT_INPUTS, ScaledWeight, join_rows
from worker.engine.formats.stored.gguf_blocks import BLOCK_TYPES
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.gguf_reader import GgufReader
from worker.engine.models.gguf_tensor import read_gguf_codes
from worker.engine.native.coded_layout import CODES4, CODES8, coded_layout
from worker.engine.native.kernel_set import AVX512_BF16
from worker.engine.native.native_library import NativeLibrary
from worker.engine.native.packed_weights import PackedWeights

IN_EIGHT_BITS = {"Q5_0", "Q5_1", "Q8_0", "Q5_K", "Q6_K"}
ROWS = 96


def read_random(kind: str, path: Path) -> tuple[ScaledWeight, torch.Tensor]:
    """[ROWS, 512], and what gguf-py makes of it."""
    quantised = gguf.GGMLQuantizationType[kind]
    num_blocks = ROWS * 512 // gguf.GGML_QUANT_SIZES[quantised][0]
    blocks = finite_blocks(quantised, num_blocks).reshape(ROWS, -1)
    codes = read_gguf_codes(write_tensor(path, blocks, quantised))
    assert codes is not None
    return codes, torch.from_numpy(gguf.dequantize(blocks, quantised))


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_codes_stand_for_the_numbers_of_gguf_py(kind: str, tmp_path: Path) -> None:
    codes, expected = read_random(kind, tmp_path / "model.gguf")
    assert torch.equal(codes.dense(torch.float32), expected)
    layout = coded_layout(codes)
    assert layout is not None
    assert layout.layout == (CODES8 if kind in IN_EIGHT_BITS else CODES4)
    assert (layout.minima is not None) == (kind in {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"})


@needs_bfloat16
@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_as_many_bits_as_are_told(kind: str, tmp_path: Path) -> None:
    codes, _ = read_random(kind, tmp_path / "model.gguf")
    packed = PackedWeights(NativeLibrary.load(AVX512_BF16))
    packed.linear(Projection(codes, None))
    num_bits = 8 * packed.num_bytes / codes.codes.numel()
    assert num_bits == pytest.approx(BLOCK_TYPES[kind].code_bits, abs=0.1)  # a book for the whole


@needs_bfloat16
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_scales_in_steps_give_the_bits_of_their_products(kind: str, tmp_path: Path) -> None:
    codes, _ = read_random(kind, tmp_path / "model.gguf")
    assert codes.steps is not None
    rows = torch.randn(30, 512)
    products = Product(codes, num_threads=2)(rows)
    assert torch.equal(products, Product(codes.without_steps(), num_threads=2)(rows))


@pytest.mark.parametrize(
    "kinds", [("Q4_K", "Q4_K", "Q6_K"), ("Q4_0", "Q5_1", "Q8_0"), ("Q3_K", "Q2_K", "Q5_K")]
)
def test_rows_of_several_types_are_one_weight(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """As queries, keys and values are in the mixtures that people load."""
    parts = [read_random(kind, tmp_path / f"{idx}.gguf") for idx, kind in enumerate(kinds)]
    joined = join_rows([codes for codes, _ in parts])
    assert joined is not None
    expected = torch.cat([values for _, values in parts])
    assert torch.equal(joined.dense(torch.float32), expected)
    assert (joined.steps is not None) == all(kind.endswith("K") for kind in kinds)
    layout = coded_layout(joined)
    assert layout is not None
    assert layout.layout == CODES8


@needs_bfloat16
@pytest.mark.parametrize(
    "kinds", [*((kind,) for kind in BLOCK_TYPES), ("Q4_K", "Q6_K"), ("Q8_0", "Q4_0", "Q5_0")]
)
def test_bits_are_put_together_while_they_are_packed(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    """Of rows in any order, as of codes that were unpacked before."""
    parts = [read_random(kind, tmp_path / f"{idx}.gguf")[0] for idx, kind in enumerate(kinds)]
    joined = join_rows(parts)
    assert joined is not None
    order = torch.randperm(ROWS * len(kinds), generator=torch.Generator().manual_seed(3))
    in_blocks = joined.with_rows(order)
    unpacked = replace(in_blocks, stored=in_blocks.codes)
    rows = torch.randn(5, 512)
    for inputs in (None, KEPT_INPUTS):
        products = [Product(each, 2, inputs=inputs)(rows) for each in (in_blocks, unpacked)]
        assert torch.equal(*products)


def test_rows_by_a_book_and_integers_are_two_weights(tmp_path: Path) -> None:
    by_book, _ = read_random("IQ4_NL", tmp_path / "book.gguf")
    integers, _ = read_random("Q8_0", tmp_path / "integers.gguf")
    assert join_rows([by_book, integers]) is None


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    blocks = gguf.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q4_1)
    blocks[2, 2:4] = np.array([np.inf], np.float16).view(np.uint8)
    tensor = write_tensor(tmp_path / "model.gguf", blocks, gguf.GGMLQuantizationType.Q4_1)
    with pytest.raises(ConfigError, match="tensor 'x' has scales that are no numbers"):
        read_gguf_codes(tensor)


def mixture(name: str, values: Values) -> gguf.GGMLQuantizationType:
    """Of every type that gguf-py quantises to."""
    kinds = {
        "attn_q": "Q4_1",
        "attn_k": "Q4_1",
        "attn_v": "Q8_0",
        "attn_output": "Q5_0",
        "ffn_gate": "Q4_0",
        "ffn_up": "Q4_0",
        "ffn_down": "Q5_1",
        "output.weight": "Q8_0",
    }
    kind = next((kind for part, kind in kinds.items() if part in name), "F32")
    return matrices_as(gguf.GGMLQuantizationType[kind])(name, values)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_tiny_model(
        tmp_path / "model", "llama", hidden_size=64, intermediate_size=96, num_attention_heads=4
    )


def stored(source: Path, choose: Choose) -> Path:
    """The folder that stands for the model's GGUF file."""
    return stored_folder(write_gguf(source, source.parent / "model.gguf", choose))


@needs_bfloat16
@pytest.mark.parametrize(("activations", "max_error"), [("bfloat16", MAX_ERROR), ("auto", 0.1)])
def test_logits_are_those_of_the_numbers(
    activations: str, max_error: float, source: Path, tmp_path: Path
) -> None:
    """Which are multiplied with inputs of 8 bits, unless these are to stay as they are."""
    from transformers import AutoModelForCausalLM

    folder = stored(source, mixture)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with GgufReader(folder, torch.float32, lambda _: None) as reader:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(reader.read(name, *parameter.shape))
    dense = tmp_path / "dense"
    model.save_pretrained(dense)
    rig = native_rig(folder, max_step_tokens=33, cpu_activations=activations)
    assert weights_of(rig).coded_share == 1.0
    is_rounded = activations == "auto"
    assert weights_of(rig).integer_share == float(is_rounded)
    assert ("activations are rounded to int8" in rig.loop._ready.remark) == is_rounded
    prompt = random_prompt(70, seed=2)
    output = rig.run(make_add(1, prompt, max_tokens=8, ignore_eos=True))[1]
    assert_like_reference(dense, rig, 1, prompt + output, max_error)


@needs_bfloat16
def test_what_has_no_codes_is_told(source: Path) -> None:
    def without_down(name: str, values: Values) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType.F16 if "ffn_down" in name else mixture(name, values)

    weights = weights_of(native_rig(stored(source, without_down)))
    down, gate_up, attention = 64 * 96, 64 * 192, 64 * 64 * 3
    assert weights.coded_share == 1 - down / (down + gate_up + attention)
