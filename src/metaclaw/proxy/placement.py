"""Choose the rules, facts and skills of a session's prompts, and their positions, so that the
provider's prompt cache stays valid.

A session's first block holds all rules and facts in scope, the skills that match the first task in
full, and the other skills in one line each (see `skills.library_view`). The block is at the end of
the system text. Its bytes stay the same until an item in it is retired or changed. When the user
begins a later task (a segment), items that are new or match, and are not in the prompt yet, form
another block behind the newest user message; that block stays there byte for byte. When an item is
retired or changed, its block and all later blocks are dropped, and their remaining items are placed
again in one new block. The later blocks, but not the first, are also dropped when they would hold
more than `max_placed` skills.

Where the model can ask for skills (see `skill_tool`), the first block only lists those that match,
and a skill that it has asked for counts as placed while the history of that task is there. Where it
cannot, the model that reads the person's messages may name skills: they are in the next block.

A lesson about a failed tool call is also placed behind the result that has its failure, once a
session. It is placed when the result is new, at the end of the prompt, and stays there.

A line at the end of the conversation reminds of rules that were broken lately (see `reminders`). It
is in one request only: neither the client nor we repeat it in the next request."""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import date
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from metaclaw.clock import local_today
from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Nearness, Skill
from metaclaw.domain.turn import (
    REMINDER,
    TOOLS,
    WITHHELD,
    Origin,
    Placement,
    Scope,
    Splice,
    Stamp,
    TurnKind,
    apply_splices,
    listed_names,
)
from metaclaw.proxy.http.body import messages_of
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.reminders import Due, NoReminders, Reminders
from metaclaw.proxy.skill_tool import (
    FIND_TOOL,
    NO_TOOLS,
    SkillTools,
    may_offer,
    tool_items,
)
from metaclaw.proxy.splice import Spliced, placement_splices
from metaclaw.skills import (
    SKILL_TOOL,
    Block,
    Budgets,
    LibraryView,
    Selection,
    Teams,
    already_present,
    applies,
    estimate_tokens,
    is_listed_in,
    is_placed_in,
    query_text,
    render_block,
    render_lesson,
    render_reminder,
    skill_text,
)
from metaclaw.upstream import PolicySlot
from metaclaw.wires import new_results, wire_format

log = logging.getLogger(__name__)

_KEPT_BLOCKS = 256
_BRIEF_RULES_TOKENS = 300
_NOTHING: Final = Selection()
_NO_BLOCK: Final = Block("", ())
_NOTHING_DUE: Final = Due()
_NO_NAMES: Final = frozenset[SkillName]()


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A request's stamp, and what is inserted into its body. `listed` names the skills that its
    prompt only lists.
    """

    stamp: Stamp
    placements: tuple[Placement, ...]
    splices: tuple[Splice, ...]
    listed: tuple[SkillName, ...] = ()
    tools: SkillTools = NO_TOOLS
    """The tools of ours in the request."""


class _Adopted(msgspec.Struct, frozen=True, gc=False):
    """The blocks of a session since its current segment began. `until` is the last day on which all
    their items are in force.
    """

    segment: int
    generation: int
    hash: str
    placements: tuple[Placement, ...]
    until: date | None
    extras: tuple[Placement, ...] = ()
    """Lessons behind results of tools, skills that the model asked for, and the tools for that."""
    named: tuple[SkillName, ...] = ()
    """Skills that a message of the person needs, for the next block."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools of ours that the session has."""
        named = next((one.text for one in self.extras if one.anchor == TOOLS), "")
        return tuple(named.split())


class Asked(NamedTuple):
    """A request, and what its placement is chosen from, each read once."""

    incoming: Incoming
    origin: Origin
    view: LibraryView
    today: date
    query: str
    """The text to search the library for by meaning; empty if the request begins no task, or if
    nothing has to be ranked."""


