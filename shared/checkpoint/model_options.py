"""What workers are told of a model, and what makes it another one: the same for all who read it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.checkpoint.processor_file import ProcessorFile
from shared.checkpoint.stored_format import ActivationsName, KVDTypeName, MadeFormat
from shared.errors import ConfigError

_MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Flags of a worker that whoever announces its model must be given, too."""

    max_context_len: int | None = None
    quantization: MadeFormat | None = None
    kv_dtype: KVDTypeName = "auto"
    cpu_activations: ActivationsName = "auto"
    chat_template: str | None = None
    logits_processors: str | None = None

    @classmethod
    def of(cls, config: object) -> Self:
        """The options of a configuration that has such fields."""
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})

    def processor_file(self) -> ProcessorFile | None:
        """None where no file is named. Raises ConfigError."""
        if self.logits_processors is None:
            return None
        return ProcessorFile.read(self.logits_processors)

    def template_source(self) -> str | None:
        """The Jinja source in the file `chat_template`, None where none is named.

        Raises ConfigError.
        """
        if self.chat_template is None:
            return None
        path = Path(self.chat_template).expanduser()
        try:
            if path.stat().st_size > _MAX_TEMPLATE_BYTES:
                raise ConfigError(
                    f"chat_template {str(path)!r} has more than {_MAX_TEMPLATE_BYTES} bytes"
                )
            source = path.read_text(encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"chat_template {str(path)!r}: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"chat_template {str(path)!r} is no text in UTF-8") from exc
        if not source.strip():
            raise ConfigError(f"chat_template {str(path)!r} is empty")
        return source


PLAIN = ModelOptions()
