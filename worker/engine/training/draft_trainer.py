"""Trains what guesses for a model: a student learns to say what the model says."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from shared.errors import ConfigError
from worker.engine.training.answers import Sample, answered, read_prompts
from worker.engine.training.eagle_student import EagleStudent
from worker.engine.training.layers_student import LayersStudent
from worker.engine.training.mtp_student import MtpStudent
from worker.engine.training.student import Batch, Student, Teacher
from worker.engine_link.train_config import TrainConfig

HELD_OUT_SHARE = 1 / 16  # of the prompts, which nothing is learnt from
REPORT_EVERY = 50  # steps
NUM_WARM_UP_STEPS = 20
FINAL_LR_SHARE = 0.02


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
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)
    student = _make_student(config, samples[num_held_out:])
    train(student, config, samples[num_held_out:], report)
    loss, share = evaluate(student, samples[:num_held_out])
    told = student.save(out)
    num_parameters = sum(each.numel() for each in student.module.parameters())
    report(
        f"{num_parameters / 1e6:.2f} million parameters in {out}, after "
        f"{time.monotonic() - started_s:.0f} s; of {num_held_out} answers that it has not seen, it "
        f"finds {share:.1%} of the likeliest tokens (loss {loss:.3f}): "
        f"jetflock serve {told}"
    )


def train(
    student: Student,
    config: TrainConfig,
    samples: Sequence[Sample],
    report: Callable[[str], None],
) -> None:
    """Trains the student by the answers, in batches of similar length."""
    losses: list[float] = []
    parameters = [*student.module.parameters()]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.0)
    batches = _batches(samples, config.batch_tokens, config.seed)
    student.module.train()
    for step in range(1, config.num_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = config.max_lr * _lr_share(step, config.num_steps)
        loss, _ = student.loss(next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % REPORT_EVERY == 0 or step == config.num_steps:
            report(f"step {step}/{config.num_steps}, loss {sum(losses) / len(losses):.4f}")
            losses.clear()
    student.module.eval()


@torch.no_grad()
def evaluate(student: Student, samples: Sequence[Sample]) -> tuple[float, float]:
    """Mean loss, and how often both models find the same token likeliest."""
    told = [student.loss(_padded([sample])) for sample in samples]
    losses, shares = zip(*((float(loss), share) for loss, share in told), strict=True)
    return sum(losses) / len(told), sum(shares) / len(told)


def _make_student(config: TrainConfig, samples: Sequence[Sample]) -> Student:
    """Raises ConfigError."""
    teacher = Teacher(Path(config.model_path))
    if config.kind == "model":
        return LayersStudent(teacher, config.num_layers)
    if config.num_layers != 1:
        raise ConfigError(f"num_layers={config.num_layers} is not possible: a head has one")
    if config.kind == "mtp":
        return MtpStudent(teacher)
    return EagleStudent(teacher, [sample.token_ids for sample in samples])


def _lr_share(step: int, num_steps: int) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return min(1.0, step / NUM_WARM_UP_STEPS) * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


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
