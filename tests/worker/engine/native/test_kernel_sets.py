"""The kernel sets: each adds in its own order, bit for bit, wherever it runs."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.products import Product
from jetflock.doctor.machine_checks import machine_findings
from shared.errors import ConfigError
from tests.worker.engine.families import FUSED, FUSED_IN_TORCH, MIXTURES, by_day
from tests.worker.engine.native.test_coded_linear import KINDS
from tests.worker.engine.native.test_native import (
    native_rig,
    needs_bfloat16,
    save_rounded,
    with_whole_heads,
)
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight
from worker.engine.models.registry import read_model_config
from worker.engine.native import native_choice
from worker.engine.native.coded_layout import CodedLayout, coded_layout
from worker.engine.native.kernel_set import (
    AMX_BF16,
    AMX_EMULATED,
    AVX2,
    AVX512,
    AVX512_BF16,
    KERNEL_SETS,
    KernelSet,
)
from worker.engine.native.native_choice import has_fast_bfloat16, missing_capability
from worker.engine.native.native_library import FLAGS, NativeLibrary, NativeUnavailable
from worker.engine_link.engine_config import EngineConfig

# By the instructions where there are some: what is emulated has the same bits, slowly.
TILES = AMX_EMULATED if missing_capability(AMX_BF16) else AMX_BF16
EVERYWHERE = [
    pytest.param(
        each, id=each.name, marks=pytest.mark.skipif(bool(missing_capability(each)), reason=reason)
    )
    for each in (AVX2, AVX512, AVX512_BF16, TILES)
    for reason in [f"needs {missing_capability(each)}"]
]
SHAPES = ((100, 576), (33, 102), (64, 1100))  # outputs and inputs; 102 fill no whole tile
NUM_ROWS = 37
TILE_INPUTS = 32

Order = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def in_pairs(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The odd product of each pair first, one rounding each: products of bfloat16 are exact."""
    total = torch.zeros(len(rows), len(weight))
    for at in range(0, rows.shape[1], 2):
        for each in (at + 1, at):
            total = total + rows[:, each, None] * weight[:, each]
    return total


