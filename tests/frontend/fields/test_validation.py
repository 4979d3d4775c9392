"""Every field: what is taken, and what is refused with which status, param and code."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from frontend.fields.request_body import IGNORED, parse_object
from frontend.jobs.job import Caller, Job
from frontend.models.chat_template import ChatTemplate
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.chat.chat_request import ChatBody
from shared.errors import InvalidRequest, RequestError
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import ProcessorCall
from shared.protocol.sealed_replies import unseal
from shared.protocol.token_ids import unpack_token_ids
from shared.subjects import choice_rid
from tests.frontend.directory import AllRequests, make_directory
from tests.frontend.tiny_model import BOS, IM_END, IM_START, VOCAB_SIZE, make_tokenizer

RID = "0" * 32


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hi", **fields}


def requests_of(job: Job, caller: Caller | None = None) -> list[GenerateRequest]:
    made = job.requests(
        RID,
        caller or Caller(),
        created=int(time.time()),
        subject="jf.out.f",
        frontend_id="f",
        max_logprob_bytes=100_000,
        cache_salt=job.sampling.cache_salt,
    )
    return [each.request for each in made]


async def chat(**fields: Any) -> GenerateRequest:
    (request,) = requests_of(
        await AllRequests(make_directory()).chat.job(chat_body(**fields), Caller())
    )
    return request


async def completion(**fields: Any) -> list[GenerateRequest]:
    requests = AllRequests(make_directory()).completions
    return requests_of(await requests.job(completion_body(**fields), Caller()))


async def assert_refused(
    kind: str, body: dict[str, Any], status: int, param: str | None, code: str, words: str = ""
) -> None:
    requests = getattr(AllRequests(make_directory("tiny", max_context_len=64)), kind)
    with pytest.raises(RequestError) as caught:
        requests_of(await requests.job(body, Caller()))
    error = caught.value
    assert (error.status_code, error.param, error.code) == (status, param, code), error.message
    assert words in error.message
    if param is not None and param != "Last-Event-ID":
        assert (
            param.split("[")[0].split(".")[0] in error.message or code == "context_length_exceeded"
        )


BAD_SAMPLING: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "invalid_value"),
    ("temperature", 2.1, "invalid_value"),
    ("temperature", "hot", "invalid_type"),
    ("temperature", True, "invalid_type"),
    ("top_p", 0, "invalid_value"),
    ("top_p", 1.01, "invalid_value"),
    ("top_k", -2, "invalid_value"),
    ("top_k", 1.5, "invalid_type"),
    ("min_p", -0.1, "invalid_value"),
    ("min_p", 1.1, "invalid_value"),
    ("presence_penalty", -2.1, "invalid_value"),
    ("presence_penalty", 2.1, "invalid_value"),
    ("frequency_penalty", 3, "invalid_value"),
    ("repetition_penalty", 0, "invalid_value"),
    ("repetition_penalty", 11, "invalid_value"),
    ("max_tokens", 0, "invalid_value"),
    ("max_tokens", -1, "invalid_value"),
    ("max_tokens", "many", "invalid_type"),
    ("min_tokens", -1, "invalid_value"),
    ("n", 0, "invalid_value"),
    ("n", 17, "invalid_value"),
    ("seed", 1 << 64, "invalid_value"),
    ("seed", -(1 << 63) - 1, "invalid_value"),
    ("seed", "x", "invalid_type"),
    ("stop", [""], "invalid_value"),
    ("stop", "", "invalid_value"),
    ("stop", ["a"] * 17, "invalid_value"),
    ("stop", "x" * 1025, "invalid_value"),
    ("stop", 5, "invalid_type"),
    ("stop", ["a", 5], "invalid_type"),
    ("stop_token_ids", [-1], "invalid_value"),
    ("stop_token_ids", [VOCAB_SIZE], "invalid_value"),
    ("stop_token_ids", ["a"], "invalid_type"),
    ("ignore_eos", "yes", "invalid_type"),
    ("stream", "yes", "invalid_type"),
    ("cache_salt", "", "invalid_value"),
    ("cache_salt", "x" * 257, "invalid_value"),
    ("cache_salt", 5, "invalid_type"),
    ("detokenize", False, "unsupported_parameter"),
    ("logit_bias", {"x": 1}, "invalid_value"),
    ("logit_bias", {"-1": 1}, "invalid_value"),
    ("logit_bias", {str(VOCAB_SIZE): 1}, "invalid_value"),
    ("logit_bias", {"5": 100.5}, "invalid_value"),
    ("logit_bias", {"5": "much"}, "invalid_type"),
    ("logit_bias", dict.fromkeys(map(str, range(1025)), 1), "invalid_value"),
    ("logit_bias", [5], "invalid_type"),
    ("prompt_logprobs", 21, "invalid_value"),
    ("prompt_logprobs", -1, "invalid_value"),
    ("prompt_logprobs", True, "invalid_type"),
    ("bad_words", [" "], "invalid_value"),
    ("bad_words", ["x" * 257], "invalid_value"),
    ("bad_words", ["x"] * 257, "invalid_value"),
    ("bad_words", "x", "invalid_type"),
    ("bad_token_ids", [VOCAB_SIZE], "invalid_value"),
    ("allowed_token_ids", [], "invalid_value"),
    ("allowed_token_ids", [VOCAB_SIZE], "invalid_value"),
    ("allowed_token_ids", [1] * 65_537, "invalid_value"),
]


@pytest.mark.parametrize(("name", "value", "code"), BAD_SAMPLING)
async def test_bad_sampling_fields(name: str, value: Any, code: str) -> None:
    is_of_item = name in ("stop", "stop_token_ids") and isinstance(value, list)
    param = f"{name}[{len(value) - 1}]" if is_of_item and code == "invalid_type" else name
    await assert_refused("chat", chat_body(**{name: value}), 400, param, code)
    await assert_refused("completions", completion_body(**{name: value}), 400, param, code)
    body = {"text": "Hi", "sampling_params": {name: value}}
    if name != "stream":
        await assert_refused("generate", body, 400, param, code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_field"),
        ({"model": ""}, "model", "missing_field"),
        ({"model": 5}, "model", "invalid_type"),
        ({"messages": None}, "messages", "missing_field"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "Hi"}, "messages", "invalid_type"),
        ({"messages": ["Hi"]}, "messages[0]", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_field"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        (
            {"messages": [{"role": "assistant", "refusal": 5}]},
            "messages[0].refusal",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing_field",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]},
            "messages[0].tool_calls",
            "invalid_type",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "invalid_value"),
        ({"max_completion_tokens": 60}, "max_completion_tokens", "context_length_exceeded"),
        ({"max_tokens": 60}, "max_tokens", "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": "x" * 99}]},
            "messages",
            "context_length_exceeded",
        ),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
        ({"response_format": 5}, "response_format", "invalid_type"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs", "invalid_type"),
        ({"stream_options": 5}, "stream_options", "invalid_type"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "invalid_value",
        ),
    ],
)
async def test_bad_chat_fields(fields: dict[str, Any], param: str, code: str) -> None:
    await assert_refused("chat", chat_body(**fields), 400, param, code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_field"),
        ({"prompt": []}, "prompt", "invalid_type"),
        ({"prompt": [[]]}, "prompt", "invalid_type"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_type"),
        ({"prompt": [1, True]}, "prompt", "invalid_type"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 257}, "prompt", "invalid_value"),
        ({"prompt": [VOCAB_SIZE]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": "x" * 64}, "prompt", "context_length_exceeded"),
        ({"prompt": ["a", "x" * 64]}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 62}, "max_tokens", "context_length_exceeded"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens", "invalid_value"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"echo": "yes"}, "echo", "invalid_type"),
    ],
)
async def test_bad_completion_fields(fields: dict[str, Any], param: str, code: str) -> None:
    await assert_refused("completions", completion_body(**fields), 400, param, code)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "text", "missing_field"),
        ({"text": [1]}, "text", "invalid_type"),
        ({"input_ids": "a"}, "input_ids", "invalid_type"),
        ({"text": "a", "input_ids": [1]}, "input_ids", "invalid_value"),
        ({"text": "a", "sampling_params": 5}, "sampling_params", "invalid_type"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 0}},
            "max_new_tokens",
            "invalid_value",
        ),
        ({"text": "a", "top_logprobs_num": 1}, "top_logprobs_num", "invalid_value"),
        (
            {"text": "a", "return_logprob": True, "logprob_start_len": 3},
            "logprob_start_len",
            "invalid_value",
        ),
        ({"text": "a", "logprob_start_len": -1}, "logprob_start_len", "invalid_value"),
        ({"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob", "invalid_value"),
        *(
            (
                {"text": "a", "return_logprob": True, "top_logprobs_num": 2} | asked,
                "token_ids_logprob",
                "invalid_value",
            )
            for asked in (
                {"token_ids_logprob": [*range(19)]},
                {"token_ids_logprob": [1, 1]},
                {"token_ids_logprob": [-1]},
                {"token_ids_logprob": [1 << 40]},
            )
        ),
        ({"text": "a", "image_data": "x"}, "image_data", "unsupported_parameter"),
    ],
)
async def test_bad_generate_fields(body: dict[str, Any], param: str, code: str) -> None:
    await assert_refused("generate", body, 400, param, code)


async def test_unknown_models() -> None:
    await assert_refused("chat", chat_body(model="x"), 404, "model", "model_not_found", "'x'")
    requests = AllRequests(make_directory("a", "b"))
    with pytest.raises(RequestError, match="'model' is required: 2 models"):
        await requests.generate.job({"text": "x"}, Caller())


async def test_the_context_message_is_what_clients_look_for() -> None:
    await assert_refused(
        "chat",
        chat_body(max_tokens=60),
        400,
        "max_tokens",
        "context_length_exceeded",
        "maximum context length is 64 tokens",
    )


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_objects(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(data)
    assert (caught.value.status_code, caught.value.code) == (400, "invalid_json")


async def test_defaults_of_chat() -> None:
    request = await chat()
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 0, 0)
    ids = unpack_token_ids(request.prompt_ids)
    assert ids[0] == IM_START
    assert BOS not in ids
    assert ids.count(IM_END) == 1
    assert sampling.max_tokens == 512 - len(ids)
    assert 0 <= sampling.seed < 1 << 63
    assert request.text.prompt_tail == tuple(ids[-6:])
    assert request.text.skip_special_tokens
    assert (await chat()).sampling.seed != sampling.seed


async def test_defaults_of_completions() -> None:
    (request,) = await completion()
    assert request.sampling.max_tokens == 16
    assert unpack_token_ids(request.prompt_ids)[0] == BOS
    (near_the_end,) = await completion(prompt=[1] * 505)
    assert near_the_end.sampling.max_tokens == 7


async def test_null_means_default() -> None:
    names = [name for name, _, _ in BAD_SAMPLING] + sorted(IGNORED)
    request = await chat(**dict.fromkeys(names))
    plain = await chat()
    assert msgspec.structs.replace(request.sampling, seed=0) == msgspec.structs.replace(
        plain.sampling, seed=0
    )
    assert request.text == plain.text


async def test_values_arrive() -> None:
    request = await chat(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        max_tokens=5,
        max_completion_tokens=7,
        min_tokens=2,
        stop=["a", "b"],
        stop_token_ids=[3],
        seed=-1,
        ignore_eos=True,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        priority=-3,
        cache_salt="team-a",
    )
    assert (request.priority, request.cache_salt) == (-3, "team-a")
    assert msgspec.to_builtins(request.sampling) == {
        "max_tokens": 7,
        "seed": (1 << 64) - 1,
        "temperature": 0.0,
        "top_p": 0.5,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": (3,),
    }
    assert (request.text.stop, request.text.include_stop) == (("a", "b"), True)
    assert (request.text.min_tokens, request.text.skip_special_tokens) == (2, False)


async def test_what_has_no_effect_is_accepted() -> None:
    await chat(
        **dict.fromkeys(IGNORED - set(ChatBody.__struct_fields__), "x"),
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        logit_bias={},
        logprobs=False,
        top_logprobs=0,
        n=1,
        best_of=1,
        some_unknown_field={"x": 1},
        stream_options={"include_usage": False},
    )


async def test_choices_have_their_own_rid_and_seed() -> None:
    requests = await completion(prompt=["a", "b"], n=2, seed=(1 << 64) - 1)
    assert [request.rid for request in requests] == [choice_rid(RID, i) for i in range(4)]
    assert [request.sampling.seed for request in requests] == [(1 << 64) - 1, 0] * 2
    assert [request.reply.choice_idx for request in requests] == [0, 1, 2, 3]
    assert {(r.reply.num_choices, r.reply.num_prompts, r.reply.group_id) for r in requests} == {
        (4, 2, RID)
    }


async def test_the_models_defaults_and_the_switch() -> None:
    directory = make_directory(
        default_temperature=0.6, default_top_p=0.9, default_top_k=20, default_min_p=0.05,
        default_repetition_penalty=1.1,
    )  # fmt: skip
    by_model = (await AllRequests(directory).chat.job(chat_body(top_p=1), Caller())).sampling.params
    assert (by_model.temperature, by_model.top_p, by_model.top_k) == (0.6, 1.0, 20)
    assert (by_model.min_p, by_model.repetition_penalty) == (0.05, 1.1)
    plain = AllRequests(ModelDirectory(directory._catalog, use_model_defaults=False))
    assert (await plain.chat.job(chat_body(), Caller())).sampling.params.temperature == 1.0


async def test_chat_without_a_template_is_refused() -> None:
    requests = AllRequests(make_directory(chat_template=None))
    with pytest.raises(RequestError, match="no chat template") as caught:
        await requests.chat.job(chat_body(), Caller())
    assert caught.value.status_code == 400
    assert (await requests.completions.job(completion_body(), Caller())).prompts


async def test_text_parts_and_roles() -> None:
    request = await chat(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "A"}]},
            {"role": "user", "content": [{"type": "text", "text": "B"}, "C"], "name": None},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "🙂"},
        ]
    )
    text = bytes_of(request)
    assert text == (
        b"<|im_start|>system\nA<|im_end|>\n<|im_start|>user\nB\nC<|im_end|>\n"
        b"<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n\xf0\x9f\x99\x82<|im_end|>\n"
        b"<|im_start|>assistant\n"
    )


async def test_what_an_assistant_refused_stays_in_the_conversation() -> None:
    messages = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": None, "refusal": "I will not."},
    ]
    text = bytes_of(await chat(messages=messages))
    assert b"<|im_start|>assistant\nI will not.<|im_end|>\n" in text


async def test_a_final_message_can_be_continued() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Well, I "},
    ]
    request = await chat(messages=messages, continue_final_message=True)
    assert bytes_of(request).endswith(b"<|im_start|>assistant\nWell, I ")
    request = await chat(messages=messages, add_generation_prompt=False)
    assert bytes_of(request).endswith(b"Well, I <|im_end|>\n")


def bytes_of(request: GenerateRequest) -> bytes:
    """The prompt, decoded without the front end's help."""
    from tests.frontend.tiny_model import make_tokenizer

    ids = unpack_token_ids(request.prompt_ids)
    text: str = make_tokenizer().decode(ids, skip_special_tokens=False)
    return text.encode()


