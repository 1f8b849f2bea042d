"""D-Bus sources: GNOME's idle monitor, the screen saver service (KDE), logind's session hints, and NetworkManager's metered flag.

Errors of D-Bus become SignalErrors. Importing this module without the desktop extra raises SignalError as well.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio

from metaclaw.schedule.input import InputReport, SignalError, Sleep, poll_input

try:
    from dbus_fast import BusType, Message, MessageType, Variant
    from dbus_fast.aio import MessageBus
    from dbus_fast.errors import AuthError, DBusError, InvalidAddressError
except ImportError as error:  # pragma: no cover - the desktop extra is not installed
    raise SignalError("D-Bus needs the desktop extra: pip install 'metaclaw-proxy[desktop]'") from error

_ANSWER_WITHIN_S: Final = 5.0
_PROPERTIES: Final = "org.freedesktop.DBus.Properties"


class Bus:
    """One connection. Received signals are queued in `heard`."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self.heard: asyncio.Queue[Message] = asyncio.Queue(maxsize=1000)
        bus.add_message_handler(self._hear)

    async def call(self, name: str, path: str, interface: str, member: str, signature: str = "", *body: object) -> list[object]:
        """Call a method. Raises SignalError."""
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
        """Receive signals that match this rule."""
        await self.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", "s", rule)

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
async def connected(kind: BusType, address: str | None = None) -> AsyncIterator[Bus]:
    """A connection for the time of the block. Raises SignalError if there is no such bus."""
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


_MUTTER: Final = "org.gnome.Mutter.IdleMonitor"
_CORE: Final = "/org/gnome/Mutter/IdleMonitor/Core"
_SAVER: Final = "org.freedesktop.ScreenSaver"
_SAVER_PATH: Final = "/org/freedesktop/ScreenSaver"
_LOOK_EVERY_S: Final = 5.0
_LONG_ENOUGH_S: Final = 2.5


class GnomeInput:
    """GNOME reports the first input after a silence."""

    name = "input (GNOME)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    async def follow(self, report: InputReport) -> None:
        """Report input as it happens. Raises SignalError if this is not GNOME."""
        async with connected(BusType.SESSION, self._address) as bus:
            await bus.listen(f"type='signal',interface='{_MUTTER}',member='WatchFired',path='{_CORE}'")
            watch: object = None
            while True:
                (idle_ms,) = await bus.call(_MUTTER, _CORE, _MUTTER, "GetIdletime")
                report.idle(_number(idle_ms) / 1000)
                if watch is None:
                    (watch,) = await bus.call(_MUTTER, _CORE, _MUTTER, "AddUserActiveWatch")
                if await self._fired(bus, watch):
                    report.input()
                    watch = None

    async def _fired(self, bus: Bus, watch: object) -> bool:
        message = await bus.next_signal(_LOOK_EVERY_S)
        return message is not None and message.member == "WatchFired" and message.body == [watch]


class ScreenSaverInput:
    """KDE and other desktops with this service, which must be polled."""

    name = "input (screen saver, asked)"
    hears_all = True
    tells_after_s = 0.0

    def __init__(
        self, address: str | None = None, *, clock: Callable[[], float] = time.monotonic, sleep: Sleep = anyio.sleep
    ) -> None:
        self._address = address
        self._clock = clock
        self._sleep = sleep

    async def follow(self, report: InputReport) -> None:
        """Poll for ever. Raises SignalError without the service."""
        async with connected(BusType.SESSION, self._address) as bus:
            answers = _Answers()

            async def ask() -> float | None:
                (answer,) = await bus.call(_SAVER, _SAVER_PATH, _SAVER, "GetSessionIdleTime")
                return answers.seconds(_number(answer), self._clock())

            await poll_input(ask, report, sleep=self._sleep)


class _Answers:
    """Finds the unit of the answers: some services answer in milliseconds instead of seconds, which shows in how fast they grow."""

    def __init__(self) -> None:
        self._asked_at, self._before, self._units = 0.0, 0.0, 0.0

    def seconds(self, idle: float, now: float) -> float | None:
        """An answer in seconds; None while the unit is unknown. A smaller answer than before means input."""
        was_used = bool(self._asked_at) and idle < self._before
        grown, passed = idle - self._before, now - self._asked_at
        if self._asked_at and not self._units and passed >= _LONG_ENOUGH_S and grown > 0:
            self._units = 1000.0 if grown / passed > 30 else 1.0
        if not self._asked_at or was_used or passed >= _LONG_ENOUGH_S:
            self._asked_at, self._before = now, idle
        if self._units:
            return idle / self._units
        return 0.0 if was_used else None


def _number(answer: object) -> float:
    if not isinstance(answer, int):
        raise SignalError("the desktop's answer is not a length of time")
    return float(answer)


_LOGIND: Final = "org.freedesktop.login1"
_MANAGER: Final = "org.freedesktop.login1.Manager"
_SESSION: Final = "org.freedesktop.login1.Session"
_LOGIND_PATH: Final = "/org/freedesktop/login1"
_LOGIND_EVERY_S: Final = 20.0


class LogindInput:
    """logind's hints about this user's sessions, which come late: idle or locked means away; not idle means nothing."""

    name = "session (logind)"
    hears_all = False
    tells_after_s = 0.0

    def __init__(self, uid: int, address: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._uid = uid
        self._address = address
        self._clock = clock

    async def follow(self, report: InputReport) -> None:
        """Report hints and locks as they change. Raises SignalError if there is no logind, or no session."""
        async with connected(BusType.SYSTEM, self._address) as bus:
            await bus.listen(f"type='signal',interface='org.freedesktop.DBus.Properties',path_namespace='{_LOGIND_PATH}/session'")
            was_idle: bool | None = None
            while True:
                was_idle = await self._look(bus, report, was_idle)
                await bus.next_signal(_LOGIND_EVERY_S)

    async def _look(self, bus: Bus, report: InputReport, was_idle: bool | None) -> bool:
        sessions = await self._sessions(bus)
        idle = [await self._idle_s(bus, path) for path in sessions]
        report.lock(all([bool(await bus.property(_LOGIND, path, _SESSION, "LockedHint")) for path in sessions]))
        known = [seconds for seconds in idle if seconds is not None]
        is_idle = len(known) == len(idle)
        if is_idle:
            report.idle(min(known))
        elif was_idle:
            report.input()
        return is_idle

    async def _sessions(self, bus: Bus) -> list[str]:
        (listed,) = await bus.call(_LOGIND, _LOGIND_PATH, _MANAGER, "ListSessions")
        paths = [str(session[4]) for session in listed if session[1] == self._uid] if isinstance(listed, list) else []
        mine = [path for path in paths if await bus.property(_LOGIND, path, _SESSION, "Class") == "user"]
        if not mine:
            raise SignalError("logind knows no session of yours")
        return mine

    async def _idle_s(self, bus: Bus, path: str) -> float | None:
        """How long a session has been idle; None if it is not."""
        if not await bus.property(_LOGIND, path, _SESSION, "IdleHint"):
            return None
        since = await bus.property(_LOGIND, path, _SESSION, "IdleSinceHintMonotonic")
        return max(0.0, self._clock() - since / 1e6) if isinstance(since, int) else 0.0


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
            async with connected(BusType.SYSTEM, self._address) as bus:
                return await bus.property(_NETWORK, _NETWORK_PATH, _NETWORK, "Metered") in _METERED
        except SignalError:
            return None
