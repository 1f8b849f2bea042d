"""Training that waits for a window for a day says so."""

from metaclaw.learn.slow.loop import State
from metaclaw.learn.slow.starvation import Starvation
from metaclaw.schedule import ManualWindows


def test_a_day_without_a_window_is_told_with_its_reason_and_what_to_do() -> None:
    clock, windows = [0.0], ManualWindows()
    starvation = Starvation(windows, lambda: clock[0])
    windows.shut("traffic: a main turn")
    clock[0] = 86_399.0
    assert starvation.told(State.SHUT) is None
    clock[0] = 90_000.0
    told = starvation.told(State.SHUT)
    assert told is not None
    assert "waits for a window for 25 h (traffic: a main turn)" in told
    assert "metaclaw policy train" in told
    assert starvation.told(State.WAITING) is None
    windows.open("you are away")
    assert starvation.told(State.SHUT) is None
    windows.shut("you are back")
    assert starvation.told(State.TRAINING) is None
    clock[0] = 180_000.0
    assert starvation.told(State.TRAINING) is not None
