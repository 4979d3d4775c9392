"""Bodies that are forms, with a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from shared.errors import InvalidRequest, RequestCancelled, RequestTimeout

_TIMEOUT_S = 600.0
_FORM_BYTES = 64 * 1024  # beside the file
_MAX_FIELDS = 16


async def read_form(request: Request, check_file_size: Callable[[int], None]) -> FormData:
    """What is large goes to a temporary file while it comes in: whoever has it closes it.

    Raises RequestError, or what `check_file_size` raises.
    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest(
            f"header content-type is {kind[:80]!r}, must be multipart/form-data",
            param="content-type",
        )
    length = request.headers.get("content-length", "")
    if length.isdigit():
        check_file_size(int(length) - _FORM_BYTES)
    parser = MultiPartParser(
        request.headers,
        _bounded(request, check_file_size),
        max_files=1,
        max_fields=_MAX_FIELDS,
        max_part_size=_FORM_BYTES,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await parser.parse()
    except (MultiPartException, KeyError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"The form cannot be read: {exc}", code="invalid_form") from exc
    except ClientDisconnect as exc:
        raise RequestCancelled("The client is gone.") from exc
    except TimeoutError as exc:
        raise RequestTimeout(f"The upload did not end within {_TIMEOUT_S:g} s.") from exc


async def _bounded(
    request: Request, check_file_size: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        check_file_size(num_bytes - _FORM_BYTES)
        yield piece
