"""D-Bus sources: GNOME's idle monitor, logind's hints about the session, and NetworkManager's
metered flag.

Errors of D-Bus become SignalErrors.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.errors import AuthError, DBusError, InvalidAddressError

from metaclaw.schedule import InputReport, SignalError

_ANSWER_WITHIN_S: Final = 5.0
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"


class Bus:
    """One connection. Received signals are queued in `heard`."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self.heard: asyncio.Queue[Message] = asyncio.Queue(maxsize=1000)
        bus.add_message_handler(self._hear)

    async def call(
        self, name: str, path: str, interface: str, member: str, signature: str = "", *body: object
    ) -> list[object]:
        """Call a method. Raises SignalError."""
        message = Message(
            destination=name,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
        )
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
        """Receive signals that match this rule."""
        await self.call(
            "org.freedesktop.DBus",
            "/org/freedesktop/DBus",
            "org.freedesktop.DBus",
            "AddMatch",
            "s",
            rule,
        )

    async def next_signal(self, within_s: float) -> Message | None:
        """The next signal, or None after `within_s`. Raises SignalError if the bus is closed."""
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
async def connected(name: str, address: str | None = None) -> AsyncIterator[Bus]:
    """A connection to the bus SESSION or SYSTEM for the time of the block. Raises SignalError if
    there is none.
    """
    with _translated():
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            bus = await MessageBus(bus_address=address, bus_type=BusType[name]).connect()
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


_MUTTER: Final = "org.gnome.Mutter.IdleMonitor"
_CORE: Final = "/org/gnome/Mutter/IdleMonitor/Core"
_LOOK_EVERY_S: Final = 5.0


class GnomeInput:
    """GNOME reports the first input after a silence."""

    name = "input (GNOME)"
    hears_all = True
    is_screen = True

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    async def follow(self, report: InputReport) -> None:
        """Report input as it happens. Raises SignalError if this is not GNOME."""
        async with connected("SESSION", self._address) as bus:
            await bus.listen(
                f"type='signal',interface='{_MUTTER}',member='WatchFired',path='{_CORE}'"
            )
            watch: object = None
            while True:
                (idle_ms,) = await bus.call(_MUTTER, _CORE, _MUTTER, "GetIdletime")
                if not isinstance(idle_ms, int):
                    raise SignalError("GNOME's answer is not a length of time")
                report.idle(idle_ms / 1000)
                if watch is None:
                    (watch,) = await bus.call(_MUTTER, _CORE, _MUTTER, "AddUserActiveWatch")
                if await self._fired(bus, watch):
                    report.input()
                    watch = None

    async def _fired(self, bus: Bus, watch: object) -> bool:
        message = await bus.next_signal(_LOOK_EVERY_S)
        return message is not None and message.member == "WatchFired" and message.body == [watch]


_LOGIND: Final = "org.freedesktop.login1"
_LOGIND_PATH: Final = "/org/freedesktop/login1"
_LOGIND_EVERY_S: Final = 20.0


class LogindInput:
    """logind's hints, which come late: idle (all sessions of this user) or locked means away; not
    idle means nothing.
    """

    name = "session (logind)"
    hears_all = False
    is_screen = False

    def __init__(
        self, address: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._clock = clock

    async def follow(self, report: InputReport) -> None:
        """Report hints and locks as they change. Raises SignalError if there is no logind, or no
        session.
        """
        async with connected("SYSTEM", self._address) as bus:
            await bus.listen(
                f"type='signal',interface='{_PROPERTIES}',path_namespace='{_LOGIND_PATH}'"
            )
            was_idle = False
            while True:
                is_idle = bool(await self._hint(bus, "user/self", "User", "IdleHint"))
                report.lock(bool(await self._hint(bus, "session/auto", "Session", "LockedHint")))
                if is_idle:
                    since = await self._hint(bus, "user/self", "User", "IdleSinceHintMonotonic")
                    report.idle(self._clock() - since / 1e6 if isinstance(since, int) else 0.0)
                elif was_idle:
                    report.input()
                was_idle = is_idle
                await bus.next_signal(_LOGIND_EVERY_S)

    async def _hint(self, bus: Bus, path: str, interface: str, name: str) -> object:
        return await bus.property(_LOGIND, f"{_LOGIND_PATH}/{path}", f"{_LOGIND}.{interface}", name)


_NETWORK: Final = "org.freedesktop.NetworkManager"
_NETWORK_PATH: Final = "/org/freedesktop/NetworkManager"
# NM_METERED_YES and NM_METERED_GUESS_YES.
_METERED: Final = (1, 3)


class Metered:
    """Asks NetworkManager whether the network is metered."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    async def __call__(self) -> bool | None:
        """Whether the network is metered; None without NetworkManager."""
        try:
            async with connected("SYSTEM", self._address) as bus:
                return await bus.property(_NETWORK, _NETWORK_PATH, _NETWORK, "Metered") in _METERED
        except SignalError:
            return None
