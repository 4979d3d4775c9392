"""Checkpoint folders, and what is read of them about scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.pooled_files import (
    classifier_card,
    encoder_context_len,
    score_card,
    yes_no_card,
)
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.model_cards import ClassifierCard, ScoreCard
from shared.protocol.reply import ScoreMethod

ONE_LABEL: dict[str, Any] = {"id2label": {"0": "LABEL_0"}}


def bundle(*words: str, chat_template: str | None = "{{ messages }}") -> TokenizerBundle:
    vocabulary = {word: idx for idx, word in enumerate((*words, "[UNK]"))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = json.dumps({"chat_template": chat_template})
    return TokenizerBundle(
        {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": config.encode(),
        }
    )


def test_a_decoder_is_asked_with_the_tokens_of_its_answers() -> None:
    card = yes_no_card(bundle("a", "yes", "no"), vocab_size=4)
    assert card == ScoreCard(ScoreMethod.YES_NO, answer_ids=(1, 2))
    assert yes_no_card(bundle("a", "yes", "n", "##o"), 9) is None
    assert yes_no_card(bundle("a", "yes", "no"), vocab_size=2) is None
    assert yes_no_card(bundle("yes", "no", chat_template=None), 9) is None


@pytest.mark.parametrize(
    ("changes", "is_probability"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.act.Sigmoid"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
    ],
)
def test_a_classifier_says_whether_it_makes_probabilities(
    changes: dict[str, Any], *, is_probability: bool
) -> None:
    card = classifier_card(Path("m"), {**ONE_LABEL, **changes})
    assert card == ClassifierCard(("LABEL_0",), is_probability=is_probability)
    assert score_card(card) == ScoreCard(ScoreMethod.CLASSIFIER, is_probability=is_probability)


@pytest.mark.parametrize(
    ("config", "card"),
    [
        ({"id2label": {"1": "b", "0": "a"}}, ClassifierCard(("a", "b"))),
        ({}, ClassifierCard(("LABEL_0", "LABEL_1"))),
        (
            {"num_labels": 3, "problem_type": "multi_label_classification"},
            ClassifierCard(("LABEL_0", "LABEL_1", "LABEL_2"), are_independent=True),
        ),
        (
            {"num_labels": 2, "problem_type": "regression"},
            ClassifierCard(("LABEL_0", "LABEL_1"), is_probability=False),
        ),
    ],
)
def test_several_labels_are_classes_and_no_score(
    config: dict[str, Any], card: ClassifierCard
) -> None:
    assert classifier_card(Path("m"), config) == card
    assert score_card(card) is None


@pytest.mark.parametrize(
    ("architecture", "changes", "max_context_len"),
    [
        ("BertForSequenceClassification", {"pad_token_id": 0}, 514),
        ("XLMRobertaForSequenceClassification", {"pad_token_id": 1}, 512),
    ],
)
def test_an_encoders_positions_may_begin_behind_the_paddings(
    architecture: str, changes: dict[str, Any], max_context_len: int
) -> None:
    config = {**ONE_LABEL, **changes, "architectures": [architecture]}
    assert classifier_card(Path("m"), config).is_encoder
    config["max_position_embeddings"] = 514
    assert encoder_context_len(Path("m"), config) == max_context_len
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        encoder_context_len(Path("m"), {**config, "max_position_embeddings": None})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "2 labels, and that of 1 is 'None'"),
        ({"id2label": {}}, "1 to 4096"),
        ({"id2label": {"0": 7}}, "that of 0 is '7'"),
        ({"num_labels": 0}, "'num_labels' is 0"),
        ({"problem_type": "other"}, "problem_type='other'"),
        ({**ONE_LABEL, "sentence_transformers": {"activation_fn": "x.Tanh"}}, "x.Tanh"),
    ],
)
def test_what_we_lack_is_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        classifier_card(Path("m"), config)


def test_a_card_says_what_a_checkpoint_is_for(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 9, "vocab_size": 9, "hidden_size": 4, **ONE_LABEL}
    cards = [
        ModelFiles(tmp_path, {**config, "architectures": [name]}, {}).card("m", bundle("yes", "no"))
        for name in ("Qwen3ForSequenceClassification", "Qwen3ForCausalLM", "Qwen3Model")
    ]
    methods = [None if card.score is None else card.score.method for card in cards]
    assert methods == [ScoreMethod.CLASSIFIER, ScoreMethod.YES_NO, None]
    assert [card.can_generate for card in cards] == [False, True, False]
    assert [card.embedding is not None for card in cards] == [False, True, True]
