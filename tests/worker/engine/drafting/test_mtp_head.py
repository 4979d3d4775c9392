"""An MTP head computes what transformers' own layer does; without one, it is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError
from tests.worker.engine.drafting.test_draft_head import RecordedHead
from tests.worker.engine.drafting.test_model_drafter import MIXED, fix_length
from tests.worker.engine.families import LATENT, MIXTURES, RECURRENT
from tests.worker.engine.tiny_models import Rig, add_mtp_head, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "glm4_moe": MIXTURES["glm4_moe"],
    "deepseek_v3": LATENT["deepseek_v3"],
    "deepseek_v32": LATENT["deepseek_v32"],
}


def adds() -> list[Any]:
    return [
        make_add(
            run_id,
            random_prompt(length, length),
            max_tokens=14,
            ignore_eos=True,
            **MIXED[run_id],
        )
        for run_id, length in enumerate((5, 40, 70))
    ]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"num_kv_tokens": 160, "max_step_tokens": 32}),
        ("llama", {"dtype": "bfloat16", "cpu_kernels": "native"}),
        ("glm4_moe", {}),
        pytest.param("deepseek_v3", {}, marks=pytest.mark.nightly),
        ("deepseek_v32", {}),  # latents and experts, too
    ],
    ids=str,
)
def test_it_computes_what_is_published(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    """Alone, in company, and after retractions; the model says what it says without."""
    model_type, overrides = FAMILIES[family]
    path = save_tiny_model(tmp_path, model_type, is_rounded=True, **overrides)
    reference = add_mtp_head(path)
    expected = Rig(path, **config).run(*adds())
    rig = Rig(path, speculate="mtp", **config)
    fix_length(rig)
    rig.engine._scheduler._reserve_ratio.value = 0.0
    recorded = RecordedHead(rig)
    assert rig.run(*adds()) == expected
    load = rig.channel.steps[-1].load
    assert (load.num_preemptions > 0) == ("num_kv_tokens" in config)
    assert {len(guesses) for _, guesses in recorded.told} == {0, 1, 2}
    for (token_ids, guesses), logits in list(recorded.told.items())[::9]:
        wanted = reference.logits(token_ids, guesses)
        error = (logits - wanted).norm() / wanted.norm()
        assert error < (0.1 if "dtype" in config else 1e-4)


def test_a_prefix_of_another_is_not_read_again(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path, "llama")
    add_mtp_head(path)
    rig = Rig(path, speculate="mtp")
    fix_length(rig)
    recorded, prompt = RecordedHead(rig), random_prompt(70, 1)
    nums_rows = []
    for run_id in range(2):
        before = recorded.num_rows
        rig.run(make_add(run_id, prompt, max_tokens=8, ignore_eos=True))
        nums_rows.append(recorded.num_rows - before)
    assert nums_rows[1] < nums_rows[0] - 60


def test_what_has_none_is_refused_by_name(tmp_path: Path) -> None:
    llama = save_tiny_model(tmp_path / "llama", "llama")
    promising = save_tiny_model(tmp_path / "promising", "llama", num_nextn_predict_layers=1)
    broken = save_tiny_model(tmp_path / "broken", "llama")
    add_mtp_head(broken)
    tensors = load_file(broken / "model.safetensors")
    tensors = {
        name: each for name, each in tensors.items() if not name.endswith("2.mlp.up_proj.weight")
    }
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    model_type, overrides = RECURRENT["qwen3_next"]
    hybrid = save_tiny_model(tmp_path / "hybrid", model_type, **overrides)
    for path, config, told in (
        (llama, {}, "speculate=mtp is not possible: no MTP head is known of LlamaForCausalLM"),
        (promising, {}, "has no MTP head: there is no tensor 'model.layers.2.eh_proj.weight'"),
        (broken, {}, "has no tensor 'model.layers.2.mlp.up_proj.weight'"),
        (hybrid, {}, "has no MTP head: there is no tensor 'mtp.fc.weight'"),
        (llama, {"draft_model": str(llama)}, "two ways of guessing"),
        (llama, {"load_format": "dummy"}, "only files of safetensors have an MTP head"),
        (broken, {"kv_disk_dir": "/kv"}, "kv_disk_dir=/kv is not possible with speculate=mtp"),
    ):
        with pytest.raises(ConfigError, match=told):
            Rig(path, speculate="mtp", **config)
