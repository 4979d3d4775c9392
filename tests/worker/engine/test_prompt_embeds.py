"""Prompts of embeddings: what the model makes of them is what it makes of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shared.protocol.finish import FinishReason
from shared.protocol.request import EmbedsDtype
from shared.protocol.sampling import BeamParams
from shared.protocol.token_ids import pack_token_ids
from tests.lora_adapters import save_adapter
from tests.worker.checkpoints import DEMO_MODEL
from tests.worker.engine.tiny_models import Rig, random_prompt, save_recurrent, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AddRequest, LoadAdapter, RunEmbeds

PROMPT = random_prompt(70, seed=3)


@pytest.fixture(scope="module")
def rig(tiny_llama: Path) -> Rig:
    return Rig(tiny_llama)


def table_of(path: Path) -> torch.Tensor:
    """[vocab_size, hidden_size], as it is stored."""
    return load_file(path / "model.safetensors")["model.embed_tokens.weight"]


def embedded(
    run_id: int, rows: torch.Tensor, output: Sequence[int] = (), **options: Any
) -> AddRequest:
    """A prompt of rows in the place of tokens."""
    dtype = EmbedsDtype(str(rows.dtype).removeprefix("torch."))
    data = rows.contiguous().view(torch.uint8).numpy().tobytes()
    command = make_add(run_id, [0] * len(rows), output, ignore_eos=True, **options)
    return msgspec.structs.replace(command, embeds=RunEmbeds(rows.shape[1], dtype, data))


def plain(run_id: int, prompt: Sequence[int] = PROMPT, **options: Any) -> AddRequest:
    return make_add(run_id, prompt, ignore_eos=True, **options)


def cached(rig: Rig, run_id: int) -> int:
    return rig.channel.finishes()[run_id].num_cached_tokens


@pytest.mark.parametrize("family", ["llama", "lfm2", "zamba2"])
def test_rows_of_the_table_are_its_tokens_bit_for_bit(
    family: str, tiny_llama: Path, tmp_path: Path
) -> None:
    path = tiny_llama if family == "llama" else save_recurrent(tmp_path, family)
    rig = Rig(path, max_step_tokens=48)
    rows = table_of(path)[PROMPT]
    tokens = rig.run(embedded(1, rows), plain(2), plain(3, random_prompt(20, 9)))
    assert tokens[1] == tokens[2]
    assert cached(rig, 1) == cached(rig, 2) == 0
    for position in range(len(PROMPT), len(PROMPT) + 8):
        assert torch.equal(rig.logits[1, position], rig.logits[2, position])
    resumed = rig.run(embedded(4, rows, tokens[1][:3], max_tokens=8))[4]
    assert resumed == tokens[1][3:]


def test_our_kernels_read_them_too() -> None:
    rig = Rig(DEMO_MODEL, cpu_kernels="native", dtype="bfloat16")
    table = table_of(DEMO_MODEL)
    assert table.dtype is torch.bfloat16
    tokens = rig.run(embedded(1, table[PROMPT]), embedded(2, table[PROMPT].float()), plain(3))
    assert tokens[1] == tokens[2] == tokens[3]
    for position in range(len(PROMPT), len(PROMPT) + 8):
        assert torch.equal(rig.logits[1, position], rig.logits[3, position])


def test_pages_are_shared_by_equal_rows_alone(rig: Rig, tiny_llama: Path) -> None:
    rows = table_of(tiny_llama)[PROMPT]
    other = rows.clone()
    other[40] += 1  # in the second page of 32
    rig.run(plain(10, [0] * len(PROMPT)), plain(11))
    rig.run(embedded(12, rows))
    assert cached(rig, 12) == 0, "its placeholders are tokens of the first, its rows of the second"
    rig.run(embedded(13, rows), embedded(14, other), embedded(15, rows, namespace=b"other"))
    page = cached(rig, 14)
    assert (cached(rig, 13), cached(rig, 15)) == (64, 0)
    assert page == 32
    halves = rows.to(torch.float16)
    zeros = torch.zeros(64, rows.shape[1])
    rig.run(embedded(16, halves), embedded(17, zeros))
    assert cached(rig, 16) == cached(rig, 17) == 0
    rig.run(embedded(18, torch.zeros(128, rows.shape[1], dtype=torch.bfloat16)[:64]))
    assert cached(rig, 18) == 0, "equal bytes, other numbers"
    rig.run(plain(19, [0] * len(PROMPT)))
    assert cached(rig, 19) == 64, "tokens find tokens"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_read_in_their_type(dtype: torch.dtype) -> None:
    from worker.engine.request.req_embeds import ReqEmbeds

    rows = torch.randn(3, 5).to(dtype)
    embeds = embedded(1, rows).embeds
    assert embeds is not None
    assert np.array_equal(ReqEmbeds.of(embeds).values(1, 3), rows[1:].float().numpy())


def test_an_adapter_is_on_top_of_them(rig: Rig, tiny_llama: Path, tmp_path: Path) -> None:
    path = save_adapter(tmp_path, tiny_llama, seed=4)
    own: dict[str, Any] = {"adapter": "a", "namespace": b"a"}
    rows = table_of(tiny_llama)[PROMPT]
    rig.run(LoadAdapter("a", str(path)), plain(40, **own), embedded(41, rows, **own), plain(42))
    tokens = rig.channel.tokens()
    assert tokens[40] == tokens[41] != tokens[42]


def test_beams_go_on_behind_them(rig: Rig, tiny_llama: Path) -> None:
    beam: dict[str, Any] = {"beam": BeamParams(2, 2), "max_tokens": 5}
    rig.run(plain(20, **beam), embedded(21, table_of(tiny_llama)[PROMPT], **beam))
    finishes = rig.channel.finishes()
    assert [b.token_ids for b in finishes[20].beams] == [b.token_ids for b in finishes[21].beams]


def test_what_does_not_fit_is_refused_and_nothing_else(rig: Rig, tiny_llama: Path) -> None:
    rows = table_of(tiny_llama)[PROMPT]
    short = msgspec.structs.replace(embedded(31, rows), prompt_ids=pack_token_ids([0] * 9))
    rig.run(embedded(30, rows[:, :-1]), short, plain(32))
    finishes = rig.channel.finishes()
    for run_id, told in ((30, "numbers in a row"), (31, "bytes, for its tokens")):
        finish = finishes[run_id]
        assert finish.reason is FinishReason.ERROR
        assert finish.message is not None
        assert told in finish.message
    assert finishes[32].reason is FinishReason.LENGTH


def test_a_model_that_changes_its_embeddings_takes_none(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path, "gemma", head_dim=64)
    rig = Rig(path)
    rig.run(embedded(1, table_of(path)[PROMPT]))
    assert "with a scale" in (rig.channel.finishes()[1].message or "")
    assert rig.loop._ready.takes_no_embeds
