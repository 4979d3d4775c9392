"""Runs a planned step: tensors, model, sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from worker.engine.cache.req_to_token_pool import PageTables
from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.stream_pool import StreamPool
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.images import ImageEncoder, image_spans
from worker.engine.layers.state_layer import StepStates
from worker.engine.lora.lora_projection import LoraProjections, LoraWeights
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.model import ImageRows, Model
from worker.engine.models.recurrent.state_cache import StateCache
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint, ScheduleBatch
from worker.engine.request.step_result import DoneStep, SampleError, StepHandle, StepResult
from worker.engine.sampling.pooler import Pooler
from worker.engine.sampling.prompt_scores import score_prompts
from worker.engine.sampling.sampler import Sampler, Samples
from worker.engine.sampling.sampling_batch import StepSampling


class Forward(Protocol):
    """A model together with its keys and values: what a step computes."""

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """[num_tokens, hidden_size], of whatever float type: what the last norm gives."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of any rows: [num_rows, hidden_size] -> [num_rows, num_outputs] float32."""
        ...

    def lora_projections(self, weights: LoraWeights) -> LoraProjections:
        """An adapter's, as `hidden` looks for them. Raises ConfigError."""
        ...


class ModelRunner:
    """Turns a `ScheduleBatch` into tokens for its sample points, and embeddings of its prompts."""

    def __init__(
        self,
        forward: Forward,
        kv_cache_pool: KVCachePool,
        tables: PageTables,
        num_outputs: int,  # of the model's head: the tokens to choose from
        grammars: GrammarBackend | None = None,
        image_encoder: ImageEncoder | None = None,
        states: StateCache | None = None,
    ) -> None:
        self._forward = forward
        self._kv_cache_pool = kv_cache_pool
        self._tables = tables
        self._sampling = StepSampling(num_outputs, grammars)
        self._image_encoder = image_encoder
        self._states = states
        self._sampler = Sampler(num_outputs)
        self._pooler = Pooler()
        # The token chosen last, by request: input of a step planned before it is known.
        self._last_token_ids: dict[Req, int | SampleError] = {}

    @torch.inference_mode()
    def launch(self, batch: ScheduleBatch) -> StepHandle:
        """Computes it at once: a CPU has nothing to do meanwhile."""
        self._kv_cache_pool.wipe(batch.fresh_pages, batch.fresh_window_pages)
        eyes = self._image_encoder
        forward_batch = ForwardBatch.from_schedule_batch(
            batch,
            self._tables,
            self._kv_cache_pool.page_size,
            self._last_token_ids,
            (() if eyes is None else eyes.rows(image_spans(batch))) + _given_rows(batch),
            None if self._states is None else _states_of(self._states, batch),
            None if eyes is None else eyes.axis_positions(batch),
            None if eyes is None else eyes.reach(batch),
        )
        hidden = self._forward.hidden(forward_batch)
        prompt_logprobs = score_prompts(self._forward.logits, hidden, batch)
        embeddings = self._pooler.forward(hidden, batch, self._forward.logits)
        points = batch.sample_points
        if not points:
            return DoneStep(StepResult([], (), prompt_logprobs, embeddings))
        logits = self._forward.logits(hidden[forward_batch.sample_idx])
        step = _HostStep(lambda: self._choose(logits, points), prompt_logprobs, embeddings)
        if not batch.chooses_late:
            step.choose()
        return step

    def _choose(self, logits: torch.Tensor, points: Sequence[SamplePoint]) -> Samples:
        """`logits` [num_points, num_outputs] float32, overwritten."""
        sampling = self._sampling.batch(points)
        samples = self._sampler.forward(logits, sampling)
        self._last_token_ids = dict(zip(sampling.params.reqs, samples.token_ids, strict=True))
        return samples


class _HostStep:
    """The handle of a step that is computed, and has tokens to choose."""

    def __init__(
        self,
        choose: Callable[[], Samples],
        prompt_logprobs: Mapping[int, bytes | SampleError],
        embeddings: Mapping[int, bytes | SampleError],
    ) -> None:
        self._choose = choose
        self._prompt_logprobs = prompt_logprobs
        self._embeddings = embeddings
        self._samples: Samples | None = None

    @torch.inference_mode()
    def choose(self) -> None:
        self._samples = self._choose()

    def collect(self) -> StepResult:
        samples = self._samples
        assert samples is not None, "it has not chosen"
        return StepResult(
            samples.token_ids, samples.logprobs, self._prompt_logprobs, self._embeddings
        )


class TorchForward:
    """A model in torch: plans attention once a step, then runs the model."""

    def __init__(self, model: Model, attention: TorchAttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        self._attention.plan(batch)
        return self._model.hidden(batch, self._attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden).float()

    def lora_projections(self, weights: LoraWeights) -> LoraProjections:
        return self._model.lora_projections(weights)


class StreamingForward(TorchForward):
    """Keeps the streams of each token for a head that guesses."""

    def __init__(
        self, model: DecoderModel, attention: TorchAttentionBackend, streams: StreamPool
    ) -> None:
        super().__init__(model, attention)
        self._decoder = model
        self._streams = streams

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        self._attention.plan(batch)
        hidden, streams = self._decoder.hidden_and_streams(
            batch, self._attention, self._streams.layers
        )
        self._streams.write(batch.out_loc, torch.cat(streams, dim=1))
        return hidden

    def embeddings(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        return self._decoder.embeddings(input_ids)


def _states_of(cache: StateCache, batch: ScheduleBatch) -> StepStates:
    plan = cache.plan(batch)
    cache.prepare(plan)
    return cache.states(plan)


def _given_rows(batch: ScheduleBatch) -> tuple[ImageRows, ...]:
    """The rows of the chunks whose requests have embeddings in the place of tokens."""
    found: list[ImageRows] = []
    shift = batch.num_plain  # decoding requests are past their prompts
    for entry in batch.others:
        embeds = entry.req.embeds
        end = 0 if embeds is None else min(entry.end, embeds.num_rows)
        if embeds is not None and entry.start < end:
            places = torch.arange(shift, shift + end - entry.start)
            values = torch.tensor(embeds.values(entry.start, end))
            found.append(ImageRows(places, values[None]))
        shift += entry.num_tokens
    return tuple(found)
