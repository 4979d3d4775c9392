"""With a draft model a request gets the same tokens, in fewer steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shared.errors import ConfigError
from shared.grammar import grammar_engine
from shared.protocol.sampling import Grammar, GrammarKind
from tests.worker.engine.fake_runner import (
    VOCAB_SIZE,
    Model,
    Stage,
    expected_output,
    looping_token,
    next_token,
)
from tests.worker.engine.json_llama import save_json_llama
from tests.worker.engine.tiny_models import Rig, random_prompt, save_eagle_head, save_tiny_llama
from tests.worker.engine_fakes import make_add
from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.drafting.draft_model import Draft
from worker.engine.drafting.model_drafter import ModelDrafter
from worker.engine.request.schedule_batch import ScheduledReq
from worker.engine.speculation.draft_length import MAX_TRIAL_COST, MIN_WAIT, DraftLength
from worker.engine.speculation.grammar_drafter import GrammarDrafter
from worker.engine_link.engine_messages import AddRequest

MAX_TOKENS = 40
MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.0, "seed": 2},
]


class FakeDraftModel(Draft):
    """Says what a function says, over slots that must hold what they should."""

    def __init__(self, num_pages: int, page_size: int, model: Model) -> None:
        pool: Any = SimpleNamespace(num_pages=num_pages, page_size=page_size)
        super().__init__("fake", pool, 1 << 20, VOCAB_SIZE)
        self._model = model
        self._slots: dict[int, int] = {}  # slot -> hash of namespace and tokens up to it
        self.num_rows = 0

    def logits(self, entries: list[ScheduledReq], req_to_token: ReqToTokenPool) -> torch.Tensor:
        rows = []
        for entry in entries:
            token_ids = [*entry.req.token_ids, *self.guesses_of(entry)]
            for position in range(entry.start, entry.end):
                self._slots[self._slot(entry, req_to_token, position)] = _hash(
                    entry, token_ids[: position + 1]
                )
            for position in range(entry.end):
                slot = self._slot(entry, req_to_token, position)
                assert self._slots.get(slot) == _hash(entry, token_ids[: position + 1])
            self.num_rows += entry.num_tokens
            if entry.num_samples:
                row = torch.zeros(VOCAB_SIZE)
                row[self._model(token_ids)] = 1.0
                rows.append(row)
        return torch.stack(rows) if rows else torch.empty(0, VOCAB_SIZE)

    def guesses_of(self, entry: ScheduledReq) -> Sequence[int]:
        """Those before the last are not in the entry: the model is a function."""
        token_ids = entry.req.token_ids.tolist()
        while len(token_ids) < entry.end:
            token_ids.append(self._model(token_ids))
        return token_ids[entry.req.num_tokens :]

    def _slot(self, entry: ScheduledReq, req_to_token: ReqToTokenPool, position: int) -> int:
        page = int(req_to_token.page_table[entry.req.row, position // self.page_size])
        return page * self.page_size + position % self.page_size


def _hash(entry: ScheduledReq, token_ids: Sequence[int]) -> int:
    return hash(entry.req.options.namespace + bytes(token_ids))


class FixedLength(DraftLength):
    """Whatever it costs."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length, self.is_trial = length, False

    def on_step(self, num_reqs: int, num_rows: int, elapsed_s: float) -> None:
        """Nothing changes."""


class FakedStage(Stage):
    """With a draft model that mostly guesses right."""

    def __init__(self, model: Model, guessing: Model, **options: Any) -> None:
        super().__init__(model=model, **options)
        self.draft = FakeDraftModel(self.ledger.num_pages, self.ledger.page_size, guessing)
        self.drafter = ModelDrafter(self.draft, self.ledger, None, FixedLength(4))
        for holder in (self.scheduler, self.scheduler._reqs, self.scheduler._results):
            vars(holder)["_drafter"] = self.drafter


def mostly(model: Model) -> Model:
    return lambda ids: model(ids) if len(ids) % 5 else (model(ids) + 1) % VOCAB_SIZE


