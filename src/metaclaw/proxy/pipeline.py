"""Serve one request: find its session, place skills, ask a provider, send the answer, record the
turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from metaclaw.domain.ids import SessionId, new_turn_id
from metaclaw.domain.turn import Origin, TurnEnd, TurnKind
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Ledger
from metaclaw.proxy.acknowledgement import Acknowledgements
from metaclaw.proxy.answer_record import RecordBudget
from metaclaw.proxy.dispatch import Opener
from metaclaw.proxy.enforcement.enforcer import Enforcer
from metaclaw.proxy.enforcement.hold import Hold
from metaclaw.proxy.http.client import Client, Incoming, RawHeaders
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.placement import LibrarySimilarity, NoSimilarity, Placer, asked_placements
from metaclaw.proxy.response import TurnBuilder, send
from metaclaw.proxy.sessions import Origins
from metaclaw.wires import said_parts, wire_format

log = logging.getLogger(__name__)

ERROR_HEADERS: Final[dict[int, RawHeaders]] = {
    401: [
        (b"x-should-retry", b"false")
    ],  # official SDKs obey it; without it, Claude Code repeats the request for minutes
    426: [(b"connection", b"upgrade"), (b"upgrade", b"HTTP/1.1")],
    429: [(b"retry-after", b"1")],
}
"""Header fields of our own error responses, by status; they tell clients whether and when to
retry.
"""


@dataclass(kw_only=True, slots=True, eq=False)
class Pipeline:
    """Serves requests for answers."""

    origins: Origins
    placer: Placer
    similarity: LibrarySimilarity | NoSimilarity
    enforcer: Enforcer
    acknowledgements: Acknowledgements
    opener: Opener
    ledger: Ledger
    metrics: Metrics
    records: RecordBudget = field(default_factory=RecordBudget)
    bring: Callable[[Incoming, Origin], Awaitable[Origin]] | None = None
    """Where other programs are on the store: looks there for what they did in the session of a
    request that seems to begin one, or whose history has answers that were not given here.
    """

    async def answer(self, incoming: Incoming, client: Client) -> None:
        """Serve one request and record exactly one turn in the ledger, also if the answer fails or
        is cut off.

        A request that is refused (WireError) or not begun before the program stops (UpstreamError)
        leaves no turn and no session."""
        origin = self.origins.identify(
            incoming.wire, incoming.headers, incoming.json, incoming.peer, path=incoming.path
        )
        builder: TurnBuilder | None = None
        recorded, end = None, TurnEnd.FAILED
        self.metrics.began(origin.kind)
        try:
            try:
                if self.bring is not None and (
                    origin.session_began or self.origins.is_behind(origin)
                ):
                    origin = await self.bring(incoming, origin)
                builder = await self._prepare(incoming, origin)
            except asyncio.CancelledError:
                _forgive_cancellation()
                raise _stopped() from None
            try:
                tail = await self._attempt(builder, client)
            except WireError:
                if self.origins.withdraw(origin):
                    self.placer.forget((origin.session,))
                raise
            if builder.footer is not None and builder.footer.is_added:
                self.acknowledgements.acknowledged(origin.session)
            if builder.skills_read:
                self._note_read(builder)
            turn, recorded, end = builder.turn(), builder.id, builder.end
            if turn.enforcement is not None:
                self.enforcer.remember(turn)
            durable = await self.ledger.record(turn)
            self.metrics.served(turn, durable=durable)
        finally:
            self.metrics.ended()
            self.origins.finished(origin, recorded, end)
            if builder is not None:
                builder.release()
        if origin.ends_session:
            await self._end(origin.session)
        if end is not TurnEnd.CANCELLED and not _breaks_off(builder, client):
            client.finish(tail)
        # After the response, so that the client does not wait for it; before its next request,
        # which this loop reads later.
        if end is TurnEnd.COMPLETED and origin.kind is TurnKind.MAIN:
            has_double = self.origins.has_double(origin)
            said = said_parts(turn.wire, turn.stream, turn.exchange.shown) if has_double else ()
            self.origins.answered(origin, builder.answer_id or "", said)
        if turn.enforcement is not None or builder.failed_checks or builder.not_held:
            await self.enforcer.recorded(turn, builder.failed_checks, builder.not_held)

    async def _prepare(self, incoming: Incoming, origin: Origin) -> TurnBuilder:
        """Choose what is placed in the prompt and what is held of the answer."""
        # Yield once, so that requests that arrived together reach this point together: running the
        # same stage for all of them keeps its code in the CPU caches, which saves an eighth of the
        # time. A single request does not wait.
        await asyncio.sleep(0)
        asked, nearness = self.placer.ask(incoming, origin), None
        if asked.query:
            nearness = await self.similarity.near(asked.query, origin.scope)
        placed = self.placer.place(asked, nearness)
        builder = TurnBuilder(
            new_turn_id(),
            incoming,
            origin,
            placed.stamp,
            placed.placements,
            placed.splices,
            placed.listed,
            skill_tools=placed.tools,
            budget=self.records,
        )
        self.enforcer.hold(builder)
        if turns := self.enforcer.answers.concerns(incoming, origin):
            builder.true_answers = await self.enforcer.answers.read(turns)
        if self.acknowledgements.notes:
            builder.footer = self.acknowledgements.footer(incoming, origin)
        return builder

    async def _attempt(self, builder: TurnBuilder, client: Client) -> bytes:
        """Send the answer except its tail, and return the tail. A failure is returned as an error
        in the client's wire.
        """
        client.watch()
        try:
            return await self._answer(builder, client)
        except asyncio.CancelledError:
            _forgive_cancellation()
            if not client.gone:
                return _failure(builder, client, _stopped())
            builder.end, builder.error = TurnEnd.CANCELLED, client.gone_reason
            return b""
        except UpstreamError as error:
            return _failure(builder, client, error)
        except WireError as error:
            if client.started:
                return _failure(builder, client, error)
            raise
        finally:
            client.unwatch()

    async def _answer(self, builder: TurnBuilder, client: Client) -> bytes:
        opened = await self.opener.open(builder)
        health = self.opener.health
        try:
            if builder.held or builder.skill_tools.names:
                tail = await Hold(builder, client, self.opener, self.enforcer.judge).answer(opened)
            else:
                tail = await send(builder, opened, client)
        except UpstreamError as error:
            health.failed(builder.provider, str(error))
            raise
        finally:
            await opened.aclose()
        if builder.end is TurnEnd.COMPLETED:
            health.answered(builder.provider)
        elif opened.status < 400:
            health.failed(builder.provider, builder.error or "it broke off its answer")
        return tail

    def _note_read(self, builder: TurnBuilder) -> None:
        """Record the skills that the model has read in full."""
        skills = list({skill.name: skill for skill in builder.skills_read}.values())
        builder.placements += asked_placements(builder.origin, skills)
        names = dict.fromkeys((*builder.stamp.skills, *(skill.name for skill in skills)))
        builder.stamp = replace(builder.stamp, skills=tuple(names))
        if builder.end is TurnEnd.COMPLETED:
            self.placer.asked(builder.origin, skills)

    async def _end(self, session: SessionId) -> None:
        if self.origins.end(session):
            await self.ledger.end_session(session, "client said so")
            self.placer.forget((session,))


def _breaks_off(builder: TurnBuilder, client: Client) -> bool:
    """Whether a whole answer failed after its beginning was sent: only closing the connection shows
    the client that.
    """
    return client.started and builder.end is TurnEnd.FAILED and not builder.streamed


def _failure(builder: TurnBuilder, client: Client, error: WireError | UpstreamError) -> bytes:
    """Report a failure in the client's wire: as a response if none has begun, else as an event in
    the stream.
    """
    builder.fail(error.status, str(error))
    log.info(
        "turn_failed turn=%s provider=%s status=%d error=%s",
        builder.id,
        builder.provider or "-",
        error.status,
        error,
    )
    wire = wire_format(builder.incoming.wire)
    if _breaks_off(builder, client):
        return b""
    if client.started:
        # The provider may have stopped in the middle of an event; a blank line ends it.
        tail = b"\n\n" + wire.error_event(str(error), error.code)
    else:
        param = error.param if isinstance(error, WireError) else None
        tail = wire.error_body(error.status, str(error), error.code, param)
        retry_headers = ERROR_HEADERS.get(error.status, [])
        if isinstance(error, UpstreamError) and error.wait_s is not None:
            retry_headers = [(b"retry-after", b"%d" % error.wait_s)]
        client.defer(
            error.status,
            [(b"content-type", b"application/json"), *retry_headers, *builder.headers()],
        )
    builder.add_error_bytes(tail)
    return tail


def _stopped() -> UpstreamError:
    return UpstreamError(
        "MetaClaw was stopped before this answer was complete", status=503, code="stopping"
    )


def _forgive_cancellation() -> None:
    """Clear the task's cancellation, so that it can still record the turn."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
