"""One HTTP connection whose every wait has an end: uvicorn's own protocol, with the deadlines that it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""For a request's line and headers, from the connection or from their first byte."""

STUCK_SECONDS = 30.0
"""For a client that does not take what it is sent, or that is no longer there."""


class BoundedConnection(H11Protocol):
    """Closes a connection that sends its request's head too slowly, that goes on sending after the answer, or that does
    not read; uvicorn bounds the size of the head and the number of connections."""

    _head: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _notice_death(transport.get_extra_info("socket"))
        self._head = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waits()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is None and not self._answering:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._answering and self._head is not None:
            self._head.cancel()
            self._head = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets the answer that all errors get, unless one has begun."""
        if self.cycle is not None:
            # The request whose body it was hears that its client is gone, and says nothing more on this connection.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = json.dumps({"error": "This is not a well formed HTTP/1.1 request.", "kind": "request"}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_waits(self) -> None:
        for timer in (self._head, self._stuck):
            if timer is not None:
                timer.cancel()
        self._head = self._stuck = None


def _notice_death(sock: Any) -> None:
    """Let the system find out when the other machine is gone (Linux: within STUCK_SECONDS of something unsent)."""
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_SECONDS * 1000))