async def test_generate_takes_text_ids_and_lists() -> None:
    requests = AllRequests(make_directory()).generate
    job = await requests.job({"input_ids": [1, 2], "max_new_tokens": 4, "temperature": 0}, Caller())
    (request,) = requests_of(job)
    assert unpack_token_ids(request.prompt_ids) == [1, 2]
    assert (request.sampling.max_tokens, request.sampling.temperature) == (4, 0.0)
    job = await requests.job({"text": ["a", "b"], "sampling_params": {"n": 2}}, Caller())
    assert job.num_choices == 4


async def test_echo_is_the_prompts_text() -> None:
    (request,) = await completion(prompt="Hé", echo=True)
    assert unseal(request.reply).echo == "Hé"
    by_ids = await completion(prompt=[BOS, *unpack_token_ids(request.prompt_ids)[1:]], echo=True)
    assert unseal(by_ids[0].reply).echo == "<s>Hé"


async def test_a_model_is_not_unknown_while_the_cards_cannot_be_read() -> None:
    directory = make_directory()
    directory._catalog.is_away = True  # type: ignore[attr-defined]
    with pytest.raises(RequestError) as caught:
        await AllRequests(directory).chat.job(chat_body(), Caller())
    assert caught.value.status_code == 503


async def test_cards_are_not_read_for_every_unknown_name() -> None:
    directory = make_directory()
    requests = AllRequests(directory)
    for i in range(20):
        with pytest.raises(RequestError):
            await requests.chat.job(chat_body(model=f"x{i}"), Caller())
    assert directory._catalog.num_reads <= 2  # type: ignore[attr-defined]


