"""What transformers computes, on a GPU that is late or strict: it says what it says on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import ConfigError, NotCapturable
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.lora_adapters import save_adapter
from tests.tiny_eyes import save_tiny_eyes
from tests.tiny_llava import random_pixels, save_tiny_llava
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.short_device import ShortDevice
from tests.worker.engine.cuda.strict_device import StrictDevice, strict_gpu
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.encoder.test_encoder_scores import save_tiny_encoder
from tests.worker.engine.families import (
    FUSED,
    FUSED_IN_TORCH,
    GENERAL,
    LATENT,
    MIXTURES,
    RECURRENT,
)
from tests.worker.engine.models.vision.test_towers import STORIES, Seeing
from tests.worker.engine.test_images import add_of
from tests.worker.engine.tiny_models import random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.device.gpu_device import GpuDevice, Work
from worker.engine_link.engine_messages import AddRequest, EngineCommand, LoadAdapter, RunImage

SMALL: dict[str, Any] = {"max_step_tokens": 24, "max_running": 4}
FEW_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}  # interpreted one by one


@pytest.fixture
def strict() -> Iterator[StrictDevice]:
    with strict_gpu() as gpu:
        yield gpu


def save_family(path: Path, family: str, **changes: Any) -> Path:
    families = FUSED | FUSED_IN_TORCH | MIXTURES | LATENT | GENERAL | RECURRENT
    model_type, overrides = families[family]
    return save_tiny_model(path, model_type, **(overrides | changes))


def requests(lens: Sequence[int], **sampling: Any) -> list[AddRequest]:
    return [
        make_add(run_id, random_prompt(length, run_id), ignore_eos=True, **sampling)
        for run_id, length in enumerate(lens)
    ]


def assert_like_the_cpu(
    path: Path, gpu: GpuDevice, *commands: EngineCommand, **config: Any
) -> None:
    ours = GpuRig(path, gpu, overlap=True, **(SMALL | config)).run(*commands)
    assert ours == GpuRig(path, None, **SMALL).run(*commands)
    assert all(ours.values())


@pytest.mark.parametrize(
    "family",
    [
        "gemma3",
        "gemma4",
        "gpt_oss",
        *(
            pytest.param(family, marks=pytest.mark.nightly)
            for family in ("gemma2", "olmo2", "cohere2", "hunyuan", "deepseek_v2", "minicpm3")
        ),
    ],
)
def test_a_family_gives_the_tokens_of_the_cpu(tmp_path: Path, family: str) -> None:
    """In chunks, with graphs, with windows, soft caps, experts and sinks."""
    path = save_family(tmp_path, family)
    gpu = LateDevice()
    assert_like_the_cpu(path, gpu, *requests((60, 1, 17, 40), max_tokens=30))
    assert gpu.num_replays > 10


@pytest.mark.parametrize(
    "family",
    ["lfm2", *(pytest.param(each, marks=pytest.mark.nightly) for each in [*RECURRENT][1:])],
)
def test_states_give_the_tokens_of_the_cpu(tmp_path: Path, family: str) -> None:
    """From their snapshots, too: steps that decode are graphs, and come by page borders."""
    path, gpu = save_family(tmp_path, family), LateDevice()
    adds = requests((70, 1, 17, 40), max_tokens=12)
    rig, theirs = GpuRig(path, gpu, overlap=True, **SMALL), GpuRig(path, None, **SMALL)
    assert rig.run(*adds) == theirs.run(*adds)
    assert gpu.num_replays > 10
    told = [*random_prompt(70, 0), *rig.channel.tokens()[0], 7]
    again = make_add(9, told, max_tokens=3, ignore_eos=True)
    assert rig.run(again)[9] == theirs.run(again)[9]
    assert rig.channel.steps[-1].load.num_prefix_hits > 0


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["qwen3_next", "bamba"])
def test_states_never_wait_for_the_gpu(
    tmp_path: Path, strict: StrictDevice, interpreter: None, family: str
) -> None:
    """By our own kernels."""
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    path = save_family(tmp_path, family)
    assert_like_the_cpu(path, strict, *requests((20, 3), max_tokens=3), **config)


def test_no_position_is_beyond_what_the_model_knows(tmp_path: Path) -> None:
    """A step may have more tokens than a text of GPT-2."""
    path = save_family(tmp_path, "gpt2", max_position_embeddings=32)
    assert_like_the_cpu(path, LateDevice(), *requests((20, 7), max_tokens=5), max_step_tokens=50)


def test_layers_of_two_shapes_never_wait_for_the_gpu(
    tmp_path: Path, strict: StrictDevice, interpreter: None
) -> None:
    """By our own kernels, with layers that see the keys of others."""
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    path = save_family(tmp_path, "gemma4", **FEW_HEADS)
    assert_like_the_cpu(path, strict, *requests((26, 3), max_tokens=3), **config)


def test_experts_and_sinks_never_wait_for_the_gpu(
    tmp_path: Path, strict: StrictDevice, interpreter: None
) -> None:
    small: dict[str, Any] = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    small |= {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 32}
    path = save_family(tmp_path, "gpt_oss", **small, **FEW_HEADS)
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    assert_like_the_cpu(path, strict, *requests((26, 3), max_tokens=3), **config)


def test_latents_never_wait_for_the_gpu(
    tmp_path: Path, strict: StrictDevice, interpreter: None
) -> None:
    """With experts, behind a dense layer."""
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    path = save_family(tmp_path, "deepseek_v3", num_hidden_layers=2)
    assert_like_the_cpu(path, strict, *requests((30, 3), max_tokens=3), **config)


def image_requests(*, max_tokens: int) -> list[AddRequest]:
    """The last chunk of one is a single token, and that of an image."""
    one, other = random_pixels(1), random_pixels(2)
    text = random_prompt(21, 1)
    stories: list[list[Any]] = [[[7], one], [text, other, text, one], [text]]
    return [add_of(run_id, *parts, max_tokens=max_tokens) for run_id, parts in enumerate(stories)]


def test_images_are_seen_as_on_the_cpu(tmp_path: Path) -> None:
    path = save_tiny_llava(tmp_path)
    assert_like_the_cpu(path, LateDevice(), *image_requests(max_tokens=12), max_step_tokens=12)


def test_a_step_with_images_is_computed_in_pieces(tmp_path: Path) -> None:
    """Where the GPU's memory is short: an image is cut wherever the step is."""
    path, gpu = save_tiny_llava(tmp_path), ShortDevice()
    adds = image_requests(max_tokens=8)
    whole, short = (GpuRig(path, gpu, max_step_tokens=64) for _ in range(2))
    expected = whole.run(*adds)
    gpu.room_bytes = gpu.peak_used_bytes * 2 // 3
    assert short.run(*adds) == expected
    assert gpu.num_failures > 0


