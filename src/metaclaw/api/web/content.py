"""The values for each page's template. Store reads run in threads."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

import anyio
from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest
from metaclaw.api.status_words import short
from metaclaw.api.turns import Words, held_view, last_words, read_turn
from metaclaw.api.views import (
    change_view,
    retired_rule_view,
    role_view,
    rule_view,
    skill_view,
    verdict_view,
)
from metaclaw.api.web.charts import chart, period_labels
from metaclaw.api.web.formats import (
    DAYS,
    compared,
    day_name,
    differences,
    moment,
    project,
    provider_use,
    week_of,
)
from metaclaw.clock import local_today, utc_now
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import GenerationChange, Rule, Skill
from metaclaw.domain.turn import ATTEMPT, REMINDER, Placement, Turn, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store import SessionFilter, SkillVersion

_SESSIONS: Final = 30
_TURNS: Final = 12
_LESSONS: Final = 12
_MOST_LESSONS: Final = 200
_SEARCH_S: Final = 0.05
_READ_AT_ONCE: Final = 10
_READ_PAUSE_S: Final = 0.02
_MOST_FOUND: Final = 300
_FOUND: Final = 8
_SHORT_CHARS: Final = 6_000
_CHOSEN: Final = ("agent", "model", "project", "person")
_PROGRESS: Final = ("by", *_CHOSEN)
_SESSIONS_BY: Final = ("q", "outcome", *_CHOSEN)
_NIGHT: Final = ("window.opened", "window.shut", "policy", "batch.dropped")
Context = dict[str, Any]
Call = Callable[..., Awaitable[dict[str, Any]]]
"""Calls a route of the API from inside the program."""


Read = TypeVar("Read", bound=Callable[..., Awaitable[Context]])


@dataclass(frozen=True, slots=True)
class Page:
    """The path of a page, its template and title, and the entry of the navigation it belongs to."""

    path: str
    template: str
    active: str
    title: str
    rows: str
    """What the page gives as JSON and CSV: the name of a value of its template."""


def page(path: str, template: str, active: str, title: str, rows: str) -> Callable[[Read], Read]:
    """Mark a method of PageContent that returns the values for a page's template."""

    def mark(read: Read) -> Read:
        PAGES[read.__name__] = Page(path, template, active, title, rows)
        return read

    return mark