@dataclass(eq=False)
class Placer:
    """Chooses skills at the beginning of a segment and repeats the choice until its end."""

    view: Callable[[], LibraryView]
    budgets: Budgets
    _: KW_ONLY
    enabled: bool = True
    teams: Teams | None = None
    policy: PolicySlot = field(default_factory=lambda: PolicySlot(""))
    policy_answers: Callable[[Wire, str], bool] = lambda wire, model: True
    """Whether the first provider asked for a model answers with the policy's weights."""
    is_embedded: Callable[[Wire, str], bool] = lambda wire, model: False
    """Whether the embedded model is the first provider asked for a model."""
    has_tools: bool = False
    """Whether the model may ask for skills."""
    takes_tools: Callable[[Wire, str], bool] = lambda wire, model: True
    """Whether the first provider asked for a model takes tools of ours."""
    today: Callable[[], date] = local_today
    max_sessions: int = 4096
    reminders: Reminders | NoReminders = field(default_factory=NoReminders)

    def __post_init__(self) -> None:
        budgets = self.budgets
        self._brief = budgets._replace(
            rules_tokens=min(budgets.rules_tokens, _BRIEF_RULES_TOKENS), is_brief=True
        )
        self._adopted: OrderedDict[SessionId, _Adopted] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, ...], tuple[tuple[Skill, ...], Block]] = OrderedDict()

    def ask(self, incoming: Incoming, origin: Origin) -> Asked:
        """Read what the placement of a request is chosen from."""
        view, today, query = self.view(), self.today(), ""
        is_task = self.enabled and origin.task and origin.kind is not TurnKind.SIDE
        if is_task and not _goes_on(self._known(origin), origin):
            budgets = self._budgets_for(incoming)
            if view.is_ranked(budgets, origin.scope, self.teams, today=today):
                query = query_text(origin.task)
        return Asked(incoming, origin, view, today, query)

    def _known(self, origin: Origin) -> _Adopted | None:
        """What the session has. If it begins only now, the state under its id is another's."""
        return None if origin.session_began else self._adopted.get(origin.session)

    def _budgets_for(self, incoming: Incoming) -> Budgets:
        return self._brief if self.is_embedded(incoming.wire, incoming.model) else self.budgets

    def place(self, asked: Asked, nearness: Nearness | None = None) -> Placed:
        """Choose stamp and placements of a request. `nearness` says how near each skill is to its
        query in meaning.
        """
        incoming, origin = asked.incoming, asked.origin
        version = self.policy.serving.version
        if origin.kind is TurnKind.SIDE:
            return self._place_aside(asked, version)
        before = adopted = self._known(origin)
        if adopted is None or not _goes_on(adopted, origin):
            adopted = self._adopt(asked, before, version, nearness)
        if self.enabled:
            adopted = self._with_lessons(asked, adopted)
        held = () if before is None else _held_by_provider(incoming, before)
        extras = adopted.extras
        wanted: Sequence[Placement] = (*adopted.placements, *extras)
        if held:
            wanted = [placement for placement in wanted if placement not in held]
        if not wanted and not held:
            return Placed(Stamp(adopted.generation, version, adopted.hash, ()), (), ())
        standing: Sequence[Placement] = (*held, *wanted)
        due = _NOTHING_DUE
        if self.reminders.broken:
            due = self.reminders.due(incoming, _names_in(standing))
        tail = render_reminder(due.placed) if due.placed else ""
        tools = self._tools(asked, adopted) if extras else NO_TOOLS
        spliced = placement_splices(
            incoming.wire,
            incoming.body,
            incoming.json,
            wanted,
            origin.anchors,
            tail,
            tool_items(incoming.wire, tools.names),
        )
        if spliced.refused is not None:
            tools = NO_TOOLS
            log.warning("skills_not_placed session=%s reason=%s", origin.session, spliced.refused)
        placed = spliced.placed
        if extras:
            present = {b"", *(anchor.digest for anchor in origin.anchors)}
            placed += tuple(
                [one for one in extras if one.anchor == TOOLS or one.asked_in in present]
            )
        standing = (*held, *placed)
        skills = tuple(dict.fromkeys(_names_in(standing)))
        stamp = Stamp(adopted.generation, version, adopted.hash, skills)
        listed = listed_names(standing)
        if due.placed or due.withheld:
            placed = (*placed, *_reminded(due, tail, spliced))
        return Placed(stamp, placed, spliced.splices, listed, tools)

    def _place_aside(self, asked: Asked, version: int) -> Placed:
        """Place the rules about what a side turn writes. The blocks of its session do not
        change.
        """
        incoming, origin, view, today, _ = asked
        words = words_for(origin.kind_reason) if self.enabled else None
        rules: tuple[Skill, ...] = ()
        if words is not None:
            found = view.select("", self.budgets, origin.scope, self.teams, today=today).rules
            rules = tuple(rule for rule in found if _names(words, rule))
        block = self._render(Selection(rules))
        if not block.text:
            return Placed(Stamp(view.generation, version, view.hash, ()), (), ())
        placements = (Placement(b"", block.skills, block.text),)
        spliced = placement_splices(incoming.wire, incoming.body, incoming.json, placements, ())
        skills = block.skills if spliced.placed else ()
        return Placed(
            Stamp(view.generation, version, view.hash, skills), spliced.placed, spliced.splices
        )

    def restore(
        self,
        session: SessionId,
        segment: int,
        stamp: Stamp,
        placements: Sequence[Placement],
    ) -> None:
        """Continue with the placements of a session's last recorded turn."""
        known = self._adopted.get(session)
        lasting = [placement for placement in placements if placement.is_lasting]
        blocks = tuple([placement for placement in lasting if placement.is_block])
        extras = tuple([placement for placement in lasting if not placement.is_block])
        number, digest = stamp.generation, stamp.library_hash
        named = () if known is None else known.named
        adopted = _Adopted(segment, number, digest, blocks, date.min, extras, named)
        self._remember(session, adopted)

    def asked(self, origin: Origin, skills: Sequence[Skill]) -> None:
        """Remember skills that the model has read in full in this session."""
        adopted = self._adopted.get(origin.session)
        if adopted is not None:
            extras = (*adopted.extras, *asked_placements(origin, skills))
            self._remember(origin.session, msgspec.structs.replace(adopted, extras=extras))

    def name(self, session: SessionId, skills: Sequence[SkillName]) -> None:
        """Have these skills in full in a session's next block."""
        adopted = self._adopted.get(session)
        if adopted is not None:
            named = (*adopted.named, *skills)[: self.budgets.max_placed]
            self._remember(session, msgspec.structs.replace(adopted, named=named))

    def with_tools(
        self, wire: Wire, body: bytes, fields: Mapping[str, Json], scope: Scope
    ) -> bytes:
        """A body whose tokens are to be counted, with the tools that a session's first request
        would have.
        """
        speaker = self.view().in_scope(scope, self.teams, self.today())
        if not self.has_tools or not self.enabled or speaker.skills == ():
            return body
        if not self.budgets.max_placed or not may_offer(wire, fields):
            return body
        items = tool_items(wire, (SKILL_TOOL,))
        return apply_splices(body, placement_splices(wire, body, fields, (), (), "", items).splices)

    def forget(self, sessions: Iterable[SessionId]) -> None:
        """Drop the state of sessions that have ended."""
        for session in sessions:
            self._adopted.pop(session, None)

    def _adopt(
        self,
        asked: Asked,
        before: _Adopted | None,
        version: int,
        nearness: Nearness | None,
    ) -> _Adopted:
        incoming, origin, view, today, _ = asked
        found = self._select(asked, version, nearness) if self.enabled else _NOTHING
        kept: tuple[Placement, ...] = ()
        extras: tuple[Placement, ...] = ()
        if before is None:
            has_tools = bool(found.full or found.listed) and self._may_offer(incoming)
        else:
            has_tools = before.tools != ()
            holds = partial(self._holds, asked, found.replaced)
            extras = tuple(filter(holds, before.extras))
            if self.enabled:
                kept = self._still_valid(before, asked, holds)
                if before.named:
                    found = self._with_named(found, before.named, asked)
        chosen = self._choose(incoming, found, kept, has_tools=has_tools)
        if len(kept) > 1 and self._is_too_much(kept[1:], chosen, view):
            # The first block stays for its cached prefix; the later ones make room.
            kept = kept[:1]
            chosen = self._choose(incoming, found, kept, has_tools=has_tools)
        block = self._render(chosen, has_tools=has_tools)
        if before is None and has_tools and block.listed:
            speaker = view.in_scope(origin.scope, self.teams, today)
            is_all = speaker.skills is not None and len(speaker.skills) <= len(block.listed)
            names = SKILL_TOOL if is_all else f"{SKILL_TOOL} {FIND_TOOL}"
            extras = (Placement(TOOLS, (), names),)
        if block.text:
            anchor = _anchor(origin, before, kept)
            kept = (*kept, Placement(anchor, block.skills, block.text, block.listed))
        adopted = _Adopted(origin.segment, view.generation, view.hash, kept, found.until, extras)
        self._remember(origin.session, adopted)
        return adopted

    def _may_offer(self, incoming: Incoming) -> bool:
        return (
            self.has_tools
            and not self.is_embedded(incoming.wire, incoming.model)
            and may_offer(incoming.wire, incoming.json)
            and self.takes_tools(incoming.wire, incoming.model)
        )

    def _tools(self, asked: Asked, adopted: _Adopted) -> SkillTools:
        """The tools of ours in this request, if it can have the session's."""
        if not adopted.tools or not self._may_offer(asked.incoming):
            return NO_TOOLS

        def read(name: str) -> Skill | None:
            skill = asked.view.get(name)
            if skill is None or not skill.is_skill:
                return None
            return skill if self._is_for(skill, asked) else None

        def find(query: str) -> Sequence[Skill]:
            scope, today = asked.origin.scope, asked.today
            found = asked.view.select(query, self.budgets, scope, self.teams, today=today)
            return (*found.full, *found.listed)

        return SkillTools(adopted.tools, read, find)

    def _with_lessons(self, asked: Asked, adopted: _Adopted) -> _Adopted:
        """Add the lessons that the new results of tools need."""
        incoming, origin, view, today, _ = asked
        speaker = view.in_scope(origin.scope, self.teams, today)
        lessons = speaker.lessons
        if not lessons:
            return adopted
        from metaclaw.outcome import failure_signature  # not needed until there are lessons

        extras = adopted.extras
        results = new_results(incoming.wire, messages_of(incoming.wire, incoming.json))
        behind = {one.call_id: one.skills[0] for one in extras if one.call_id is not None}
        uses: Container[str] = speaker.lesson_uses
        if behind:
            placed = {*behind.values()}
            uses = {use for use, names in speaker.lesson_uses.items() if not names <= placed}
        for call, result in results:
            lesson = lessons.get(failure_signature(call, result, uses))
            if lesson is None or lesson.name in behind.values() or call.id in behind:
                continue
            behind[call.id] = lesson.name
            placement = Placement.behind_result(call.id, lesson.name, render_lesson(lesson))
            extras = (*extras, placement)
        if extras is adopted.extras:
            return adopted
        adopted = msgspec.structs.replace(adopted, extras=extras)
        self._remember(origin.session, adopted)
        return adopted

    def _select(self, asked: Asked, version: int, nearness: Nearness | None) -> Selection:
        """Select items for the task and its speaker, except skills that the weights that will
        answer have absorbed.
        """
        incoming, origin, view, today, _ = asked
        absorbed = self.policy.absorbed(version)
        if absorbed and not self.policy_answers(incoming.wire, incoming.model):
            absorbed = _NO_NAMES
        return view.select(
            asked.query,
            self._budgets_for(incoming),
            origin.scope,
            self.teams,
            today=today,
            without=absorbed,
            nearness=nearness,
        )

    def _with_named(self, found: Selection, names: Sequence[SkillName], asked: Asked) -> Selection:
        """A selection with these skills first, in full."""
        known = (asked.view.get(name) for name in dict.fromkeys(names))
        named = [
            one for one in known if one is not None and one.is_skill and self._is_for(one, asked)
        ]
        full, listed = (
            [one for one in skills if one not in named] for skills in (found.full, found.listed)
        )
        return found._replace(full=(*named, *full), listed=tuple(listed), until=asked.today)

    def _choose(
        self,
        incoming: Incoming,
        selection: Selection,
        kept: Sequence[Placement],
        *,
        has_tools: bool,
    ) -> Selection:
        """Choose what goes into a new block beside the kept ones. Only a session's first
        block lists skills. If the model can ask for skills, those that match are listed.
        """
        rules, full, listed = selection.rules, selection.full, selection.listed
        if has_tools:
            known = {name for placement in kept for name in (*placement.listed, *placement.skills)}
            matching = [one for one in full if not one.applies_always and one.name not in known]
            names = {name for placement in kept for name in placement.skills}
            return Selection(
                tuple([rule for rule in rules if rule.name not in names]),
                tuple([one for one in full if one.applies_always and one.name not in names]),
                (*matching, *(() if kept else listed)),
            )
        if kept:
            in_full = set(_names_in(kept))
            rules = tuple([rule for rule in rules if rule.name not in in_full])
            full, listed = tuple([skill for skill in full if skill.name not in in_full]), ()
        if full and (brought := brought_by_client(full, incoming.body)):
            full = tuple([skill for skill in full if skill not in brought])
        if full:
            fitting = self._render(Selection((), full)).skills
            if len(fitting) < len(full):
                crowded = tuple([skill for skill in full if skill.name not in fitting])
                full = tuple([skill for skill in full if skill.name in fitting])
                listed = listed if kept else (*listed, *crowded)
        return Selection(rules, full, listed)

    def _still_valid(
        self, before: _Adopted, asked: Asked, holds: Callable[[Placement], bool]
    ) -> tuple[Placement, ...]:
        """The blocks that may stay: their anchor is still in the history, and all their items are
        in force for this speaker with the same text. All blocks behind a dropped one are dropped
        too, because the cached prefix ends there."""
        kept: list[Placement] = []
        view, present = asked.view, {anchor.digest for anchor in asked.origin.anchors}
        is_same = before.generation == view.generation and before.hash == view.hash
        is_same = is_same and (before.until is None or asked.today <= before.until)
        for placement in before.placements:
            if placement.anchor and placement.anchor not in present:
                continue
            if not is_same and not holds(placement):
                break
            kept.append(placement)
        return tuple(kept)

    def _holds(self, asked: Asked, replaced: frozenset[str], placement: Placement) -> bool:
        """Whether every item of a block is in force for this speaker, with the text that is in the
        block.
        """
        for names, reads_so in ((placement.skills, is_placed_in), (placement.listed, is_listed_in)):
            for name in names:
                skill = asked.view.get(name)
                if skill is None or name in replaced or not self._is_for(skill, asked):
                    return False
                if not reads_so(skill, placement.text):
                    return False
        return True

    def _is_for(self, skill: Skill, asked: Asked) -> bool:
        scope = asked.origin.scope
        is_here = skill.is_for(scope) and not skill.is_expired(asked.today)
        return is_here and applies(skill.scope, scope, self.teams)

    def _is_too_much(self, later: Sequence[Placement], new: Selection, view: LibraryView) -> bool:
        """Whether the later blocks and the new one would hold too many skills or tokens."""
        skills = [
            skill
            for placement in later
            for name in placement.skills
            if (skill := view.get(name)) is not None
        ]
        counted = sum(skill.is_skill and not skill.applies_always for skill in (*skills, *new.full))
        if new.full and counted > self.budgets.max_placed:
            return True
        tokens = sum(estimate_tokens(placement.text) for placement in later)
        return (
            bool(new.rules or new.full)
            and tokens > self.budgets.rules_tokens + self.budgets.skills_tokens
        )

    def _render(self, selection: Selection, *, has_tools: bool = False) -> Block:
        """Render a selection, with a cache: the same selection must give the same bytes."""
        rules, full, listed = selection.rules, selection.full, selection.listed
        if not rules and not full and not listed:
            return _NO_BLOCK
        skills = (*rules, *full, *listed)
        key = (has_tools, len(listed), *map(id, skills))
        known = self._blocks.get(key)
        if known is None or known[0] != skills:
            budgets = self.budgets
            block = render_block(
                (*rules, *full),
                budgets.skills_tokens,
                listed=listed,
                rules_budget_tokens=budgets.rules_tokens,
                has_tool=has_tools,
            )
            # The caller adds the blank line. All sessions with this block share one string.
            known = self._blocks[key] = (
                skills,
                Block(block.text.removeprefix("\n\n"), block.skills, block.listed),
            )
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return known[1]

    def _remember(self, session: SessionId, adopted: _Adopted) -> None:
        self._adopted[session] = adopted
        self._adopted.move_to_end(session)
        while len(self._adopted) > self.max_sessions:
            self._adopted.popitem(last=False)


