"""`make house ARGS=--models`: writes the list of decoders in docs/models.md from the code."""

from __future__ import annotations

import transformers
from transformers.models.auto import modeling_auto

from bench.structures import ROOT
from shared.checkpoint.hearing_files import SOUND_FAMILIES
from shared.checkpoint.vision.vision_families import TOWER_FAMILIES, WHOLE_FAMILIES
from shared.checkpoint.vision.vision_text import TEXT_ARCHITECTURES
from worker.engine.models.registry import FUSED_ARCHITECTURES
from worker.engine.models.transformers_architectures import REASONS, SEES, TESTED_ARCHITECTURES

PAGE = ROOT / "docs/models.md"
START = "<!-- From here on made by: make house ARGS=--models -->\n"
END = "<!-- To here. -->\n"


def decoders() -> set[str]:
    """The classes by which the installed transformers generates text, with images or without, and
    those with audio that are known here.
    """
    listed = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    return SOUND_FAMILIES.keys() | {
        name
        for names in listed
        for each in names.values()
        for name in ((each,) if isinstance(each, str) else each)
    }


def fates() -> dict[str, set[str]]:
    """Every decoder, once, by what becomes of it."""
    left = decoders()
    found: dict[str, set[str]] = {}
    for fate, names in (
        ("fused", set(FUSED_ARCHITECTURES) - set(TEXT_ARCHITECTURES)),
        ("through transformers, tested", set(TESTED_ARCHITECTURES)),
        ("through transformers, with images, tested", set(WHOLE_FAMILIES)),
        ("their text as above, with images, tested", set(TOWER_FAMILIES)),
        ("their text as above, with audio, tested", set(SOUND_FAMILIES)),
        ("their text alone as above, tested", set(TEXT_ARCHITECTURES)),
        *((f"refused: {reason}", set(names)) for reason, names in REASONS.items()),
    ):
        found[fate] = names & left | found.get(fate, set())
        left -= names
    sees = {name for name in left if name in _of_images()}
    found[f"refused: {SEES}"] |= sees
    found["through transformers, untested"] = left - sees
    return found


def table() -> str:
    """Markdown."""
    rows = "\n".join(
        f"| {fate} | {', '.join(f'`{name}`' for name in sorted(names))} |"
        for fate, names in fates().items()
        if names
    )
    return (
        f"Every decoder of transformers {transformers.__version__}:\n\n"
        f"| what becomes of it | architectures |\n|---|---|\n{rows}\n"
    )


def with_table(page: str) -> str:
    """The page, with the list of today."""
    head, _, rest = page.partition(START)
    return f"{head}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


def write_table() -> None:
    PAGE.write_text(with_table(PAGE.read_text()))


def _of_images() -> set[str]:
    names = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()
    return {name for each in names for name in ((each,) if isinstance(each, str) else each)}