@pytest.mark.parametrize("seed", range(12))
def test_what_was_read_is_found_again_whoever_has_the_pages(seed: int) -> None:
    """Prefixes that are shared, retractions, aborts, resumed runs; no slot holds anything else."""
    source = random.Random(seed)
    model = source.choice([next_token, looping_token])
    page_size = source.randint(1, 4)
    stage = FakedStage(
        model,
        mostly(model),
        num_pages=source.randint(24, 48) // page_size,
        page_size=page_size,
        max_step_tokens=source.randint(6, 24),
        overlap_depth=seed % 2,
    )
    prompts = [[source.randrange(40) for _ in range(source.randint(1, 9))] for _ in range(3)]
    wanted: dict[int, tuple[list[int], int]] = {}
    for run_id in range(1, 20):
        prompt, num_tokens = source.choice(prompts), source.randint(1, 14)
        done = expected_output(prompt, source.choice([0, 0, num_tokens - 1]), model)
        wanted[run_id] = prompt, num_tokens
        stage.add(run_id, prompt, done, max_tokens=num_tokens, namespace=source.choice([b"", b"a"]))
        for _ in range(source.randint(0, 6)):
            stage.step()
        if source.random() < 0.2:
            stage.scheduler.abort(run_id)
            del wanted[run_id]
    stage.run()
    for run_id, (prompt, num_tokens) in wanted.items():
        assert stage.tokens[run_id] == expected_output(prompt, num_tokens, model)
    assert 0 < stage.scheduler.load().num_accepted < stage.scheduler.load().num_drafted
    assert stage.drafter._chains == {}
    stage.runner.close()


def test_prefixes_are_read_once_in_their_namespace() -> None:
    stage = FakedStage(next_token, next_token, num_pages=32, max_context_len=64)
    nums_rows = []
    for run_id, namespace in enumerate([b"", b"", b"a"], start=1):
        before = stage.draft.num_rows
        stage.add(run_id, list(range(20)), max_tokens=8, namespace=namespace)
        stage.run()
        nums_rows.append(stage.draft.num_rows - before)
    # The second one begins behind the pages of the prompt.
    assert nums_rows == [26, 26 - 20, 26]


def num_guessing_steps(length: DraftLength, num_steps: int, share: float) -> int:
    """Of a model whose step takes 10 ms and 1 ms a row; a guess takes 2 ms."""
    source, num_guessing = random.Random(1), 0
    for _ in range(num_steps):
        num_drafted = length.length
        if num_drafted:
            num_guessing += 1
            length.on_guesses(1, num_drafted, 0.002 * num_drafted)
            num_accepted = 0
            while num_accepted < num_drafted and source.random() < share:
                num_accepted += 1
            length.on_result(num_drafted, num_accepted)
        length.on_step(1, 1 + num_drafted, 0.010 + 0.001 * (1 + num_drafted))
    return num_guessing