def _goes_on(adopted: _Adopted | None, origin: Origin) -> bool:
    """Whether a request belongs to the segment for which this was chosen."""
    return adopted is not None and not origin.segment_began and adopted.segment == origin.segment


def _held_by_provider(incoming: Incoming, before: _Adopted) -> tuple[Placement, ...]:
    """The blocks that the provider has already, because the request refers to a history that the
    provider stores.
    """
    wire = wire_format(incoming.wire)
    if not incoming.json.get(wire.previous_key) or isinstance(
        wire.system_texts(incoming.json), str
    ):
        return ()
    return tuple(placement for placement in before.placements if not placement.anchor)


def asked_placements(origin: Origin, skills: Sequence[Skill]) -> tuple[Placement, ...]:
    """The record of skills that the model has asked for."""
    task = origin.anchors[-1].digest if origin.anchors else b""
    return tuple([Placement.asked(task, skill.name, skill_text(skill)) for skill in skills])


def _names_in(placements: Sequence[Placement]) -> tuple[SkillName, ...]:
    return tuple([name for placement in placements for name in placement.skills])


def _reminded(due: Due, tail: str, spliced: Spliced) -> list[Placement]:
    """A turn's record of its reminders, for measuring their effect."""
    found: list[Placement] = []
    if due.placed and spliced.has_tail:
        found.append(Placement(REMINDER, tuple([rule.name for rule in due.placed]), tail))
    if due.withheld:
        found.append(Placement(WITHHELD, tuple([rule.name for rule in due.withheld]), ""))
    return found


