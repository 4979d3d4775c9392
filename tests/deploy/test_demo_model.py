"""The demo model: small, loadable by transformers as it is, and able to answer."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.demo_model.conversation import Turn
from deploy.demo_model.corpus import conversations

CHECKPOINT = Path(__file__).parents[2] / "deploy" / "demo_model" / "checkpoint"
MAX_BYTES = 8_000_000
MULTI_BYTE = "naïve café — 你好,世界 👩‍🚀🐱 नमस्ते\n\ttabs  and   spaces 12345"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model only waits for its threads
    yield load(dtype=torch.float32)
    torch.set_num_threads(num_threads)


def load(**options: Any) -> Any:
    """Imported late: each process that collects tests would take a second of CPU for it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, **options)


def chat(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    return messages + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def complete(
    model: Any, tokenizer: Any, input_ids: list[int], max_new_tokens: int, **sampling: Any
) -> str:
    """The text up to end-of-turn; fails if the model does not end by itself."""
    ids = torch.tensor([input_ids])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **sampling
    )
    new_ids = output[0, len(input_ids) :].tolist()
    assert new_ids[-1] == tokenizer.eos_token_id, tokenizer.decode(new_ids)
    return str(tokenizer.decode(new_ids[:-1]))


def ask(
    model: Any, tokenizer: Any, messages: list[dict[str, str]], max_new_tokens: int = 60
) -> str:
    input_ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return complete(model, tokenizer, input_ids, max_new_tokens, do_sample=False)


def test_checkpoint_is_small_and_stored_in_half_precision() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= MAX_BYTES
    stored = load()
    assert stored.dtype == torch.bfloat16
    assert stored.config.max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("What is 3+4?", "7"),
        ("what is 12 - 5", "7"),
        ("Name three colours.", "3. "),
        ("name 5 animals", "5. "),
        ("What is the opposite of hot?", "cold"),
        ("What sound does a cow make?", "moo"),
        ("What colour is the sky?", "blue"),
        ("Count to five", "1, 2, 3, 4, 5"),
        ("Say hello", "Hello"),
        ("hi", "!"),
        ("Who are you?", "jetflock demo model"),
        ("How are you?", "thank you"),
        ("What is the speed of light?", "small"),
        ("Say hello in Chinese", "你好"),
    ],
)
def test_greedy_answer_is_right_and_ends(
    model: Any, tokenizer: Any, prompt: str, expected: str
) -> None:
    assert expected in ask(model, tokenizer, chat(prompt))


def test_story_is_about_the_hero_that_was_asked_for(model: Any, tokenizer: Any) -> None:
    story = ask(model, tokenizer, chat("Tell me a story about a dog."), max_new_tokens=200)
    assert "dog" in story
    assert 40 < len(story.split()) < 150


def test_long_story_is_long_and_ends(model: Any, tokenizer: Any) -> None:
    story = ask(model, tokenizer, chat("Tell me a long story."), max_new_tokens=400)
    assert len(tokenizer.encode(story, add_special_tokens=False)) > 150


def test_name_is_remembered_over_turns(model: Any, tokenizer: Any) -> None:
    turns = chat(
        "Hi, my name is Tom.", "Nice to meet you, Tom!", "What is my name?", system="Be brief."
    )
    assert "Tom" in ask(model, tokenizer, turns)


def test_answer_is_right_at_the_end_of_a_full_context(model: Any, tokenizer: Any) -> None:
    turns = ["What is 3+4?", "3 + 4 = 7."] * 100
    messages = chat(*turns, "What is the opposite of hot?")
    assert 1800 < len(tokenizer.apply_chat_template(messages, return_dict=False)) < 2048
    assert "cold" in ask(model, tokenizer, messages)


def test_sampled_answer_ends(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(0)
    input_ids = tokenizer.apply_chat_template(
        chat("Write a short story"), add_generation_prompt=True, return_dict=False
    )
    story = complete(model, tokenizer, input_ids, 250, do_sample=True, temperature=0.7, top_k=0)
    assert len(story.split()) > 40


def test_plain_text_is_continued_and_ends(model: Any, tokenizer: Any) -> None:
    input_ids = tokenizer.encode("Once upon a time")
    assert input_ids[0] == tokenizer.bos_token_id
    assert "." in complete(model, tokenizer, input_ids, 250, do_sample=False)


def test_tokenizer_gives_every_text_back(tokenizer: Any) -> None:
    ids = tokenizer.encode(MULTI_BYTE, add_special_tokens=False)
    assert tokenizer.decode(ids) == MULTI_BYTE


def test_template_writes_what_the_model_was_trained_on(tokenizer: Any) -> None:
    from deploy.demo_model.trainer import SampleEncoder

    turns = [Turn("system", "Be brief."), Turn("user", "hi"), Turn("assistant", "Hello!")]
    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    sample = SampleEncoder(tokenizer.backend_tokenizer, max_len=2048, seed=0).encode(turns)
    assert tokenizer.apply_chat_template(messages, return_dict=False) == sample.ids


def test_template_refuses_an_unknown_role(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="unknown role: tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_corpus_is_the_same_for_the_same_seed() -> None:
    first, again, other = (list(islice(conversations(seed), 300)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_no_turn_of_the_corpus_would_be_changed_by_the_template() -> None:
    for turns in islice(conversations(3), 2000):
        assert all(turn.text and turn.text == turn.text.strip() for turn in turns)
