"""All kinds of changes to logits, in the order in which they are made."""

from __future__ import annotations

from worker.engine.sampling.logits_processor import LogitsProcessor
from worker.engine.sampling.processors.grammars import Grammars
from worker.engine.sampling.processors.narrowings import Narrowings
from worker.engine.sampling.processors.penalties import Penalties
from worker.engine.sampling.processors.token_rules import AllowedTokens, BannedTokens, TokenBiases

# vLLM's order. What narrows to the draw comes last: it looks at what is left.
LOGITS_PROCESSORS: tuple[LogitsProcessor, ...] = (
    TokenBiases(),
    AllowedTokens(),
    BannedTokens(),
    Grammars(),
    Penalties(),
    Narrowings(),
)