PAGES: dict[str, Page] = {}
"""The pages by the name of the method that reads their content."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """Reads the content of the pages. Each method returns the values for one template. Raises
    ApiError and StoreError.
    """

    home: HomeRoutes
    call: Call
    curve: Callable[[], Sequence[float]] = tuple
    """The mean reward of each training step of the newest run. Blocks."""

    @page("/ui", "today.html", "today", "Today", "lessons")
    async def today(self, asked: ApiRequest) -> Context:
        """Lessons, cost, pending decisions and problems. With `lessons=all` in the query, every
        lesson, not only the newest.
        """
        with_all = asked.query.get("lessons") == "all"
        status = await self.call("GET", "/api/status")
        waiting = await self.waiting()
        names = {one["name"] for one in status["questions"] or () if one["candidate"] is None}
        rules = (await self.call("GET", "/api/rules"))["rules"] if names else []
        cost = await self.call("GET", "/api/cost", days="1")
        lessons, learned_today, older = await run_sync(self._lessons, with_all)
        days: dict[str, list[Context]] = {}
        for lesson in lessons:
            days.setdefault(day_name(lesson["at"]), []).append(lesson)
        served = (
            cost["days"][0]
            if cost["days"] and cost["days"][0]["day"] == cost["budget"]["day"]
            else None
        )
        return {
            "status": status,
            "problems": status["problems"],
            "waiting": waiting,
            "questions": [one for one in rules if one["name"] in names],
            "days": days,
            "lessons": lessons,
            "budget": cost["budget"],
            "served": served,
            "learned_today": learned_today,
            "older": older,
            "are_all_shown": with_all,
        }

    @page("/ui/progress", "progress.html", "progress", "Progress", "points")
    async def progress(self, asked: ApiRequest) -> Context:
        """Whether it gets better, by day, week or month."""
        wanted = {name: asked.query[name] for name in _PROGRESS if asked.query.get(name)}
        found = await self.call("GET", "/api/progress", **wanted)
        by, periods = found["by"], found["periods"]
        labels = period_labels(periods, by)
        marks = {one["at"]: f"v{one['version']}" for one in reversed(found["versions"])}
        return {
            **found,
            "query": wanted,
            "labels": labels,
            "shown": [compared(figure, by) for figure in found["figures"]],
            "charts": [chart(plot, labels, marks) for plot in found["plots"]],
            "points": [
                {"plot": plot["name"], "series": name, "period": period, "value": value}
                for plot in found["plots"]
                for name, values in plot["series"].items()
                for period, value in zip(periods, values, strict=True)
            ]
            + [
                {"plot": "figures", "series": figure["name"], "period": period, "value": value}
                for figure in found["figures"]
                for period, value in zip(periods, figure["values"], strict=True)
            ],
        }

    @page("/ui/sessions", "sessions.html", "sessions", "Sessions", "sessions")
    async def sessions(self, asked: ApiRequest) -> Context:
        """A list of sessions, filtered and searched."""
        query = asked.query
        chosen = {name: query[name] for name in _SESSIONS_BY if query.get(name)}
        outcome = query.get("outcome", "")
        before = SessionId(query["before"]) if query.get("before") else None
        wanted = SessionFilter(
            query.get("q", "").strip()[:200],
            agent=query.get("agent", ""),
            model=query.get("model", ""),
            project=query.get("project", ""),
            person=query.get("person", ""),
            outcome=Outcome(outcome) if outcome in list(Outcome) else None,
            with_side_only=query.get("all") == "1",
        )
        found = await run_sync(self._session_list, wanted, before)
        return {**found, "query": chosen, "choices": await run_sync(self.home.progress.choices)}

    def find(self, text: str) -> list[Context]:
        """Rules, skills, lessons and sessions with all of these words. Blocks."""
        words = text.casefold().split()
        skills = [
            {
                "label": one.name if one.is_skill else one.body,
                "kind": f"{one.kind}, {project(one.workspace)}" if one.workspace else one.kind,
                "href": f"/ui/rules/{one.name}",
            }
            for one in self.home.rulebook.skills()
            if all(word in f"{one.name} {one.trigger} {one.body}".casefold() for word in words)
        ]
        titles = self.home.titles
        named = (
            titles.search(text, _SEARCH_S, self.home.overview.ids())[0][:_FOUND] if words else []
        )
        sessions = [
            {"label": title, "kind": "session", "href": f"/ui/sessions/{quote(session, safe='')}"}
            for session, title in titles.of(named).items()
        ]
        return [*skills[:_FOUND], *sessions] if words else []

    async def read_titles(self) -> None:
        """Read the titles of all sessions, a few at a time, so that a search finds all of them.
        Raises StoreError.
        """
        unread = await run_sync(self.home.titles.unread)
        for at in range(0, len(unread), _READ_AT_ONCE):
            await run_sync(self.home.titles.of, unread[at : at + _READ_AT_ONCE])
            await anyio.sleep(_READ_PAUSE_S)

    @page("/ui/sessions/{id}", "session.html", "sessions", "One session", "turns")
    async def session(self, asked: ApiRequest) -> Context:
        """One session with its turns, a few at a time."""
        cursor, with_side = asked.number("after", 0), asked.query.get("side") == "1"
        found = await run_sync(self._session, asked.path["id"], cursor, with_side)
        known = set[SkillName]()
        for one in found["turns"]:
            places = [place for place in one.pop("placements") if place.text]
            new = {name: place for place in places for name in place.skills if name not in known}
            known |= new.keys()
            one["placed"] = await self._placed(one["row"].id, new) if new else []
        return found

    async def _placed(self, turn: TurnId, new: Mapping[SkillName, Placement]) -> list[Context]:
        """What was placed in a turn, where, and why."""
        try:
            placed = (await self.call("GET", f"/api/turns/{turn}/why"))["placed"]
        except ApiError:
            return []
        return [{**one, "where": _where(new[one["name"]])} for one in placed if one["name"] in new]

    @page("/ui/turns/{id}", "turn.html", "sessions", "One turn", "messages")
    async def turn(self, asked: ApiRequest) -> Context:
        """One turn: the prompt with placed text marked, the answer, the verdict, and why."""
        turn = await run_sync(self.home.turn_id, asked.path["id"])
        context = await run_sync(self._turn, turn)
        try:
            context["why"] = await self.call("GET", f"/api/turns/{turn}/why")
        except (ApiError, StopIteration):
            context["why"] = None
        return context

    @page("/ui/rules", "rules.html", "rules", "Rules and skills", "everything")
    async def rules(self, asked: ApiRequest) -> Context:
        """Rules, facts and skills in force, candidates that wait for a decision, and retired
        ones.
        """
        rules = (await self.call("GET", "/api/rules"))["rules"]
        skills = [
            one
            for one in (await self.call("GET", "/api/skills"))["skills"]
            if one["kind"] == "skill"
        ]
        lessons = (await self.call("GET", "/api/lessons"))["lessons"]
        retired = (await self.call("GET", "/api/skills", state="retired"))["skills"]
        generations = (await self.call("GET", "/api/generations", limit="12"))["generations"]
        placed = await run_sync(self.home.overview.last_placed)
        for one in (*rules, *skills):
            one["placed"] = placed.get(one["name"])
        return {
            "waiting": await self.waiting(),
            "questions": [one for one in rules if one["question"]],
            "is_holding": (await self.call("GET", "/api/enforce"))["on"],
            "rules": rules,
            "skills": skills,
            "lessons": [one for one in lessons if one["state"] not in ("asked", "withdrawn")],
            "retired": retired[:50],
            "retired_count": len(retired),
            "everything": [*rules, *skills, *lessons],
            "generations": generations,
        }

    @page("/ui/rules/{name}", "rule.html", "rules", "One rule or skill", "versions")
    async def rule(self, asked: ApiRequest) -> Context:
        """One rule, fact or skill: text, source, evidence, versions with differences."""
        name = asked.path["name"]
        context = await run_sync(self._rule, name)
        is_rule = context["one"]["kind"] in ("rule", "fact")
        if context["is_live"] and not is_rule:
            context["facts"] = await self.call("GET", f"/api/skills/{name}")
        elif context["is_live"]:
            context["one"] |= await self.call("GET", f"/api/rules/{name}")
            context["is_holding"] = (await self.call("GET", "/api/enforce"))["on"]
        return context

    async def waiting(self) -> list[Context]:
        """Candidates that wait for a person, with their text."""
        listed = (await self.call("GET", "/api/candidates", standing="waiting", limit="20"))[
            "candidates"
        ]
        return [{**one, **await self.call("GET", f"/api/candidates/{one['id']}")} for one in listed]

    @page("/ui/training", "training.html", "training", "Training", "versions")
    async def training(self, asked: ApiRequest) -> Context:
        """The state of training, recent events, the versions, and the windows of the week."""
        policy = await self.call("GET", "/api/policy", limit="20")
        windows = await self.call("GET", "/api/windows")
        since = utc_now() - timedelta(days=7)
        events = await run_sync(lambda: self.home.overview.happened(_NIGHT, since))
        curve = list(await run_sync(self.curve))
        night = utc_now() - timedelta(hours=24)
        return {
            "policy": policy,
            "versions": policy["versions"],
            "windows": windows,
            "charts": _training_charts(curve, policy["versions"]),
            "night": [one for one in events if one.at >= night and one.kind != "window.opened"][
                :12
            ],
            "week": week_of([(one.at, one.kind, one.data) for one in events], utc_now()),
        }

    @page("/ui/cost", "cost.html", "cost", "Cost and providers", "days")
    async def cost(self, asked: ApiRequest) -> Context:
        """Tokens and money by day and purpose; errors and latency by provider."""
        cost = await self.call("GET", "/api/cost", days=str(DAYS))
        status = await self.call("GET", "/api/status")
        since = utc_now() - timedelta(days=7)
        calls = await run_sync(self.home.overview.calls, since)
        used = {one["name"]: one for one in provider_use(calls)}
        providers = [{**one, **used.pop(one["name"], {})} for one in status["providers"]]
        return {
            "cost": cost,
            "days": cost["days"],
            "chart": _cost_chart(cost["days"]),
            "providers": [*providers, *used.values()],
            "days_shown": DAYS,
            "unpriced_tokens": sum(
                one[whose]["unpriced_tokens"]
                for one in cost["days"]
                for whose in ("traffic", "learning")
            ),
        }

    @page("/ui/keys", "keys.html", "keys", "Keys", "keys")
    async def keys(self, asked: ApiRequest) -> Context:
        """The keys of people, and who changed what."""
        return {
            "keys": (await self.call("GET", "/api/keys"))["keys"],
            "changes": (await self.call("GET", "/api/audit", limit="100"))["changes"],
        }

    def _lessons(self, with_all: bool) -> tuple[list[Context], int, int]:
        """The lessons to show, the number of today's, and the number of further ones, as far as
        they are counted.
        """
        rulebook = self.home.rulebook
        recent, learned_today = list[GenerationChange](), 0
        for change in rulebook.lately():
            is_today = day_name(change.published_at) == "Today"
            if not is_today and len(recent) > _MOST_LESSONS:
                break
            learned_today += is_today and not change.before.keys() >= change.after.keys()
            recent.append(change)
        changes = recent[: _MOST_LESSONS if with_all else _LESSONS]
        named = [skill.name for change in changes for skill in change.after.values()]
        live = {name: rulebook.library.view.get(name) for name in named}
        sources = {
            one.source for one in live.values() if one is not None and one.source is not None
        }
        places = self.home.overview.places_of(list(sources))
        found: list[Context] = []
        for change in changes:
            lesson: Context = {**change_view(change), "can_undo": rulebook.is_reversible(change)}
            for one in lesson["put"]:
                skill = live.get(one["name"])
                place = None if skill is None or skill.source is None else places.get(skill.source)
                one["live"] = None
                if skill is not None:
                    one["live"] = skill_view(skill) if skill.is_skill else rule_view(skill, None)
                one["source"] = (
                    None if place is None else {"turn": place.turn, "workspace": place.workspace}
                )
            found.append(lesson)
        return found, learned_today, len(recent) - len(changes)

    def _session_list(self, wanted: SessionFilter, before: SessionId | None) -> Context:
        overview, titles = self.home.overview, self.home.titles
        unread, is_cut = 0, False
        if wanted.text:
            titled, unread = titles.search(wanted.text, _SEARCH_S, overview.ids())
            is_cut = len(titled) > _MOST_FOUND
            wanted = replace(wanted, titled=titled[:_MOST_FOUND])
        rows = overview.sessions(wanted, _SESSIONS + 1, before)
        shown, more = rows[:_SESSIONS], len(rows) > _SESSIONS
        ids = [row.id for row in shown]
        named, outcomes, failed = titles.of(ids), overview.outcomes(ids), overview.failed(ids)
        return {
            "sessions": [
                {
                    "row": row,
                    "title": named.get(row.id, ""),
                    "outcomes": outcomes.get(row.id, {}),
                    "failed": failed.get(row.id, 0),
                }
                for row in shown
            ],
            "count": (
                count := len(rows) if before is None and not more else overview.count(wanted)
            ),
            "hidden": (
                0
                if wanted.with_side_only
                else overview.count(replace(wanted, with_side_only=True)) - count
            ),
            "unread": unread,
            "is_cut": is_cut,
            "next": shown[-1].id if more else None,
            "is_first": before is None,
            "wanted": wanted,
        }

    def _session(self, named: str, after: int, with_side: bool) -> Context:
        reader, session = self.home.reader, self.home.session_id(named)
        row = reader.session(session)
        if row is None:
            raise ApiError(f"there is no session {session}", 404)
        listed = reader.turns_of(session, 4 * _TURNS, after)
        wanted = [one for one in listed if with_side or one.kind is TurnKind.MAIN]
        shown = wanted[:_TURNS]
        is_more = len(wanted) > _TURNS or len(listed) == 4 * _TURNS
        standings = reader.standings_of([one.id for one in shown])
        turns = []
        for one in shown:
            found = reader.turn(one.id)
            if found is not None:
                said = read_turn(found.turn, self.home.words, whole=False, most=_SHORT_CHARS)
                verdict = verdict_view(standings[one.id].verdict) if one.id in standings else None
                turns.append(
                    {
                        **{"row": one, "said": said, "verdict": verdict},
                        "held": held_view(found.turn),
                        "placements": found.turn.placements,
                    }
                )
        return {
            "session": row,
            "title": self.home.titles.of([session]).get(session, ""),
            "turns": turns,
            "after": after,
            "with_side": with_side,
            "side_count": (
                row.turns - row.main_turns - reader.attempts_in([session]).get(session, 0)
            ),
            "next": (shown or listed)[-1].seq if is_more else None,
        }

    def _turn(self, turn: TurnId) -> Context:
        found = self.home.reader.turn(turn)
        standing = self.home.reader.standing_of(turn)
        if found is None or standing is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return {
            "turn": found.turn,
            "said": (said := read_turn(found.turn, self.home.words, whole=True)),
            "messages": [*said.asked, said.answer],
            "title": _turn_title(found.turn, self.home.words),
            "verdict": verdict_view(standing.verdict),
            "role": role_view(found.turn, standing),
            "held": held_view(found.turn),
            "is_attempt": found.turn.kind_reason == ATTEMPT,
        }

    def _rule(self, name: str) -> Context:
        rulebook, overview = self.home.rulebook, self.home.overview
        live = rulebook.library.view.get(name)
        live = live if live is not None and rulebook.sees(live) else None
        versions = [one for one in overview.versions_of(name) if rulebook.sees(one.skill)]
        if live is None and not versions:
            raise ApiError(f"there is no rule or skill named {name}", 404)
        skill = live if live is not None else versions[0].skill
        gone = (
            None
            if live is not None
            else next((one for one in rulebook.retired() if one.skill.name == name), None)
        )
        if not isinstance(skill, Rule):
            one = skill_view(skill)
        elif gone is None:
            one = rule_view(skill, rulebook.dates().get(skill.name))
        else:
            one = retired_rule_view(gone)
        source = skill.source
        place = None if source is None else overview.places_of([source]).get(source)
        return {
            "one": one,
            "body": skill.body,
            "is_live": live is not None,
            "gone": gone,
            "facts": None,
            "is_holding": True,
            "placed": overview.last_placed().get(skill.name),
            "source": place,
            "versions": changes_of(versions),
        }


def _cost_chart(days: Sequence[Mapping[str, Any]]) -> Context:
    """The tokens of each day, also of days on which there were none."""
    known, first = {str(one["day"]): one for one in days}, local_today() - timedelta(days=DAYS - 1)
    wanted = [(first + timedelta(days=at)).isoformat() for at in range(DAYS)]
    series = {
        name: [
            sum(known[day][kind][one] for one in ("input_tokens", "output_tokens")) * 1.0
            if day in known
            else 0.0
            for day in wanted
        ]
        for name, kind in (("your agents", "traffic"), ("learning", "learning"))
    }
    plot = {"name": "days", "title": "Tokens", "unit": "tokens", "kind": "stack", "series": series}
    return chart(plot, period_labels(wanted, "day"))


def _training_charts(
    rewards: Sequence[float], versions: Sequence[Mapping[str, Any]]
) -> list[Context]:
    """The reward of the newest run, what the gate measured of each version, and when they were
    made.
    """
    newest = list(reversed(versions))
    pairs = [(one["report"] or {}).get("held_out") for one in newest]
    gate = {
        "better on held-out prompts": [one and one["better"] / one["pairs"] for one in pairs],
        "worse": [one and one["worse"] / one["pairs"] for one in pairs],
        "general abilities": [
            one["report"] and one["report"]["golden"]["candidate"] for one in newest
        ],
    }
    first = local_today() - timedelta(days=29)
    days = [first + timedelta(days=at) for at in range(30)]
    made = [(at.date(), one) for one in newest if (at := moment(one["made_at"]))]
    states: dict[str, list[float]] = {}
    for day, one in made:
        if day in days:
            states.setdefault(one["state"], [0.0] * len(days))[days.index(day)] += 1
    steps = [str(at) for at in range(1, len(rewards) + 1)]
    plots = (
        ("reward", "Mean reward by step of the newest run", "number", "lines", {"reward": rewards}),
        ("gate", "What the gate measured of each version", "share", "lines", gate),
        ("made", "When versions were made", "count", "stack", states),
    )
    marks = {days.index(day): f"v{one['version']}" for day, one in made if day in days}
    labels = (
        steps,
        [f"v{one['version']}" for one in newest],
        period_labels([day.isoformat() for day in days], "day"),
    )
    names = ("name", "title", "unit", "kind", "series")
    return [
        chart(dict(zip(names, plot, strict=True)), across, marks if plot[0] == "made" else None)
        for plot, across in zip(plots, labels, strict=True)
    ]


def _where(place: Placement) -> str:
    if place.anchor == REMINDER:
        return "as a reminder"
    if place.call_id is not None:
        return "behind the result of a failed call"
    return "because the model asked for it" if place.asked_in is not None else ""


def _turn_title(turn: Turn, words: Words) -> str:
    said = last_words(turn, words) if turn.kind is TurnKind.MAIN else ""
    return short(said or f"{turn.agent}, {turn.model}", 100)


def changes_of(versions: Sequence[SkillVersion]) -> list[dict[str, Any]]:
    """Each version with its changes against the one before it."""
    found: list[dict[str, Any]] = []
    for at, one in enumerate(versions):
        before = versions[at + 1].skill if at + 1 < len(versions) else None
        body = differences("" if before is None else before.body, one.skill.body)
        when = (
            []
            if before is None or before.trigger == one.skill.trigger
            else differences(before.trigger, one.skill.trigger)
        )
        facts = _facts_changed(before, one)
        is_text = before is None or any(kind != "same" for kind, _ in (*body, *when))
        found.append(
            {
                "version": one,
                "body": body,
                "when": when,
                "facts": facts,
                "has_text": is_text,
                "is_first": before is None,
            }
        )
    return found


def _facts_changed(before: Skill | None, version: SkillVersion) -> list[str]:
    if before is None:
        return []
    now = version.skill
    found = []
    for name in ("workspace", "channel", "expires", "check", "enforce"):
        was, is_now = getattr(before, name), getattr(now, name)
        if was != is_now:
            found.append(f"{name}: {was or 'none'} → {is_now or 'none'}")
    if before.scope != now.scope:
        found.append(f"for: {before.scope or 'everyone'} → {now.scope or 'everyone'}")
    if before.state != now.state:
        found.append(f"state: {before.state} → {now.state}")
    if before.pinned != now.pinned:
        found.append("pinned" if now.pinned else "unpinned")
    return found
