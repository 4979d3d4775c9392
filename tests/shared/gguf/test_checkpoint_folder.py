"""A GGUF file as a folder: made once, found by name, and refused where it cannot be served."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from shared.checkpoint.model_files import ModelFiles, resolve_model, served_name
from shared.checkpoint.model_shape import why_no_checkpoint
from shared.errors import ConfigError
from shared.gguf.gguf_choice import chosen_model, only_model
from tests.gguf_files import SMALL_VOCAB_SIZE, write_small_llama


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_file_and_a_folder_with_one_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    path = write_small_llama(tmp_path / "models" / "Tiny-Q8_0.gguf")
    folder = resolve_model(str(path))
    assert resolve_model(str(path.parent)) == folder == resolve_model(str(folder))
    assert served_name(str(path)) == "Tiny-Q8_0"
    files = ModelFiles.read(folder)
    assert files.config["gguf"] == {"format": "GGUF Q8_0", "bits_per_weight": 32.0}
    assert files.num_weight_bytes == path.stat().st_size
    assert files.eos_token_ids == (1,)
    card = files.card("m", files.tokenizer_bundle())
    assert (card.vocab_size, card.max_context_len, card.can_generate) == (
        SMALL_VOCAB_SIZE,
        64,
        True,
    )


def test_another_file_of_the_name_is_another_model(tmp_path: Path) -> None:
    path = write_small_llama(tmp_path / "m.gguf")
    first = ModelFiles.read(resolve_model(str(path))).revision
    os.utime(path, ns=(1, 1))
    again = resolve_model(str(path))
    assert ModelFiles.read(again).revision == first
    path.unlink()
    write_small_llama(path, lambda writer: writer.add_logit_scale(2.0))
    assert resolve_model(str(path)) != again


def test_what_is_broken_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_small_llama(tmp_path / "m.gguf", lambda writer: writer.add_expert_count(8))
    with pytest.raises(ConfigError, match="is a llama with 8 experts"):
        resolve_model(str(path))
    cache = tmp_path / "cache" / "jetflock" / "gguf"
    assert not cache.exists() or not any(cache.iterdir())


def said(key: str, value: int) -> Callable[[Any], None]:
    """In the place of what the writer has of it."""

    def change(writer: Any) -> None:
        writer.kv_data[0][key].value = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda w: w.add_tensor("blk.0.attn_gate.weight", np.ones(4, np.float32)),
            r"has the tensor 'blk\.0\.attn_gate\.weight', which a llama has not",
        ),
        (
            lambda w: w.add_tensor("blk.1.attn_q.weight", np.ones(4, np.float32)),
            r"has the tensor 'blk\.1\.attn_q\.weight'",
        ),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.full(4, 3, np.float32)),
            "rope_freqs that are not Llama 3's",
        ),
        (lambda w: w.add_rope_dimension_count(4), "rotates 4 of 8 dimensions"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "by 'longrope'"),
        (lambda w: w.add_value_length(16), "keys of 8 and values of 16"),
        (
            said("llama.block_count", 1 << 31),
            "is to have 2147483648 layers, and has no",
        ),
        (said("llama.context_length", 0), "has llama.context_length 0"),
        (
            lambda w: setattr(w.tensors[0]["token_embd.weight"], "shape", (9, 32)),
            "there are 260 tokens, and embeddings of 9",
        ),
        (
            lambda w: (
                w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
                w.add_rope_scaling_attn_factors(0.5),
            ),
            r"has rope\.scaling\.attn_factor",
        ),
        (lambda w: w.add_string("llama.rope.freq_base", "x"), "freq_base must be a number"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, change: Callable[[Any], None], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve_model(str(write_small_llama(tmp_path / "m.gguf", change)))


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="architecture 'mamba' is not served from GGUF; served"):
        resolve_model(str(write_small_llama(tmp_path / "m.gguf", name="mamba")))


def test_one_of_several_has_to_be_named(tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files, m-Q4_K_M\.gguf, m-Q8_0\.gguf: na"):
        resolve_model(str(tmp_path))
    (tmp_path / "m-Q8_0.gguf").unlink()
    assert only_model([each.name for each in tmp_path.iterdir()], "x") == "m-Q4_K_M.gguf"


def test_a_file_is_chosen_by_name_or_by_how_it_is_quantised() -> None:
    names = [
        "M-Q4_K_M.gguf",
        "M-Q4_K_S.gguf",
        "M.Q8_0.gguf",
        "UD/M-UD-Q2_K-00001-of-00002.gguf",
        "UD/M-UD-Q2_K-00002-of-00002.gguf",
        "config.json",
    ]
    for wanted, expected in (
        ("M.Q8_0.gguf", "M.Q8_0.gguf"),
        ("q8_0", "M.Q8_0.gguf"),
        ("Q4_K_M", "M-Q4_K_M.gguf"),
        ("UD-Q2_K", "UD/M-UD-Q2_K-00001-of-00002.gguf"),
        ("UD/M-UD-Q2_K-00001-of-00002.gguf", "UD/M-UD-Q2_K-00001-of-00002.gguf"),
    ):
        assert chosen_model(names, wanted, "o/n") == expected
    with pytest.raises(ConfigError, match="o/n has no GGUF files of 'Q4_K'; it has M-Q4_K_M"):
        chosen_model(names, "Q4_K", "o/n")
    with pytest.raises(ConfigError, match="o/n has 4 GGUF files of 'M'"):
        chosen_model(names, "M", "o/n")


def test_a_folder_of_ollama_is_told_the_way_out(tmp_path: Path) -> None:
    for name in ("manifests", "blobs"):
        (tmp_path / name).mkdir()
    assert "link its largest blob" in why_no_checkpoint(tmp_path)


def test_sampling_that_the_file_recommends_is_the_default(tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)

    folder = resolve_model(str(write_small_llama(tmp_path / "m.gguf", change)))
    told = json.loads((folder / "generation_config.json").read_text())
    assert (told["temperature"], told["top_k"]) == (0.5, 20)
