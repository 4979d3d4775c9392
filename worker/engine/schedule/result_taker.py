"""Takes what a step has computed, and tells what it means for each of its requests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from shared.protocol.finish import Finish, FinishReason
from worker.engine.request.req import Req, ReqStatus
from worker.engine.request.schedule_batch import ScheduleBatch, ScheduledReq
from worker.engine.request.step_result import SampleError, StepResult
from worker.engine.schedule.live_reqs import LiveReqs
from worker.engine.speculation.drafter import Drafter
from worker.engine_link.engine_messages import NUM_DRAFT_POSITIONS, RunOutput

Sample = tuple[int | SampleError, bytes]  # a token and its logprobs


class DraftCounts:
    """The counts of all guesses, since start."""

    def __init__(self) -> None:
        self.num_drafted = 0
        self.num_accepted = 0  # the right ones
        self.accepted_by_position = [0] * NUM_DRAFT_POSITIONS  # the first guess of a step is 0

    def add(self, num_drafted: int, num_accepted: int) -> None:
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        for position in range(min(num_accepted, NUM_DRAFT_POSITIONS)):
            self.accepted_by_position[position] += 1


class ResultTaker:
    """Appends tokens, and ends who has its last one."""

    def __init__(self, reqs: LiveReqs, drafter: Drafter | None) -> None:
        self._reqs = reqs
        self._drafter = drafter
        self.draft_counts = DraftCounts()

    def take(self, batch: ScheduleBatch, result: StepResult) -> list[RunOutput]:
        """Steps are taken in the order in which they were launched."""
        samples = zip(result.token_ids, result.logprobs or itertools.repeat(b""), strict=False)
        plain_samples = list(itertools.islice(samples, batch.num_plain))
        outputs = self._take_plain(batch.entries[: batch.num_plain], plain_samples)
        for entry in batch.others:
            entry_samples = list(itertools.islice(samples, entry.num_samples))
            output = self._take_other(entry, entry_samples, result)
            if output is not None:
                outputs.append(output)
        return outputs

    def _take_plain(self, entries: list[ScheduledReq], samples: list[Sample]) -> list[RunOutput]:
        """One token each: what nearly every request does in nearly every step."""
        outputs: list[RunOutput] = []
        leaving = self._reqs.leaving
        for entry, (token_id, logprobs) in zip(entries, samples, strict=True):
            req = entry.req
            req.num_in_flight -= 1
            req.num_awaited -= 1
            if leaving and req in leaving:
                self._reqs.maybe_release(req)
                continue
            req.num_computed = entry.end
            if isinstance(token_id, SampleError):
                outputs.append(RunOutput(req.run_id, [], self._fail(req, token_id)))
                continue
            ending: Finish | None = None
            if req.goes_on_behind(token_id):
                req.token_ids.append(token_id)
            else:
                ending = self._append(req, token_id)
            outputs.append(RunOutput(req.run_id, [token_id], ending, logprobs))
        return outputs

    def _take_other(
        self, entry: ScheduledReq, samples: list[Sample], result: StepResult
    ) -> RunOutput | None:
        """A chunk of a prefill, or a decode with guesses. None: there is nothing to tell yet."""
        req = entry.req
        req.num_in_flight -= entry.num_tokens
        req.num_awaited -= entry.num_samples > 0
        if req in self._reqs.leaving:
            self._reqs.maybe_release(req)
            return None
        if samples:
            self._reqs.pending_prefixes.discard(req)
        req.num_computed = entry.end - len(entry.draft_ids)
        error = self._take_prompt_logprobs(entry, result)
        if error is not None:
            return RunOutput(req.run_id, [], self._fail(req, error))
        output: RunOutput | None = None
        if samples:
            output = self._take_samples(entry, samples)
        elif entry.gives_embedding:
            output = self._take_embedding(req, result.embeddings[req.run_id])
        if entry.draft_ids and self._drafter is not None:
            assert output is not None, "a decode has a sample"
            num_accepted = max(0, len(output.token_ids) - 1)
            self.draft_counts.add(len(entry.draft_ids), num_accepted)
            self._drafter.on_result(req, len(entry.draft_ids), num_accepted)
        elif req.status is ReqStatus.RUNNING:
            self._reqs.commit(req)
        return output

    def _take_prompt_logprobs(self, entry: ScheduledReq, result: StepResult) -> SampleError | None:
        """Takes those of a chunk of the prompt, where they are wanted."""
        req = entry.req
        if req.num_prompt_top is None:
            return None
        records = result.prompt_logprobs[req.run_id]
        if isinstance(records, SampleError):
            return records
        req.add_prompt_logprobs(entry.start, records)
        return None

    def _take_samples(self, entry: ScheduledReq, samples: Sequence[Sample]) -> RunOutput:
        """Tokens and their logprobs, and at first those of the prompt."""
        req = entry.req
        prompt_logprobs = b"" if req.num_prompt_top is None else req.take_prompt_logprobs()
        if req.sampling.max_tokens == 0:  # only its prompt was to be scored
            self._reqs.end(req)
            finish = with_cached_tokens(Finish(FinishReason.LENGTH), req)
            return RunOutput(req.run_id, [], finish, prompt_logprobs=prompt_logprobs)
        num_before = req.num_tokens
        ending = self._append_samples(entry, [token_id for token_id, _ in samples])
        taken_ids = req.token_ids[num_before:].tolist()
        logprobs = b"".join(records for _, records in samples[: len(taken_ids)])
        return RunOutput(req.run_id, taken_ids, ending, logprobs, prompt_logprobs)

    def _append_samples(
        self, entry: ScheduledReq, sampled_ids: Sequence[int | SampleError]
    ) -> Finish | None:
        """A sampled token counts when all drafts before it are what was sampled there.

        By then the keys and values of these drafts are in the pool; of the others they are not
        counted, and will be overwritten.
        """
        req = entry.req
        for token_id, draft_id in itertools.zip_longest(sampled_ids, entry.draft_ids):
            if isinstance(token_id, SampleError):
                return self._fail(req, token_id)
            ending = self._append(req, token_id)
            if ending is not None:
                return ending
            if token_id != draft_id:
                break
            req.num_computed += 1
        return None

    def _append(self, req: Req, token_id: int) -> Finish | None:
        req.append(token_id)
        ending = req.finish_by_tokens()
        if ending is None:
            return None
        self._reqs.end(req)
        return with_cached_tokens(ending, req)

    def _fail(self, req: Req, error: SampleError) -> Finish:
        self._reqs.end(req, keep=error is not SampleError.NOT_A_NUMBER)
        return Finish(FinishReason.ERROR, message=req.fault or error.value)

    def _take_embedding(self, req: Req, embedding: bytes | SampleError) -> RunOutput:
        if isinstance(embedding, SampleError):
            return RunOutput(req.run_id, [], self._fail(req, embedding))
        self._reqs.end(req)
        finish = Finish(FinishReason.STOP, embedding=embedding)
        return RunOutput(req.run_id, [], with_cached_tokens(finish, req))


def with_cached_tokens(finish: Finish, req: Req) -> Finish:
    """Adds how much of the prompt came from the cache, and hidden states where they are wanted."""
    finish = msgspec.structs.replace(finish, num_cached_tokens=req.num_cached_tokens or 0)
    if not req.sampling.hidden_states:
        return finish
    num_rows = req.num_tokens - (req.num_output_tokens > 0)
    return msgspec.structs.replace(finish, embedding=b"".join(req.token_vectors[:num_rows]))
