"""The names by which operators choose parsers, as types of configuration fields."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from frontend.parsers.reasoning_parsers import REASONING_PARSERS
from frontend.parsers.tool_parsers import TOOL_PARSERS

# The command line reads its choices from the types at run time; a checker sees texts.
if TYPE_CHECKING:
    ToolParserName: TypeAlias = str
    ReasoningParserName: TypeAlias = str
else:
    ToolParserName = Literal["auto", *TOOL_PARSERS.names]
    ReasoningParserName = Literal["auto", "none", *REASONING_PARSERS.names]
