"""What docs/client-contract.md says of statuses, SDKs and stored things is what the code does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx2
from openai import OpenAI

from deploy.nats.permissions import ADMIN, permissions
from frontend.config import FrontendConfig
from frontend.http.error_response import error_headers
from shared.config import ClusterConfig
from shared.errors import RequestError
from shared.storage.streams import stream_configs
from shared.subjects import Subjects
from tests.anthropic_sdk import anthropic_sdk
from tests.deploy.local_stack import REPOSITORY
from tests.docs.tables import codes_in, table_under

PAGE = REPOSITORY / "docs/client-contract.md"
STATUSES = table_under(PAGE, "## Errors")
STORED = table_under(PAGE, "## What is stored")
SUBJECTS = Subjects()
_UNITS = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def errors(root: type[RequestError] = RequestError) -> Iterator[type[RequestError]]:
    yield root
    for cls in root.__subclasses__():
        yield from errors(cls)


def final_codes() -> set[str]:
    return {cls.code for cls in errors() if cls.is_final and cls.code is not None}


def test_every_error_of_the_api_has_a_row() -> None:
    here = [(row[0], code) for row in STATUSES for code in codes_in(row[1])]
    assert len(set(here)) == len(here)
    ours = {(str(c.status_code), c.code) for c in errors() if c.code not in (None, "forbidden")}
    assert ours <= set(here)


def test_the_sdks_repeat_what_the_page_says() -> None:
    clients = (
        OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none"),
        anthropic_sdk().Anthropic(base_url="http://127.0.0.1:1", api_key="none"),
    )
    error = RequestError("made up")
    for status, codes, _, again, _, _ in STATUSES:
        for code in codes_in(codes):
            error.is_final = code in final_codes()
            response = httpx2.Response(int(status), headers=error_headers(error))
            repeats = [client._should_retry(response) for client in clients]
            assert repeats == [again == "yes"] * 2, (status, code)


def test_what_may_be_sent_again_names_the_test_that_shows_it() -> None:
    for row in STATUSES:
        _, codes, _, again, when, shown = row
        assert again in ("yes", "no"), row
        assert (again == "yes") == bool(shown), row
        assert when or again == "no", row
        for node in codes_in(shown):
            path, _, name = node.partition("::")
            source = (REPOSITORY / path).read_text()
            assert f"def {name}(" in source, f"{codes}: there is no {node}"


def test_the_limits_of_stored_things() -> None:
    configs = {stream["name"]: stream for stream in stream_configs(ClusterConfig(), SUBJECTS)}
    assert [codes_in(row[0]) for row in STORED] == [[name] for name in configs]
    for name, _, kept, at_most, *_ in STORED:
        config = configs[codes_in(name)[0]]
        if config.get("max_age"):
            assert kept == duration(config["max_age"] / 1e9), name
        else:
            assert kept.startswith("until "), name
        assert at_most == bounds(config), name


def test_the_flags_of_stored_things() -> None:
    for name, _, _, _, flags, *_ in STORED:
        assert sorted(codes_in(flags)) == sorted(flags_of(codes_in(name)[0])), name


def test_who_may_remove_stored_things() -> None:
    for name, *_, roles in STORED:
        assert roles == ", ".join(sorted(removers(codes_in(name)[0]))), name


def test_the_pings_are_as_often_as_the_page_says() -> None:
    assert f"`--ping-interval-s` ({FrontendConfig().ping_interval_s:g})" in PAGE.read_text()
    assert f"`--orphan-wait-s` ({FrontendConfig().orphan_wait_s:g})" in PAGE.read_text()


def duration(seconds: float) -> str:
    if seconds == 86_400.0:
        return "24 h"
    size, unit = next((s, u) for s, u in _UNITS if not seconds % s)
    return f"{seconds / size:g} {unit}"


def bounds(config: dict[str, Any]) -> str:
    told = []
    if config.get("max_msgs"):
        told.append(f"{config['max_msgs']:,} messages")
    if max_bytes := config.get("max_bytes"):
        size, unit = next((s, u) for s, u in _SIZES if max_bytes >= s)
        told.append(f"{max_bytes / size:g} {unit}")
    return ", ".join(told)


def flags_of(stream: str) -> set[str]:
    """The flags that change what is told of it: each is turned in its turn."""
    before = limits(ClusterConfig(), stream)
    found = set()
    for field in dataclasses.fields(ClusterConfig):
        value = getattr(ClusterConfig(), field.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            twice: dict[str, Any] = {field.name: 2 * value}
            turned = dataclasses.replace(ClusterConfig(), **twice)
            if limits(turned, stream) != before:
                found.add(f"--{field.name.replace('_', '-')}")
    return found


def limits(config: ClusterConfig, stream: str) -> list[Any]:
    (made,) = [s for s in stream_configs(config, SUBJECTS) if s["name"] == stream]
    return [made.get(limit) for limit in ("max_age", "max_bytes", "max_msgs")]


def removers(stream: str) -> set[str]:
    """Roles with a right to purge it, to delete a message of it, or to acknowledge one."""
    rights = {f"$JS.API.STREAM.{verb}.{stream}" for verb in ("PURGE", "MSG.DELETE")}
    if stream == SUBJECTS.requests_stream:
        rights.add(f"$JS.ACK.{stream}.>")
    roles = permissions(SUBJECTS, "jetflock")
    return {name for name, held in roles.items() if name != ADMIN and rights & set(held.publish)}
