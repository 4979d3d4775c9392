"""Trains the demo model on conversations, in padded batches whose ids weigh in the loss."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from deploy.demo_model.conversation import Turn
from deploy.demo_model.tokenizer import BOS, EOS, role_token, token_id

NUM_WARM_UP_STEPS = 60
BATCHES_PER_STEP = 2
FINAL_LR_SHARE = 0.01
PROMPT_WEIGHT = 0.05  # of a prompt in the loss; what the model says weighs 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation; `weights[i]` is the weight of predicting `ids[i]`."""

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations of similar length, padded at the right, where nothing attends to the pads."""

    input_ids: torch.Tensor  # [num_samples, len] int64
    target_ids: torch.Tensor  # [num_samples, len] int64, the id that follows
    weights: torch.Tensor  # [num_samples, len] float32, 0 on pads; about 1 in sum


class SampleEncoder:
    """Writes conversations as the chat template does, but for slips at the start."""

    def __init__(self, tokenizer: Tokenizer, max_len: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._max_len = max_len
        self._rng = Random(seed)
        self._bos = token_id(tokenizer, BOS)
        self._eos = token_id(tokenizer, EOS)

    def encode(self, turns: Sequence[Turn]) -> Sample:
        """At most `max_len` ids; what is longer loses its end.

        A turn weighs as the square root of its length, lest stories drown the sums.
        """
        ids = [self._bos] * self._num_bos(turns)
        weights = [0.0] * len(ids)
        for turn in turns:
            if turn.role != "text":
                ids.append(token_id(self._tokenizer, role_token(turn.role)))
                weights.append(0.0)
            turn_ids = self._tokenizer.encode(turn.text, add_special_tokens=False).ids
            turn_ids.append(self._eos)
            is_prompt = turn.role in ("system", "user")
            weight = (PROMPT_WEIGHT if is_prompt else 1.0) / len(turn_ids) ** 0.5
            ids += turn_ids
            weights += [weight] * len(turn_ids)
        return Sample(ids[: self._max_len], weights[: self._max_len])

    def _num_bos(self, turns: Sequence[Turn]) -> int:
        """Clients forget it before plain text, and write it twice before a templated chat."""
        if turns[0].role == "text":
            return self._rng.choices((0, 1), (25, 75))[0]
        return self._rng.choices((1, 2), (98, 2))[0]


class BatchMaker:
    """Cuts an endless row of conversations into batches of at most `num_tokens` tokens."""

    def __init__(self, encoder: SampleEncoder, pad_id: int, num_tokens: int, pool_len: int) -> None:
        self._encoder = encoder
        self._pad_id = pad_id
        self._num_tokens = num_tokens
        self._pool_len = pool_len  # conversations sorted by length at a time

    def batches(self, conversations: Iterator[tuple[Turn, ...]], seed: int) -> Iterator[Batch]:
        """Short and long batches in random order."""
        rng = Random(seed)
        while True:
            pool = [self._encoder.encode(turns) for turns in islice(conversations, self._pool_len)]
            pool.sort(key=lambda sample: len(sample.ids))
            groups = list(self._groups(pool))
            rng.shuffle(groups)
            total = sum(sum(sample.weights) for sample in pool)
            for group in groups:
                yield self._pad(group, scale=len(groups) / total)

    def _groups(self, pool: list[Sample]) -> Iterator[list[Sample]]:
        group: list[Sample] = []
        for sample in pool:  # by length, so the newest is the longest
            if group and len(sample.ids) * (len(group) + 1) > self._num_tokens:
                yield group
                group = []
            group.append(sample)
        yield group

    def _pad(self, group: list[Sample], scale: float) -> Batch:
        longest = max(len(sample.ids) for sample in group)
        ids = torch.full((len(group), longest), self._pad_id, dtype=torch.int64)
        weights = torch.zeros((len(group), longest), dtype=torch.float32)
        for row, sample in enumerate(group):
            ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
            weights[row, : len(sample.ids)] = torch.tensor(sample.weights)
        return Batch(ids[:, :-1], ids[:, 1:], weights[:, 1:] * scale)


class Trainer:
    """Owns the optimizers; `train` runs all steps and reports on the way."""

    def __init__(
        self, model: LlamaForCausalLM, batches: Iterator[Batch], num_steps: int, max_lr: float
    ) -> None:
        self._model = model
        self._batches = batches
        self._num_steps = num_steps
        self._max_lr = max_lr
        # After 200 steps the held-out loss was 0.65 so, and 1.15 with AdamW alone. Muon is not made
        # for embeddings.
        matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
        others = [p for p in model.model.layers.parameters() if p.dim() != 2]
        others += [model.model.embed_tokens.weight, model.model.norm.weight]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
        )

    def train(self, report_every: int, report: Callable[[int], None]) -> None:
        """Run all steps; `report` is called with the number of steps done."""
        started, losses = time.monotonic(), list[float]()
        self._model.train()
        for step in range(1, self._num_steps + 1):
            losses.append(self._step(self._lr(step)))
            if step % report_every == 0 or step == self._num_steps:
                elapsed_s = time.monotonic() - started
                mean = sum(losses) / len(losses)
                print(
                    f"step {step}/{self._num_steps}, loss {mean:.4f}, {elapsed_s:.0f} s", flush=True
                )
                losses.clear()
                self._model.train(mode=False)
                report(step)
                self._model.train()

    def _lr(self, step: int) -> float:
        warm_up = min(1.0, step / NUM_WARM_UP_STEPS)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self._num_steps))
        return self._max_lr * warm_up * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)

    def _step(self, lr: float) -> float:
        """One update from a few batches, so that short and long texts mix; returns its loss."""
        total_loss = 0.0
        for _ in range(BATCHES_PER_STEP):
            loss = self._loss(next(self._batches)) / BATCHES_PER_STEP
            loss.backward()  # type: ignore[no-untyped-call]
            total_loss += loss.item()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
        return total_loss

    def _loss(self, batch: Batch) -> torch.Tensor:
        """The weighted sum; logits are computed only where a weight asks for them."""
        counted = batch.weights > 0
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self._model.model(batch.input_ids, use_cache=False).last_hidden_state
            logits = self._model.lm_head(hidden[counted])  # [num_counted, vocab_size]
        losses = functional.cross_entropy(
            logits.float(), batch.target_ids[counted], reduction="none"
        )
        return (losses * batch.weights[counted]).sum()
