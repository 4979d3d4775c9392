"""`reasoning_effort` of chats, `reasoning.effort` of responses: as a chat template may know it."""

from __future__ import annotations

import json
from typing import Any

from frontend.models.chat_template import ChatTemplate
from shared.errors import InvalidRequest

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def effort_kwargs(effort: Any, template: ChatTemplate, param: str) -> dict[str, Any]:
    """Empty where the template has no word for it. Raises InvalidRequest."""
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise InvalidRequest(
            f"'{param}' is {json.dumps(effort)[:100]}, must be one of {', '.join(EFFORTS)}",
            param=param,
        )
    words = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: word for name, word in words.items() if name in template.effort_names}
