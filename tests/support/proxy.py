"""A TCP proxy before the database that drops requests, delays replies, loses those of conditional writes, cuts the
connection, or answers in the database's place.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from writetime.core.server_settings import Cassandra

# CQL protocol 4: a frame is a header and a body. The header has the number of the request, which its reply has too, at
# 2, the operation at 4, and the length of the body at 5.
_FRAME_HEADER = 9
_PREPARE = 9


class Proxy:
    """Passes everything on; `delay`, `loss` and `drops` may change at any time.

    Args:
        cassandra: where the database is.
        rng: decides which replies are lost.
        address: where it listens, on this machine.
        port: 0 for one of its own.
    """

    def __init__(self, cassandra: Cassandra, rng: random.Random, address: str = "127.0.0.1", port: int = 0) -> None:
        self.delay = 0.0
        self._is_down = False
        # Connections that it answered itself.
        self.answered = 0
        self._answer: Callable[[bytes], bytes] | None = None
        self.loss = 0.0
        self.lost = 0
        self.replies = 0
        # Decides by the body of each request whether the database never gets it.
        self.drops: Callable[[bytes], bool] = lambda _: False
        self._target = cassandra.contact_points[0], cassandra.port
        self._listens = address, port
        self._rng = rng
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._serve, *self._listens)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(5)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @contextmanager
    def down(self) -> Iterator[None]:
        """End all connections, and close each new one, as if the database had been killed."""
        self._is_down = True
        asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result(5)
        try:
            yield
        finally:
            self._is_down = False

    @contextmanager
    def answering(self, answer: Callable[[bytes], bytes]) -> Iterator[None]:
        """End all connections, and answer each request on a new one by a function of its header. No bytes are no
        answer.
        """
        self._answer = answer
        asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result(5)
        try:
            yield
        finally:
            self._answer = None
            # Nobody answers on the connections that are open now.
            asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result(5)

    async def _stop(self) -> None:
        self._server.close()
        await self._end_connections()

    async def _end_connections(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_server = None
        try:
            if self._is_down:
                return
            if self._answer is not None:
                self.answered += 1
                await self._answer_all(client, to_client, self._answer)
                return
            server, to_server = await asyncio.open_connection(*self._target)
            preparing: set[bytes] = set()
            both = self._forward(client, to_server, preparing), self._reply(server, to_client, preparing)
            ways = [asyncio.create_task(way) for way in both]
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in rest:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass  # The server is down, or the client has closed the connection.
        finally:
            for writer in (to_client, to_server):
                if writer is not None:
                    writer.close()

    async def _answer_all(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, answer: Callable[[bytes], bytes]
    ) -> None:
        while True:
            header, _ = await _frame(client)
            to_client.write(answer(header))
            await to_client.drain()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, preparing: set[bytes]) -> None:
        try:
            while True:
                header, body = await _frame(source)
                if self.drops(body):
                    continue
                if header[4] == _PREPARE:
                    preparing.add(header[2:4])
                sink.write(header + body)
                await sink.drain()
        except asyncio.IncompleteReadError:
            pass  # The client closed the connection.

    async def _reply(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, preparing: set[bytes]) -> None:
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        release = asyncio.create_task(self._release(held, sink))
        try:
            while True:
                header, body = await _frame(source)
                self.replies += 1
                # ScyllaDB names this column already when it prepares the statement.
                is_prepared = header[2:4] in preparing
                preparing.discard(header[2:4])
                if b"[applied]" in body and not is_prepared and self._rng.random() < self.loss:
                    self.lost += 1
                else:
                    held.put_nowait((time.monotonic() + self.delay, header + body))
        except asyncio.IncompleteReadError:
            pass  # The server closed the connection.
        finally:
            release.cancel()

    async def _release(self, held: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sink.write(data)
            await sink.drain()


async def _frame(source: asyncio.StreamReader) -> tuple[bytes, bytes]:
    header = await source.readexactly(_FRAME_HEADER)
    return header, await source.readexactly(int.from_bytes(header[5:], "big"))


def answer_frame(request: bytes, operation: int, body: bytes) -> bytes:
    """Return the answer of CQL protocol 4 to a request with this header."""
    return bytes([0x84, 0]) + request[2:4] + bytes([operation]) + len(body).to_bytes(4, "big") + body
