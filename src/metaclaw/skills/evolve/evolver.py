"""The evolver: asks a model once what would have prevented a group of failures, and keeps what is valid of its answer."""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, Change, Proposal
from metaclaw.domain.chat import Completion, Text, Usage
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.errors import SkillError
from metaclaw.ports import Model, Purpose
from metaclaw.skills.checks import parse_check
from metaclaw.skills.evolve.failures import FailureGroup
from metaclaw.skills.evolve.request import (
    MOST_EXAMPLES,
    Redact,
    Render,
    WrittenSkill,
    build_request,
    may_edit,
    may_see,
    read_skills,
)
from metaclaw.skills.gate.gate import MOST_CHANGED_LINES, changed_lines
from metaclaw.skills.names import own_name

log = logging.getLogger(__name__)

MAX_TRIGGER_CHARS = 600
MAX_BODY_CHARS = 4_000
MAX_BODY_LINES = 40
_MAX_CATEGORY_CHARS = 40
_LEAST_SESSION_CHARS = 16
_MAX_EXAMPLE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Evolution:
    """The result of asking an evolver. `reason` says why there is no proposal, and is empty where there is one; `refused` is what
    it wrote that is not valid, each with its fault."""

    proposals: tuple[Proposal, ...]
    reason: str
    refused: tuple[str, ...] = ()
    usage: Usage | None = None


class Evolver:
    """Writes skills from failures with a model's help.

    `render` gives a turn as redacted evidence; `redact` does the same for any other text that goes along (quotes, feedback), and
    what an answer holds that it would replace is refused. `is_taken` says which names the library has already; `on_refused` is told
    of what was written and does not hold.
    """

    def __init__(
        self,
        model: Model,
        render: Render,
        max_new_skills: int,
        *,
        redact: Redact,
        is_taken: Callable[[str], bool] = lambda name: False,
        on_refused: Callable[[Proposal, str], Awaitable[object]] | None = None,
    ) -> None:
        self._model = model
        self._render = render
        self._redact = redact
        self._most = max_new_skills
        self._is_taken = is_taken
        self._on_refused = on_refused

    async def propose(self, kind: FailureGroup, near: Sequence[Skill], rejected: Sequence[Candidate]) -> tuple[Proposal, ...]:
        """Zero to `max_new_skills` proposals; none where the answer makes no sense. Raises UpstreamError."""
        return (await self.evolve(kind, near, rejected)).proposals

    async def evolve(self, kind: FailureGroup, near: Sequence[Skill], rejected: Sequence[Candidate]) -> Evolution:
        """The same, with why there is nothing and what was refused."""
        # Rendering and redacting much text takes a while, and requests are being served on this loop.
        request = await run_sync(build_request, kind, near, rejected, self._render, self._redact, self._most)
        completion = await self._model.ask(request, Purpose.EVOLVE)
        written = read_skills(_text(completion))
        if isinstance(written, str):
            evolution = Evolution((), written, usage=completion.usage)
        else:
            faulty: list[tuple[WrittenSkill, str]] = []
            evolution = replace(self._choose(kind, written, near, faulty), usage=completion.usage)
            if self._on_refused is not None:
                for one, fault in faulty:
                    await self._on_refused(await run_sync(self._as_refused, kind, one), fault)
        log.info(
            "evolver_answered model=%s proposals=%d refused=%d",
            self._model.name,
            len(evolution.proposals),
            len(evolution.refused),
        )
        return evolution

    def _choose(
        self, kind: FailureGroup, written: Sequence[WrittenSkill], near: Sequence[Skill], faulty: list[tuple[WrittenSkill, str]]
    ) -> Evolution:
        proposals: list[Proposal] = []
        refused: list[str] = []
        for one in written:
            try:
                if len(proposals) == self._most:
                    raise SkillError(f"there are {self._most} already")
                proposals.append(self._propose(kind, one, near, proposals, refused))
            except (SkillError, ValueError) as error:
                refused.append(f"{one.name or 'a skill without a name'}: {error}")
                faulty.append((one, str(error)))
        reason = "" if proposals else "nothing that was written holds" if refused else "the evolver found nothing to write"
        return Evolution(tuple(proposals), reason, tuple(refused))

    def _propose(
        self, kind: FailureGroup, one: WrittenSkill, near: Sequence[Skill], beside: Sequence[Proposal], notes: list[str]
    ) -> Proposal:
        self._refuse_faults(kind, one)
        edited = _edited(kind, one, near)
        if edited is not None and any(edited.name in other.replaces for other in beside):
            raise SkillError(f"it edits {edited.name}, which another one edits already")
        names = {str(skill.name) for skill in near} | {str(other.skill.name) for other in beside}
        skill = Skill(
            name=edited.name if edited else own_name(one.name, lambda name: name in names or self._is_taken(name)),
            trigger=one.trigger,
            body=one.body,
            category=(one.category or (edited.category if edited else None) or "learned")[:_MAX_CATEGORY_CHARS],
            scope=kind.scope,
            extra={**(edited.extra if edited else {}), **_check(one, notes), **_examples(one)},
            state=SkillState.DRAFT,
            author=Authorship.EVOLVER,
        )
        replaces = (edited.name,) if edited else ()
        return Proposal(skill, Change.EDIT if edited else Change.NEW, replaces, kind.turns, kind.name, self._model.name)

    def _as_refused(self, kind: FailureGroup, one: WrittenSkill) -> Proposal:
        """What was written, cut to size, for people to read."""
        skill = Skill(
            name=own_name(self._redact(one.name.replace("-", " ")), lambda name: False),
            trigger=self._redact(one.trigger)[:MAX_TRIGGER_CHARS] or "(missing)",
            body=self._redact(one.body)[:MAX_BODY_CHARS] or "(missing)",
            category="learned",
            scope=kind.scope,
            extra={},
            state=SkillState.DRAFT,
            author=Authorship.EVOLVER,
        )
        return Proposal(skill, Change.NEW, (), kind.turns, kind.name, self._model.name)

    def _refuse_faults(self, kind: FailureGroup, one: WrittenSkill) -> None:
        if not one.name or not one.trigger or not one.body:
            raise SkillError("name, trigger or body is missing")
        if len(one.trigger) > MAX_TRIGGER_CHARS:
            raise SkillError(f"a trigger of {len(one.trigger)} characters; at most {MAX_TRIGGER_CHARS}")
        if len(one.body) > MAX_BODY_CHARS or len(one.body.splitlines()) > MAX_BODY_LINES:
            raise SkillError(f"a body of {len(one.body)} characters; at most {MAX_BODY_CHARS} in {MAX_BODY_LINES} lines")
        # Words joined by hyphens and numbers look like a random token; a name is read word by word.
        name = one.name.replace("-", " ")
        text = "\n".join((name, one.trigger, one.body, one.category or "", one.check or "", *one.examples))
        if self._redact(text) != text:
            raise SkillError("it holds a secret")
        if any(_names(text, failure.step.turn) or _names_session(text, failure.step.session) for failure in kind.failures):
            raise SkillError("it names a recorded turn or session")


