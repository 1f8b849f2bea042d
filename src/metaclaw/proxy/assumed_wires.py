"""Providers whose configuration does not say which wires they serve: all of their kind, until one is found missing."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from metaclaw.domain.chat import Wire
from metaclaw.errors import UpstreamError
from metaclaw.ports import Headers, HttpProvider, Reply

log = logging.getLogger(__name__)


class AssumedWires:
    """What is known of the wires of the providers with these names. For all others the configuration is right."""

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._names = names
        self._confirmed: set[tuple[str, Wire]] = set()
        self._missing: dict[str, frozenset[Wire]] = {}

    def of(self, provider: HttpProvider) -> frozenset[Wire]:
        """The wires to ask this provider in."""
        missing = self._missing.get(provider.name)
        return provider.wires if missing is None else provider.wires - missing

    def is_doubtful(self, provider: HttpProvider, wire: Wire) -> bool:
        """Whether the wire is assumed, and the provider has not answered in it yet."""
        return provider.name in self._names and (provider.name, wire) not in self._confirmed

    def confirm(self, provider: HttpProvider, wire: Wire) -> None:
        """The provider has answered in this wire."""
        self._confirmed.add((provider.name, wire))

    def drop(self, provider: HttpProvider, wire: Wire) -> None:
        """The provider does not have this wire: do not ask it in it again."""
        self._missing[provider.name] = self._missing.get(provider.name, frozenset()) | {wire}
        log.warning("wire_missing provider=%s wire=%s note=%s", provider.name, wire.value, self.remedy(provider, wire))

    def remedy(self, provider: HttpProvider, wire: Wire) -> str:
        """What to set."""
        left = ", ".join(f'"{one.value}"' for one in sorted(provider.wires - {wire}))
        return (
            f"provider {provider.name} does not serve {wire.value}; "
            f"say so with: metaclaw config set providers.{provider.name}.wires '[{left}]'"
        )


@dataclass(frozen=True, slots=True)
class ReadReply:
    """A reply whose body has been read (ports.Reply)."""

    status: int
    headers: Headers
    body: bytes

    @classmethod
    async def of(cls, reply: Reply, max_bytes: int) -> "ReadReply":
        """Read the rest of a reply and close it. Raises UpstreamError if it is too large."""
        pieces: list[bytes] = []
        size = 0
        try:
            async for chunk in reply.chunks():
                size += len(chunk)
                if size > max_bytes:
                    raise UpstreamError(f"the provider sent more than {max_bytes} bytes in one answer")
                pieces.append(chunk)
        finally:
            await reply.aclose()
        return cls(reply.status, reply.headers, b"".join(pieces))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole body."""
        yield self.body

    async def aclose(self) -> None:
        """Nothing is open."""
