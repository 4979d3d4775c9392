"""Whatever weights are stored in, other features give the same tokens, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from tests.lora_adapters import save_adapter
from tests.worker.engine.families import FUSED, FUSED_IN_TORCH, LATENT, MIXTURES, RECURRENT
from tests.worker.engine.formats.quantized_copies import save_quantized
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AddRequest, LoadAdapter, ReleaseCache

FAMILIES = FUSED | FUSED_IN_TORCH | LATENT | MIXTURES | RECURRENT
COMPUTED: dict[str, dict[str, Any]] = {
    "in codes": {"dtype": "bfloat16"},
    "dense": {"dtype": "float32", "cpu_kernels": "torch"},
}
KEEP_STATES = {"qwen3_5_text"}
SENTENCE = r"(speculate=ngram|draft_model=\S+|kv_disk_dir=\S+) is not possible"


def requests(first: int = 0) -> list[AddRequest]:
    prompts = [random_prompt(40, 1) + random_prompt(20, 1), random_prompt(25, 2)]
    return [
        make_add(first + idx, prompt, max_tokens=12, ignore_eos=True)
        for idx, prompt in enumerate(prompts)
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("kind", ["packed int4", "fp8 in blocks"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe", "deepseek_v3", "qwen3_5"])
def test_the_same_tokens_or_a_sentence(
    family: str, kind: str, computed: str, tmp_path: Path
) -> None:
    model_type, changes = FAMILIES[family]
    source = save_tiny_model(tmp_path / "source", model_type, **changes)
    path = save_quantized(source, tmp_path / "quantized", kind)
    draft = save_tiny_model(tmp_path / "draft", "llama", num_hidden_layers=1)
    config = COMPUTED[computed]
    plain = Rig(path, **config)
    expected = plain.run(*requests())
    features: list[dict[str, Any]] = [
        {"speculate": "ngram"},
        {"draft_model": str(draft)},
        {"kv_disk_dir": str(tmp_path / "tier")},
    ]
    for feature in features:
        if model_type in KEEP_STATES:
            with pytest.raises(ConfigError, match=SENTENCE):
                Rig(path, **config | feature)
        else:
            assert Rig(path, **config | feature).run(*requests()) == expected, feature
    adapter = save_adapter(tmp_path / "adapter", source)
    plain.run(ReleaseCache(), LoadAdapter("one", str(adapter)))
    assert [*plain.run(*requests(10)).values()][-2:] == [*expected.values()]
