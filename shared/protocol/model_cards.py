"""The models of a cluster."""

from __future__ import annotations

import msgspec

from shared.protocol.hearing_card import HearingCard
from shared.protocol.image_sizes import FixedSize
from shared.protocol.reply import ScoreMethod
from shared.protocol.sampling import PoolingKind
from shared.protocol.sight_card import SightCard
from shared.protocol.sound_card import SoundCard


class EmbeddingCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model embeds, unless a request says otherwise."""

    num_dimensions: int
    pooling: PoolingKind = PoolingKind.LAST
    normalize: bool = True
    is_matryoshka: bool = False  # trained so that the first dimensions mean something alone
    matryoshka_dimensions: tuple[int, ...] = ()  # those it was trained for; empty: any


class VisionCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `SightCard` of images of one size, as builds of all levels read it."""

    image_token_id: int
    num_tokens: int
    height: int  # of the pixels
    width: int
    shortest_edge: int | None
    resample: int
    rescale_factor: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def sight(self) -> SightCard:
        return SightCard(
            image_token_id=self.image_token_id,
            size=FixedSize(self.height, self.width, self.num_tokens, self.shortest_edge),
            resample=self.resample,
            rescale_factor=self.rescale_factor,
            mean=self.mean,
            std=self.std,
        )

    @classmethod
    def maybe_of(cls, sight: SightCard | None) -> VisionCard | None:
        """None for what those builds would misread: they are told that it takes no images."""
        if sight is None or not isinstance(sight.size, FixedSize):
            return None
        size = sight.size
        card = cls(
            image_token_id=sight.image_token_id,
            num_tokens=size.num_features,
            height=size.height,
            width=size.width,
            shortest_edge=size.shortest_edge,
            resample=sight.resample,
            rescale_factor=sight.rescale_factor,
            mean=sight.mean,
            std=sight.std,
        )
        return card if card.sight == sight else None


class ScoreCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model scores pairs of texts."""

    method: ScoreMethod
    is_encoder: bool = False  # each token sees all others
    is_probability: bool = True  # else, unless a request says otherwise, the bare output
    answer_ids: tuple[int, ...] = ()  # of YES_NO: the tokens "yes" and "no"


class ClassifierCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model classifies a text."""

    labels: tuple[str, ...]  # by their places in its output
    is_encoder: bool = False  # each token sees all others
    is_probability: bool = True  # else, unless a request says otherwise, the bare outputs
    # Several labels may hold at once: each has a probability by itself. Else those of all add up
    # to 1; of a single label it is its own, too.
    are_independent: bool = False


class AdapterCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A LoRA adapter of a model: asked for as a model of its own."""

    name: str
    revision: str  # of its files, which are in the object store
    rank: int
    created: int  # unix seconds
    path: str = ""  # where it was read, for people


class ModelCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model in the KV bucket `models`; it stays when no worker runs."""

    name: str
    pool: str  # slug of the name, made by us: fit for a subject
    revision: str  # of the weights
    tokenizer_hash: str  # object store name of the tokenizer files
    max_context_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    created: int  # unix seconds
    default_temperature: float | None = None  # from generation_config.json
    default_top_p: float | None = None
    default_top_k: int | None = None
    default_min_p: float | None = None
    default_repetition_penalty: float | None = None
    can_generate: bool = True
    embedding: EmbeddingCard | None = None  # None: it makes no embeddings
    vision: VisionCard | None = None  # None: it takes no images, or `own_sight` tells
    score: ScoreCard | None = None  # None: it scores nothing
    stored_format: str = ""  # of its weights, like "gptq 4-bit"; empty: 16 or 32 bits
    num_weight_bytes: int = 0  # on disk
    weights_path: str = ""  # of the checkpoint that an update put in place of the workers' own
    replaced: tuple[str, ...] = ()  # revisions in whose place workers load `weights_path`
    adapters: tuple[AdapterCard, ...] = ()  # in the order in which they were loaded
    # It may be asked for: a worker has loaded it since it was made, or last withdrawn.
    is_announced: bool = True
    is_kept: bool = False  # an operator said so: it may be asked for whoever lives
    kv_dtype: str = ""  # of keys and values, like "int8"; empty: the model's
    keeps_states: bool = False  # of recurrent layers, which know no token but their last
    own_sight: SightCard | None = None  # from level 3 on: set where `vision` cannot tell it
    hearing: HearingCard | None = None  # set: it transcribes audio, and does nothing else
    logits_processors: tuple[str, ...] = ()  # of the operator's file, by their names
    classifier: ClassifierCard | None = None  # None: it has no labels
    activations: str = ""  # what CPUs round them to, like "int8"; empty: as the checkpoint says
    sound: SoundCard | None = None  # from level 4 on; None: its chats take no audio

    @property
    def sight(self) -> SightCard | None:
        """None: it takes no images."""
        return self.own_sight if self.vision is None else self.vision.sight
