"""One of each durable record, with every field that a reader decides by.

The bytes of a released version lie in `golden/<version>` and never change; a field that comes later
has its default in what they are read as.
"""

from __future__ import annotations

import msgspec

from frontend.jobs.stored_response import (
    ConversationRecord,
    RecordOwner,
    ResponseParams,
    StoredResponse,
)
from frontend.stored.batches.batch_record import (
    BatchRecord,
    BatchStatus,
    BatchUsage,
    Counts,
    InputError,
)
from frontend.stored.batches.batch_results import LineResult
from frontend.stored.batches.batch_store import BatchMark
from frontend.stored.files.file_record import UPLOADED, FileRecord
from shared.broker.piece_chain import Piece
from shared.protocol.bills import Bill, BillBatch, UsageHead, UsagePart, UsageSum
from shared.protocol.codec import encode, encode_token_frame
from shared.protocol.dead import Crash, DeadRequest
from shared.protocol.finish import Beam, Cost, Finish, FinishReason, RunFacts
from shared.protocol.hearing_card import HearingCard, TranscriptRule
from shared.protocol.image_sizes import AreaSize, BudgetSize, EdgeSize, FixedSize
from shared.protocol.leases import LeaseRecord, PartitionOwner
from shared.protocol.log_records import Claim, End, Release, Restatement, TokenEntry, TokenFrame
from shared.protocol.model_cards import (
    AdapterCard,
    ClassifierCard,
    EmbeddingCard,
    ModelCard,
    ScoreCard,
    VisionCard,
)
from shared.protocol.prompt_object import PromptData
from shared.protocol.reply import (
    AnswerFormat,
    EncodingFormat,
    ParamKind,
    Payer,
    ReplyParams,
    ScoreMethod,
    Surface,
    TextParams,
    TranscriptFormat,
    TranscriptReply,
)
from shared.protocol.request import (
    EmbedsDtype,
    GenerateRequest,
    GivenOutput,
    ImageSpan,
    KeepPrefix,
    PromptAudio,
    PromptEmbeds,
    Readers,
    RequestGroup,
)
from shared.protocol.role_cards import (
    ChosenParser,
    ChosenParsers,
    GpuCard,
    Incarnation,
    LevelRecord,
    MoveRecord,
    RoleCard,
    ScaleEvent,
    WorkDone,
    WorkerCard,
    WorkerEvent,
    WorkerState,
)
from shared.protocol.sampling import (
    BeamParams,
    EarlyStopping,
    Grammar,
    GrammarKind,
    PoolingKind,
    PoolingParams,
    ProcessorCall,
    SamplingParams,
    SequenceBreaker,
    ThinkingBudget,
)
from shared.protocol.sealed_replies import seal
from shared.protocol.sight_card import SightCard
from shared.protocol.sound_card import SoundCard
from shared.protocol.text import Done
from shared.protocol.tiled_sizes import AnyresSize, CanvasSize, SplitSize, TileMarks, TilesSize
from shared.protocol.token_ids import pack_token_ids
from shared.protocol.trace_context import TraceContext
from shared.protocol.video_card import VideoCard

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
COST = Cost(1.5, 2, 3, 0.5, 1, 0.25, 4.5, 0.75, 1)
FRAMES = {
    "frame": TokenFrame(
        "worker-1",
        3,
        [TokenEntry(RID, 9, 0, [7, 8], FINISH, b"\1", b"\2"), TokenEntry(RID[::-1], 10, 4, [9])],
    ),
    "frame-restated": TokenFrame(
        "worker-1", 4, [TokenEntry(RID, 9, 0, [7], restates=Restatement(3, 2, 5))], 77
    ),
    "frame-cost": TokenFrame("worker-1", 5, [TokenEntry(RID, 9, 1, [7], cost=COST)], 77),
}

