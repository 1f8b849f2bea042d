"""Which skills stand where in a session's prompts, so that a provider's prompt cache survives.

A block of skills is chosen when the person begins a task (a segment) and then stays, byte for byte, at the same place of the
conversation in every later request: at the end of the system text for the first task, after the person's own words for later
ones. Nothing before it ever changes. A later task adds a block only for skills that are not in the prompt yet; when more than
`max_placed` would stand there, or one of them has been changed or withdrawn, the old blocks go and a new one is placed after
the newest user message: the one moment at which a cached prefix is given up.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.session import Origin
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Placement, Scope, Splice, Stamp, TurnKind
from metaclaw.proxy.client import Incoming
from metaclaw.proxy.splice import placement_splices
from metaclaw.skills import Block, already_present, query_text, render_block

log = logging.getLogger(__name__)

_KEPT_BLOCKS = 256


class View(Protocol):
    """An immutable look at the live skills of one generation."""

    @property
    def generation(self) -> int: ...
    @property
    def hash(self) -> str: ...
    def get(self, name: SkillName) -> Skill | None: ...
    def retrieve(self, query: str, limit: int, scope: Scope | None = None) -> tuple[Skill, ...]: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A request's stamp, and what goes into its bytes."""

    stamp: Stamp
    placements: tuple[Placement, ...]
    splices: tuple[Splice, ...]


@dataclass(frozen=True, slots=True)
class _Adopted:
    """What a session took over when its current segment began."""

    segment: int
    generation: int
    hash: str
    placements: tuple[Placement, ...]
    skills: tuple[Skill, ...]


class Placer:
    """Chooses skills at the beginning of a segment and repeats the choice until its end."""

    def __init__(
        self, view: Callable[[], View], *, max_placed: int, budget_tokens: int, enabled: bool = True, max_sessions: int = 4096
    ) -> None:
        self._view = view
        self._limit = max_placed if enabled else 0
        self._budget_tokens = budget_tokens
        self._max_sessions = max_sessions
        self._adopted: OrderedDict[SessionId, _Adopted] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, ...], tuple[tuple[Skill, ...], Block]] = OrderedDict()

    def place(self, incoming: Incoming, origin: Origin) -> Placed:
        """Read the shelf once, and settle stamp and placements of this request."""
        view = self._view()
        if origin.kind is TurnKind.SIDE:
            return Placed(Stamp(view.generation, BASE_POLICY, view.hash, ()), (), ())
        before = adopted = self._adopted.get(origin.session)
        if adopted is None or origin.segment_began or adopted.segment != origin.segment:
            adopted = self._adopt(incoming, origin, view, before)
        held = _held_by_provider(incoming, before)
        wanted = [placement for placement in adopted.placements if placement not in held]
        spliced = placement_splices(incoming.wire, incoming.body, incoming.json, wanted, origin.anchors)
        if spliced.refused is not None:
            log.warning("skills_not_placed session=%s reason=%s", origin.session, spliced.refused)
        skills = tuple(name for placement in (*held, *spliced.placed) for name in placement.skills)
        return Placed(Stamp(adopted.generation, BASE_POLICY, adopted.hash, skills), spliced.placed, spliced.splices)

    def restore(self, session: SessionId, segment: int, stamp: Stamp, placements: Sequence[Placement]) -> None:
        """Take up again what a session's last recorded turn had in its prompt."""
        view = self._view()
        skills = [view.get(name) for placement in placements for name in placement.skills]
        known = tuple(skill for skill in skills if skill is not None)
        self._remember(session, _Adopted(segment, stamp.generation, stamp.library_hash, tuple(placements), known))

    def forget(self, sessions: Iterable[SessionId]) -> None:
        """These sessions are over."""
        for session in sessions:
            self._adopted.pop(session, None)

    def _adopt(self, incoming: Incoming, origin: Origin, view: View, before: _Adopted | None) -> _Adopted:
        kept, skills = _still_valid(before, origin, view)
        found = view.retrieve(query_text(origin.task), self._limit, origin.scope) if self._limit and origin.task else ()
        new = _not_yet(found, skills, incoming.body)
        if new and len(skills) + len(new) > self._limit:
            kept, skills, new = (), (), _not_yet(found, (), incoming.body)
        if new:
            block = self._render(new)
            if block.skills:
                placed = set(block.skills)
                kept = (*kept, Placement(_anchor(origin, before), block.skills, block.text))
                skills = (*skills, *(skill for skill in new if skill.name in placed))
        adopted = _Adopted(origin.segment, view.generation, view.hash, kept, skills)
        self._remember(origin.session, adopted)
        return adopted

    def _render(self, skills: tuple[Skill, ...]) -> Block:
        """The block of these skills; the same few go together again and again, and the same bytes must come out."""
        key = tuple(map(id, skills))
        known = self._blocks.get(key)
        if known is None or known[0] != skills:
            block = render_block(skills, self._budget_tokens)
            # Whoever puts it behind other text adds the blank line; one string is shared by all sessions that have this block.
            known = self._blocks[key] = (skills, Block(block.text.removeprefix("\n\n"), block.skills))
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return known[1]

    def _remember(self, session: SessionId, adopted: _Adopted) -> None:
        self._adopted[session] = adopted
        self._adopted.move_to_end(session)
        while len(self._adopted) > self._max_sessions:
            self._adopted.popitem(last=False)


def _held_by_provider(incoming: Incoming, before: _Adopted | None) -> tuple[Placement, ...]:
    """Blocks the provider has already: with `previous_response_id` it adds the history itself, our item in it included."""
    json = incoming.json
    if before is None or not json.get("previous_response_id") or isinstance(json.get("instructions"), str):
        return ()
    return tuple(placement for placement in before.placements if not placement.anchor)


def _still_valid(before: _Adopted | None, origin: Origin, view: View) -> tuple[tuple[Placement, ...], tuple[Skill, ...]]:
    """The blocks that may stay: their place is still in the history, and every skill in them is still live and unchanged."""
    if before is None:
        return (), ()
    if any(view.get(skill.name) != skill for skill in before.skills):
        return (), ()
    present = {anchor.digest for anchor in origin.anchors}
    kept = tuple(placement for placement in before.placements if not placement.anchor or placement.anchor in present)
    names = {name for placement in kept for name in placement.skills}
    return kept, tuple(skill for skill in before.skills if skill.name in names)


def _not_yet(found: Iterable[Skill], placed: Sequence[Skill], body: bytes) -> tuple[Skill, ...]:
    names = {skill.name for skill in placed}
    return tuple(skill for skill in found if skill.name not in names and not _brought_by_client(skill, body))


def _brought_by_client(skill: Skill, body: bytes) -> bool:
    if skill.name.encode() not in body:
        return False
    return already_present(skill, body.decode("utf-8", "replace").replace("\\n", "\n"))


def _anchor(origin: Origin, before: _Adopted | None) -> bytes:
    """The first block of a session goes to the system text; later ones behind the newest task's user message."""
    if before is None and len(origin.anchors) <= 1:
        return b""
    return origin.anchors[-1].digest if origin.anchors else b""