def _names(text: str, identifier: str) -> bool:
    """Whether an identifier stands in the text as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(identifier)}(?!\w)", text) is not None


def _names_session(text: str, session: str) -> bool:
    """The same of a session's id, which a client may choose: one that could be an ordinary word says nothing."""
    return len(session) >= _LEAST_SESSION_CHARS and any(map(str.isdigit, session)) and _names(text, session)


def _check(one: WrittenSkill, notes: list[str]) -> dict[str, object]:
    """The check it carries; one that cannot be read is left out, and said, and the skill stands without it."""
    if one.check is None:
        return {}
    try:
        parse_check(one.check, approved=False)
    except SkillError as error:
        notes.append(f"{one.name}: without its check: {error}")
        return {}
    return {"check": one.check}


def _examples(one: WrittenSkill) -> dict[str, object]:
    """The requests it is for, as far as they are of a usable length."""
    kept = [example for example in one.examples if len(example) <= _MAX_EXAMPLE_CHARS][:MOST_EXAMPLES]
    return {"examples": kept} if kept else {}


def _edited(kind: FailureGroup, one: WrittenSkill, near: Sequence[Skill]) -> Skill | None:
    """The skill that is edited, or None for a new one. Raises SkillError where it may not be, or not like that."""
    if one.replaces is None:
        return None
    skill = next((skill for skill in near if skill.name == one.replaces and may_see(skill, kind)), None)
    if skill is None:
        raise SkillError(f"it replaces {one.replaces!r}, which was not offered")
    if not may_edit(skill, kind):
        raise SkillError(f"it replaces {one.replaces!r}, which only its owner may change")
    changed = changed_lines(skill.body, one.body) + (skill.trigger != one.trigger)
    if not 0 < changed <= MOST_CHANGED_LINES:
        raise SkillError(f"it changes {changed} lines of {one.replaces!r}; an edit changes 1 to {MOST_CHANGED_LINES}")
    return skill


def _text(completion: Completion) -> str:
    return "\n".join(part.text for part in completion.parts if isinstance(part, Text))
