"""The laws of letting go: within budget, nothing that must stay is gone, no tool call without its
results.
"""

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw_bench.agent.chat import Completion, Message, ToolCall
from metaclaw_bench.agent.history import Exchange, History, Unit


def _count(messages: Sequence[Message]) -> int:
    return sum(_size(message) for message in messages)


def _size(message: Message) -> int:
    return (
        1
        + len(str(message["content"]))
        + 3 * len(_calls(message))
        + 3 * ("tool_call_id" in message)
    )


def _calls(message: Message) -> list[str]:
    listed = message.get("tool_calls")
    return (
        [str(one["id"]) for one in listed if isinstance(one, dict)]
        if isinstance(listed, list)
        else []
    )


def _say(role: str, size: int) -> Message:
    return {"role": role, "content": "x" * size}


def _unit(number: int, place: str) -> Unit:
    """An answer of some length, or one that calls up to three tools, with their results."""
    ids = [f"call_{place}_{at}" for at in range(number % 4)]
    if not ids:
        return (_say("assistant", number),)
    called = Completion("", tuple(ToolCall(name, "run", "{}") for name in ids)).as_message()
    return (called, *({"role": "tool", "tool_call_id": name, "content": "y"} for name in ids))


def _history(system: int, opening: list[int], rounds: list[list[int]]) -> History:
    exchanges = [
        Exchange(
            _say("user", len(units) * 3),
            tuple(_unit(number, f"{at}_{nth}") for nth, number in enumerate(units)),
        )
        for at, units in enumerate(rounds)
    ]
    return History(
        _say("system", system), tuple(_say("user", size) for size in opening), tuple(exchanges)
    )


patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_SIZES = st.integers(0, 31)
_HISTORIES = st.builds(
    _history,
    _SIZES,
    st.lists(_SIZES, max_size=2),
    st.lists(st.lists(_SIZES, max_size=4), min_size=1, max_size=4),
)


@patiently
@given(_HISTORIES, st.integers(1, 400))
def test_what_is_sent_fits_and_has_all_that_must_stay(history: History, budget: int) -> None:
    fitted = history.fitted(budget, _count)
    least = (
        history.system,
        history.exchanges[-1].question,
        *(history.exchanges[-1].units[-1:] or ((),))[0],
    )
    if fitted is None:
        assert _count(least) > budget
        return
    messages = list(fitted.messages)
    assert _count(messages) <= budget
    assert messages[0] is history.system
    assert any(message is history.exchanges[-1].question for message in messages)
    assert all(any(message is other for other in messages) for message in least)


@patiently
@given(_HISTORIES, st.integers(1, 400))
def test_a_call_and_its_results_stay_or_go_together_and_in_order(
    history: History, budget: int
) -> None:
    fitted = history.fitted(budget, _count)
    if fitted is None:
        return
    waiting: list[str] = []
    for message in fitted.messages:
        if message["role"] == "tool" and "tool_call_id" in message:
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert waiting == []
        waiting += _calls(message)
    assert waiting == []
    order = {id(message): at for at, message in enumerate(history.messages)}
    places = [order[id(message)] for message in fitted.messages]
    assert places == sorted(places)


@patiently
@given(_HISTORIES)
def test_what_fits_is_left_alone(history: History) -> None:
    assert history.fitted(_count(history.messages), _count) is history


def test_earlier_rounds_go_before_the_opening_and_before_the_round_at_hand() -> None:
    history = (
        History(_say("system", 10), (_say("user", 10),))
        .ask(_say("user", 50))
        .add((_say("assistant", 50),))
    )
    history = history.ask(_say("user", 10)).add((_say("assistant", 10),))
    fitted = history.fitted(60, _count)
    assert fitted == History(history.system, history.opening, history.exchanges[-1:])


def test_the_round_at_hand_is_kept_whole_where_it_fits_and_is_cut_only_as_far_as_it_must() -> None:
    long = History(_say("system", 9), (_say("user", 9),)).ask(_say("user", 9)).ask(_say("user", 9))
    for number in range(3):
        long = long.add((_say("assistant", 19), _say("tool", 9 + number)))
    at_hand = long.exchanges[-1]
    assert long.fitted(124, _count) == History(long.system, long.opening, (at_hand,))
    assert long.fitted(122, _count) == History(
        long.system, long.opening, (Exchange(at_hand.question, at_hand.units[1:]),)
    )
    assert long.fitted(52, _count) == History(
        long.system, (), (Exchange(at_hand.question, at_hand.units[2:]),)
    )
    assert long.fitted(51, _count) is None
