"""Documents to attach to a message: text extraction and token counts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from halo_weave.server.requests import WindowId
from halo_weave.server.schema import NON_BLANK_PATTERN, Output
from halo_weave.server.service import Service

FILE_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file as it is: a text in UTF-8, a PDF or a DOCX.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class ExtractedDocument(Output):
    name: str = Field(description="Without folders.")
    text: str
    tokens: int = Field(description="That the text takes in the context.")


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Turns"])

    @router.post("/api/documents", summary="Extract the text of a file to attach", openapi_extra=FILE_BODY)
    async def post_document(
        request: Request,
        name: Annotated[str, Query(min_length=1, max_length=1000, pattern=NON_BLANK_PATTERN)],
        window: Annotated[WindowId | None, Query(description="Whose limits hold.")] = None,
    ) -> ExtractedDocument:
        """Nothing is stored: send the name and the text with a message."""
        documents = service.weave.documents
        most = await run_in_threadpool(documents.most_bytes, window)
        data = bytearray()
        async for piece in request.stream():
            if len(data) <= most:  # the rest of a file that is too large is not kept
                data += piece
        found = await run_in_threadpool(documents.read, name, bytes(data), window)
        return ExtractedDocument.model_validate(found)

    return router
