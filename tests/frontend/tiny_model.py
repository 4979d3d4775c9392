"""A model that needs no weights: a byte-level tokenizer, a chat template and a card."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.cluster import Cluster
from shared.protocol.codec import encode
from shared.protocol.model_cards import ModelCard
from shared.storage.streams import ensure_consumers
from shared.subjects import pool_slug

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BOS, IM_START, IM_END = 256, 257, 258
VOCAB_SIZE = 259


def make_tokenizer() -> Tokenizer:
    """One token a byte; <s> begins a completion's prompt."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<s>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def make_bundle(chat_template: str | None = CHATML) -> TokenizerBundle:
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": chat_template}
    return TokenizerBundle(
        {
            "tokenizer.json": make_tokenizer().to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
    )


def make_card(bundle: TokenizerBundle, name: str = "tiny", **changes: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "name": name,
        "pool": pool_slug(name),
        "revision": "r1",
        "tokenizer_hash": bundle.content_hash,
        "max_context_len": 512,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": (IM_END,),
        "created": 1_700_000_000,
    }
    return ModelCard(**{**fields, **changes})


async def register(cluster: Cluster, bundle: TokenizerBundle, card: ModelCard) -> None:
    await ModelCatalog(cluster).put_bundle(bundle)
    await ensure_consumers(cluster.js, cluster.subjects, card.pool, 30.0)
    cards = cluster.bucket(cluster.subjects.models_bucket)
    await cards.put(card.pool, encode(card))