def in_tiles(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As Intel's manual says of TDPBF16PS: even and odd inputs of a tile apart, then together."""
    total = torch.zeros(len(rows), len(weight))
    for first in range(0, rows.shape[1], TILE_INPUTS):
        sums = [torch.zeros_like(total), torch.zeros_like(total)]
        for at in range(first, min(first + TILE_INPUTS, rows.shape[1])):
            sums[at % 2] = sums[at % 2] + rows[:, at, None] * weight[:, at]
        total = total + (sums[0] + sums[1])
    return total


ORDERS: dict[str, Order] = {
    "avx2": in_pairs,
    "avx512": in_pairs,
    "avx512-bf16": in_pairs,
    TILES.name: in_tiles,
}


def random_rows(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, size).to(torch.bfloat16).float()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel_set", EVERYWHERE)
def test_the_order_of_sums(kernel_set: KernelSet, shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    weight, rows = torch.randn(shape).to(torch.bfloat16), random_rows(NUM_ROWS, shape[1])
    products = Product(weight, 2, kernel_set)(rows)
    assert torch.equal(products, ORDERS[kernel_set.name](rows, weight.float()))


def in_groups(rows: torch.Tensor, layout: CodedLayout, codes: torch.Tensor) -> torch.Tensor:
    """Each group by tiles of its own, then scaled."""
    total = torch.zeros(len(rows), len(codes))
    for group, first in enumerate(range(0, rows.shape[1], layout.group_size)):
        part = slice(first, first + layout.group_size)
        sums = in_tiles(rows[:, part], codes[:, part]).double()
        total = (sums * layout.scales[:, group].double() + total.double()).float()
    return total


@needs_bfloat16
@pytest.mark.parametrize("group_size", [16, 32, 128, 1100])
def test_groups_of_codes_by_tiles(group_size: int) -> None:
    """Scales are powers of two, so that their products are exact."""
    torch.manual_seed(4)
    codes = torch.randint(-128, 128, (33, 1100), dtype=torch.int8)
    scales = torch.exp2(torch.randint(-9, 3, (33, -(-1100 // group_size))).float())
    weight, rows = ScaledWeight(codes, scales, 1, group_size), random_rows(NUM_ROWS, 1100)
    layout = coded_layout(weight)
    assert layout is not None
    products = Product(weight, 2, TILES)(rows)
    assert torch.equal(products, in_groups(rows, layout, codes.float()))


@needs_bfloat16
@pytest.mark.parametrize("make", KINDS)
def test_widened_products_have_the_bits_of_bfloat16s(
    make: Callable[[int, int], ScaledWeight],
) -> None:
    torch.manual_seed(5)
    weight, rows = make(100, 1100), random_rows(NUM_ROWS, 1100)
    expected = Product(weight, 2, AVX512_BF16)(rows)
    for kernel_set in (AVX2, AVX512):
        assert torch.equal(Product(weight, 2, kernel_set)(rows), expected)


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
@pytest.mark.parametrize("make", [None, *KINDS])
def test_a_row_does_not_depend_on_the_others(
    make: Callable[[int, int], ScaledWeight] | None, kernel_set: KernelSet
) -> None:
    torch.manual_seed(6)
    weight = torch.randn(100, 1100).to(torch.bfloat16) if make is None else make(100, 1100)
    rows = random_rows(200, 1100)
    one_thread, two_threads = (Product(weight, count, kernel_set) for count in (1, 2))
    together = two_threads(rows)
    for start, count in ((0, 1), (7, 2), (50, 12), (3, 16), (80, 17), (11, 33), (40, 97)):
        part = rows[start : start + count]
        assert torch.equal(one_thread(part), together[start : start + count])


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
def test_a_row_that_is_no_number_stays_alone(kernel_set: KernelSet) -> None:
    """Also where inputs fill no whole tile, so that what follows a row is the next one's."""
    weight, rows = torch.randn(33, 102).to(torch.bfloat16), random_rows(20, 102)
    product = Product(weight, 1, kernel_set)
    expected = product(rows)
    rows[11] = torch.nan
    products = product(rows)
    assert products[11].isnan().all()
    assert torch.equal(products[:11], expected[:11])
    assert torch.equal(products[12:], expected[12:])


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
def test_denormal_numbers_are_zeros(kernel_set: KernelSet) -> None:
    weight = torch.full((32, 64), 2.0**100).to(torch.bfloat16)
    rows = torch.full((3, 64), 2.0**-130)
    assert not Product(weight, 1, kernel_set)(rows).any()


def test_instructions_stand_in_the_files_of_their_sets() -> None:
    """All else is written in words that every set has, so that it runs on each of them."""
    sources = [
        each
        for each in Path(native_choice.__file__).parent.iterdir()
        if each.suffix in {".h", ".cpp"} and not each.name.startswith(("lanes_", "codes_"))
    ]
    assert len(sources) > 10
    named = re.compile(r"_mm(256|512)_|__m(256|512)")
    assert [each.name for each in sources if named.search(each.read_text())] == []


@pytest.fixture(scope="module")
def by_signal(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """AMX's instructions carried out by a handler of the signal for illegal ones."""
    if not missing_capability(AMX_BF16):
        pytest.skip("the processor has AMX: its own instructions are tried")
    if missing_capability(AVX512_BF16):
        pytest.skip(f"needs {missing_capability(AVX512_BF16)}")
    library = tmp_path_factory.mktemp("signal") / "amx_by_signal.so"
    source = Path(__file__).with_name("amx_by_signal.cpp")
    headers = Path(native_choice.__file__).parent
    command = ["c++", *FLAGS, *AVX512_BF16.flags, f"-I{headers}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def test_the_instructions_do_what_is_emulated(by_signal: ctypes.CDLL) -> None:
    by_signal.check_tiles.restype = ctypes.c_char_p
    by_signal.catch_illegal_instructions()
    assert by_signal.check_tiles() is None


@pytest.mark.skipif(
    bool(missing_capability(AMX_BF16)), reason=f"needs {missing_capability(AMX_BF16)}"
)
@pytest.mark.parametrize("inputs", [None, InputCodes(128), InputCodes()])
@pytest.mark.parametrize("make", [None, *KINDS])
def test_this_processors_amx_gives_the_emulated_bits(
    make: Callable[[int, int], ScaledWeight] | None, inputs: InputCodes | None
) -> None:
    """Of inputs that fill no whole tile, and no whole part of what is decoded at once."""
    torch.manual_seed(7)
    weight = torch.randn(100, 1100).to(torch.bfloat16) if make is None else make(100, 1100)
    rows = random_rows(NUM_ROWS, 1100)
    by_amx, emulated = (Product(weight, 2, each, inputs)(rows) for each in (AMX_BF16, AMX_EMULATED))
    assert torch.equal(by_amx, emulated)


@pytest.mark.skipif(not missing_capability(AMX_BF16), reason="the processor has AMX")
def test_amx_is_refused_where_the_system_does_not_keep_tiles() -> None:
    with pytest.raises(NativeUnavailable, match="this system does not keep AMX's tiles"):
        NativeLibrary.load(AMX_BF16)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_rounded(tmp_path_factory.mktemp("tiny"), "qwen3")


def run_both_ways(path: Path, kernel_set: KernelSet, **config: Any) -> Rig:
    """A request alone and in company, in chunks of 16 and of 512 tokens: the same bits."""
    subject = make_add(1, random_prompt(137, seed=1), max_tokens=24, ignore_eos=True)
    company = [
        make_add(run_id, random_prompt(length, run_id), max_tokens=4 * run_id, ignore_eos=True)
        for run_id, length in enumerate([1, 16, 90, 290, 33], start=2)
    ]
    config["cpu_kernels"] = kernel_set.name
    alone = native_rig(path, max_step_tokens=16, **config)
    together = native_rig(path, num_threads=2, num_kv_tokens=4096, **config)
    tokens = alone.run(subject)[1]
    assert together.run(*company[:2], subject, *company[2:])[1] == tokens
    keys = [key for key in together.logits if key[0] == 1]
    assert [key for key in keys if not torch.equal(together.logits[key], alone.logits[key])] == []
    torch.set_num_threads(1)
    return alone


# Norms on both sides, soft caps, windows and ropes by layer; norms of variances and of heads, two
# beside each other; chunks, layers that do not rotate; embeddings of positions; gates, and experts.
FAMILIES = ["qwen3", "gemma2", "gemma3", "stablelm parallel", "llama4 dense", "gpt2", "afmoe"]


def save_family(folder: Path, family: str) -> Path:
    model_type, overrides = (FUSED | FUSED_IN_TORCH | MIXTURES)[family]
    return save_rounded(folder, model_type, **with_whole_heads(model_type, overrides))


@pytest.mark.parametrize("family", by_day(FAMILIES, ["gemma2"]))
@pytest.mark.parametrize("kernel_set", EVERYWHERE)
def test_no_bit_of_a_model_depends_on_the_batch(
    family: str, kernel_set: KernelSet, tmp_path: Path
) -> None:
    rig = run_both_ways(save_family(tmp_path, family), kernel_set)
    assert rig.loop._ready.kernel_set == kernel_set.name


@pytest.mark.skipif(
    bool(missing_capability(AMX_BF16)), reason=f"needs {missing_capability(AMX_BF16)}"
)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("family", by_day(FAMILIES, ["gemma2"]))
def test_a_model_by_this_processors_amx_has_the_emulated_bits(
    family: str, kv_dtype: str, tmp_path: Path
) -> None:
    """All of it: attention by its tiles, too."""
    path = save_family(tmp_path, family)
    add = make_add(1, random_prompt(137, seed=1), max_tokens=24, ignore_eos=True)
    by_amx, emulated = (
        native_rig(path, cpu_kernels=each.name, kv_dtype=kv_dtype)
        for each in (AMX_BF16, AMX_EMULATED)
    )
    by_amx.run(add)
    emulated.run(add)
    assert by_amx.logits.keys() == emulated.logits.keys()
    assert all(torch.equal(by_amx.logits[key], emulated.logits[key]) for key in by_amx.logits)


@needs_bfloat16
@pytest.mark.parametrize("family", by_day(FAMILIES, ["stablelm parallel"]))
def test_a_model_by_widened_products_has_the_bits_of_bfloat16s(family: str, tmp_path: Path) -> None:
    """All of it: attention, norms and rotations among it."""
    path = save_family(tmp_path, family)
    add = make_add(1, random_prompt(137, seed=1), max_tokens=24, ignore_eos=True)
    expected = native_rig(path, cpu_kernels=AVX512_BF16.name)
    expected.run(add)
    for kernel_set in (AVX2, AVX512):
        rig = native_rig(path, cpu_kernels=kernel_set.name)
        rig.run(add)
        assert rig.logits.keys() == expected.logits.keys()
        assert all(torch.equal(rig.logits[key], expected.logits[key]) for key in rig.logits)


def as_of(monkeypatch: pytest.MonkeyPatch, **capabilities: bool) -> None:
    everything = {**torch.cpu.get_capabilities(), **capabilities}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: everything)


@needs_bfloat16
@pytest.mark.skipif(not missing_capability(AMX_BF16), reason="the processor has AMX")
def test_the_next_set_is_taken_where_the_best_cannot_be_used(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_of(monkeypatch, amx_tile=True, amx_bf16=True, amx_int8=True)
    assert native_rig(tiny).loop._ready.kernel_set == "avx512-bf16"
    with pytest.raises(
        ConfigError, match="cpu_kernels=amx-bf16 is not possible: this system does not keep"
    ):
        native_rig(tiny, cpu_kernels="amx-bf16")


def test_avx2_where_there_is_no_more(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_of(monkeypatch, avx512_bf16=False, avx512_vbmi=False)
    assert native_rig(tiny).loop._ready.kernel_set == "avx2"


@pytest.mark.skipif(bool(missing_capability(AVX2)), reason=f"needs {missing_capability(AVX2)}")
def test_doctor_names_the_same_set() -> None:
    """By Linux's names of capabilities, which are others than torch's."""
    found = next(each for each in machine_findings("127.0.0.1", 0) if each.area == "kernels")
    best = next(each.name for each in KERNEL_SETS if not missing_capability(each))
    assert found.text.startswith(f"{best}: large models in our C++")


def test_where_bfloat16_is_fast(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our C++ with AVX2, if it can be built: torch would convert it, slowly."""
    fused = read_model_config(tiny)
    other = read_model_config(save_tiny_model(tmp_path / "gemma", "gemma2", head_dim=8))
    as_of(monkeypatch, avx512_bf16=False, amx_bf16=False)
    assert has_fast_bfloat16(EngineConfig(), fused)
    assert not has_fast_bfloat16(EngineConfig(cpu_kernels="torch"), fused)
    assert not has_fast_bfloat16(EngineConfig(), other)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_fast_bfloat16(EngineConfig(), fused)
    as_of(monkeypatch, avx512_bf16=True)
    assert has_fast_bfloat16(EngineConfig(), other)


@pytest.mark.parametrize("name", [each.name for each in KERNEL_SETS])
def test_what_the_processor_lacks_is_told(
    name: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel_set,) = (each for each in KERNEL_SETS if each.name == name)
    as_of(monkeypatch, **{key: False for _, key in kernel_set.needs})
    message = f"cpu_kernels={name} is not possible: the processor has no {kernel_set.needs[0][0]}"
    with pytest.raises(ConfigError, match=message):
        native_rig(tiny, cpu_kernels=name)
