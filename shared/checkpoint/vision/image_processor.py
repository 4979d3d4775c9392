"""What a checkpoint's image processor does to an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError
from shared.protocol.sight_card import ImageSize, SightCard

_FILE, _LATER_FILE = "preprocessor_config.json", "processor_config.json"
_VIDEO_FILES = ("video_preprocessor_config.json", _FILE)
_STEPS = ("do_resize", "do_rescale")
_FILTERS = range(6)  # Pillow's


class ImageProcessor:
    """Its values; what is missing is `defaults`', those of its class in transformers."""

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        *,
        may_pad: bool = False,
    ) -> None:
        """Raises ConfigError for one that leaves out a step that all families have."""
        self.path = path
        self._values = {**defaults, **values}
        for name in _STEPS:
            if self.get(name, True) is not True:
                raise self.unsupported(name)
        if self.get("do_pad") and not may_pad:
            raise self.unsupported("do_pad")

    @classmethod
    def read(
        cls,
        path: Path,
        defaults: Mapping[str, Any] = MappingProxyType({}),
        *,
        may_pad: bool = False,
    ) -> ImageProcessor:
        """Reads preprocessor_config.json, or its later place in processor_config.json.

        Raises ConfigError.
        """
        nested = read_json(path / _LATER_FILE, dict, {}).get("image_processor")
        values = nested if isinstance(nested, dict) else read_json(path / _FILE, dict)
        return cls(path, values, defaults, may_pad=may_pad)

    @classmethod
    def read_of_videos(
        cls, path: Path, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> ImageProcessor:
        """That of videos, where the checkpoint has one of its own; else that of images.

        Raises ConfigError.
        """
        nested = read_json(path / _LATER_FILE, dict, {}).get("video_processor")
        if isinstance(nested, dict):
            return cls(path, nested, defaults)
        file = next((path / each for each in _VIDEO_FILES if (path / each).is_file()), None)
        return (
            cls.read(path, defaults) if file is None else cls(path, read_json(file, dict), defaults)
        )

    @staticmethod
    def is_in(path: Path) -> bool:
        """Whether a checkpoint has one."""
        nested = read_json(path / _LATER_FILE, dict, {}).get("image_processor")
        return isinstance(nested, dict) or (path / _FILE).is_file()

    def sight(self, image_token_id: int, size: ImageSize) -> SightCard:
        """How a model sees what this makes, as far as all families do. Raises ConfigError."""
        has_norm = self.get("do_normalize", True)
        return SightCard(
            image_token_id=image_token_id,
            size=size,
            resample=self._resample,
            rescale_factor=float(self.get("rescale_factor", 1 / 255)),
            mean=self._three("image_mean") if has_norm else (0.0, 0.0, 0.0),
            std=self._three("image_std") if has_norm else (1.0, 1.0, 1.0),
        )

    def get(self, name: str, default: Any = None) -> Any:
        """A null counts as missing."""
        value = self._values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive one. Raises ConfigError."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.unsupported(name)
        return value

    @property
    def _resample(self) -> int:
        """Pillow's number of the filter. Raises ConfigError."""
        value = self.get("resample")
        if not isinstance(value, int) or value not in _FILTERS:
            raise self.unsupported("resample")
        return value

    def _three(self, name: str) -> tuple[float, float, float]:
        """One number for each colour. Raises ConfigError."""
        value = self.get(name)
        if isinstance(value, list | tuple) and len(value) == 3:
            red, green, blue = (float(each) for each in value)
            return red, green, blue
        raise self.unsupported(name)

    def unsupported(self, *names: str) -> ConfigError:
        """Names what it has."""
        told = " with ".join(f"{name}={self.get(name)!r}" for name in names)
        return ConfigError(f"{self.path}: an image processor with {told} is not supported")