async def test_rules_about_tokens_become_ids() -> None:
    request = await chat(
        logit_bias={"5": -100, "6": 2.5},
        allowed_token_ids=[7, 5, 7],
        bad_words=["ab", " ab"],
        bad_token_ids=[9],
    )
    sampling = request.sampling
    encode = make_tokenizer().encode
    assert sampling.logit_bias == ((5, -100.0), (6, 2.5))
    assert sampling.allowed_token_ids == (7, 5)
    assert sampling.bad_words == (
        tuple(encode("ab", add_special_tokens=False).ids),
        tuple(encode(" ab", add_special_tokens=False).ids),
        (9,),
    )


async def test_logprobs_of_each_api() -> None:
    def asked(request: GenerateRequest) -> tuple[object, ...]:
        sampling, reply = request.sampling, unseal(request.reply)
        return sampling.logprobs, sampling.prompt_logprobs, reply.num_top, reply.num_prompt_top

    nothing = (None, None, None, None)
    assert asked(await chat()) == nothing
    assert asked(await chat(logprobs=True)) == (0, None, 0, None)
    assert asked(await chat(logprobs=True, top_logprobs=3)) == (3, None, 3, None)
    assert asked(await chat(prompt_logprobs=2)) == (None, 2, None, 2)
    assert asked((await completion(logprobs=False))[0]) == nothing
    assert asked((await completion(logprobs=4))[0]) == (4, None, 4, None)
    assert asked((await completion(echo=True))[0]) == nothing
    assert asked((await completion(logprobs=4, echo=True))[0]) == (4, 4, 4, None)
    both = await completion(logprobs=1, echo=True, prompt_logprobs=3)
    assert asked(both[0]) == (1, 3, 1, 3)
    generate = AllRequests(make_directory()).generate
    body: dict[str, Any] = {"model": "tiny", "text": "a"}
    for fields, expected in (
        ({"return_logprob": True}, (0, None, 0, None)),
        ({"return_logprob": True, "top_logprobs_num": 2}, (2, None, 2, None)),
        ({"return_logprob": True, "logprob_start_len": 0}, (0, 0, 0, 0)),
        ({"logprobs": 2, "prompt_logprobs": 1}, (2, 1, 2, 1)),
        ({"sampling_params": {"logprobs": 2}}, (2, None, 2, None)),
    ):
        (request,) = requests_of(await generate.job(body | fields, Caller()))
        assert asked(request) == expected
    within = {"text": "abc", "return_logprob": True, "logprob_start_len": 2}
    job = await generate.job(body | within, Caller())
    assert job.needed_level == 4
    assert unseal(requests_of(job)[0].reply).prompt_start == 2
    with pytest.raises(InvalidRequest, match="'logprob_start_len' is 4, and a prompt has 4 tokens"):
        await generate.job(body | within | {"logprob_start_len": 4}, Caller())
    named = [
        await chat(logprobs=True, logprob_token_ids=[7, 5]),
        await chat(logprobs=True, top_logprobs=2, logprob_token_ids=[7, 5]),
        (await completion(logprobs=0, logprob_token_ids=[7, 5]))[0],
    ]
    for request in named:
        assert asked(request) == (0, None, 0, None)
        assert request.sampling.logprob_ids == (7, 5)
        assert request.sampling.needed_level == 4
        assert unseal(request.reply).num_alternatives == 2


