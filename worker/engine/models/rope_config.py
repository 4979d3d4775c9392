"""Rotary position embedding, as config.json describes it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shared.errors import ConfigError
from worker.engine.models.model_config import ConfigFile, NotFused

DEFAULT_THETA = 10000.0
NUM_AXES = 3
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Frequencies, and how they are stretched over longer texts."""

    kind: Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]
    theta: float
    factor: float = 1.0
    original_max_positions: int = 8192  # of all stretched kinds but linear: what it was trained for
    low_freq_factor: float = 1.0  # of llama3, as the next
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # of yarn, as all that follow
    beta_slow: float = 1.0
    attention_factor: float | None = None  # of longrope, too
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()  # of longrope, by pair: of waves, in texts within
    long_factors: tuple[float, ...] = ()  # original_max_positions, and beyond
    # Of a head's values that are rotated: the first ones. If it is proportional: the first of each
    # half, and the waves are those of the whole head.
    share: float = 1.0
    has_neighbours: bool = False  # pairs are stored side by side, not half a head apart
    is_backwards: bool = False  # pairs turn the other way round
    axes: tuple[int, ...] = ()  # by pair: 0 to 2, of positions by time, row, column; (): of one

    def num_rotated(self, head_dim: int) -> int:
        """How many values of a head are rotated."""
        if self.kind == "proportional":
            return 2 * int(head_dim * self.share // 2)
        return 2 * math.ceil(self.num_waving(head_dim) / 2)

    def num_waving(self, head_dim: int) -> int:
        """The same, of which waves are made: of an odd number the last one has its neighbour along,
        as transformers has it.
        """
        return int(head_dim * self.share)

    @property
    def growth(self) -> float:
        """The growth of queries and keys, which attend more sharply for it (arXiv 2309.00071,
        2402.13753).
        """
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.growth_by(self.mscale) / self.growth_by(self.mscale_all_dim)
        return self.growth_by(1.0)

    def growth_by(self, mscale: float) -> float:
        """0.1 * mscale * ln(factor) + 1."""
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

    def max_context_limit(self, max_positions: int) -> int:
        """The longest text: `max_positions` is what config.json names."""
        if self.kind not in ("dynamic", "yarn"):
            return max_positions
        return max(max_positions, int(self.factor * self.original_max_positions))


def partial_rope_config(config: ConfigFile, *, has_neighbours: bool = False) -> RopeConfig:
    """As `rope_config`, of models that may rotate a part of each head."""
    parameters = config.section("rope_parameters") or config
    share = parameters.number("partial_rotary_factor", 1.0)
    if not 0.0 < share <= 1.0:
        raise ConfigError(
            f"{config.path}: 'partial_rotary_factor' must be a share of a head, not {share!r}"
        )
    rope = _rope_config(config)
    return dataclasses.replace(rope, share=share, has_neighbours=has_neighbours)


def rope_config(config: ConfigFile) -> RopeConfig:
    """transformers 5 puts all into rope_parameters, 4 has rope_theta and rope_scaling.

    Raises ConfigError for what we do not compute.
    """
    for section in (config, config.section("rope_parameters"), config.section("rope_scaling")):
        if section is not None:
            section.refuse("partial_rotary_factor", 1, 1.0)
    return _rope_config(config)


def neighbours_rope_config(config: ConfigFile, *, has_neighbours: bool) -> RopeConfig:
    """As `rope_config`, of heads whose pairs may be stored side by side."""
    return dataclasses.replace(rope_config(config), has_neighbours=has_neighbours)


class LayeredRopes(NamedTuple):
    """The rotations of a model whose layers rotate by their types."""

    main: RopeConfig  # of full attention, which reaches farthest
    layers: tuple[RopeConfig, ...]


def ropes_by_layer(config: ConfigFile) -> LayeredRopes:
    """Where `rope_parameters` has a section for each of `layer_types`. Raises ConfigError."""
    parameters = config.section("rope_parameters")
    ropes = {}
    for name in LAYER_TYPES:
        section = None if parameters is None else parameters.section(name)
        if section is not None:
            refuse_truncation(section)
            ropes[name] = _rope(config, section)
            if ropes[name].kind != "proportional":
                section.refuse("partial_rotary_factor", 1, 1.0)
    layer_types = config.get("layer_types", None)
    if not isinstance(layer_types, list) or not {"full_attention", *layer_types} <= ropes.keys():
        raise ConfigError(
            f"{config.path}: 'rope_parameters' must have sections {' and '.join(LAYER_TYPES)} for "
            f"'layer_types' {layer_types!r}"
        )
    return LayeredRopes(ropes["full_attention"], tuple(ropes[each] for each in layer_types))


def refuse_truncation(section: ConfigFile | None) -> None:
    """Raises ConfigError where yarn is not to truncate in layers of one type: transformers
    overlooks it there.
    """
    if section is not None:
        section.refuse("truncate", True)


def _rope_config(config: ConfigFile) -> RopeConfig:
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    rope = _rope(config, parameters)
    axes = () if parameters is None else _axes(parameters)
    return dataclasses.replace(rope, axes=axes) if axes else rope


def _axes(parameters: ConfigFile) -> tuple[int, ...]:
    """`mrope_section` says how many pairs each axis has: side by side, or in turns, as long as rows
    and columns have some left. Raises ConfigError.
    """
    name = "mrope_section"
    sections = parameters.get(name, None)
    if sections is None:
        return ()
    if not isinstance(sections, list) or not all(isinstance(each, int) for each in sections):
        raise ConfigError(f"{parameters.path}: {name!r} must be numbers of pairs, not {sections!r}")
    if len(sections) != NUM_AXES or min(sections) < 0:
        raise ConfigError(f"{parameters.path}: {name!r} must be of three axes, not {sections!r}")
    if not parameters.boolean("mrope_interleaved", default=False):
        return tuple(axis for axis, num_pairs in enumerate(sections) for _ in range(num_pairs))
    turns = (pair % NUM_AXES for pair in range(sum(sections)))
    return tuple(axis if pair < NUM_AXES * sections[axis] else 0 for pair, axis in enumerate(turns))


def _rope(config: ConfigFile, parameters: ConfigFile | None) -> RopeConfig:
    top_theta = config.number("rope_theta", DEFAULT_THETA)
    if parameters is None:
        return RopeConfig("default", top_theta)
    theta = parameters.number("rope_theta", top_theta)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    max_positions = config.integer("max_position_embeddings")
    match kind:
        case "default":
            return RopeConfig("default", theta)
        case "linear":
            return RopeConfig("linear", theta, parameters.number("factor"))
        case "dynamic":
            return RopeConfig("dynamic", theta, parameters.number("factor"), max_positions)
        case "yarn":
            return _yarn(parameters, theta, _original_max_positions(config, parameters))
        case "longrope":
            return _longrope(config, parameters, theta)
        case "proportional":
            factor = parameters.number("factor", 1.0)
            share = parameters.number("partial_rotary_factor", 1.0)
            return RopeConfig("proportional", theta, factor, share=share)
        case "llama3":
            return RopeConfig(
                "llama3",
                theta,
                parameters.number("factor"),
                _original_max_positions(config, parameters),
                low_freq_factor=parameters.number("low_freq_factor"),
                high_freq_factor=parameters.number("high_freq_factor"),
            )
        case _:
            raise NotFused(f"{config.path}: rope type {kind!r} is not supported")


def _original_max_positions(config: ConfigFile, parameters: ConfigFile) -> int:
    """As transformers reads it: the top level comes first."""
    name = "original_max_position_embeddings"
    default = parameters.integer(name, config.integer("max_position_embeddings"))
    return config.integer(name, default)


def _yarn(parameters: ConfigFile, theta: float, original_max_positions: int) -> RopeConfig:
    return RopeConfig(
        "yarn",
        theta,
        parameters.number("factor"),
        original_max_positions,
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        attention_factor=parameters.optional_number("attention_factor"),
        mscale=parameters.optional_number("mscale"),
        mscale_all_dim=parameters.optional_number("mscale_all_dim"),
        truncate=parameters.boolean("truncate", default=True),
    )


def _longrope(config: ConfigFile, parameters: ConfigFile, theta: float) -> RopeConfig:
    """Without a factor of attention it is sqrt(1 + ln(factor) / ln(original_max_positions))."""
    original = _original_max_positions(config, parameters)
    factor = parameters.optional_number("factor")
    if factor is None:
        factor = config.integer("max_position_embeddings") / original
    attention_factor = parameters.optional_number("attention_factor")
    if attention_factor is None:
        attention_factor = 1.0
        if factor > 1.0:
            attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeConfig(
        "longrope",
        theta,
        factor,
        original,
        attention_factor=attention_factor,
        short_factors=_factors(parameters, "short_factor"),
        long_factors=_factors(parameters, "long_factor"),
    )


def _factors(parameters: ConfigFile, name: str) -> tuple[float, ...]:
    values = parameters.get(name, None)
    if not isinstance(values, list) or not all(
        isinstance(each, int | float) and each > 0 for each in values
    ):
        raise ConfigError(f"{parameters.path}: '{name}' must be positive numbers, not {values!r}")
    return tuple(map(float, values))
