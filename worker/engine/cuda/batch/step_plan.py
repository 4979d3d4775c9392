"""One step as the host plans it for a GPU: integers that travel in one piece."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.token_ranges import Ints, ranges_before

MIN_CHUNKS = 4
TOKENS_PER_CHUNK = 8  # on average, at least

NOT_AWAITED = -1


class StepShape(NamedTuple):
    """How large a step is, or the steps that a CUDA graph runs.

    Rows are requests: those that decode first, then chunks of several tokens.
    """

    num_tokens: int
    num_rows: int
    num_decode: int

    @classmethod
    def of_decode(cls, num_rows: int) -> Self:
        """The shape of a graph for rows of one token."""
        return cls(num_rows, num_rows, num_rows)

    @classmethod
    def of_tokens(cls, num_tokens: int, max_running: int) -> Self:
        """The shape of a graph for any rows of no more tokens together, the last one padding.

        Rows that no request has cost little, but not nothing: chunks of prefill are few, guesses
        make small ones.
        """
        num_decode = min(num_tokens, max_running)
        num_chunks = min(max_running, max(MIN_CHUNKS, num_tokens // TOKENS_PER_CHUNK))
        return cls(num_tokens, num_decode + num_chunks + 1, num_decode)

    @property
    def is_decode(self) -> bool:
        return self.num_decode == self.num_rows

    def has_room(self, other: StepShape) -> bool:
        """As a graph, for a step. Its tokens may be too many for a row of padding beside it."""
        num_padding_rows = 0 if self.is_decode else 1
        num_chunks = self.num_rows - self.num_decode - num_padding_rows
        return (
            other.num_tokens <= self.num_tokens
            and other.num_decode <= self.num_decode
            and other.num_rows - other.num_decode <= num_chunks
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows are requests: those that decode first, then prefill chunks. Tokens follow the rows."""

    num_decode: int  # rows of one token each
    rows: Ints  # [num_rows], of the page table
    query_lens: Ints  # [num_rows]
    seq_lens: Ints  # [num_rows], tokens of each in the KV pool after this step
    input_ids: Ints  # [num_tokens], anything where one is awaited
    positions: Ints  # [num_tokens]
    awaited_rows: Ints  # [num_tokens], whose last token is the input; NOT_AWAITED
    sample_idx: Ints  # [num_samples], into the tokens
    sample_rows: Ints  # [num_samples], of the page table
    sample_positions: Ints  # [num_samples], of the tokens to be chosen

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_samples(self) -> int:
        return len(self.sample_idx)

    @property
    def shape(self) -> StepShape:
        return StepShape(self.num_tokens, len(self.rows), self.num_decode)

    @property
    def is_decode(self) -> bool:
        """Each row has one token, and a sample behind it."""
        return self.num_decode == len(self.rows) == len(self.sample_idx)

    def part(self, begin: int, end: int) -> Self:
        """Tokens [begin, end) alone: of a row that is cut, a chunk."""
        row_ends = self.query_lens.cumsum()
        row_begins = row_ends - self.query_lens
        first, last = row_ends.searchsorted(begin, "right"), row_begins.searchsorted(end)
        rows = slice(int(first), int(last))
        cut_ends = row_ends[rows].clip(max=end)
        samples = slice(*self.sample_idx.searchsorted([begin, end]).tolist())
        return type(self)(
            num_decode=max(0, min(self.num_decode, rows.stop) - rows.start),
            rows=self.rows[rows],
            query_lens=cut_ends - row_begins[rows].clip(min=begin),
            seq_lens=self.seq_lens[rows] - (row_ends[rows] - cut_ends),
            input_ids=self.input_ids[begin:end],
            positions=self.positions[begin:end],
            awaited_rows=self.awaited_rows[begin:end],
            sample_idx=self.sample_idx[samples] - begin,
            sample_rows=self.sample_rows[samples],
            sample_positions=self.sample_positions[samples],
        )

    def padded(self, shape: StepShape, padding_row: int) -> Self:
        """The plan as a graph with more room takes it: with rows of nobody and tokens of padding.

        Those are rows of one token, or all together a chunk. Nobody reads what they write or give.
        """
        if shape == self.shape:
            return self
        num_rows, num_missing = len(self.rows), shape.num_tokens - self.num_tokens
        places = np.arange(num_rows)
        places[self.num_decode :] += shape.num_decode - self.num_decode
        if shape.is_decode:
            padding_lens = np.ones(num_missing, np.int64)
            padding_places = np.arange(num_rows, shape.num_rows)
        else:
            padding_lens = np.array([num_missing])
            padding_places = np.array([shape.num_rows - 1])

        def spread(values: Ints, padding: Ints, absent: int = 0) -> Ints:
            result = np.full(shape.num_rows, absent, np.int64)
            result[places], result[padding_places] = values, padding
            return result

        def extend(values: Ints, padding: Ints | int) -> Ints:
            result = np.empty(shape.num_tokens, np.int64)
            result[: len(values)], result[len(values) :] = values, padding
            return result

        ends = padding_lens.cumsum()
        return dataclasses.replace(
            self,
            num_decode=shape.num_decode,
            rows=spread(self.rows, np.full(len(padding_lens), padding_row), padding_row),
            query_lens=spread(self.query_lens, padding_lens),
            seq_lens=spread(self.seq_lens, padding_lens),
            input_ids=extend(self.input_ids, 0),
            positions=extend(self.positions, ranges_before(padding_lens, padding_lens, ends)),
            awaited_rows=extend(self.awaited_rows, NOT_AWAITED),
        )

    @classmethod
    def empty(cls) -> Self:
        """The plan of a step without requests, which can be padded."""
        return cls(0, *(np.zeros(0, np.int64) for _ in range(9)))

    @classmethod
    def prefill(cls, num_tokens: int, max_len: int) -> Self:
        """The plan of a step that reads prompts as long as possible, and nothing else."""
        lens = np.full(-(-num_tokens // max_len), max_len, np.int64)
        lens[-1] -= lens.sum() - num_tokens
        return cls(
            num_decode=0,
            rows=np.arange(len(lens)),
            query_lens=lens,
            seq_lens=lens,
            input_ids=np.zeros(num_tokens, np.int64),
            positions=ranges_before(lens, lens, lens.cumsum()),
            awaited_rows=np.full(num_tokens, NOT_AWAITED, np.int64),
            sample_idx=np.zeros(0, np.int64),
            sample_rows=np.zeros(0, np.int64),
            sample_positions=np.zeros(0, np.int64),
        )

    @classmethod
    def of(cls, batch: ScheduleBatch) -> Self:
        entries, others, num_plain = batch.entries, batch.others, batch.num_plain
        ends = np.array([entry.end for entry in entries], np.int64)
        rows = np.array([entry.req.row for entry in entries], np.int64)
        query_lens, num_samples = np.ones((2, len(entries)), np.int64)
        query_lens[num_plain:] = [entry.end - entry.start for entry in others]
        num_samples[num_plain:] = [entry.num_samples for entry in others]
        token_ends, sample_ends = query_lens.cumsum(), num_samples.cumsum()
        input_ids = [entry.req.token_ids[-1] for entry in entries[:num_plain]]
        for entry in others:
            input_ids += entry.input_ids
        awaited_rows = np.full(int(token_ends[-1]), NOT_AWAITED, np.int64)
        if batch.may_await:
            is_awaited = np.array([entry.has_awaited_input for entry in entries])
            awaited_rows[token_ends[is_awaited] - 1] = rows[is_awaited]
        num_decode = num_plain
        while num_decode < len(entries) and query_lens[num_decode] == 1:
            num_decode += 1
        return cls(
            num_decode=num_decode,
            rows=rows,
            query_lens=query_lens,
            seq_lens=ends,
            input_ids=np.array(input_ids, np.int64),
            positions=ranges_before(ends, query_lens, token_ends),
            awaited_rows=awaited_rows,
            sample_idx=ranges_before(token_ends, num_samples, sample_ends),
            sample_rows=rows.repeat(num_samples),
            sample_positions=ranges_before(ends + 1, num_samples, sample_ends),
        )
