"""Small checkpoints with random weights, and engines that remember their logits."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.tiny_decoder import VOCAB_SIZE, tiny_decoder_config
from tests.worker.engine.families import RECURRENT
from tests.worker.engine_fakes import FakeChannel
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.model_runner import Forward, ModelRunner, TorchForward
from worker.engine.layers.linear import DenseTable
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.loop.engine import Engine
from worker.engine.lora.lora_projection import LoraProjections, LoraWeights
from worker.engine.models.decoder import DecoderModel
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import StepHandle
from worker.engine.training.eagle_student import EagleStudent
from worker.engine.training.student import Teacher
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import EngineCommand

Logits = dict[tuple[int, int], torch.Tensor]  # (run_id, position of the new token) -> [vocab_size]


def save_tiny_model(
    path: Path,
    model_type: str,
    *,
    max_shard_size: str = "5GB",
    is_rounded: bool = False,
    is_classifier: bool = False,
    num_labels: int = 1,
    **overrides: Any,
) -> Path:
    """With `is_rounded` bfloat16 holds the weights exactly."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    values = tiny_decoder_config() | overrides
    if model_type == "falcon":  # which works it out
        del values["head_dim"]
    config = AutoConfig.for_model(model_type, **values)
    torch.manual_seed(0)
    auto_model = causal_models()
    if is_classifier:
        config.num_labels = num_labels
        auto_model = AutoModelForSequenceClassification
    model = auto_model.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases, which are made as zeros, and norms.
            if parameter.ndim == 1 or name.endswith("_bias"):
                parameter += 0.3 * torch.randn(parameter.shape)
            if is_rounded:
                parameter.copy_(parameter.bfloat16())
        for name, buffer in model.named_buffers():
            # Zeros, too, and ones.
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                buffer += 0.3 * torch.randn(buffer.shape)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return path


def save_recurrent(path: Path, name: str) -> Path:
    """One of the families that keep states."""
    model_type, overrides = RECURRENT[name]
    return save_tiny_model(path, model_type, **overrides)


def save_tiny_llama(path: Path, **overrides: Any) -> Path:
    return save_tiny_model(path, "llama", **overrides)


def save_eagle_head(target: Path, path: Path) -> Path:
    """Untrained, for two thirds of the target's tokens."""
    torch.manual_seed(3)
    teacher = Teacher(target)
    student = EagleStudent(
        teacher, [[each for each in range(teacher.config.vocab_size) if each % 3]]
    )
    student.save(path)
    return path


