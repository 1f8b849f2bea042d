"""Sources that are asked: recorded answers are understood, and input is known within a second."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaclaw.schedule.input import ANSWER_WITHIN_S, ASK_OPEN_S, ASK_SHUT_S, SignalError, poll_input
from metaclaw_desktop.screen import MacInput, parse_idle_s
from tests.schedule.stage import Stage
from tests.schedule.test_input_sources import Heard

RECORDINGS = Path(__file__).parent / "recordings"
WITHIN_S = 1.0
IDLE_S = 30.0


class OverError(Exception):
    """The world has come to its end."""


@dataclass(slots=True)
class World:
    """Virtual time with a person in it, who touches the keyboard now and then. Time passes only
    while a source waits.
    """

    touches: Sequence[float]
    answer_s: float
    ends: float
    within_s: float = WITHIN_S
    stage: Stage = field(
        default_factory=lambda: Stage(
            sleep=["00:00-24:00"], idle_minutes=IDLE_S / 60, cooldown_minutes=0
        )
    )
    began: float = 0.0
    opened: int = 0
    late: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = self.stage.clock.monotonic()

    @property
    def at(self) -> float:
        return self.stage.clock.monotonic() - self.began

    @property
    def idle_s(self) -> float:
        """The truth: how long ago the last touch was; the machine was started a minute before."""
        return self.at - max((touch for touch in self.touches if touch <= self.at), default=-60.0)

    async def pass_(self, seconds: float) -> None:
        """Let time pass; look whenever the program would, and whenever a touch must be known."""
        until = self.at + seconds
        due = [touch + self.within_s for touch in self.touches]
        while self.at < until:
            was_open = self.stage.is_open
            wait_s = self.stage.windows.look()
            self.opened += self.stage.is_open and not was_open
            if self.stage.is_open and self.within_s <= self.idle_s < IDLE_S - 0.1:
                self.late.append(self.at)
            coming = [one for one in (*self.touches, *due) if one > self.at]
            self.stage.clock.go(seconds=min(until, self.at + wait_s, *coming) - self.at + 1e-6)
        if self.at > self.ends:
            raise OverError

    async def asked(self) -> float:
        """An answer that was true when the question came, and takes its time."""
        idle_s = self.idle_s
        await self.pass_(self.answer_s)
        return idle_s


def lived(world: World) -> None:
    """Let the world pass from its beginning to its end."""
    with pytest.raises(OverError):
        asyncio.run(
            poll_input(world.asked, world.stage.keyboard, sleep=world.pass_, clock=lambda: world.at)
        )


GAPS = st.lists(st.one_of(st.floats(0.05, 3.0), st.floats(25.0, 45.0)), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(gaps=GAPS, answer_s=st.floats(0.0, ANSWER_WITHIN_S))
@example(gaps=[45.0, 29.0, 31.0], answer_s=ANSWER_WITHIN_S)
def test_whenever_somebody_comes_back_no_window_is_open_a_second_later(
    gaps: list[float], answer_s: float
) -> None:
    touches = [sum(gaps[: place + 1]) for place in range(len(gaps))]
    world = World(touches, answer_s, ends=touches[-1] + 60.0)
    lived(world)
    assert world.late == []
    assert world.opened >= 1  # after the last touch there was time enough


def test_the_second_is_kept_by_design() -> None:
    assert max(ASK_OPEN_S, ASK_SHUT_S, ANSWER_WITHIN_S) + ANSWER_WITHIN_S < WITHIN_S


def test_nobody_is_asked_often_while_the_answer_does_not_matter() -> None:
    stage = Stage(idle_minutes=30)
    stage.keyboard.idle(0.0)
    assert (
        stage.keyboard.ask_again_s() == 5.0
    )  # somebody is typing: for five minutes no window can open
    stage.go(seconds=297)
    assert 1.0 < stage.keyboard.ask_again_s() < 2.5
    stage.go(seconds=3)
    assert stage.keyboard.ask_again_s() == ASK_SHUT_S
    stage.windows.open("by hand")
    assert stage.keyboard.ask_again_s() == ASK_OPEN_S


@pytest.mark.anyio
async def test_who_answers_too_late_is_not_believed() -> None:
    async def ask() -> float:
        await asyncio.Event().wait()
        return 0.0

    with pytest.raises(SignalError, match="was not answered within"):
        await poll_input(ask, Heard())


async def once(seconds: float) -> None:
    raise OverError


@pytest.mark.anyio
async def test_macos_tells_nanoseconds() -> None:
    """The recording has the shape and magnitude of two public ones of `ioreg -r -c IOHIDSystem -d
    1` (macOS 26, the screen locked for 54 minutes); other properties are left out."""
    commands: list[Sequence[str]] = []

    async def run(command: Sequence[str]) -> bytes:
        commands.append(command)
        return (RECORDINGS / "ioreg.txt").read_bytes()

    heard = Heard()
    with pytest.raises(OverError):
        await MacInput(run, sleep=once).follow(heard)
    assert heard.idles == [pytest.approx(3254.341351)]
    assert commands == [("/usr/sbin/ioreg", "-r", "-c", "IOHIDSystem", "-d", "1")]


@pytest.mark.anyio
async def test_macos_that_does_not_tell_is_said_in_words() -> None:
    with pytest.raises(SignalError, match="does not report"):
        parse_idle_s(b"")
    with pytest.raises(SignalError, match="ioreg cannot be run"):
        await MacInput().follow(Heard())
    two = b'    | |   "HIDIdleTime" = 5000000000\n    | |   "HIDIdleTime" = 462824375\n'
    assert parse_idle_s(two) == pytest.approx(0.462824375)
