"""The APIs whose bodies become jobs, each with its reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.chat.chat_request import ChatRequests
from frontend.surfaces.completions.completion_request import CompletionRequests
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.generate.generate_request import GenerateRequests
from frontend.surfaces.job_reader import BodyReader, JobReader
from frontend.surfaces.ollama.requests import OllamaChats, OllamaCompletions, OllamaEmbeddings
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.scores.rerank_request import RerankRequests
from frontend.surfaces.scores.score_request import ScoreRequests
from shared.protocol.reply import Surface


@dataclass(frozen=True, slots=True)
class SurfaceParts:
    """`jobs` reads the bodies of all APIs; two readers are asked for tokens alone, too."""

    chats: ChatRequests
    messages: MessageRequests
    jobs: JobReader

    @classmethod
    def of(cls, process: ProcessParts, streams: StreamParts) -> Self:
        models, encoder, images = streams.models, process.encoder, process.images
        chats = ChatRequests(models, encoder, images, styles=process.styles)
        messages = MessageRequests(models, chats)
        embeddings = EmbeddingRequests(models, encoder)
        open_ended = CompletionRequests(models, encoder, default_max_tokens=None)
        readers: dict[Surface, BodyReader] = {
            Surface.CHAT: chats,
            Surface.COMPLETIONS: CompletionRequests(models, encoder),
            Surface.EMBEDDINGS: embeddings,
            Surface.SCORE: ScoreRequests(models, encoder),
            Surface.RERANK: RerankRequests(models, encoder),
            Surface.GENERATE: GenerateRequests(models, encoder),
            Surface.RESPONSES: ResponseRequests(
                models, encoder, streams.responses, images, styles=process.styles
            ),
            Surface.MESSAGES: messages,
            Surface.OLLAMA_CHAT: OllamaChats(models, chats),
            Surface.OLLAMA_GENERATE: OllamaCompletions(models, chats, open_ended),
            Surface.OLLAMA_EMBED: OllamaEmbeddings(models, embeddings),
        }
        return cls(chats, messages, JobReader(readers, process.grammars))