# What the examples above leave at its default; together they have a value for every field.
TRACE = TraceContext(f"00-{RID}-0123456789abcdef-01", "a=b")
WHOLE_TEXT = TextParams(("end",), True, 1, False, (3,), (4,))
WHOLE_REPLY = ReplyParams(
    subject="jf.out.frontend-1", surface=Surface.RERANK, model="ad", created=1_790_000_000,
    num_prompt_tokens=3, group_id=RID, choice_idx=1, num_choices=2, num_prompts=2, deadline_s=60.0,
    include_usage=True, continuous_usage=True, tells_token_ids=True, prompt_ids=b"\1\0\0\0",
    tokens_as_ids=True, num_kept=1, hides_logprobs=True, num_beams=2, echo="echo", num_top=2,
    num_prompt_top=1, echo_logprobs=True, owner="owner", frontend_id="frontend-1", kept_at=7,
    encoding_format=EncodingFormat.BASE64, score_method=ScoreMethod.YES_NO, is_shared=True,
    job_class="batch", queue_timeout_s=2.5, has_images=True, trace=TRACE, base_model="m",
    is_list=True, rid="mine", grace_s=5.0, eos_token_ids=(2,),
    answer=AnswerFormat("qwen3_coder", ("now",), "think", True, True,
                        {"now": {"when": ParamKind.JSON}}, 9),
)  # fmt: skip
BY_TOKEN_REPLY = msgspec.structs.replace(WHOLE_REPLY, is_by_token=True)
SOUND_REPLY = msgspec.structs.replace(WHOLE_REPLY, num_audio_tokens=9)
CALLS_REPLY = msgspec.structs.replace(
    REPLY, answer=AnswerFormat("json", ("now",), is_calls_alone=True)
)
TRANSCRIPT_REPLY = msgspec.structs.replace(
    REPLY,
    surface=Surface.TRANSCRIPTION,
    transcript=TranscriptReply(
        TranscriptFormat.SRT,
        TranscriptRule(4123, 2, 4, 440, 444, True),
        41.23,
        0.5,
        "en",
        {"en": 6},
    ),
)
ONE_PIECE_REPLY = msgspec.structs.replace(REPLY, is_whole=True)
WHOLE_SAMPLING = SamplingParams(
    max_tokens=64, seed=7, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=0.1,
    frequency_penalty=0.2, repetition_penalty=1.1, min_tokens=2, ignore_eos=True,
    stop_token_ids=(2,), logit_bias=((5, -1.5),), allowed_token_ids=(5, 6), bad_words=((7, 8),),
    logprobs=2, prompt_logprobs=1, beam=BeamParams(4, 2, 0.5, EarlyStopping.CERTAIN),
    grammar=Grammar(GrammarKind.JSON_SCHEMA, "{}", "llguidance 1", ""), typical_p=0.9,
    xtc_probability=0.5, xtc_threshold=0.2, dynatemp_range=0.5, dynatemp_exponent=2.0,
    dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=3, dry_penalty_last_n=64,
    dry_breakers=(SequenceBreaker(b"\1\0\0\0", (2,)),), penalty_last_n=64,
    samplers=("top_k", "temperature"),
)  # fmt: skip
WHOLE_FINISH = Finish(
    FinishReason.STOP, 2, "message", 3, b"\0\0\x80\x3f",
    (Beam(b"\1\0\0\0", -0.5, FinishReason.LENGTH, "text"),), FINISH.run,
)  # fmt: skip
WHOLE_MODEL = ModelCard(
    "m", "p", "r1", "t1", 2048, 32000, (2,), 1_790_000_000, 0.5, 0.9, 40, 0.1, 1.1, False,
    EmbeddingCard(8, PoolingKind.MEAN, False, True, (4, 8)),
    VisionCard(9, 16, 32, 32, 32, 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    ScoreCard(ScoreMethod.YES_NO, True, False, (5, 6)), "gptq 4-bit", 99, "/models/m", ("r0",),
    (AdapterCard("ad", "a1", 8, 1_790_000_000, "/models/ad"),), False, True,
)  # fmt: skip
WHOLE_WORKER = WorkerCard(
    "worker-1", "p", "m", "r1", WorkerState.LOADING, "load weights", 0.5, 1, 2, 8, 0.25, 9, "host",
    7, 1.5, b"\1", 1, "error", WorkDone(1, 2, 3, 4, 5, 6, 7, 8, 9), 512, 3, 2.5, {"load": 1.5},
    "remark", GpuCard("H", "bfloat16", "bfloat16", "flashinfer", 2, 6, 5, 4, 3, 2), 3, True,
    "avx512", "bfloat16",
)  # fmt: skip
WHOLE_RESPONSE = ResponseParams(
    True, "be kind", 5, {"a": "b"}, "resp_x", False, 1.0, {"format": {}}, 2, 0.9, 3, False,
    {"effort": "low"}, "required", [{"type": "function"}], "auto", {"id": "conv_x"},
)  # fmt: skip
PAYER_REPLY = msgspec.structs.replace(REPLY, payer=Payer("alice", "0123456789ab", {"job": "7"}))
USED = UsageSum(1, 2, 3, 4, 5, 6, 7, 1.5, 2.5, 3.5, 4.5, 8)
BILL = Bill(
    RID, RID, 1_790_000_000.5, FinishReason.STOP, "m", "batch", "owner", "alice", "0123456789ab",
    {"job": "7"}, 9, 8, 7, 6, 5, 4, 1.5, 0.5, 0.75, 0.25, 4.5, "worker-1", "H", 1, 12,
)  # fmt: skip
NAMED_REPLY = msgspec.structs.replace(WHOLE_REPLY, num_logprob_ids=2, prompt_start=1)
MAPS |= {
    "request-whole": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, prompt_ids=b"\1\0\0\0",
        prompt_object="prompt-x", images=(ImageSpan(1, 2, b"digest"),), priority=1, cache_salt="s",
        adapter="a1", pooling=PoolingParams(PoolingKind.LOGITS, False, 4, (5,), 2),
        keep=KeepPrefix(5.0, 3), level=3, session="c", num_public_tokens=1, may_be_copy=True,
    ),
    "request-classes": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1",
        sampling=SamplingParams(0, 0), text=WHOLE_TEXT, deadline_s=60.0, prompt_ids=b"\1\0\0\0",
        reply=seal(WHOLE_REPLY),
        pooling=PoolingParams(PoolingKind.LOGITS, are_independent=True),
    ),
    "request-processors": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1",
        sampling=SamplingParams(
            9, 5, logprobs=1, logprob_ids=(7, 3),
            logits_processors=(ProcessorCall("one"), ProcessorCall("two", '{"a":1}')),
        ),
        text=WHOLE_TEXT, deadline_s=60.0, prompt_ids=b"\1\0\0\0",
        reply=seal(NAMED_REPLY),
    ),
    "request-thinking": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1",
        sampling=SamplingParams(9, 5, thinking=ThinkingBudget(4, (5, 6), 7, True, True)),
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, prompt_ids=b"\1\0\0\0",
    ),
    "request-given": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, prompt_ids=b"\1\0\0\0",
        given=GivenOutput(b"\2\0\0\0", b"\3", b"\4"),
    ),
    "claim-whole": Claim(
        prev=3, worker="worker-1", nonce="n", request_seq=9, ack_subject="$JS.ACK.x",
        tokenizer_hash="t1", text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), pool="p", after_death=True,
        is_alone=True, revision="r1", level=3,
    ),
    "release-whole": Release(4, "worker-1", True, True, "r0", 3),
    "end-whole": End(5, FinishReason.POISON, "worker-1", "message", seal(WHOLE_REPLY), 3),
    "end-calls": End(5, FinishReason.LENGTH, "worker-1", "message", seal(CALLS_REPLY), 3),
    "end-one-piece": End(5, FinishReason.LENGTH, "worker-1", "message", seal(ONE_PIECE_REPLY), 3),
    "done-given": Done(
        RID, b"\1\0\0\0", "t", Finish(FinishReason.LENGTH, run=RunFacts(num_given=1)), None
    ),
    "done-whole": Done(RID, b"\1\0\0\0", "text", WHOLE_FINISH, seal(WHOLE_REPLY), b"\1", b"\2"),
    "claim-billed": Claim(
        prev=3, worker="worker-1", nonce="n", request_seq=9, ack_subject="$JS.ACK.x", pool="p",
        tokenizer_hash="t1", text=TEXT, reply=seal(PAYER_REPLY), device="H", num_given=2, level=4,
    ),
    "release-billed": Release(4, "worker-1", level=4, cost=COST),
    "release-pages": Release(4, "worker-1", progressed=True, level=4, pages="place"),
    "release-cached": Release(4, "worker-1", progressed=True, level=4, num_cached_tokens=3),
    "end-billed": End(5, FinishReason.DEADLINE, "worker-1", level=4, cost=COST),
    "done-billed": Done(RID, b"", "", Finish(FinishReason.CANCEL), None, bill=BILL),
    "bills": BillBatch(2, 1, 2, [BILL]),
    "usage-part": UsagePart("2026-11-28T00:00:00Z", 7, [("o", "t", "k", "m", USED)]),
    "usage-head": UsageHead("2026-11-28T00:00:00Z", 7, {"1": 3}, 2),
    "dead-whole": DeadRequest(
        RID, "p", "batch", "poison", (Crash("worker-1", 1.5, 2.5, True, True),), 1.5, 2.5, b"x",
        "dead/x",
    ),
    "prompt": PromptData(b"\1\0\0\0", (b"pixels",)),
    "piece": Piece(1, 3, b"data"),
    "response-whole": StoredResponse(REPLY, "t1", TEXT, WHOLE_RESPONSE, [{"type": "message"}]),
    "conversation": ConversationRecord(
        RecordOwner("owner", RID), 1_790_000_000, {"a": "b"}, [{"type": "message"}], RID
    ),
    "batch-whole": BatchRecord(
        "batch_" + RID, "owner", "tenant", "/v1/completions", "file-" + RID, "24h", 1.5, 2.5,
        BatchStatus.FAILED, 60.0, {"a": "b"}, (InputError("code", "message", 3, "param"),),
        Counts(3, 2, 1), BatchUsage(1, 2, 3, 4), ("file-a",), "file-b", "file-c",
        1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
    ),
    "batch_mark": BatchMark("owner", "frontend-1"),
    "batch_line": LineResult(3, True, b"{}", "object"),
    "model-whole": WHOLE_MODEL,
    "model-int8-keys": ModelCard("m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000, kv_dtype="int8"),
    "model-int8-activations": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000, activations="int8"
    ),
    "model-states": ModelCard("m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000, keeps_states=True),
    "model-classes": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        classifier=ClassifierCard(("a", "b"), True, False, True),
    ),
    "model-processors": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000, logits_processors=("one", "two")
    ),
    "model-own-sight": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(9, AreaSize(28, 1, 2), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), True),
    ),
    "model-video": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, AreaSize(28, 1, 2), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), True,
            video=VideoCard(
                8, 2, 28, 1, 2, 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 2.0, 4, 768,
                "mark", "begin", "end", 4,
            ),
        ),
    ),
    "model-own-sight-fixed": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, FixedSize(32, 32, 16, 40), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
        ),
    ),
    "model-edge-sight": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, EdgeSize(28, 1540), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6),
            row_end_id=12, last_id=13,
        ),
    ),
    "model-mutual-sight": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, FixedSize(32, 32, 16), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), False, True,
            "mark", "text",
        ),
    ),
    "model-tiles": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, TilesSize(448, 256, 1, 12), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6),
        ),
    ),
    "model-anyres": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, AnyresSize(384, 27, ((384, 768), (768, 384)), 9), 3, 0.5, (0.1, 0.2, 0.3),
            (0.4, 0.5, 0.6),
        ),
    ),
    "model-budget": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, BudgetSize(48, (70, 140)), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6),
        ),
    ),
    "model-canvas": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, CanvasSize(336, 144, 16), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6),
            tile_marks=TileMarks((((), (1,)), ((2, 3),)), (4,), (5, 6), (7,), (8,), (9,)),
        ),
    ),
    "model-split": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        own_sight=SightCard(
            9, SplitSize(512, 64, 2048), 3, 0.5, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6),
            tile_marks=TileMarks((((1,), (2,)),), (4,), (5, 6), (7,)),
        ),
    ),
    "request-sized-image": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, prompt_object="prompt-x",
        images=(ImageSpan(1, 2, b"digest", 28, 56),), level=3,
    ),
    "request-video": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, prompt_object="prompt-x",
        images=(ImageSpan(1, 2, b"digest", 28, 56, 2), ImageSpan(3, 2, b"d", 28, 56, 2, True, 4)),
        level=4,
    ),
    "request-by-token": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(BY_TOKEN_REPLY),
        deadline_s=60.0, pooling=PoolingParams(PoolingKind.LAST, each_token=True), level=4,
    ),
    "request-hidden": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1",
        sampling=msgspec.structs.replace(WHOLE_SAMPLING, hidden_states=True),
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, level=4,
    ),
    "worker-no-hidden": WorkerCard(
        "worker-1", "p", "m", "r1", WorkerState.READY, tells_no_hidden=True
    ),
    "request-embeds": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(WHOLE_REPLY), deadline_s=60.0, prompt_object="prompt-x",
        level=4, embeds=PromptEmbeds(64, EmbedsDtype.BFLOAT16, b"digest"),
    ),
    "request-audio": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(TRANSCRIPT_REPLY), deadline_s=60.0, prompt_ids=b"\1\0\0\0",
        prompt_object="prompt-x", level=4, audio=PromptAudio(4123, b"digest"),
    ),
    "model-hearing": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000,
        hearing=HearingCard(80, 1, 2, 3, 4, 448, 5, {"en": 6}, 7, 8, (9,), (10, 11), 50),
    ),
    "request-sound": GenerateRequest(
        rid=RID, pool="p", model="m", revision="r1", tokenizer_hash="t1", sampling=WHOLE_SAMPLING,
        text=WHOLE_TEXT, reply=seal(SOUND_REPLY), deadline_s=60.0, prompt_object="prompt-x",
        images=(ImageSpan(1, 2, b"digest", num_sound_frames=7),), level=4,
    ),
    "model-sound": ModelCard(
        "m", "p", "r1", "t1", 9, 9, (2,), 1_790_000_000, sound=SoundCard(5, 128, 8, True, 1)
    ),
    "worker-no-embeds": WorkerCard(
        "worker-1", "p", "m", "r1", WorkerState.READY, takes_no_embeds=True
    ),
    "worker-whole": WHOLE_WORKER,
    "worker-dtype": WorkerCard("worker-1", "p", "m", "r1", WorkerState.LOADING, dtype="bfloat16"),
    "worker-no-images": WorkerCard(
        "worker-1", "p", "m", "r1", WorkerState.READY, takes_no_images=True
    ),
    "worker-asleep": WorkerCard("worker-1", "p", "m", "r1", WorkerState.PAUSED, sleep_level=2),
    "worker-decode": WorkerCard(
        "worker-1", "p", "m", "r1", WorkerState.READY, role="decode", pages="place"
    ),
    "worker-sends-pages": WorkerCard(
        "worker-1", "p", "m", "r1", WorkerState.READY,
        sends_pages_at="10.0.0.1:9092", fetches_pages=True,
    ),
    "role-parsers": RoleCard(
        "frontend-1", "frontend",
        parsers={"m": ChosenParsers(ChosenParser("hermes", "why"), ChosenParser("", "why not"))},
    ),
    "role-whole": RoleCard("detok-1", "detok", "host", 7, 1.5, 2, "p", "failure", 3),
    "lease": LeaseRecord("detok-1", "n", 1250, True),
    "partition_owner": PartitionOwner("detok-1", "n"),
    "moved": MoveRecord("jf2", is_over=True),
    "worker_event": WorkerEvent(1.5, "p", "m", "worker-1", "gone", "host", "detail"),
    "scale_event": ScaleEvent(
        1.5, "p", "m", "scaler-1", 1, 2, "reason", 1.5, 1, 2, 3, 4, 5, 0.5, 1.5, 2.5
    ),
    "scale_event-prefill": ScaleEvent(
        1.5, "p", "m", "scaler-1", 1, 2, "reason", 1.5, 1, 2, 3, 4, 5, 0.5, 1.5, 2.5, "prefill"
    ),
    "worker-keeps": WorkerCard(
        "worker-1", "p", "m", "r1", WorkerState.READY, role="prefill", num_kept=2
    ),
}  # fmt: skip


def written() -> dict[str, bytes]:
    """As this build writes them."""
    return {
        **{name: encode(message) for name, message in MAPS.items()},
        **{name: encode_token_frame(frame) for name, frame in FRAMES.items()},
    }
