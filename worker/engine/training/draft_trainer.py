"""Trains a draft model: a few layers of a model learn to say what all of them say."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from shared.errors import ConfigError
from worker.engine.training.answers import Sample, answered, read_prompts
from worker.engine_link.train_config import TrainConfig

HELD_OUT_SHARE = 1 / 16  # of the prompts, which nothing is learnt from
REPORT_EVERY = 50  # steps
NUM_WARM_UP_STEPS = 20
FINAL_LR_SHARE = 0.02
_KEPT_FILES = ("tokenizer*", "tekken.json", "special_tokens_map.json", "chat_template*", "vocab*")


class Batch(NamedTuple):
    """Samples of similar length, padded at the right, where nothing attends to the pads."""

    input_ids: torch.Tensor  # [num_samples, len] int64
    counts: torch.Tensor  # [num_samples, len] bool: places behind which the answer goes on


def make_draft(config: TrainConfig, report: Callable[[str], None]) -> None:
    """Writes the checkpoint. Raises ConfigError."""
    started_s = time.monotonic()
    out, model_path = Path(config.out), Path(config.model_path)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"out={out} is not empty")
    prompts = read_prompts(Path(config.prompts), model_path, config.max_prompts)
    random.Random(config.seed).shuffle(prompts)
    report(f"{len(prompts)} prompts")
    samples = answered(config, prompts, report)
    num_held_out = max(1, int(len(samples) * HELD_OUT_SHARE))
    report(f"answers took {time.monotonic() - started_s:.0f} s")
    trainer = DraftTrainer(config, model_path)
    trainer.train(samples[num_held_out:], report)
    loss, share = trainer.evaluate(samples[:num_held_out])
    trainer.save(out)
    report(
        f"{trainer.num_parameters / 1e6:.2f} million parameters in {out}, after "
        f"{time.monotonic() - started_s:.0f} s; of {num_held_out} answers that it has not seen, it "
        f"finds {share:.1%} of the likeliest tokens (loss {loss:.3f}): "
        f"jetflock serve {model_path} --draft-model {out}"
    )


class DraftTrainer:
    """Owns both models. The draft begins with embeddings, head and some layers of the other one."""

    def __init__(self, config: TrainConfig, model_path: Path) -> None:
        from transformers import AutoModelForCausalLM  # late: it takes seconds

        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        torch.manual_seed(config.seed)
        auto_model: Any = AutoModelForCausalLM
        self._config = config
        self._model_path = model_path
        self._teacher = auto_model.from_pretrained(model_path, dtype=torch.float32).eval()
        self._draft = auto_model.from_config(
            _shortened(self._teacher.config, config.num_layers), dtype=torch.float32
        )
        self._draft.load_state_dict(
            _shortened_weights(self._teacher, config.num_layers), strict=False
        )

    @property
    def num_parameters(self) -> int:
        return int(self._draft.num_parameters())

    def train(self, samples: Sequence[Sample], report: Callable[[str], None]) -> None:
        config, losses = self._config, list[float]()
        optimizer = torch.optim.AdamW(self._draft.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        batches = _batches(samples, config.batch_tokens, config.seed)
        self._draft.train()
        for step in range(1, config.num_steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = self._lr(step)
            loss, _ = self._loss(next(batches))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._draft.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step % REPORT_EVERY == 0 or step == config.num_steps:
                report(f"step {step}/{config.num_steps}, loss {sum(losses) / len(losses):.4f}")
                losses.clear()
        self._draft.eval()

    @torch.no_grad()
    def evaluate(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Mean loss, and how often both models find the same token likeliest."""
        told = [self._loss(_padded([sample])) for sample in samples]
        losses, shares = zip(*((float(loss), share) for loss, share in told), strict=True)
        return sum(losses) / len(told), sum(shares) / len(told)

    def save(self, out: Path) -> None:
        """In the other model's dtype, with its tokenizer."""
        dtype = self._teacher.config.dtype or torch.bfloat16
        self._draft.to(dtype).save_pretrained(out)
        for pattern in _KEPT_FILES:
            for path in self._model_path.glob(pattern):
                shutil.copy(path, out / path.name)

    def _loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """How far the draft's probabilities are from the other's, and how often they agree."""
        with torch.no_grad():
            wanted = self._teacher(batch.input_ids).logits[batch.counts]
        found = self._draft(batch.input_ids).logits[batch.counts]
        loss = functional.kl_div(
            found.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        share = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
        return loss, float(share)

    def _lr(self, step: int) -> float:
        warm_up = min(1.0, step / NUM_WARM_UP_STEPS)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self._config.num_steps))
        return self._config.max_lr * warm_up * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


def _shortened(config: Any, num_layers: int) -> Any:
    """Raises ConfigError."""
    if not 0 < num_layers < config.num_hidden_layers:
        raise ConfigError(
            f"num_layers must be 1 to {config.num_hidden_layers - 1}, fewer than the model has, "
            f"not {num_layers}"
        )
    values = config.to_dict()
    if values.get("layer_types"):
        kept = _kept_layers(config.num_hidden_layers, num_layers)
        values["layer_types"] = [values["layer_types"][layer] for layer in kept]
    return type(config).from_dict(values | {"num_hidden_layers": num_layers})


def _shortened_weights(model: Any, num_layers: int) -> dict[str, torch.Tensor]:
    kept = _kept_layers(model.config.num_hidden_layers, num_layers)
    weights: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        before, found, after = name.partition(".layers.")
        layer, _, rest = after.partition(".")
        if not found:
            weights[name] = weight.clone()
        elif int(layer) in kept:
            weights[f"{before}.layers.{kept.index(int(layer))}.{rest}"] = weight.clone()
    return weights


def _kept_layers(num_there: int, num_kept: int) -> list[int]:
    """The first ones, and the last."""
    return [*range(num_kept - 1), num_there - 1]


def _batches(samples: Sequence[Sample], batch_tokens: int, seed: int) -> Iterator[Batch]:
    """Again and again, in random order."""
    source = random.Random(seed)
    groups: list[list[Sample]] = [[]]
    for sample in sorted(samples, key=lambda each: len(each.token_ids)):
        if groups[-1] and len(sample.token_ids) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(sample)
    while True:
        source.shuffle(groups)
        yield from map(_padded, groups)


def _padded(samples: Sequence[Sample]) -> Batch:
    longest = max(len(sample.token_ids) for sample in samples)
    input_ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    counts = torch.zeros(len(samples), longest, dtype=torch.bool)
    for row, (token_ids, num_prompt_tokens) in enumerate(samples):
        input_ids[row, : len(token_ids)] = torch.tensor(token_ids)
        counts[row, num_prompt_tokens - 1 : len(token_ids) - 1] = True
    return Batch(input_ids, counts)
