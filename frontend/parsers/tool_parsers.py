"""The forms of tool calls that are read, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.registry import Registry
from frontend.parsers.tools.deepseek import DeepseekV3, DeepseekV31
from frontend.parsers.tools.deepseek_v32 import DeepseekV32
from frontend.parsers.tools.gemma import FunctionGemma, Gemma4
from frontend.parsers.tools.glm import Glm45, Glm47
from frontend.parsers.tools.gpt_oss import GptOss
from frontend.parsers.tools.hermes import Hermes
from frontend.parsers.tools.kimi import KimiK2
from frontend.parsers.tools.llama3 import Llama3, Llama4Json
from frontend.parsers.tools.marked_lists import Functools, Granite, Nemotron, Phi4Mini
from frontend.parsers.tools.minimax import MinimaxM2
from frontend.parsers.tools.mistral import Mistral, MistralArgs, MistralCallId
from frontend.parsers.tools.olmo3 import Olmo3
from frontend.parsers.tools.plain_json import PlainJson
from frontend.parsers.tools.pythonic import Llama4, Pythonic
from frontend.parsers.tools.qwen3_coder import Qwen3Coder, SeedOss

# A template may fit several: the first one is its own.
TOOL_PARSERS: Registry[ToolParser] = Registry(
    "tool parser",
    (
        GptOss(),
        MistralCallId(),
        MistralArgs(),
        Mistral(),
        SeedOss(),
        Qwen3Coder(),
        Glm47(),
        Glm45(),
        Hermes(),
        FunctionGemma(),
        Gemma4(),
        Llama4(),
        Llama4Json(),
        Llama3(),
        DeepseekV3(),
        DeepseekV31(),
        DeepseekV32(),
        KimiK2(),
        MinimaxM2(),
        Functools(),
        Phi4Mini(),
        Nemotron(),
        Olmo3(),
        Granite(),
        Pythonic(),
        PlainJson(),
    ),
)

# The command line reads its choices from the type at run time; a checker sees texts.
if TYPE_CHECKING:
    ToolParserName: TypeAlias = str
else:
    ToolParserName = Literal["auto", *TOOL_PARSERS.names] | str  # of a file
