"""Sources over D-Bus, against a real bus with stand-ins for logind, GNOME and NetworkManager."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

dbus = pytest.importorskip(
    "dbus_fast", reason="D-Bus needs a Linux system: pip install ./plugins/desktop"
)

from dbus_fast import Message, MessageType, Variant  # noqa: E402
from dbus_fast.aio import MessageBus  # noqa: E402

from metaclaw.schedule.input import SignalError  # noqa: E402
from metaclaw_desktop.dbus import GnomeInput, LogindInput, Metered  # noqa: E402
from tests.schedule.test_input_sources import Heard, following  # noqa: E402

_SETTINGS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={path}</listen>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>"""
SESSION = "/org/freedesktop/login1/session/c1"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A real bus of our own."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("dbus-daemon is not installed: apt-get install dbus")
    settings = tmp_path / "bus.conf"
    settings.write_text(_SETTINGS.format(path=tmp_path / "bus"))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={settings}", "--nofork", "--print-address=1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout is not None
    try:
        yield daemon.stdout.readline().strip()
    finally:
        daemon.terminate()
        daemon.wait(10)
        daemon.stdout.close()


class StandIn:
    """Answers calls from a table and says signals; `values` are properties by name."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self.values: dict[str, Variant] = {}
        self.answers: dict[str, tuple[str, list[object]]] = {}
        self.asked: list[str] = []
        bus.add_message_handler(self._answer)

    async def say(
        self, path: str, interface: str, member: str, signature: str, body: list[object]
    ) -> None:
        await self._bus.send(Message.new_signal(path, interface, member, signature, body))

    def _answer(self, message: Message) -> Message | None:
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        self.asked.append(str(message.member))
        if message.member == "Get":
            return Message.new_method_return(message, "v", [self.values[message.body[1]]])
        signature, body = self.answers[str(message.member)]
        return Message.new_method_return(message, signature, body)


@asynccontextmanager
async def standing_in(address: str, name: str) -> AsyncIterator[StandIn]:
    bus = await MessageBus(bus_address=address).connect()
    stand_in = StandIn(bus)
    await bus.request_name(name)
    try:
        yield stand_in
    finally:
        bus.disconnect()


@asynccontextmanager
async def logind(address: str, *, is_idle: bool, is_locked: bool = False) -> AsyncIterator[StandIn]:
    async with standing_in(address, "org.freedesktop.login1") as stand_in:
        stand_in.values = {
            "IdleHint": Variant("b", is_idle),
            "LockedHint": Variant("b", is_locked),
            "IdleSinceHintMonotonic": Variant("t", 400_000_000),
        }
        yield stand_in


async def changed(stand_in: StandIn, **values: bool) -> None:
    stand_in.values |= {name: Variant("b", value) for name, value in values.items()}
    body: list[object] = ["org.freedesktop.login1.Session", {}, list(values)]
    await stand_in.say(
        SESSION, "org.freedesktop.DBus.Properties", "PropertiesChanged", "sa{sv}as", body
    )


@pytest.mark.anyio
async def test_logind_s_hint_is_idle_since_then_and_its_end_is_input(address: str) -> None:
    async with logind(address, is_idle=True) as stand_in:
        async with following(LogindInput(address, clock=lambda: 1000.0)) as heard:
            while not heard.idles:
                await heard.next()
            assert heard.idles == [600.0]
            assert heard.inputs == []
            await changed(stand_in, IdleHint=False)
            while not heard.inputs:
                await heard.next()


@pytest.mark.anyio
async def test_logind_that_does_not_say_idle_says_nothing_but_locks(address: str) -> None:
    async with logind(address, is_idle=False) as stand_in:
        async with following(LogindInput(address)) as heard:
            while not heard.locks:
                await heard.next()
            await changed(stand_in, LockedHint=True)
            while heard.locks[-1] is not True:
                await heard.next()
            assert (heard.idles, heard.inputs) == ([], [])


@pytest.mark.anyio
async def test_gnome_tells_of_the_first_input(address: str) -> None:
    name = "org.gnome.Mutter.IdleMonitor"
    async with standing_in(address, name) as stand_in:
        stand_in.answers = {"GetIdletime": ("t", [93_000]), "AddUserActiveWatch": ("u", [5])}
        async with following(GnomeInput(address)) as heard:
            while "AddUserActiveWatch" not in stand_in.asked:
                await heard.next()
            assert heard.idles[0] == 93.0
            await stand_in.say("/org/gnome/Mutter/IdleMonitor/Core", name, "WatchFired", "u", [5])
            while not heard.inputs:
                await heard.next()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "is_metered"), [(1, True), (3, True), (2, False), (4, False), (0, False)]
)
async def test_network_manager_says_whether_the_network_is_metered(
    address: str, answer: int, is_metered: bool
) -> None:
    async with standing_in(address, "org.freedesktop.NetworkManager") as stand_in:
        stand_in.values["Metered"] = Variant("u", answer)
        assert await Metered(address)() is is_metered


@pytest.mark.anyio
async def test_without_a_bus_or_a_service_it_is_unknown(address: str, tmp_path: Path) -> None:
    assert await Metered(address)() is None
    for source in (
        GnomeInput(address),
        LogindInput(address),
        LogindInput(f"unix:path={tmp_path}/none"),
    ):
        with pytest.raises(SignalError):
            await source.follow(Heard())