def test_images_never_wait_for_the_gpu(
    tmp_path: Path, strict: StrictDevice, interpreter: None
) -> None:
    path = save_tiny_llava(tmp_path)
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    assert_like_the_cpu(path, strict, image_requests(max_tokens=2)[0], **config)


TOWERS = ("mistral3", "internvl qwen2", "llava_next", "llava_onevision")


@pytest.mark.parametrize(
    "name",
    [TOWERS[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in TOWERS[1:])],
)
def test_a_tower_beside_a_text_model_sees_as_on_the_cpu(tmp_path: Path, name: str) -> None:
    seeing = Seeing(tmp_path, name)
    adds = [seeing.add(run_id, STORIES[run_id]) for run_id in (1, 2, 3)]
    assert_like_the_cpu(seeing.path, LateDevice(), *adds, max_step_tokens=12)


@pytest.mark.nightly
def test_a_tower_never_waits_for_the_gpu(
    tmp_path: Path, strict: StrictDevice, interpreter: None
) -> None:
    """InternVL's: the code of the others asks the GPU for sizes, once an image."""
    seeing = Seeing(tmp_path, "internvl qwen2")
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    add = seeing.add(1, [[7], STORIES[1][1], [8]], max_tokens=2)
    assert_like_the_cpu(seeing.path, strict, add, **config)


