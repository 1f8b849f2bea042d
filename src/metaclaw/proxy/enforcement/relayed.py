"""A stream that is relayed while its calls are held: text goes on as it comes, the events of calls wait."""

from metaclaw.errors import UpstreamError
from metaclaw.proxy.dispatch import Limits, Relayed, check_size
from metaclaw.proxy.enforcement.outlet import Outlet
from metaclaw.proxy.response import BLANK_LINES, linger, raw_headers, settle_relayed
from metaclaw.proxy.turn_builder import TurnBuilder
from metaclaw.upstream import pour
from metaclaw.wires import CallHold, Facts, TailHold, streamed_facts


class RelayedStream:
    """The bytes of one streamed answer: `hold` has those of its calls, `tail` its end, and `passed` went to the client."""

    def __init__(self, draft: TurnBuilder, outlet: Outlet, limits: Limits) -> None:
        wire = draft.incoming.wire
        self.hold, self.tail = CallHold(wire), TailHold(wire)
        self.passed: list[bytes] = []
        self._draft = draft
        self._outlet = outlet
        self._limits = limits
        self._watch: TailHold | None = None
        self._is_whole = False

    async def take_in(self, opened: Relayed, opening: bytes) -> None:
        """Read the stream up to its end, and pass on what is not held."""
        draft, outlet = self._draft, self._outlet
        draft.streamed = True
        draft.status = outlet.status = opened.status
        outlet.headers = raw_headers(opened.headers)
        chunks = opened.reply.chunks()
        must_pause = not self._pass_on(opening)
        while must_pause or await pour(chunks, self._take):
            must_pause = False
            await outlet.client.drain()
            if self._is_whole:
                await linger(chunks)
                break
        self._release(self.hold.close())

    def facts(self) -> Facts:
        """What the stream says of itself. Raises UpstreamError where it broke off."""
        facts = streamed_facts(self._draft.incoming.wire, self._draft.said)
        if facts.error is not None or (facts.finish is None and not self._is_whole):
            raise UpstreamError(facts.error or f"provider {self._draft.provider} ended its stream before the answer was whole")
        return facts

    def release_held(self) -> None:
        """Let the calls go."""
        held, watch = self.hold.held, self._watch
        is_known = self._draft.footer is None and watch is not None and watch.terminal and not self.tail.held()
        if is_known and watch is not None and held.endswith(end := watch.held()):
            # Where the end begins is known already.
            self.tail, held = watch, held[: -len(end)]
            self._draft.relayed_bytes += len(held)
            self._outlet.send(held)
        else:
            self._release(held)

    def finish(self, facts: Facts | None) -> bytes:
        """Everything but the tail is sent; the tail."""
        draft, footer = self._draft, self._draft.footer
        if footer is not None:
            rest = footer.close()
            draft.show(rest)
            self._outlet.send(self.tail.feed(rest))
            if not footer.is_added:
                draft.show_as_said()
        settle_relayed(draft, terminal=self.tail.terminal, facts=facts)
        self._outlet.send(b"", now=True)
        return self.tail.held()

    def _take(self, chunk: bytes) -> bool:
        draft, client, tail = self._draft, self._outlet.client, self.tail
        draft.say(chunk)
        check_size(draft, self._limits)
        if draft.footer is not None or not self.hold.has_words or not self.hold.is_free_of_calls(chunk):
            return self._pass_on(chunk)
        # Nearly every piece of a text goes this way, as it would without held rules; the client has been sent words before.
        self.passed.append(chunk)
        released = tail.feed(chunk)
        self._is_whole = tail.terminal and tail.held().endswith(BLANK_LINES)
        draft.relayed_bytes += len(released)
        return (not released or client.send(released)) and not self._is_whole

    def _pass_on(self, chunk: bytes) -> bool:
        """Hold or send a piece of the stream; False where reading must pause."""
        data = self.hold.feed(chunk)
        went = self._release(data)
        if self.hold.has_calls:
            # The end waits among what is held, and the provider may leave the connection open behind it.
            if self._watch is None:
                self._watch = TailHold(self._draft.incoming.wire)
                self._watch.feed(self.hold.held + self.hold.unfinished)
            else:
                self._watch.feed(chunk)
            ending = self._watch
        else:
            ending = self.tail
        self._is_whole = ending.terminal and ending.held().endswith(BLANK_LINES)
        return went and not self._is_whole

    def _release(self, data: bytes) -> bool:
        if not data:
            return True
        self.passed.append(data)
        footer = self._draft.footer
        if footer is not None:
            data = footer.feed(data)
            self._draft.show(data)
        released = self.tail.feed(data)
        self._draft.relayed_bytes += len(released)
        return self._outlet.send(released, now=self.hold.has_words)
