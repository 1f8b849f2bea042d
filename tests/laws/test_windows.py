"""For any sequence of readings, clock jumps and restarts: one window at most, no step outside one,
presence always wins.
"""

import asyncio
from datetime import timedelta

import anyio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaclaw.domain.training import Window
from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.presence import Presence, Reading
from metaclaw.schedule.training_windows import ScheduledWindows
from tests.schedule.stage import Stage

PRESENCES = st.sampled_from(list(Presence))
SPANS = st.floats(0.1, 7200)


class Scheduling(RuleBasedStateMachine):
    """One person, one machine, everything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stage = Stage(sleep=["23:00-07:00", "sat,sun 12:00-14:00"])
        self._listen()

    def _listen(self) -> None:
        self.heard: list[Window | None] = []
        self.stage.windows.on_change(self.heard.append)

    @rule(span_s=SPANS)
    def time_passes(self, span_s: float) -> None:
        self.stage.go(seconds=span_s)

    @rule(span_s=SPANS)
    def time_passes_unseen(self, span_s: float) -> None:
        self.stage.clock.go(seconds=span_s)

    @rule(hours=st.floats(-48, 48))
    def the_clock_jumps(self, hours: float) -> None:
        self.stage.clock.jump(hours=hours)
        self.stage.windows.refresh()
        if abs(hours) * 3600 > 5:
            assert not self.stage.is_open

    @rule()
    def somebody_types(self) -> None:
        was_by_hand = self.stage.windows.facts()["by_hand"]
        self.stage.keyboard.input()
        assert not self.stage.is_open or was_by_hand

    @rule(idle_s=st.floats(0, 90_000))
    def the_keyboard_is_asked(self, idle_s: float) -> None:
        self.stage.keyboard.idle(idle_s)

    @rule(is_locked=st.booleans())
    def the_screen_is_locked(self, is_locked: bool) -> None:
        self.stage.keyboard.lock(is_locked)

    @rule(kind=st.sampled_from(list(TurnKind)), answer_s=st.floats(0, 900))
    def a_turn(self, kind: TurnKind, answer_s: float) -> None:
        self.stage.traffic.began(kind)
        if kind is TurnKind.MAIN:
            assert not self.stage.is_open
            assert not self.stage.go(seconds=answer_s)
        self.stage.traffic.ended()

    @rule(presence=PRESENCES, minutes=st.none() | st.floats(-60, 600))
    def the_calendar_says(self, presence: Presence, minutes: float | None) -> None:
        until = None if minutes is None else self.stage.clock.now() + timedelta(minutes=minutes)
        self.stage.calendar.reading = Reading(presence, "as drawn", until)

    @rule(objections=st.sampled_from([(), ("on battery",)]))
    def the_neighbour_says(self, objections: tuple[str, ...]) -> None:
        self.stage.neighbour.objections = objections

    @rule()
    def somebody_opens_it(self) -> None:
        self.stage.windows.open("by hand")
        assert self.stage.is_open

    @rule()
    def somebody_shuts_it(self) -> None:
        self.stage.windows.shut("by hand")
        assert not self.stage.is_open

    @rule()
    def the_program_starts_anew(self) -> None:
        clock, history = self.stage.clock, self.stage.habits.history
        self.stage = Stage(
            sleep=["23:00-07:00", "sat,sun 12:00-14:00"], clock=clock, history=history
        )
        self._listen()
        assert not self.stage.is_open

    @rule()
    @precondition(lambda self: self.stage.is_open)
    def it_lasts_for_some_time(self) -> None:
        assert self.stage.windows.room_s() >= 0

    @invariant()
    def opening_and_shutting_alternate(self) -> None:
        assert all(
            (a is None) != (b is None) for a, b in zip(self.heard, self.heard[1:], strict=False)
        )
        if self.heard:
            assert (self.heard[-1] is not None) == self.stage.is_open
        kinds = [kind for kind, _ in self.stage.events if kind != "window.clock_jumped"]
        assert kinds == [
            "window.opened" if window is not None else "window.shut" for window in self.heard
        ]

    @invariant()
    def presence_always_wins(self) -> None:
        windows = self.stage.windows
        windows.refresh()
        readings = windows.readings()
        if windows.window is not None and not windows.facts()["by_hand"]:
            assert all(one.reading.presence is not Presence.PRESENT for one in readings)
            assert any(one.reading.presence is Presence.AWAY for one in readings)
            assert not self.stage.neighbour.objections

    @invariant()
    def no_step_begins_outside_a_window(self) -> None:
        windows = self.stage.windows
        if windows.window is None:
            assert windows.room_s() == 0
            assert windows.shut_because
        assert self.loop.run_until_complete(_opened(windows)) == windows.window

    def teardown(self) -> None:
        self.loop.close()


async def _opened(windows: ScheduledWindows) -> Window | None:
    """The window that whoever wants to begin a step gets; None if they have to wait."""
    with anyio.move_on_after(0):
        return await windows.until_open()
    return None


Scheduling.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestScheduling = Scheduling.TestCase
