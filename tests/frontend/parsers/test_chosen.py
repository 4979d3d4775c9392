"""Which parsers read a model's answers is told, with the reason."""

from __future__ import annotations

import pytest

from frontend.parsers.chosen import chosen_parsers
from shared.protocol.codec import decode
from shared.protocol.role_cards import ChosenParser, RoleCard
from tests.eventually import eventually_async
from tests.frontend import published_templates as published
from tests.frontend.conftest import Stack
from tests.frontend.surfaces.test_tools import CHATML_TOOLS
from tests.frontend.tiny_model import make_bundle, make_card, register

FITS = "it fits the chat template"


@pytest.mark.parametrize(
    ("template", "flags", "tools", "reasoning"),
    [
        (published.QWEN_3, (None, "auto"), ("hermes", FITS), ("think", FITS)),
        (
            published.QWEN_3,
            ("json", "mistral"),
            ("json", "--tool-parser"),
            ("mistral", "--reasoning-parser"),
        ),
        (published.QWEN_3, (None, "none"), ("hermes", FITS), ("", "--reasoning-parser none")),
        (
            "{{ messages }}",
            (None, "auto"),
            ("json", "the chat template knows no tools: the system message does"),
            ("", "the chat template sets no reasoning apart"),
        ),
        (
            "{{ tools }} <|action_start|>",
            (None, "auto"),
            ("", "the chat template has calls in a form that is not known"),
            ("", "the chat template sets no reasoning apart"),
        ),
        (
            None,
            (None, "auto"),
            ("", "the model has no chat template"),
            ("", "the model has no chat template"),
        ),
    ],
)
def test_flags_go_before_templates(
    template: str | None,
    flags: tuple[str | None, str],
    tools: tuple[str, str],
    reasoning: tuple[str, str],
) -> None:
    chosen = chosen_parsers(template, *flags)
    assert (chosen.tools, chosen.reasoning) == (ChosenParser(*tools), ChosenParser(*reasoning))


@pytest.mark.integration
async def test_a_frontend_tells_clients_and_operators(stack: Stack) -> None:
    bundle = make_bundle(CHATML_TOOLS)
    await register(stack.cluster, bundle, make_card(bundle))
    running = await stack.start_frontend(tool_parser="mistral")
    roles = stack.cluster.bucket(stack.cluster.subjects.roles_bucket)

    async def is_told() -> bool:
        async with running.client() as http:
            [model] = (await http.get("/v1/models")).json()["data"]
            assert (await http.get("/v1/models/tiny")).json().keys() == model.keys()
        cards = [decode(RoleCard, entry.value) for entry in await roles.entries()]
        told = [card.parsers["tiny"].tools for card in cards if card.parsers]
        return (
            model.get("tool_parser") == {"name": "mistral", "because": "--tool-parser"}
            and model.get("reasoning_parser") == {"name": "think", "because": FITS}
            and told == [ChosenParser("mistral", "--tool-parser")]
        )

    await eventually_async(is_told)
