"""The forms in which models set reasoning apart, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from frontend.parsers import channels
from frontend.parsers.registry import Registry


class ReasoningParser:
    """The seam that each form fills: marks between which a model thinks before it answers.

    Each mark may be written in several ways; the first of them is what a grammar asks for.
    """

    name: ClassVar[str]  # in configuration and in what frontends store: it never changes
    aliases: ClassVar[tuple[str, ...]] = ()  # what others call it
    level: ClassVar[int] = 1  # the feature level from which frontends may store its name
    begins: ClassVar[tuple[str, ...]]
    ends: ClassVar[tuple[str, ...]]
    has_channels: ClassVar[bool] = False  # it is a message beside those to the user
    behind_end: ClassVar[str] = ""  # what a grammar asks for behind the closing mark
    is_implied: ClassVar[bool] = False  # it thinks first, also without the opening mark

    @property
    def shown_marks(self) -> list[str]:
        """All that a reader of the text must see, also where a tokenizer hides it."""
        return [*self.begins, *self.ends]

    def fits(self, template: str) -> bool:
        """Whether a chat template with this source cuts reasoning out of earlier answers."""
        return any(end in template for end in self.ends)

    def is_open_in(self, content: str) -> bool:
        """Whether reasoning that began in an answer so far has not ended there."""
        begun = max(content.rfind(mark) for mark in self.begins)
        ended = max(content.rfind(mark) for mark in self.ends)
        return begun > ended or (self.is_implied and ended < 0)


class Think(ReasoningParser):
    """`<think>` and `</think>`: Qwen 3, DeepSeek R1, GLM and others."""

    name = "think"
    aliases = ("glm45", "qwen3", "qwen3-thinking", "kimi_k2", "deepseek_v3", "deepseek-v3")
    begins = ("<think>",)
    ends = ("</think>",)


class MistralThink(ReasoningParser):
    """`[THINK]` and `[/THINK]`."""

    name = "mistral"
    begins = ("[THINK]",)
    ends = ("[/THINK]",)


class DeepseekR1(ReasoningParser):
    """All up to `</think>`. No template tells that a model leaves the opening mark out."""

    name = "deepseek_r1"
    aliases = ("deepseek-r1",)
    level = 3
    begins = ("<think>",)
    ends = ("</think>",)
    is_implied = True

    def fits(self, template: str) -> bool:
        return False


class Granite(ReasoningParser):
    """`Here is my thought process:` and `Here is my response:`, which it may shorten.

    Only an operator chooses it: its templates have the words also where a model shall not think.
    """

    name = "granite"
    level = 3
    begins = ("Here is my thought process:", "Here's my thought process:")
    ends = ("Here is my response:", "Here's my response:")

    def fits(self, template: str) -> bool:
        return False


class GptOss(ReasoningParser):
    """Messages in the channel `analysis`."""

    name = "gpt_oss"
    aliases = ("openai_gptoss", "gpt-oss")
    level = 3
    begins = (channels.ANALYSIS,)
    ends = (channels.END,)
    has_channels = True
    behind_end = channels.ROLE

    @property
    def shown_marks(self) -> list[str]:
        return list(channels.MARKS)

    def fits(self, template: str) -> bool:
        return channels.fits(template)


class SeedThink(ReasoningParser):
    """`<seed:think>` and `</seed:think>`."""

    name = "seed_oss"
    level = 4
    begins = ("<seed:think>",)
    ends = ("</seed:think>",)


class Gemma4(ReasoningParser):
    """`<|channel>thought` and `<channel|>`."""

    name = "gemma4"
    level = 3
    begins = ("<|channel>thought",)
    ends = ("<channel|>",)

    @property
    def shown_marks(self) -> list[str]:
        return ["<|channel>", *self.ends]


# A template may fit several: the first one is its own.
REASONING_PARSERS: Registry[ReasoningParser] = Registry(
    "reasoning parser",
    (GptOss(), Think(), MistralThink(), DeepseekR1(), Granite(), SeedThink(), Gemma4()),
)

# The command line reads its choices from the type at run time; a checker sees texts.
if TYPE_CHECKING:
    ReasoningParserName: TypeAlias = str
else:
    ReasoningParserName = Literal["auto", "none", *REASONING_PARSERS.names] | str  # of a file