class MtpReference:
    """A head as transformers has it, of one of its models, without a cache."""

    def __init__(self, model: Any) -> None:
        from transformers.modeling_layers import MtpLayer

        layer, config = model.model.layers[-1], copy.deepcopy(model.config)
        if hasattr(config, "first_k_dense_replace"):
            config.first_k_dense_replace = 0
        for name in ("layer_types", "mlp_layer_types", "indexer_types"):
            if getattr(config, name, None):
                setattr(config, name, getattr(config, name)[-1:])
        torch.manual_seed(4)
        self._model = model
        self.layer: Any = MtpLayer(config, type(layer), type(layer.input_layernorm), 0).eval()
        for each in (*self.layer.parameters(), *self.layer.buffers()):
            each.data.normal_(float(each.ndim == 1), 0.2)

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int], guesses: Sequence[int]) -> torch.Tensor:
        """Of what comes behind both: [vocab_size]."""
        base = self._model.model
        given = base(torch.tensor([token_ids])).last_hidden_state[:, :-1]
        behind = torch.tensor([[*token_ids, *guesses]])[:, 1:]
        made = self._made(base, behind[:, : given.shape[1]], given)
        for end in range(given.shape[1] + 1, behind.shape[1] + 1):
            given = torch.cat([given, made[:, -1:]], dim=1)
            made = self._made(base, behind[:, :end], given)
        logits: torch.Tensor = self._model.lm_head(made[0, -1])
        return logits

    def _made(self, base: Any, input_ids: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        size = input_ids.shape[1]
        positions = torch.arange(size)[None]
        mask = torch.full((size, size), -torch.inf).triu(1)[None, None]
        angles = base.rotary_emb(given, position_ids=positions)
        embeddings = base.embed_tokens(input_ids)
        made: torch.Tensor = self.layer(embeddings, given, angles, mask, positions, None)
        return made


def add_mtp_head(path: Path) -> MtpReference:
    """An untrained one, behind the last layer of a checkpoint."""
    from transformers import AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM
    model = auto_model.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    config = json.loads((path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(config))
    reference, prefix = MtpReference(model), f"model.layers.{config['num_hidden_layers']}."
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in reference.layer.state_dict().items():
        told = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
        if told.endswith("mlp.experts.gate_up_proj"):
            stem = told.removesuffix("gate_up_proj")
            for idx, expert in enumerate(tensor):
                for part, half in zip(("gate", "up"), expert.chunk(2), strict=True):
                    tensors[f"{prefix}{stem}{idx}.{part}_proj.weight"] = half.clone()
        elif told.endswith("mlp.experts.down_proj"):
            stem = told.removesuffix("down_proj")
            for idx, expert in enumerate(tensor):
                tensors[f"{prefix}{stem}{idx}.down_proj.weight"] = expert.clone()
        else:
            tensors[prefix + told] = tensor.clone()
    file = path / "model.safetensors"
    save_file(load_file(file) | tensors, file, {"format": "pt"})
    return reference


def reference_logits(
    path: Path, token_ids: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Of transformers, [num_tokens, vocab_size]; row i is what comes after token i."""
    with torch.inference_mode():
        logits = _reference_model(path, dtype)(torch.tensor([list(token_ids)])).logits[0]
    return torch.Tensor(logits.float())


@functools.lru_cache(maxsize=4)
def _reference_model(path: Path, dtype: torch.dtype) -> Any:
    return causal_models().from_pretrained(path, dtype=dtype, attn_implementation="eager")


def causal_models() -> Any:
    """transformers' own, and Mistral 4, which it knows within others alone."""
    from transformers import AutoModelForCausalLM, Mistral4Config, Mistral4ForCausalLM

    AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)
    return AutoModelForCausalLM


def random_prompt(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, VOCAB_SIZE) for _ in range(length)]


def assert_like_reference(
    path: Path, rig: Rig, run_id: int, token_ids: list[int], max_error: float = 1e-4
) -> None:
    """All logits that the engine computed for this run, beside transformers' own."""
    reference = reference_logits(path, token_ids)
    positions = sorted(position for each_id, position in rig.logits if each_id == run_id)
    ours = torch.stack([rig.logits[run_id, position] for position in positions])
    theirs = reference[[position - 1 for position in positions]]
    assert theirs.isfinite().all()
    assert (ours - theirs).norm() / theirs.norm() < max_error


class RecordingForward:
    """Keeps the logits of the step."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.sample_logits = torch.empty(0)

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        self.sample_logits = torch.empty(0)
        return self._forward.hidden(batch)

    def lora_projections(self, weights: LoraWeights) -> LoraProjections:
        return self._forward.lora_projections(weights)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last call of a step is for the tokens to be chosen."""
        logits = self._forward.logits(hidden)
        self.sample_logits = logits.clone()
        return logits


class RecordingRunner:
    """Files the logits of every step by run and position."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._forward = RecordingForward(runner._forward)
        runner._forward = self._forward
        self.logits: Logits = {}
        self.batches: list[list[tuple[int, int, int]]] = []  # (run_id, start, end) by step

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        keys = [(point.req.run_id, point.position) for point in batch.sample_points]
        self.batches.append([(each.req.run_id, each.start, each.end) for each in batch.entries])
        handle = self._runner.launch(batch)
        if keys:
            self.logits.update(zip(keys, self._forward.sample_logits, strict=True))
        return handle


class Rig:
    """An engine in this process, its channel, and what its model computed."""

    def __init__(self, path: Path, **config: Any) -> None:
        defaults: dict[str, Any] = {
            "num_threads": 1,
            "packed_weights": "off",  # of the user who runs tests
            "num_kv_tokens": 4096,
            "max_running": 16,
            "max_step_tokens": 160,  # the most that is computed when it warms up
            "max_step_s": 60.0,
            "target_itl_s": 60.0,
        }
        self.channel = FakeChannel()
        engine_config = EngineConfig(model_path=str(path), **(defaults | config))
        self.loop = EngineLoader(engine_config, self.channel).load()
        assert isinstance(self.loop._engine, Engine)
        self.engine = self.loop._engine
        steps = self.engine._steps
        assert isinstance(steps._runner, ModelRunner)
        self.runner = RecordingRunner(steps._runner)
        steps._runner = self.runner

    def run(self, *commands: EngineCommand) -> dict[int, list[int]]:
        """Runs them to their end; the new tokens of each run."""
        self.channel.commands = list(commands)
        self.loop.run(until_idle=True)
        self.engine._scheduler.check_integrity()
        return self.channel.tokens()

    @property
    def decoder(self) -> DecoderModel:
        """In torch."""
        forward = self.runner._forward._forward
        assert isinstance(forward, TorchForward)
        assert isinstance(forward._model, DecoderModel)
        return forward._model

    def poison(self, token_id: int) -> None:
        """The token's embedding is no number any more."""
        entry = self.decoder._entry
        assert entry is not None
        table = entry._table
        assert isinstance(table, DenseTable)
        with torch.inference_mode():
            table._weight[token_id] = torch.nan

    @property
    def logits(self) -> Logits:
        return self.runner.logits
