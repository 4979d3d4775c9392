"""What one process has once, whichever streams it serves."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from nats.aio.client import Client

from frontend.assembly.background import Background
from frontend.audio.loader import AudioLoader
from frontend.config import FrontendConfig
from frontend.grammars.checker import GrammarChecker
from frontend.http.http_request import CallerReader
from frontend.images.fetcher import ImageFetcher
from frontend.images.loader import ImageLoader
from frontend.jobs.body_intake import BodyIntake
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.metrics import FrontendMetrics
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.tenants.auth import ApiKeys
from frontend.tenants.key_file import KeyWatch
from frontend.tenants.ledger import TenantLedger
from shared.broker.text_readers import TextReaders
from shared.cli.shutdown import Shutdown
from shared.machine.host_limits import available_memory_bytes
from shared.telemetry.loop_watch import LoopWatch
from shared.telemetry.tracing import Tracer

_BODIES_SHARE = 16  # of the memory, as JSON; read they take up to ten times as much


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """Its identity, its threads and children, and its books of tenants."""

    config: FrontendConfig
    frontend_id: str
    listener: socket.socket
    service_nc: Client | None  # of the NATS service; None: there is none
    metrics: FrontendMetrics
    tracer: Tracer
    readers: TextReaders  # of text that is made in this process
    shutdown: Shutdown
    ledger: TenantLedger
    keys: ApiKeys
    callers: CallerReader
    intake: BodyIntake
    encoder: PromptEncoder
    images: ImageLoader
    audio: AudioLoader
    grammars: GrammarChecker
    styles: AnswerStyles
    background: Sequence[Background]

    @classmethod
    def of(
        cls,
        config: FrontendConfig,
        frontend_id: str,
        listener: socket.socket,
        service_nc: Client | None,
        metrics: FrontendMetrics,
        tracer: Tracer,
        readers: TextReaders | None = None,
    ) -> Self:
        """Raises ConfigError when a file of keys cannot be read."""
        keys = ApiKeys(config.api_keys())
        background: list[Background] = [LoopWatch(metrics.registry)]
        if config.api_keys_file is not None:
            background.append(KeyWatch(config.api_keys_file, keys, config.api_keys))
        audio = AudioLoader(config.audio_limits())
        return cls(
            config=config,
            frontend_id=frontend_id,
            listener=listener,
            service_nc=service_nc,
            metrics=metrics,
            tracer=tracer,
            readers=TextReaders() if readers is None else readers,
            shutdown=Shutdown(),
            ledger=TenantLedger(),
            keys=keys,
            callers=CallerReader(config, keys),
            intake=BodyIntake(available_memory_bytes() // _BODIES_SHARE),
            encoder=PromptEncoder(),
            images=ImageLoader(
                config.image_limits(),
                config.video_limits(),
                audio,
                ImageFetcher(config.fetch_policy()),
            ),
            audio=audio,
            grammars=GrammarChecker(),
            styles=AnswerStyles(config.tool_parser, config.reasoning_parser),
            background=background,
        )

    @property
    def port(self) -> int:
        """That it listens on: the system may have chosen it."""
        return int(self.listener.getsockname()[1])

    async def close(self) -> None:
        """End threads and children."""
        self.encoder.close()
        await self.images.close()
        self.audio.close()
        self.grammars.close()
