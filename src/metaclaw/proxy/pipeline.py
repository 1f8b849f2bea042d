"""The life of one request: who is speaking, which skills, which provider, the answer, the ledger, the end of the answer."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol, TypeVar

from metaclaw.domain.ids import SessionId, new_turn_id
from metaclaw.domain.skill import Nearness
from metaclaw.domain.turn import Scope, TurnEnd, TurnKind
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Ledger
from metaclaw.proxy.acknowledgement import Acknowledgements
from metaclaw.proxy.dispatch import Opener
from metaclaw.proxy.enforcement.held_rules import Enforcer, HeldRule
from metaclaw.proxy.enforcement.hold import Hold
from metaclaw.proxy.http.client import Client, Incoming, RawHeaders
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.placement import Placer
from metaclaw.proxy.response import Generated, Relayed, Translated, TurnBuilder, relay, render, translate
from metaclaw.proxy.sessions import Origins
from metaclaw.wires import said_parts, wire_format

log = logging.getLogger(__name__)
_T = TypeVar("_T")

ERROR_HEADERS: Final[dict[int, RawHeaders]] = {
    401: [(b"x-should-retry", b"false")],  # official SDKs obey it; without it, Claude Code repeats the request for minutes
    426: [(b"connection", b"upgrade"), (b"upgrade", b"HTTP/1.1")],
    429: [(b"retry-after", b"1")],
}
"""What errors of our own say about sending the request again, by status."""


class Attendant(Protocol):
    """Told of every request at once, so that what learns can make room for it. Must not block."""

    def began(self, kind: TurnKind) -> None: ...
    def ended(self) -> None: ...


class Similarity(Protocol):
    """Searches by meaning, within milliseconds or not at all."""

    async def near(self, query: str, scope: Scope) -> Nearness | None: ...


class Pipeline:
    """Serves requests for answers. Sessions, library, providers and ledger each have one owner elsewhere."""

    def __init__(
        self,
        *,
        origins: Origins,
        placer: Placer,
        opener: Opener,
        ledger: Ledger,
        metrics: Metrics,
        attendant: Attendant | None = None,
        acknowledgements: Acknowledgements | None = None,
        similarity: Similarity | None = None,
        enforcer: Enforcer | None = None,
    ) -> None:
        self._enforcer = enforcer
        self._origins = origins
        self._placer = placer
        self._opener = opener
        self._ledger = ledger
        self._metrics = metrics
        self._attendant = attendant
        self._acknowledgements = acknowledgements
        self._similarity = similarity

    async def answer(self, incoming: Incoming, client: Client) -> None:
        """Serve one request, whole or in part, and leave exactly one turn in the ledger.

        A request that is refused (WireError), or that the program's stop precedes (UpstreamError), leaves no turn and no session.
        """
        origin = self._origins.identify(incoming.wire, incoming.headers, incoming.json, incoming.peer, path=incoming.path)
        turn_id, recorded, end = new_turn_id(), None, TurnEnd.FAILED
        rules: tuple[HeldRule, ...] = ()
        self._metrics.in_flight += 1
        if self._attendant is not None:
            self._attendant.began(origin.kind)
        try:
            # Let streams under way go on, and requests that came together get here together: one stage at a time for all of them
            # keeps its code in the processor's caches, which saves an eighth of their time. One that came alone waits for nothing.
            await _unless_stopped(asyncio.sleep(0))
            query, nearness = self._placer.query(origin), None
            if query and self._similarity is not None:
                nearness = await _unless_stopped(self._similarity.near(query, origin.scope))
            placed = self._placer.place(incoming, origin, nearness, query=query)
            builder = TurnBuilder(
                turn_id, incoming, origin, placed.stamp, placed.placements, placed.splices, placed.draws, placed.listed
            )
            if self._enforcer is not None:
                rules = self._enforcer.rules_for(incoming, origin, placed.stamp)
                if rules and not self._enforcer.can_hold(incoming):
                    builder.not_held, rules = rules, ()
                builder.histories = await _unless_stopped(self._enforcer.histories(incoming, origin))
            if self._acknowledgements is not None:
                builder.footer = self._acknowledgements.footer(incoming, origin)
            try:
                tail = await self._attempt(builder, client, rules)
            except WireError:
                if self._origins.withdraw(origin):
                    self._placer.forget((origin.session,))
                raise
            if self._acknowledgements is not None and builder.footer is not None and builder.footer.is_added:
                self._acknowledgements.told(origin.session)
            turn, recorded, end = builder.turn(), turn_id, builder.end
            if self._enforcer is not None and turn.enforcement is not None:
                self._enforcer.remember(turn)
            durable = await self._ledger.record(turn)
            self._metrics.served(turn, durable=durable)
        finally:
            self._metrics.in_flight -= 1
            if self._attendant is not None:
                self._attendant.ended()
            self._origins.finished(origin, recorded, end)
        if origin.ends_session:
            await self._end(origin.session)
        if builder.end is not TurnEnd.CANCELLED:
            client.finish(tail)
        # After the release, so that it costs the client nothing; before its next request, which this loop reads later.
        if builder.end is TurnEnd.COMPLETED and origin.kind is TurnKind.MAIN:
            self._origins.answered(
                origin,
                builder.answer_id or "",
                said_parts(turn.wire, turn.stream, turn.exchange.shown) if self._origins.has_double(origin) else (),
            )
        if self._enforcer is not None and (turn.enforcement is not None or builder.failed_checks or builder.not_held):
            await self._enforcer.recorded(turn, builder.failed_checks, builder.not_held)

    async def _attempt(self, builder: TurnBuilder, client: Client, rules: tuple[HeldRule, ...]) -> bytes:
        """Make the answer up to its tail; every failure becomes a tail too, in the wire's own shape."""
        client.watch()
        try:
            return await self._answer(builder, client, rules)
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

    async def _answer(self, builder: TurnBuilder, client: Client, rules: tuple[HeldRule, ...]) -> bytes:
        opened = await self._opener.open(builder)
        health = self._opener.health
        try:
            match opened:
                case _ if rules and self._enforcer is not None:
                    hold = Hold(builder, client, self._opener, self._enforcer, rules)
                    builder.failed_checks = hold.failed
                    tail = await hold.answer(opened)
                case Relayed():
                    tail = await relay(builder, opened, client)
                case Translated():
                    tail = await translate(builder, opened, client)
                case Generated():
                    tail = await render(builder, opened.deltas, opened.request, client)
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

    async def _end(self, session: SessionId) -> None:
        if self._origins.end(session):
            await self._ledger.end_session(session, "client said so")
            self._placer.forget((session,))