def _anchor(origin: Origin, before: _Adopted | None, kept: Sequence[Placement]) -> bytes:
    """The position of a new block: empty (the system text) for a session's first block and for its
    replacement, else the user message of the newest task. The first block of a session that began
    before we saw it is also behind that message."""
    if not kept:
        is_start = before is None and len(origin.anchors) <= 1
        is_rewritten = (
            before is not None and bool(before.placements) and not before.placements[0].anchor
        )
        if is_start or is_rewritten:
            return b""
    return origin.anchors[-1].digest if origin.anchors else b""


# What a side turn writes, by the end of its reason code, and the words by which rules name that.
_SUMMARY: Final = (
    "summar|recap|compact|zusammenfass|résumé|resumen|resumo|riassun|сводк|резюме|要約|まとめ|요약"
    "|总结|摘要|總結"
)
_WRITTEN: Final = {
    "commit-message": re.compile("commit|коммит|コミット|커밋|提交"),
    "title": re.compile(
        "title|titel|titre|título|titulo|titolo|заголов|タイトル|題名|제목|标题|標題"
    ),
    "summary": re.compile(_SUMMARY),
    "compaction": re.compile(_SUMMARY),
}


def words_for(reason: str) -> re.Pattern[str] | None:
    """The words by which rules name what a side turn with this reason writes; None if it writes
    nothing that rules are about.
    """
    return next((words for end, words in _WRITTEN.items() if reason.endswith(end)), None)


