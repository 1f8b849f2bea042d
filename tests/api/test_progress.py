"""What the page Progress shows: sums by day, week and month, of everyone or of one agent or person."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any
from urllib.parse import quote

import pytest

from metaclaw.api.progress import Periods
from metaclaw.api.web.charts import chart
from metaclaw.api.web.formats import compared
from metaclaw.domain.compliance import MeasuredTurn, RuleOutcome, RuleResult, measured_hash
from metaclaw.domain.ids import SkillName, new_session_id, new_turn_id
from metaclaw.domain.person import HOME
from metaclaw.domain.turn import Scope, Times, Turn, TurnEnd
from metaclaw.store import ProgressFilter, SqlCompliance, SqlEpisodes, SqlProgress
from tests.api.recorded import record
from tests.api.stage import Stage
from tests.api.test_access import BOB, ask

pytestmark = pytest.mark.anyio
TODAY = datetime.now(UTC).astimezone().replace(hour=12)


def plot_of(found: Any, name: str) -> dict[str, Any]:
    return next(one["series"] for one in found["plots"] if one["name"] == name)


def figure_of(found: Any, name: str) -> dict[str, Any]:
    return next(one for one in found["figures"] if one["name"] == name)


async def answered(
    stage: Stage, days_ago: int, seconds: Sequence[float], *, end: TurnEnd = TurnEnd.COMPLETED
) -> list[Turn]:
    """Turns that took so long, recorded on that day."""
    made = []
    for took in seconds:
        turn = await record(stage)
        at = TODAY - timedelta(days=days_ago)
        later = replace(turn, id=new_turn_id(), times=Times(at, took / 2, took), end=end)
        await stage.record(later)
        made.append(later)
    return made


async def test_answers_are_summed_by_day_and_provider(stage: Stage) -> None:
    await answered(stage, 3, [1.0, 2.0, 30.0])
    await answered(stage, 1, [4.0])
    await answered(stage, 1, [0.1], end=TurnEnd.FAILED)
    found = await stage.get("/api/progress")
    assert found["periods"][-4] == (TODAY - timedelta(days=3)).date().isoformat()
    latency = plot_of(found, "latency")["main"]
    assert (latency[-4], latency[-3], latency[-2]) == (2.0, None, 4.0)
    assert plot_of(found, "slowest")["main"][-4] == 30.0
    assert plot_of(found, "errors")["main"][-4:-1] == [0, 0, 1]
    assert plot_of(found, "traffic")["main"][-4] == 3 * (11 + 7)
    failed = figure_of(found, "answers failed")
    assert (failed["values"][-2], failed["of"][-2]) == (1, 2)


async def test_a_filter_leaves_out_other_agents_models_projects_and_people(stage: Stage) -> None:
    await answered(stage, 0, [1.0])
    for field, mine in (("agent", "some-agent"), ("model", "m-1"), ("person", "ann")):
        of_mine = await stage.get(f"/api/progress?{field}={mine}")
        others = await stage.get(f"/api/progress?{field}=another")
        assert plot_of(of_mine, "latency")["main"][-1] is not None
        assert plot_of(others, "latency") == {}
    assert (await stage.get("/api/progress"))["choices"]["people"] == ["ann"]


async def test_new_answers_are_added_to_those_counted_and_forgotten_ones_leave(
    stage: Stage,
) -> None:
    (first,) = await answered(stage, 0, [8.0])
    assert plot_of(await stage.get("/api/progress"), "traffic")["main"][-1] == 2 * 18
    await answered(stage, 0, [8.0, 8.0])
    assert plot_of(await stage.get("/api/progress"), "traffic")["main"][-1] == 6 * 18
    await stage.http.post(f"/api/sessions/{first.session}/forget")
    assert plot_of(await stage.get("/api/progress"), "traffic")["main"][-1] == 4 * 18


async def test_only_what_came_before_is_a_repeat(stage: Stage) -> None:
    episodes = SqlEpisodes(stage.database)
    for ago, failed, avoided in (
        (4, ["exit:make"], []),
        (2, ["exit:make", "exit:new"], []),
        (1, [], ["exit:make"]),
    ):
        turn = await record(stage)
        at = TODAY - timedelta(days=ago)
        episodes.record(turn.session, turn.scope, at, failed, avoided=avoided)
    repeats = plot_of(await stage.get("/api/progress"), "repeats")
    assert repeats["came again"][-5:] == [0, 0, 1, 0, 0]
    assert repeats["prevented"][-5:] == [0, 0, 0, 1, 0]


async def test_the_rule_broken_most_is_named_with_its_agent(stage: Stage) -> None:
    rule = (await stage.http.post("/api/rules", json={"text": "Use tabs."})).json()["name"]
    live = stage.library.view.get(SkillName(rule))
    assert live is not None
    text = measured_hash(live)
    results = (RuleResult.BROKEN, RuleResult.BROKEN, RuleResult.FOLLOWED, RuleResult.FOLLOWED)
    measured = []
    for number, result in enumerate(results, 1):
        turn = await record(stage)
        agent = "careful" if number == 4 else "hasty"
        outcome = RuleOutcome(SkillName(rule), text, result)
        day = TODAY.date().isoformat()
        measured.append(MeasuredTurn(number, turn.id, agent, "m-1", day, (outcome,)))
    SqlCompliance(stage.database).record(measured, 4)
    found = await stage.get("/api/progress")
    assert found["most_broken"] == {
        **{"name": rule, "times": 2, "agent": "hasty", "by_agent": 2, "of": 3}
    }
    assert plot_of(found, "agents")["hasty"][-1] == pytest.approx(1 / 3)
    assert plot_of(found, "agents")["careful"][-1] == 1
    assert plot_of(found, "rules")[rule][-1] == 0.5
    # Of a person's turns the same is counted, turn by turn.
    of_ann = await stage.get("/api/progress?person=ann")
    assert plot_of(of_ann, "agents") == plot_of(found, "agents")
    # Results of an earlier text or check say nothing about the rule as it is now.
    await stage.http.patch(f"/api/rules/{rule}", json={"text": "Use tabs, never spaces."})
    found = await stage.get("/api/progress")
    assert found["most_broken"] is None
    assert plot_of(found, "rules")[rule][-1] == 0.5


async def test_members_find_their_own_progress_without_cost(stage: Stage) -> None:
    await answered(stage, 0, [1.0])
    status, found = await ask(stage, BOB, "GET", "/api/progress")
    assert status == 200
    assert {one["name"] for one in found["plots"]} == {
        *("repeats", "agents", "rules", "lessons", "latency", "slowest", "errors", "traffic")
    }
    assert (plot_of(found, "latency"), found["learning"], found["choices"]["people"]) == (
        {},
        None,
        [],
    )


async def test_rules_that_came_and_went_are_counted(stage: Stage) -> None:
    made = (await stage.http.post("/api/rules", json={"text": "Use tabs."})).json()["name"]
    await stage.http.delete(f"/api/rules/{made}")
    lessons = plot_of(await stage.get("/api/progress?by=month"), "lessons")
    assert (lessons["learned"][-1], lessons["withdrawn"][-1]) == (1, 1)
    # What was learned is no agent's and no model's.
    of_agent = await stage.get("/api/progress?agent=some-agent")
    assert "lessons" not in {one["name"] for one in of_agent["plots"]}


async def test_only_what_is_new_is_a_lesson_of_today(stage: Stage) -> None:
    made = (await stage.http.post("/api/rules", json={"text": "Use tabs."})).json()["name"]
    await stage.http.patch(f"/api/rules/{made}", json={"text": "Use two spaces."})
    _, page = await ask(stage, HOME, "GET", "/ui")
    assert "<b>1</b><span>lesson today</span>" in page.decode()


async def test_the_page_takes_the_beginning_of_an_id(stage: Stage) -> None:
    turn = await record(stage)
    for kind, whole in (("sessions", turn.session), ("turns", turn.id)):
        status, page = await ask(stage, HOME, "GET", f"/ui/{kind}/{whole[:-2]}")
        assert status == 200, page


async def test_a_page_gives_what_it_shows_as_json_and_csv(stage: Stage) -> None:
    await stage.http.post("/api/rules", json={"text": "=1+1 is a formula."})
    await answered(stage, 0, [1.0])
    status, points = await ask(stage, HOME, "GET", "/ui/progress", query="as=json")
    assert (status, points[0]["plot"]) == (200, "repeats")
    for path in ("/ui", "/ui/sessions", "/ui/rules", "/ui/cost", "/ui/keys", "/ui/progress"):
        status, text = await ask(stage, HOME, "GET", path, query="as=csv")
        assert status == 200, path
        rows = list(csv.reader(StringIO(text.decode())))
        assert all(len(row) == len(rows[0]) for row in rows if row), path
        if path == "/ui/rules":
            assert rows[1][rows[0].index("text")] == "'=1+1 is a formula."
    status, _ = await ask(stage, HOME, "GET", "/ui/sessions", query="as=exe")
    assert status == 400


async def test_days_are_those_of_the_machine_when_its_clock_is_put_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        # 25 October has 25 hours there: from 22:00 UTC on the 24th to 23:00 UTC.
        begins = datetime(2026, 10, 24, 22, tzinfo=UTC)
        for hours in (-0.5, 0.5, 2.5, 3.5, 24.5, 25.5):
            turn = await record(stage)
            at = Times(begins + timedelta(hours=hours), None, 1.0)
            await stage.record(replace(turn, id=new_turn_id(), times=at))
        now = datetime(2026, 10, 27, 12, tzinfo=UTC)
        progress = SqlProgress(stage.database)
        progress._clock = lambda: now
        rows = progress.answers(date(2026, 10, 20), ProgressFilter())
        days = {row.day: row.times for row in rows if row.day.month == 10}
        assert days == {date(2026, 10, 24): 1, date(2026, 10, 25): 4, date(2026, 10, 26): 1}
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_weeks_begin_on_mondays_and_months_on_their_first_day() -> None:
    weeks = Periods("week", date(2026, 11, 19))
    assert (len(weeks.first), weeks.first[-1]) == (12, date(2026, 11, 16))
    assert all(day.weekday() == 0 for day in weeks.first)
    months = Periods("month", date(2026, 3, 31))
    assert months.first[-2:] == [date(2026, 2, 1), date(2026, 3, 1)]
    assert months.at(date(2026, 2, 28)) == 10
    assert months.at(date(2024, 1, 1)) == -1


async def test_a_chart_keeps_its_bars_inside_and_tells_its_numbers() -> None:
    plot = {"name": "n", "title": "Tokens", "unit": "tokens", "kind": "stack"}
    drawn = chart({**plot, "series": {"a": [1, 40_000], "b": [2, 3_000]}}, ["Mon", "Tue"])
    assert all(0 <= x <= x + w <= 100 and 0 <= y <= y + h <= 160 for x, y, w, h, _ in drawn["bars"])
    assert [label for _, label in drawn["ticks"]] == ["0", "20k", "40k", "60k"]
    assert drawn["summary"] == "Tokens, Mon to Tue; last: a 40k, b 3,000"
    lines = chart({**plot, "kind": "lines", "series": {"a": [1, None, 3]}}, ["1", "2", "3"])
    assert len(lines["lines"]) == 1
    below = chart(
        {**plot, "unit": "number", "kind": "lines", "series": {"a": [-1.2, 0.9]}}, ["1", "2"]
    )
    ticks = [label for _, label in below["ticks"]]
    assert (ticks[0], ticks[-1]) == ("-2.00", "1.00")
    assert all(14 <= y <= 160 for _, y1, _, y2, _ in below["lines"] for y in (y1, y2))
    many = chart({**plot, "series": {str(at): [at] for at in range(9)}}, ["Mon"])
    assert many["legend"] == ["8", "7", "6", "5", "4", "others"]
    assert many["rows"] == [("Mon", [8, 7, 6, 5, 4, 6])]


async def test_yesterday_is_compared_with_the_day_before() -> None:
    figure = {"name": "errors", "unit": "count", "good": "down", "values": [1, 5, 2, 0]}
    told = compared({**figure, "of": [10, 10, 10, 0]}, "day")
    assert (told["now"], told["part"], told["change"]) == ("20 %", "2 of 10", "better")
    assert told["others"] == [("the day before", "50 %"), ("today so far", "–")]
    assert compared({**figure, "of": None}, "day")["change"] == "better"
    same = {**figure, "values": [100, 100, 103, 0], "of": None}
    assert compared(same, "day")["change"] == "the same"


async def test_sessions_are_chosen_by_agent_model_project_and_person(stage: Stage) -> None:
    turn = await record(stage)
    mine = replace(
        turn, id=new_turn_id(), session=new_session_id(), scope=Scope("ann", "/home/ann/shop")
    )
    await stage.record(mine)
    for name, value, count in (
        ("agent", "some-agent", 2),
        ("model", "m-1", 2),
        ("person", "ann", 2),
        ("project", "/home/ann/shop", 1),
    ):
        for chosen, wanted in ((value, count), ("another", 0)):
            query = f"as=json&{name}={quote(chosen, safe='')}"
            status, found = await ask(stage, HOME, "GET", "/ui/sessions", query=query)
            assert (status, len(found)) == (200, wanted), (name, chosen)
