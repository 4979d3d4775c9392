"""A draft that is trained guesses what the model says; what cannot be trained is told by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shared.errors import ConfigError
from tests.worker.engine.drafting.test_model_drafter import fix_length
from tests.worker.engine.json_llama import encode, save_json_llama
from tests.worker.engine.tiny_models import Rig
from tests.worker.engine_fakes import make_add
from worker.engine.training.answers import read_prompts
from worker.engine.training.draft_trainer import make_draft
from worker.engine_link.train_config import DraftKind, TrainConfig

WORDS = ["one", "two", "three", "four", "five", "six"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_json_llama(tmp_path_factory.mktemp("model"), num_hidden_layers=3)


def train_config(model: Path, folder: Path, **values: object) -> TrainConfig:
    prompts = folder / "prompts.jsonl"
    texts = [f"{first} {second}" for first in WORDS for second in WORDS[:3]]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    defaults: dict[str, object] = {
        "model_path": str(model),
        "prompts": str(prompts),
        "out": str(folder / "draft"),
        "max_answer_len": 24,
        "num_threads": 1,
    }
    return TrainConfig(**(defaults | values))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["model", "eagle3", "mtp"])
def test_it_learns_what_the_model_says(model: Path, tmp_path: Path, kind: DraftKind) -> None:
    told: list[str] = []
    losses = []
    for num_steps in (1, 40):
        out = tmp_path / str(num_steps)
        values: dict[str, object] = {"out": str(out), "num_steps": num_steps, "max_lr": 5e-3}
        config = train_config(model, tmp_path, kind=kind, **values)
        make_draft(config, told.append)
        losses.append(float(told[-1].partition("(loss ")[2].partition(")")[0]))
    assert losses[1] < 0.9 * losses[0]
    if kind == "mtp":
        assert told[-1].endswith(f"jetflock serve {out} --speculate mtp")
        rig = Rig(out, speculate="mtp")
    else:
        assert told[-1].endswith(f"jetflock serve {model} --draft-model {out}")
        rig = Rig(model, draft_model=str(out))
    fix_length(rig)
    adds = [make_add(n, encode(word), max_tokens=24) for n, word in enumerate(WORDS)]
    assert rig.run(*adds) == Rig(model).run(*adds)
    assert rig.channel.steps[-1].load.num_accepted > 0


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"kind": "eagle3", "num_layers": 2}, "num_layers=2 is not possible: a head has one"),
        ({"num_layers": 9}, "num_layers must be 1 to [0-9]+, fewer than the model has, not 9"),
        ({"prompts": "/nowhere"}, "prompts=/nowhere cannot be read: No such file"),
    ],
)
def test_what_cannot_be_trained_is_told(
    model: Path, tmp_path: Path, values: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make_draft(train_config(model, tmp_path, **values), print)


def test_messages_that_the_chat_template_refuses_are_told(model: Path, tmp_path: Path) -> None:
    config = train_config(model, tmp_path)
    shutil.copytree(model, own := tmp_path / "own")
    template = "{{ raise_exception('unknown role: ' + messages[0].role) }}"
    (own / "chat_template.jinja").write_text(template)
    Path(config.prompts).write_text('{"messages": [{"role": "text", "content": "one"}]}\n')
    with pytest.raises(ConfigError, match=r"line 1: .* refuses its messages: unknown role: text"):
        read_prompts(Path(config.prompts), own, 1)


def test_a_line_that_is_no_prompt_and_a_folder_in_use_are_told(model: Path, tmp_path: Path) -> None:
    config = train_config(model, tmp_path)
    Path(config.prompts).write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(ConfigError, match="line 2 must be an object with messages or prompt"):
        make_draft(config, print)
    Path(config.out).mkdir()
    (Path(config.out) / "config.json").touch()
    with pytest.raises(ConfigError, match=r"out=.*draft is not empty"):
        make_draft(config, print)