async def test_logits_processors_that_nobody_registered_are_refused() -> None:
    name = "logits_processors"
    requests = AllRequests(make_directory("tiny", logits_processors=("one", "two"))).completions
    given = ["one", {"qualname": "two", "kwargs": {"b": [1], "a": "x"}}]
    body = {"model": "tiny", "prompt": "a"}
    (request,) = requests_of(await requests.job(body | {name: given}, Caller()))
    assert request.sampling.logits_processors == (
        ProcessorCall("one"),
        ProcessorCall("two", '{"a":"x","b":[1]}'),
    )
    assert request.sampling.needed_level == 4
    for wrong, where, words in (
        (["three"], f"{name}[0]", "there are one, two"),
        (["one"] * 9, name, "9 processors"),
        ([3], f"{name}[0]", "must be a name"),
        ([{"qualname": "one", "args": [1]}], f"{name}[0]", "only 'kwargs'"),
        ([{"qualname": "one", "code": "x"}], f"{name}[0]", "unknown field 'code'"),
        ([{"qualname": "one", "kwargs": [1]}], f"{name}[0]", "must be an object"),
        ([{"qualname": "one", "kwargs": {"a": "x" * 5000}}], f"{name}[0]", "at most 4096"),
    ):
        with pytest.raises(InvalidRequest, match=words) as caught:
            await requests.job(body | {name: wrong}, Caller())
        assert caught.value.param == where
    with pytest.raises(InvalidRequest, match="registered none"):
        await chat(logits_processors=["one"])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"logprob_token_ids": [1]}, "logprob_token_ids", "'logprobs' is not"),
        (
            {"logprobs": True, "top_logprobs": 1, "logprob_token_ids": [1, 2]},
            "logprob_token_ids",
            "'top_logprobs' is 1: they take the place of the likeliest",
        ),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "the whole vocabulary"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "the whole vocabulary"),
    ],
)
async def test_logprobs_that_have_no_place(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        await chat(**fields)
    assert caught.value.param == param


async def test_a_prompt_can_be_scored_without_output() -> None:
    prompt = "x" * 63  # with <s> as long as the context
    body = completion_body(prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    requests = AllRequests(make_directory("tiny", max_context_len=64)).completions
    (request,) = requests_of(await requests.job(body, Caller()))
    assert (request.sampling.max_tokens, request.sampling.prompt_logprobs) == (0, 1)


async def test_logprobs_that_no_message_can_carry_are_refused() -> None:
    # max_logprob_bytes is 100,000: 177 bytes a token with 20 alternatives, 172 of the prompt's.
    requests = AllRequests(make_directory("tiny", max_context_len=10_000)).completions
    body = completion_body(prompt="x" * 99, logprobs=20, max_tokens=565)
    with pytest.raises(InvalidRequest, match=r"'max_tokens' is 565.* room for 564 tokens"):
        requests_of(await requests.job(body, Caller()))
    (request,) = requests_of(await requests.job(body | {"max_tokens": 564}, Caller()))
    assert request.sampling.max_tokens == 564
    with pytest.raises(InvalidRequest, match="room for 467 tokens"):
        requests_of(await requests.job(body | {"echo": True}, Caller()))
    with pytest.raises(InvalidRequest, match=r"prompt of 601 tokens .* take 103372 bytes"):
        requests_of(await requests.job(body | {"echo": True, "prompt": "x" * 600}, Caller()))


async def test_the_default_of_max_tokens_leaves_room_for_logprobs() -> None:
    chat_requests = AllRequests(make_directory("tiny", max_context_len=10_000)).chat
    (request,) = requests_of(
        await chat_requests.job(chat_body(logprobs=True, top_logprobs=20), Caller())
    )
    assert request.sampling.max_tokens == 564
    (request,) = requests_of(await chat_requests.job(chat_body(logprobs=True), Caller()))
    assert request.sampling.max_tokens == 5882


@pytest.mark.parametrize(
    "body", [b'{"model":"\xff"}', b'{"\xc3":1}', b'{"a":"\xed\xa0\x80"}', b"\xff"]
)
def test_what_is_no_utf_8_is_no_json(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(body)
    assert (caught.value.status_code, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("arguments", ["[" * 200_000, '{"a": "\\ud800"}', '{"a": ' + "1" * 5000])
async def test_arguments_of_a_call_that_are_no_json_stay_text(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    requests = AllRequests(make_directory(max_context_len=1_000_000))
    assert requests_of(await requests.chat.job(chat_body(messages=messages), Caller()))


async def test_a_message_counts_however_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = AllRequests(make_directory(max_context_len=1_000_000))
    empty = {"role": "user", "content": ""}
    with pytest.raises(InvalidRequest, match="'messages' holds 4097, at most 4096"):
        await requests.chat.job(chat_body(messages=[empty] * 4097), Caller())
    render, threads = ChatTemplate.render, []

    def noted(*args: Any, **kwargs: Any) -> str:
        threads.append(threading.current_thread())
        return render(*args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "render", noted)
    await requests.chat.job(chat_body(messages=[empty] * 4096), Caller())
    assert threading.main_thread() not in threads, "the event loop is for all"
