"""The MCP endpoint of the HTTP server. The mcp library is imported for the first client, since that takes a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from halo_weave.chat.memory import McpMemory

WRITES_HEADER = "x-halo-writes"  # sent by our stdio proxy, `yes` or `no`: whether the user allows it to write


class McpEndpoint:
    """An ASGI application. Access was checked before."""

    def __init__(self, library: Callable[[], McpMemory], *, writes: bool) -> None:
        self._library, self._writes = library, writes
        self._managers: dict[bool, asyncio.Future[Any]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requested = Headers(scope=scope).get(WRITES_HEADER)
        writes = self._writes if requested is None else requested == "yes"
        if writes not in self._managers:
            self._managers[writes] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._run(writes, self._managers[writes]))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        manager = await asyncio.shield(self._managers[writes])
        await manager.handle_request(scope, receive, send)

    async def _run(self, writes: bool, ready: asyncio.Future[Any]) -> None:
        """Run one MCP server with write tools and one without, until the loop ends."""
        try:
            manager = await asyncio.to_thread(self._manager, writes)
        except BaseException as error:
            self._managers.pop(writes, None)
            ready.set_exception(error)
            raise
        async with manager.run():
            ready.set_result(manager)
            await asyncio.Event().wait()

    def _manager(self, writes: bool) -> Any:
        from mcp.server.transport_security import TransportSecuritySettings

        from halo_weave.server.mcp.tools import memory_server

        server = memory_server(self._library, writes=writes)
        # AuthMiddleware has checked host and origin. There is no state between requests, so clients survive a restart.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        server.streamable_http_app(json_response=True, stateless_http=True, transport_security=unchecked)
        return server.session_manager
