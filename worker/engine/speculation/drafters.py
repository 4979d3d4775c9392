"""The ways of guessing, by the name of `--speculate`."""

from __future__ import annotations

from collections.abc import Callable

from worker.engine.speculation.drafter import Drafter
from worker.engine.speculation.earlier_outputs import EarlierOutputs
from worker.engine.speculation.grammar_drafter import GrammarDrafter
from worker.engine.speculation.ngram_index import NgramIndex
from worker.engine.speculation.repetition_drafter import RepetitionDrafter
from worker.engine.speculation.suffix_index import SuffixIndex
from worker.engine_link.engine_config import EngineConfig, SpeculateName

MIN_SAID_LEN = 4  # tokens that another request must have said as well, at least


def _ngram(config: EngineConfig) -> Drafter:
    return RepetitionDrafter(
        config.num_draft_tokens, lambda: NgramIndex(config.min_ngram_len, config.max_ngram_len)
    )


def _suffix(config: EngineConfig) -> Drafter:
    return RepetitionDrafter(
        config.num_draft_tokens,
        lambda: SuffixIndex(config.min_ngram_len),
        EarlierOutputs(max(MIN_SAID_LEN, config.min_ngram_len)),
    )


_DRAFTERS: dict[SpeculateName, Callable[[EngineConfig], Drafter]] = {
    "ngram": _ngram,
    "suffix": _suffix,
}


def make_drafter(
    config: EngineConfig, model: Drafter | None = None, *, can_drop_tokens: bool
) -> Drafter | None:
    """A drafter, with a draft `model` if there is one. None: a step gives each request one token,
    as it must where wrong guesses stay.
    """
    if not can_drop_tokens:
        return None
    if model is None and config.speculate != "off":
        return GrammarDrafter(_DRAFTERS[config.speculate](config))
    return GrammarDrafter(model)