def _failure(builder: TurnBuilder, client: Client, error: WireError | UpstreamError) -> bytes:
    """The client hears of a failure in its own wire: as a response if none has begun, else as an event in the stream."""
    builder.fail(error.status, str(error))
    log.info("turn_failed turn=%s provider=%s status=%d error=%s", builder.id, builder.provider or "-", error.status, error)
    wire = wire_format(builder.incoming.wire)
    if client.started:
        # The provider may have stopped in the middle of an event; a blank line ends it.
        tail = b"\n\n" + wire.error_event(str(error), error.code)
    else:
        param = error.param if isinstance(error, WireError) else None
        tail = wire.error_body(error.status, str(error), error.code, param)
        again = ERROR_HEADERS.get(error.status, [])
        client.defer(error.status, [(b"content-type", b"application/json"), *again, *builder.headers()])
    builder.show_failure(tail)
    return tail


async def _unless_stopped(step: Awaitable[_T]) -> _T:
    """Await a step before the answer. Raises UpstreamError if the program's stop cancels it."""
    try:
        return await step
    except asyncio.CancelledError:
        _forgive_cancellation()
        raise _stopped() from None


def _stopped() -> UpstreamError:
    return UpstreamError("MetaClaw was stopped before this answer was whole", status=503, code="stopping")


def _forgive_cancellation() -> None:
    """Stop waiting when cancelled; the task goes on to record the turn, which takes no time."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
