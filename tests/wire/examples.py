"""One of each durable record, with every field that a reader decides by.

The bytes of a released version lie in `golden/<version>` and never change; a field that comes later
has its default in what they are read as.
"""

from __future__ import annotations

import msgspec

from frontend.jobs.stored_response import ResponseParams, StoredResponse
from frontend.stored.batches.batch_record import BatchRecord, BatchStatus, Counts
from frontend.stored.files.file_record import UPLOADED, FileRecord
from shared.protocol.codec import encode, encode_token_frame
from shared.protocol.dead import DeadRequest
from shared.protocol.finish import Finish, FinishReason, RunFacts
from shared.protocol.log_records import Claim, End, Release, TokenEntry, TokenFrame
from shared.protocol.model_cards import ModelCard
from shared.protocol.reply import AnswerFormat, ReplyParams, Surface, TextParams
from shared.protocol.request import GenerateRequest, Readers, RequestGroup
from shared.protocol.role_cards import Incarnation, LevelRecord, RoleCard, WorkerCard, WorkerState
from shared.protocol.sampling import SamplingParams
from shared.protocol.sealed_replies import seal
from shared.protocol.text import Done
from shared.protocol.token_ids import pack_token_ids

VERSION = "v2"
RID = "0123456789abcdef0123456789abcdef"

REPLY = ReplyParams(
    subject="jf.out.frontend-1",
    surface=Surface.CHAT,
    model="m",
    created=1_790_000_000,
    num_prompt_tokens=3,
    group_id=RID,
    choice_idx=1,
    num_choices=2,
    deadline_s=60.0,
    include_usage=True,
    num_top=2,
    owner="owner",
    frontend_id="frontend-1",
    kept_at=7,
    is_shared=True,
    answer=AnswerFormat(tools="hermes", tool_names=("now",)),
    grace_s=5.0,
)
TEXT = TextParams(stop=("\n\n", "ende"), min_tokens=2, prompt_tail=(5, 6))
REQUEST = GenerateRequest(
    rid=RID,
    pool="m-00000000",
    model="m",
    revision="r1",
    tokenizer_hash="t1",
    sampling=SamplingParams(
        max_tokens=64, seed=(1 << 64) - 1, temperature=0.5, stop_token_ids=(2,)
    ),
    text=TEXT,
    reply=seal(REPLY),
    deadline_s=60.0,
    prompt_ids=pack_token_ids([1, 5, 6]),
    priority=-1,
    cache_salt="s",
    session="c1",
)
FINISH = Finish(FinishReason.STOP, "ende", None, 2, run=RunFacts(("worker-1",), 0.5, 0.25, 1.5))

MAPS: dict[str, msgspec.Struct] = {
    "request": REQUEST,
    "claim": Claim(
        prev=3, worker="worker-1", nonce="n", request_seq=9, ack_subject="$JS.ACK.x", pool="p",
        tokenizer_hash="t1", text=TEXT, reply=seal(REPLY), after_death=True, revision="r1",
    ),
    "release": Release(prev=4, worker="worker-1", progressed=True, crashed=True, pinned="r0"),
    "end": End(5, FinishReason.WEIGHTS_REPLACED, "worker-1", "message", seal(REPLY)),
    "done": Done(RID, pack_token_ids([7, 8]), "Grüße 🙂", FINISH, seal(REPLY), b"\1\2", b"\3"),
    "dead": DeadRequest(RID, "p", "batch", "poison", (), 1.5, 2.5, encode(REQUEST), "dead/x"),
    "group": RequestGroup(RID, "fingerprint", 1_790_000_000, "frontend-1"),
    "readers": Readers(("frontend-1", "frontend-2"), "frontend-3"),
    "response": StoredResponse(
        REPLY, "t1", TEXT,
        ResponseParams(
            background=True, instructions=None, max_output_tokens=5, metadata={"a": "b"},
            previous_response_id=None, store=True, temperature=1.0, text={"format": {}},
            top_logprobs=0, top_p=1.0,
        ),
        [{"type": "message", "role": "user", "content": "Hi"}],
    ),
    "batch": BatchRecord(
        "batch_" + RID, "owner", "tenant", "/v1/completions", "file-" + RID, "24h", 1.5, 2.5,
        BatchStatus.FINALIZING, counts=Counts(3, 2, 1), files=("file-a",),
    ),
    "file": FileRecord("file-" + RID, "owner", "a.jsonl", UPLOADED, 12, 1.5, 2.5),
    "model": ModelCard("m", "p", "r1", "t1", 2048, 32000, (2,), 1_790_000_000),
    "worker": WorkerCard("worker-1", "p", "m", "r1", WorkerState.READY),
    "role": RoleCard("frontend-1", "frontend"),
    "level": LevelRecord(2, is_held=True),
    "incarnation": Incarnation("i", 2, "jf", 4, {"jf_TOKENS": "2026-11-22T00:00:00Z"}),
}  # fmt: skip
FRAME = TokenFrame(
    "worker-1",
    3,
    [TokenEntry(RID, 9, 0, [7, 8], FINISH, b"\1", b"\2"), TokenEntry(RID[::-1], 10, 4, [9])],
)


def written() -> dict[str, bytes]:
    """As this build writes them."""
    return {
        **{name: encode(message) for name, message in MAPS.items()},
        "frame": encode_token_frame(FRAME),
    }