def test_of_good_guesses_there_are_many_and_of_bad_ones_hardly_any() -> None:
    bad, fair, good = DraftLength(8), DraftLength(8), DraftLength(8)
    for num_steps in (1000, 20_000):  # of 11 ms, and 6 more where guesses are made
        assert num_guessing_steps(bad, num_steps, 0.0) * 6 <= MAX_TRIAL_COST * num_steps * 11
    assert num_guessing_steps(bad, 4 * MIN_WAIT, 0.9) > MIN_WAIT
    assert num_guessing_steps(fair, 4000, 0.5) > 3000
    assert fair.length <= 3
    assert num_guessing_steps(good, 4000, 0.95) > 3700
    assert good.length >= 6


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same vocabulary: a model, one much like it, and one that is not, with other heads."""
    folder = tmp_path_factory.mktemp("drafts")
    like, target = (
        save_tiny_llama(folder / each, initializer_range=0.12, num_hidden_layers=3)
        for each in ("b", "a")
    )
    save_eagle_head(target, folder / "head")
    save_tiny_llama(folder / "other", num_hidden_layers=1, num_key_value_heads=1)
    _shake(like / "model.safetensors")
    assert target.exists()
    return folder


def _shake(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    torch.manual_seed(1)
    tensors = {
        name: each * (1 + 0.02 * torch.randn_like(each)) for name, each in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})


def fix_length(rig: Rig) -> None:
    drafter = rig.engine._scheduler._drafter
    assert isinstance(drafter, GrammarDrafter)
    assert isinstance(drafter._others, ModelDrafter)
    drafter._others._length = FixedLength(3)


def requests(**sampling: Any) -> list[AddRequest]:
    prompts = [random_prompt(length, length) for length in (5, 40, 90)]
    return [
        make_add(
            run_id, prompt * 2, max_tokens=MAX_TOKENS, ignore_eos=True, **MIXED[run_id] | sampling
        )
        for run_id, prompt in enumerate(prompts)
    ]


NATIVE: dict[str, Any] = {"dtype": "bfloat16", "cpu_kernels": "native"}


@pytest.fixture(scope="module")
def without(models: Path) -> dict[str, dict[int, list[int]]]:
    """What the model says without a draft, by its dtype: no token depends on the steps."""
    configs: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": NATIVE}
    return {
        dtype: Rig(models / "a", **config).run(*requests()) for dtype, config in configs.items()
    }


# Without a configuration, and a head with retractions: what the others show at length.
@pytest.mark.parametrize(
    ("draft", "config"),
    [
        pytest.param("b", {}, marks=pytest.mark.nightly),
        ("b", {"overlap": True, "max_step_tokens": 24}),
        ("other", {}),
        ("b", NATIVE),
        ("b", {"num_kv_tokens": 352, "max_step_tokens": 32}),
        ("head", {"overlap": True, "max_step_tokens": 24}),
        ("head", NATIVE),
        pytest.param(
            "head", {"num_kv_tokens": 352, "max_step_tokens": 32}, marks=pytest.mark.nightly
        ),
    ],
    ids=str,
)
def test_the_model_says_the_same(
    models: Path,
    without: dict[str, dict[int, list[int]]],
    draft: str,
    config: dict[str, Any],
) -> None:
    expected = without[config.get("dtype", "float32")]
    rig = Rig(models / "a", draft_model=str(models / draft), **config)
    fix_length(rig)
    rig.engine._scheduler._reserve_ratio.value = 0.0
    assert rig.run(*requests()) == expected
    load = rig.channel.steps[-1].load
    assert load.num_drafted > 0
    assert 0 < load.num_accepted < load.num_drafted or draft != "b"
    assert (load.num_preemptions > 0) == (config.get("num_kv_tokens") == 352)
    alone = rig.run(
        *(
            make_add(
                9 + add.run_id,
                random_prompt(5, 5) * 2,
                expected[0][:20],
                max_tokens=MAX_TOKENS,
                ignore_eos=True,
            )
            for add in requests()[:1]
        )
    )
    assert expected[0][:20] + alone[9] == expected[0]


@pytest.mark.parametrize("sampling", MIXED, ids=str)
def test_guesses_are_drawn_with_the_noise_of_their_place(
    models: Path, sampling: dict[str, Any]
) -> None:
    """Two independent draws would agree as often as a likely token is drawn twice."""
    rig = Rig(models / "a", draft_model=str(models / "a"), num_draft_tokens=3)
    fix_length(rig)
    rig.run(*requests(**sampling))
    load = rig.channel.steps[-1].load
    assert load.num_accepted > 0.9 * load.num_drafted > 0


def test_guesses_keep_to_a_grammar(tmp_path: Path) -> None:
    path = save_json_llama(tmp_path)
    digits = Grammar(GrammarKind.REGEX, "[12]{50}", grammar_engine())
    adds = [
        make_add(run_id, [5, 6, 7], max_tokens=60, grammar=digits, frequency_penalty=0.01, **each)
        for run_id, each in enumerate(MIXED)
    ]
    rig = Rig(path, draft_model=str(path))
    fix_length(rig)
    assert rig.run(*adds) == Rig(path).run(*adds)
    load = rig.channel.steps[-1].load
    assert load.num_accepted > 0.9 * load.num_drafted > 0


def test_what_cannot_guess_is_refused_by_name(models: Path, tmp_path: Path) -> None:
    path = save_json_llama(tmp_path)
    for model, config, told in (
        (path, {"draft_model": str(models / "a")}, "another tokenizer than the model"),
        (path, {"draft_model": str(models / "a"), "speculate": "ngram"}, "two ways of guessing"),
        (
            models / "a",
            {"draft_model": str(models / "nothing")},
            "draft_model=.*nothing is not possible: .* is not a folder",
        ),
        (
            models / "a",
            {"draft_model": str(models / "b"), "num_kv_tokens": 1 << 40},
            "draft_model=.* does not fit|does not fit .*draft_model=",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            Rig(model, **config)
    other = save_json_llama(tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"a": ', '"\\u00e9": ', 1))
    with pytest.raises(ConfigError, match="another tokenizer than the model"):
        Rig(path, draft_model=str(other))
