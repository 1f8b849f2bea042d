"""The decision's table, row by row."""

from datetime import timedelta

from metaclaw.schedule.presence import (
    Moment,
    NamedReading,
    Presence,
    Reading,
    WindowThresholds,
    decide,
    in_words,
)
from tests.schedule.stage import NOON
from tests.support.cases import each

RULES = WindowThresholds(timedelta(minutes=2), timedelta(minutes=1))
AWAY = NamedReading("sleep", Reading(Presence.AWAY, "asleep"))
PRESENT = NamedReading("input", Reading(Presence.PRESENT, "a key"))
UNKNOWN = NamedReading("calendar", Reading(Presence.UNKNOWN, "no event"))
SHORT, LONG = timedelta(seconds=119), timedelta(minutes=2)


@each(
    ("readings", "objections", "is_open", "shut_s_ago", "expected", "opens", "why"),
    [
        ([], (), False, None, None, False, "nothing says that you are away"),
        ([UNKNOWN, UNKNOWN], (), False, None, None, False, "nothing says that you are away"),
        ([UNKNOWN], (), True, None, None, False, "nothing says that you are away"),
        ([AWAY, PRESENT], (), False, None, None, False, "input: a key"),
        ([AWAY, PRESENT], (), True, None, LONG, False, "input: a key"),
        ([PRESENT], (), False, None, None, False, "input: a key"),
        ([AWAY], ("on battery",), False, None, None, False, "on battery"),
        ([AWAY], ("on battery",), True, None, None, False, "on battery"),
        (
            [AWAY],
            (),
            False,
            None,
            SHORT,
            False,
            "a window now would be over in 119 s, and 2 min are the least",
        ),
        ([AWAY], (), True, None, SHORT, True, "sleep: asleep"),
        ([AWAY], (), False, 59, LONG, False, "cooling down for 1 s"),
        ([AWAY], (), False, 60, LONG, True, "sleep: asleep"),
        ([AWAY], (), False, -5, LONG, True, "sleep: asleep"),
        ([AWAY], (), True, 1, LONG, True, "sleep: asleep"),
        ([AWAY, UNKNOWN], (), False, None, None, True, "sleep: asleep"),
    ],
)
def test_the_table(
    readings: list[NamedReading],
    objections: tuple[str, ...],
    is_open: bool,
    shut_s_ago: float | None,
    expected: timedelta | None,
    opens: bool,
    why: str,
) -> None:
    shut_at = None if shut_s_ago is None else NOON - timedelta(seconds=shut_s_ago)
    decision = decide(Moment(NOON, readings, objections, is_open, shut_at, expected), RULES)
    assert (decision.is_open, decision.reason) == (opens, why)


def test_spans_are_said_as_people_say_them() -> None:
    spans = (
        timedelta(seconds=-3),
        timedelta(seconds=119),
        timedelta(minutes=2),
        timedelta(hours=3, minutes=4),
    )
    assert [in_words(span) for span in spans] == ["0 s", "119 s", "2 min", "3 h 4 min"]
