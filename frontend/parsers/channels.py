"""OpenAI's harmony: answers made of messages, each in a channel, as GPT-OSS writes them.

`<|start|>assistant<|channel|>analysis<|message|>...<|end|>`: a header, then what is said. In
`analysis` it thinks, in `final` it answers, in `commentary` it calls the function that the header
names as its recipient (`to=functions.name`, before or behind the channel), or says what it is
about to do. https://github.com/openai/harmony has the whole format.
"""

from __future__ import annotations

import re
from typing import NamedTuple

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
CONSTRAIN = "<|constrain|>"
ROLE = f"{START}assistant"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
FINAL = f"{CHANNEL}final{MESSAGE}"
FUNCTIONS = "functions."
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
MAX_HEADER = 512  # characters

_CHANNEL = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class MessageHeader(NamedTuple):
    """What stands before a message."""

    channel: str  # "" where none is named
    recipient: str  # "" where it is for the user

    @classmethod
    def parse(cls, text: str) -> MessageHeader:
        """`text`: all before `<|message|>`; where headers were begun anew, the last one counts."""
        header = text.rpartition(START)[2]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        return cls(channel[1] if channel else "", recipient[1] if recipient else "")


def fits(template: str) -> bool:
    """Whether a chat template with this source writes messages in channels."""
    return CHANNEL in template and MESSAGE in template
