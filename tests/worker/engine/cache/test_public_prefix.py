"""What an operator has declared is found by all runs, and nothing behind it by anybody else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.sampling import BeamParams
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add

pytestmark = pytest.mark.torch

ALICE, BOB, CAROL, PUBLIC = (letter * 16 for letter in (b"a", b"b", b"c", b"p"))
DECLARED = random_prompt(100, seed=1)
SECRET = random_prompt(80, seed=2)
NUM_PUBLIC = 96  # in whole pages of 16


class Engine:
    """Of a tiny model; tells how many tokens of a prompt were found."""

    def __init__(self, path: Path) -> None:
        self._rig = Rig(path)
        self._run_ids = itertools.count(1)
        assert self._rig.engine._scheduler._ledger.page_size == 16

    def hits(
        self, namespace: bytes, prompt: list[int], num_public: int = 0, **sampling: Any
    ) -> int:
        run_id = next(self._run_ids)
        public = PublicPrefix(PUBLIC, num_public) if num_public else None
        added = make_add(
            run_id, prompt, max_tokens=2, namespace=namespace, public=public, **sampling
        )
        self._rig.run(added)
        self._rig.engine._scheduler.check_integrity()
        return int(self._rig.channel.finishes()[run_id].num_cached_tokens)


@pytest.fixture
def engine(tiny_llama: Path) -> Engine:
    return Engine(tiny_llama)


def test_whole_pages_of_declared_text_are_shared_and_the_rest_is_not(engine: Engine) -> None:
    prompt = [*DECLARED, *SECRET]
    assert engine.hits(ALICE, prompt, 100) == 0
    assert engine.hits(BOB, prompt, 100) == NUM_PUBLIC, "a right guess"
    assert engine.hits(BOB, [*DECLARED, *random_prompt(80, seed=3)], 100) == NUM_PUBLIC, "a wrong"
    assert engine.hits(ALICE, prompt, 100) == 176, "her own"
    assert engine.hits(BOB, prompt, 100) == 176, "and his"


def test_who_declares_nothing_finds_nothing(engine: Engine) -> None:
    prompt = [*DECLARED, *SECRET]
    assert engine.hits(ALICE, prompt, 100) == 0
    assert engine.hits(BOB, prompt) == 0
    assert engine.hits(ALICE, prompt) == 0, "of her own salt alone, nothing was computed so far"
    assert engine.hits(CAROL, prompt, 15) == 0, "less than a page"
    assert engine.hits(BOB, [*SECRET, *DECLARED], 100) == 0


def test_a_longer_declared_text_goes_on_where_a_shorter_one_ends(engine: Engine) -> None:
    prompt = [*DECLARED, *SECRET]
    assert engine.hits(ALICE, prompt, 100) == 0
    assert engine.hits(BOB, prompt, 160) == NUM_PUBLIC
    assert engine.hits(ALICE, prompt, 160) == 160
    assert engine.hits(ALICE, prompt, 100) == 176, "what she had is not lost"


def test_a_prompt_that_is_declared_as_a_whole(engine: Engine) -> None:
    """Its output is nobody else's: what comes behind the last whole page is its own."""
    assert engine.hits(ALICE, DECLARED, 100) == 0
    assert engine.hits(BOB, DECLARED, 100) == NUM_PUBLIC
    exact = DECLARED[:96]
    assert engine.hits(BOB, exact, 96) == 80, "one token at least is computed"
    assert engine.hits(ALICE, [*exact, *SECRET], 96) == 96


def test_beams_share_it_too(engine: Engine) -> None:
    beam = BeamParams(width=2, num_kept=1)
    prompt = [*DECLARED, *SECRET]
    engine.hits(ALICE, prompt, 100)
    assert engine.hits(BOB, prompt, 100, beam=beam) == NUM_PUBLIC
