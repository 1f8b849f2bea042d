"""A turn in the making: stamped at birth, filled while the answer passes by, turned into a Turn at its end."""

import time
from collections.abc import Sequence

from metaclaw.domain.chat import Finish, SampledTokens, Usage, Wire
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.turn import Draw, Enforcement, Exchange, Origin, Placement, Splice, Stamp, Times, TrueAnswer, Turn, TurnEnd
from metaclaw.ports import Headers
from metaclaw.proxy.enforcement.held_rules import HeldRule
from metaclaw.proxy.http.client import Incoming, RawHeaders
from metaclaw.wires import Footer


class TurnBuilder:
    """Collects what happens to one request. Only the task that serves it writes here."""

    def __init__(
        self,
        turn: TurnId,
        incoming: Incoming,
        origin: Origin,
        stamp: Stamp,
        placements: tuple[Placement, ...],
        splices: tuple[Splice, ...],
        draws: tuple[Draw, ...] = (),
        listed: tuple[SkillName, ...] = (),
    ) -> None:
        self.id = turn
        self.incoming = incoming
        self.origin = origin
        self.stamp = stamp
        self.placements = placements
        self.splices = splices
        self.draws = draws
        self.listed = listed
        self.provider = ""
        self.provider_wire: Wire = incoming.wire
        self.model = incoming.model
        self.translated: bytes | None = None
        self.status = 0
        self.end = TurnEnd.FAILED
        self.error: str | None = None
        self.finish: Finish | None = None
        self.usage: Usage | None = None
        self.tokens: SampledTokens | None = None
        self.answer_id: str | None = None
        self.footer: Footer | None = None
        """Puts a line behind the answer that the client is shown."""
        self._said: list[bytes] = []
        self._said_bytes = 0
        self._seen: list[bytes] | None = None
        self._first_byte_s: float | None = None
        self.relayed_bytes = 0
        self.streamed = incoming.stream
        self.histories: tuple[TrueAnswer, ...] = ()
        """What must be put back into the history that the client sent."""
        self.enforced: tuple[SkillName, ...] = ()
        """The rules that held calls of this answer back."""
        self.enforcement: Enforcement | None = None
        self.failed_checks: Sequence[tuple[HeldRule, str]] = ()
        """Held rules whose check could not be run, and why."""
        self.not_held: Sequence[HeldRule] = ()
        """Held rules that this request's calls cannot be held to."""

    def say(self, data: bytes) -> None:
        """The provider said this."""
        if self._first_byte_s is None:
            self._first_byte_s = time.perf_counter() - self.incoming.began
        self._said.append(data)
        self._said_bytes += len(data)

    def ask(self, provider: str) -> None:
        """This provider is asked now; what another one said before it is no part of the answer."""
        self.provider = provider
        if self._said:
            self.unsay()

    def unsay(self) -> None:
        """Drop what was said so far: it is not relayed."""
        self._said, self._said_bytes, self._first_byte_s = [], 0, None

    def show(self, data: bytes) -> None:
        """The client is shown this, which is not what the provider said."""
        if self._seen is None:
            self._seen = []
        self._seen.append(data)

    def show_as_said(self) -> None:
        """The client was shown what the provider said after all."""
        self._seen = None

    def show_failure(self, data: bytes) -> None:
        """The client is shown an error of ours, after whatever part of the provider's bytes was relayed to it."""
        if self._seen is None:
            self._seen = [self.said[: self.relayed_bytes]]
        self._seen.append(data)

    @property
    def said_bytes(self) -> int:
        """How much the provider has said so far."""
        return self._said_bytes

    @property
    def said(self) -> bytes:
        """Everything the provider has said so far."""
        return b"".join(self._said)

    def fail(self, status: int, error: str) -> None:
        """The answer will not be whole."""
        self.end = TurnEnd.FAILED
        self.status = status
        self.error = error

    def turn(self) -> Turn:
        """The finished turn."""
        incoming, origin = self.incoming, self.origin
        return Turn(
            id=self.id,
            session=origin.session,
            kind=origin.kind,
            kind_reason=origin.kind_reason,
            scope=origin.scope,
            stamp=self.stamp,
            agent=origin.agent,
            wire=incoming.wire,
            path=incoming.path,
            stream=self.streamed,
            model=self.model,
            provider=self.provider,
            provider_wire=self.provider_wire,
            status=self.status,
            end=self.end,
            error=self.error,
            exchange=Exchange(
                request=incoming.body,
                splices=self.splices if self.translated is None else (),
                translated=self.translated,
                said=self.said,
                seen=None if self._seen is None else b"".join(self._seen),
            ),
            finish=self.finish,
            usage=self.usage,
            tokens=self.tokens,
            times=Times(incoming.received_at, self._first_byte_s, time.perf_counter() - incoming.began),
            segment=origin.segment,
            retry_of=origin.retry_of,
            parent=origin.parent,
            key=origin.key,
            head=origin.head,
            placements=self.placements,
            draws=self.draws,
            enforcement=self.enforcement,
        )

    def headers(self) -> RawHeaders:
        """What every answer tells about its turn."""
        held = [(b"x-metaclaw-enforced", ",".join(self.enforced).encode())] if self.enforced else []
        return [
            (b"x-metaclaw-session", _header(self.origin.session)),
            (b"x-metaclaw-turn", self.id.encode()),
            (b"x-metaclaw-generation", str(self.stamp.generation).encode()),
            (b"x-metaclaw-policy", str(self.stamp.policy_version).encode()),
            (b"x-metaclaw-skills", ",".join(self.stamp.skills).encode()),
            (b"x-metaclaw-listed", ",".join(self.listed).encode()),
            *held,
        ]


def _header(value: str) -> bytes:
    return value.encode("ascii", "backslashreplace").replace(b"\r", b"").replace(b"\n", b"")


def content_type(headers: Headers) -> str:
    """The bare media type, in lower case."""
    for name, value in headers:
        if name.lower() == "content-type":
            return value.partition(";")[0].strip().lower()
    return ""