def test_images_beside_a_text_model_are_refused_by_name(tmp_path: Path) -> None:
    """Its text is served."""
    rig = GpuRig(save_tiny_eyes(tmp_path, "qwen2_5_vl"), LateDevice(), **SMALL)
    image = RunImage(0, 4, b"d", bytes(3 * 16 * 16), 16, 16)
    adds = [make_add(1, [2] * 9, images=(image,)), *requests((30,), max_tokens=4)]
    assert len(rig.run(*adds)[0]) == 4
    sentence = (
        "images of Qwen2_5_VLForConditionalGeneration are computed on CPUs with tp=1 alone: this "
        "worker serves its text"
    )
    assert rig.channel.finishes()[1].message == rig.loop._ready.remark == sentence


def encoder_scores(path: Path, gpu: GpuDevice | None) -> list[float]:
    """Of texts of many lengths in a step, one alone, and none where no prompt is whole."""
    adds = [
        make_add(
            run_id,
            random_prompt(length, run_id),
            pooling=PoolingParams(PoolingKind.ENCODED, second_start=length // 2),
        )
        for run_id, length in enumerate((40, 3, 3, 20, 21, 90, 1))
    ]
    rig = GpuRig(path, gpu, overlap=True, max_step_tokens=64)
    rig.run(*adds)
    vectors = [rig.channel.finishes()[add.run_id].embedding for add in adds]
    return [float(np.frombuffer(each, np.float32)[0]) for each in vectors]


def test_a_cross_encoder_never_waits_for_the_gpu(tmp_path: Path, strict: StrictDevice) -> None:
    path = save_tiny_encoder(tmp_path, "modernbert", global_attn_every_n_layers=2)
    assert encoder_scores(path, strict) == pytest.approx(encoder_scores(path, None), abs=1e-5)


def test_adapters_are_put_where_the_model_is(
    tmp_path: Path, strict: StrictDevice, interpreter: None
) -> None:
    path = save_family(tmp_path / "base", "vaultgemma", **FEW_HEADS)
    load = LoadAdapter("one", str(save_adapter(tmp_path / "one", path)))
    adds = [
        make_add(run_id, random_prompt(9, run_id), max_tokens=2, adapter=adapter)
        for run_id, adapter in enumerate(("one", ""))
    ]
    config = {"attention_backend": "triton", "cuda_graph_sizes": (2,)}
    assert_like_the_cpu(path, strict, load, *adds, **config)


class WaitingDevice(LateDevice):
    """As if the model's code had to wait for the GPU."""

    def capture(self, work: Work) -> Work:
        raise NotCapturable("modeling_x.py, line 7: operation not permitted")


def test_what_cannot_be_captured_runs_without_graphs_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_family(tmp_path, "olmo2")
    remark = (
        "Olmo2ForCausalLM runs without CUDA graphs: modeling_x.py, line 7: operation not permitted"
    )
    rig = GpuRig(path, WaitingDevice(), overlap=True)
    adds = requests((30, 3), max_tokens=6)
    assert rig.run(*adds) == GpuRig(path, None).run(*adds)
    assert caplog.messages.count(remark) == 1
    assert rig.loop._ready.remark == remark
    for name in ("cuda_graph_sizes", "cuda_graph_tokens"):
        with pytest.raises(ConfigError, match=f"{name}: Olmo2ForCausalLM cannot be captured"):
            GpuRig(path, WaitingDevice(), **{name: (16,)})


def test_what_transformers_computes_is_not_divided(tmp_path: Path) -> None:
    path = save_family(tmp_path, "phimoe")
    told = "tp=2 is not possible with PhimoeForCausalLM: transformers computes it"
    with pytest.raises(ConfigError, match=told):
        GpuRig(path, None, tp=2, device="cpu")
