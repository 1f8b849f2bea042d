"""D-Bus for signals: a connection, calls, and the signals it hears; what goes wrong there becomes a SignalError."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from metaclaw.schedule.signals.inactivity import SignalError

try:
    from dbus_fast import BusType, Message, MessageType, Variant
    from dbus_fast.aio import MessageBus
    from dbus_fast.errors import AuthError, DBusError, InvalidAddressError
except ImportError as error:  # pragma: no cover - the desktop extra is not installed
    raise SignalError("D-Bus needs the desktop extra: pip install 'metaclaw[desktop]'") from error

__all__ = ["Bus", "BusType", "connected"]

_ANSWER_WITHIN_S: Final = 5.0
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"


class Bus:
    """One connection. Signals that were asked for wait in `heard`."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self.heard: asyncio.Queue[Message] = asyncio.Queue(maxsize=1000)
        bus.add_message_handler(self._hear)

    async def call(self, name: str, path: str, interface: str, member: str, signature: str = "", *body: object) -> list[object]:
        """What a method answers. Raises SignalError."""
        message = Message(destination=name, path=path, interface=interface, member=member, signature=signature, body=list(body))
        with _translated():
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                answer = await self._bus.call(message)
        if answer is None or answer.message_type is MessageType.ERROR:
            reason = answer.body[0] if answer is not None and answer.body else "no answer"
            raise SignalError(f"{name} refuses {member}: {reason}")
        return list(answer.body)

    async def property(self, name: str, path: str, interface: str, member: str) -> object:
        """The value of a property. Raises SignalError."""
        (found,) = await self.call(name, path, _PROPERTIES, "Get", "ss", interface, member)
        return found.value if isinstance(found, Variant) else found

    async def listen(self, rule: str) -> None:
        """From now on, signals that fit this match rule are heard."""
        await self.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", "s", rule)

    async def next_signal(self, within_s: float) -> Message | None:
        """The next signal, None if there is none so soon. Raises SignalError when the bus has gone."""
        try:
            async with asyncio.timeout(within_s):
                return await self.heard.get()
        except TimeoutError:
            if not self._bus.connected:
                raise SignalError("the bus has gone") from None
            return None

    def _hear(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL and not self.heard.full():
            self.heard.put_nowait(message)


@asynccontextmanager
async def connected(kind: BusType, address: str | None = None) -> AsyncIterator[Bus]:
    """A connection for as long as the block runs. Raises SignalError where there is no such bus."""
    with _translated():
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            bus = await MessageBus(bus_address=address, bus_type=kind).connect()
    try:
        yield Bus(bus)
    finally:
        bus.disconnect()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, TimeoutError, AuthError, DBusError, InvalidAddressError) as error:
        raise SignalError(f"D-Bus cannot be reached ({error or type(error).__name__})") from error
