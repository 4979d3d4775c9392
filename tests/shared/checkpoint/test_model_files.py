"""What generation_config.json says becomes the model card's defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.model_cards import ModelCard
from tests.e2e.role_stack import DEMO_MODEL

CONFIG = {"vocab_size": 50, "max_position_embeddings": 128, "eos_token_id": 2}


def card_of(path: Path, generation_config: dict[str, Any] | None) -> ModelCard:
    (path / "config.json").write_text(json.dumps(CONFIG))
    if generation_config is not None:
        (path / "generation_config.json").write_text(json.dumps(generation_config))
    return ModelFiles.read(path).card("m", TokenizerBundle.of_numbers(50))


def read_as(path: Path, **options: Any) -> ModelFiles:
    return ModelFiles.read(path, options=ModelOptions(**options))


def test_sampling_defaults_and_end_tokens(tmp_path: Path) -> None:
    card = card_of(
        tmp_path,
        {
            "do_sample": True,
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "eos_token_id": [3, 4],
        },
    )
    assert card.eos_token_ids == (3, 4)
    assert (card.default_temperature, card.default_top_p, card.default_top_k) == (0.6, 0.9, 20)
    assert (card.default_min_p, card.default_repetition_penalty) == (0.05, 1.1)


@pytest.mark.parametrize("generation_config", [None, {}, {"eos_token_id": None}])
def test_without_it_config_json_knows_the_end(
    tmp_path: Path, generation_config: dict[str, Any] | None
) -> None:
    card = card_of(tmp_path, generation_config)
    assert card.eos_token_ids == (2,)
    assert card.default_temperature is None
    assert card.default_top_k is None


def test_no_sampling_means_greedy(tmp_path: Path) -> None:
    assert card_of(tmp_path, {"do_sample": False, "top_p": 0.9}).default_temperature == 0.0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"temperature": "hot"}, "'temperature' must be a number, not 'hot'"),
        ({"top_k": 2.5}, "'top_k' must be a number, not 2.5"),
        ({"top_p": 1.5}, "'top_p' is 1.5, not between"),
        ({"repetition_penalty": 0}, "'repetition_penalty' is 0, not between"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        card_of(tmp_path, values)


def test_what_weights_are_made_is_another_model(tmp_path: Path) -> None:
    card_of(tmp_path, None)
    own, int8, int4 = (read_as(tmp_path, quantization=wanted) for wanted in (None, "int8", "int4"))
    assert len({own.revision, int8.revision, int4.revision}) == 3
    bundle = TokenizerBundle.of_numbers(50)
    assert own.card("m", bundle).stored_format == ""
    assert int4.card("m", bundle).stored_format == "int4 in groups of 128, made when loaded"


def test_keys_and_values_in_fewer_bits_are_another_model(tmp_path: Path) -> None:
    card_of(tmp_path, None)
    own = ModelFiles.read(tmp_path)
    told, int8, fp8 = (read_as(tmp_path, kv_dtype=kind) for kind in ("auto", "int8", "fp8"))
    assert own.revision == told.revision
    assert len({own.revision, int8.revision, fp8.revision}) == 3
    bundle = TokenizerBundle.of_numbers(50)
    assert [each.card("m", bundle).kv_dtype for each in (own, int8)] == ["", "int8"]


def test_activations_in_fewer_bits_are_another_model(tmp_path: Path) -> None:
    card_of(tmp_path, None)
    own, told, int8, kept = (
        ModelFiles.read(tmp_path),
        *(read_as(tmp_path, cpu_activations=kind) for kind in ("auto", "int8", "bfloat16")),
    )
    assert own.revision == told.revision
    assert len({own.revision, int8.revision, kept.revision}) == 3
    bundle = TokenizerBundle.of_numbers(50)
    assert [each.card("m", bundle).activations for each in (own, int8)] == ["", "int8"]


def test_a_file_of_logits_processors_is_another_model_and_on_its_card(tmp_path: Path) -> None:
    card_of(tmp_path, None)
    file = tmp_path / "processors.py"
    own, revisions = ModelFiles.read(tmp_path), set[str]()
    for body in ("None", "[1]"):
        file.write_text(f"def one(params, prompt_ids, output_ids):\n    return {body}\n")
        files = read_as(tmp_path, logits_processors=str(file))
        revisions.add(files.revision)
        card = files.card("m", TokenizerBundle.of_numbers(50))
        assert card.logits_processors == ("one",)
    assert len(revisions | {own.revision}) == 3


def test_weights_that_are_stored_so_are_made_nothing(tmp_path: Path) -> None:
    card_of(tmp_path, None)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    own, equal = (read_as(tmp_path, quantization=wanted) for wanted in (None, "fp8"))
    assert own.revision == equal.revision
    assert equal.card("m", TokenizerBundle.of_numbers(50)).stored_format == "fp8"


def test_a_stretched_context_is_another_model(tmp_path: Path) -> None:
    card_of(tmp_path, None)
    own, shorter, longer = (
        read_as(tmp_path, max_context_len=wanted) for wanted in (None, 100, 200)
    )
    assert [each.max_context_len for each in (own, shorter, longer)] == [128, 128, 200]
    assert own.revision == shorter.revision != longer.revision


def test_another_chat_template_takes_the_place_of_its_own(tmp_path: Path) -> None:
    own = ModelFiles.read(DEMO_MODEL)
    file = tmp_path / "other.jinja"
    file.write_text("{{ messages[0].content }}é", encoding="utf-8")
    other = read_as(DEMO_MODEL, chat_template=str(file))
    told, bundle = own.tokenizer_bundle(), other.tokenizer_bundle()
    assert (bundle.chat_template, bundle.files["tokenizer.json"]) == (
        "{{ messages[0].content }}é",
        told.files["tokenizer.json"],
    )
    cards = own.card("m", told), other.card("m", bundle)
    assert cards[0].tokenizer_hash != cards[1].tokenizer_hash
    assert cards[0].revision == cards[1].revision, "the same weights"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"chat_template '.*x\.jinja': No such file or directory"),
        (b" \n", "is empty"),
        (b"\xff", "is no text in UTF-8"),
        (b"x" * ((1 << 20) + 1), "has more than 1048576 bytes"),
    ],
)
def test_a_chat_template_that_cannot_be_read_is_refused(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        ModelOptions(chat_template=str(file)).template_source()
