"""`load_format=dummy`: a model from its config.json alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from shared.checkpoint.model_files import ModelFiles
from shared.errors import ConfigError
from shared.protocol.reply import TextParams
from shared.token_log.visible_text import TokenizerDecoder
from tests.tiny_decoder import VOCAB_SIZE
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.models.dummy_weights import fill_with_noise


@pytest.fixture(params=["qwen3", "mixtral"])
def config_only(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    whole = save_tiny_model(tmp_path / "whole", request.param)
    (tmp_path / "dummy").mkdir()
    return Path(shutil.copy(whole / "config.json", tmp_path / "dummy")).parent


def test_the_same_tokens_in_every_process(config_only: Path) -> None:
    add = make_add(1, random_prompt(40, seed=1), max_tokens=20, ignore_eos=True)
    rig, again = (Rig(config_only, load_format="dummy") for _ in range(2))
    tokens = rig.run(add)[1]
    assert len(tokens) == 20
    assert again.run(add)[1] == tokens
    assert all(logits.std() > 0 for logits in rig.logits.values())
    with pytest.raises(ConfigError):
        Rig(config_only)


def test_noise_is_normal_and_seeded_by_name() -> None:
    weight = fill_with_noise("a.weight", torch.empty(200, 300))
    assert abs(weight.std() - 0.02) < 0.0005
    assert abs(weight.mean()) < 0.0005
    assert torch.equal(weight, fill_with_noise("a.weight", torch.empty(200, 300)))
    assert not torch.equal(weight, fill_with_noise("b.weight", torch.empty(200, 300)))
    assert abs(fill_with_noise("model.norm.weight", torch.empty(100)).mean() - 1) < 0.01


def test_its_card_is_another_and_its_text_is_numbers(config_only: Path) -> None:
    files = ModelFiles.read(config_only, has_dummy_weights=True)
    assert files.revision.startswith("dummy-")
    assert files.revision != ModelFiles.read(config_only).revision
    tokenizer = files.tokenizer_bundle().tokenizer()
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert tokenizer.encode("17 4 299").ids == [17, 4, 299]
    decoder = TokenizerDecoder(tokenizer, TextParams())
    assert "".join(decoder.step(token_id) or "" for token_id in (17, 4, 299)) == "17 4 299"
    with pytest.raises(ConfigError, match="no usable tokenizer"):
        ModelFiles.read(config_only).tokenizer_bundle()
