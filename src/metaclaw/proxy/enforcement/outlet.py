"""The way of a held answer to the client: its head waits for the first words, and what is shown is kept for the ledger."""

import asyncio
from collections.abc import Sequence
from typing import Final

from metaclaw.domain.chat import ChatRequest, Completion, Delta, End, Finish, SampledTokens, Usage
from metaclaw.domain.turn import TurnEnd
from metaclaw.proxy.enforcement.attempts import Attempts
from metaclaw.proxy.http.client import Client, RawHeaders
from metaclaw.proxy.response import JSON_HEADERS
from metaclaw.proxy.turn_builder import TurnBuilder
from metaclaw.wires import StreamWriter, wire_format

_HEAD_PATIENCE_S: Final = 5.0
"""How long the head of a stream waits for its first words, so that it can name rules that held."""


class Outlet:
    """Sends one answer."""

    def __init__(self, draft: TurnBuilder, client: Client, attempts: Attempts) -> None:
        self.client = client
        self.headers: RawHeaders = []
        self.status = 200
        self.has_text = False
        """Whether the client has been sent words of the answer."""
        self._draft = draft
        self._attempts = attempts
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def send(self, data: bytes, *, now: bool = False) -> bool:
        """Send events; until there are words, or it is known whether a rule held, they wait so that the head can tell."""
        if self.client.started:
            return self.client.send(data) if data else True
        if data:
            self._waiting.append(data)
        if now:
            self._start()
        elif self._timer is None and data:
            self._timer = asyncio.get_running_loop().call_later(_HEAD_PATIENCE_S, self._start)
        return True

    def _start(self) -> None:
        if not self.client.started:
            self.client.start(self.status, self.headers + self._draft.headers())
            if self._waiting:
                self.client.send(b"".join(self._waiting))

    async def say(self, writer: StreamWriter, delta: Delta, *, now: bool = True) -> None:
        """Send a part of the answer."""
        data = writer.write(delta)
        if self._draft.footer is not None:
            data = self._draft.footer.feed(data)
        self._draft.show(data)
        if not self.send(data, now=now and bool(data)):
            await self.client.drain()

    async def finish_stream(self, writer: StreamWriter, waiting: Sequence[Delta], end: End) -> bytes:
        """Release what waited, and make the answer whole; its tail."""
        draft = self._draft
        for delta in waiting:
            await self.say(writer, delta)
        tail = writer.write(end)
        if draft.footer is not None:
            tail = draft.footer.feed(tail)
        draft.show(tail)
        self._end(end.finish, end.usage, end.tokens)
        self.send(b"", now=True)
        return tail

    def finish_whole(self, completion: Completion, request: ChatRequest) -> bytes:
        """Make a whole answer; its body."""
        draft = self._draft
        body = wire_format(draft.incoming.wire).render_answer(completion, request)
        if draft.footer is not None:
            body = draft.footer.whole(body)
        draft.show(body)
        draft.answer_id, draft.model = completion.id, completion.model or draft.model
        self._end(completion.finish, completion.usage, completion.tokens)
        headers = self.headers or [*JSON_HEADERS]
        self.client.defer(200, headers + draft.headers())
        return body

    def _end(self, finish: Finish | None, usage: Usage | None, tokens: SampledTokens | None) -> None:
        draft = self._draft
        draft.status = 200
        draft.finish, draft.usage = finish, usage
        draft.tokens = tokens if draft.enforcement is None else None
        draft.end = TurnEnd.COMPLETED
        if self._attempts:
            first = self._attempts.first
            draft.unsay()
            draft.say(first.said)
            draft.answer_id = draft.answer_id or first.completion.id
            draft.model = first.completion.model or draft.model