def _names(words: re.Pattern[str], rule: Skill) -> bool:
    """Whether a rule names one of the words in its text, its condition or its examples."""
    said = "\n".join((rule.body, rule.trigger, *rule.examples))
    return words.search(said.casefold()) is not None


def brought_by_client(skills: Sequence[Skill], body: bytes) -> list[Skill]:
    """The skills that are in the client's request already."""
    named = [skill for skill in skills if skill.name.encode() in body]
    return [
        skill
        for skill in named
        if already_present(skill, body.decode("utf-8", "replace").replace("\\n", "\n"))
    ]


MOST_SEARCHED: Final = 20_000
"""Libraries with more skills are searched by words alone, because their vectors would take too much
memory.
"""

# Written so that a search skips to the next digit: it takes half the time of `[0-9]{4,}`.
_LONG_NUMBER: Final = re.compile("[0-9][0-9]{3,}")


class Search(Protocol):
    """The embedding process, which finds skills by meaning."""

    def follow(self, skills: Iterable[Skill]) -> None: ...
    async def near(self, text: str, scopes: Iterable[str]) -> Nearness | None: ...
    def forget(self) -> None: ...


class NoSimilarity:
    """For a program that searches by words alone."""

    def follow(self) -> None:
        return

    async def near(self, query: str, scope: Scope) -> Nearness | None:
        return None

    def forget(self) -> None:
        return


class LibrarySimilarity:
    """Searches the library by meaning, and updates the index of the embedding process when the
    library changes.
    """

    def __init__(
        self, search: Search, view: Callable[[], LibraryView], teams: Teams | None = None
    ) -> None:
        self._search = search
        self._view = view
        self._teams = teams
        self._followed: LibraryView | None = None

    def follow(self) -> None:
        """Update the index if the library has changed. Called before the first request."""
        view = self._view()
        if view is not self._followed:
            self._followed = view
            self._search.follow(view.index.skills() if view.count <= MOST_SEARCHED else ())

    async def near(self, query: str, scope: Scope) -> Nearness | None:
        """The skills near a request in meaning, for this speaker; None if the search is not
        possible in time.
        """
        view = self._view()
        if view is not self._followed:
            self.follow()
        if not view.count:
            return None
        # Requests that differ only in a long number (a ticket, a date) share one cache entry.
        return await self._search.near(
            _LONG_NUMBER.sub("", query), view.scopes_of(scope, self._teams)
        )

    def forget(self) -> None:
        """Drop cached queries."""
        self._search.forget()
