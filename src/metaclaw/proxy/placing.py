"""Which skills stand where in a session's prompts, so that a provider's prompt cache survives.

A block of skills is chosen when the person begins a task (a segment) and then stays, byte for byte, at the same place of the
conversation in every later request: at the end of the system text for the first task, after the person's own words for later
ones. Nothing before it ever changes. A later task adds a block only for skills that are not in the prompt yet; when more than
`max_placed` would stand there, or one of them has been changed or withdrawn, the old blocks go and a new one is placed after
the newest user message: the one moment at which a cached prefix is given up.

Skills on trial, and now and then a learned one that is live, are left to chance (see `chance`). That is drawn once a segment, for
skills that are not in the prompt already, and recorded with every turn of the segment. Only skills that would all fit into the
block together are drawn, so that whether one is placed depends on nothing but its own draw.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.session import Origin
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Draw, Placement, Scope, Splice, Stamp, TurnKind
from metaclaw.proxy.brought import Brought
from metaclaw.proxy.chance import Chance
from metaclaw.proxy.client import Incoming
from metaclaw.proxy.splice import placement_splices
from metaclaw.skills import Block, Teams, applies, is_placed_in, query_text, render_block

log = logging.getLogger(__name__)

_KEPT_BLOCKS = 256
_SIDE: Final = TurnKind.SIDE  # to look an enum's member up takes longer than to compare it


class Policy(Protocol):
    """Which weights answer whom, and what they know without being told."""

    def pick(self, session: SessionId) -> int: ...
    def absorbed(self, version: int) -> frozenset[SkillName]: ...


class View(Protocol):
    """An immutable look at the live skills of one generation."""

    @property
    def generation(self) -> int: ...
    @property
    def hash(self) -> str: ...
    def get(self, name: SkillName) -> Skill | None: ...
    def retrieve(self, query: str, limit: int, scope: Scope | None = None, teams: Teams | None = None) -> tuple[Skill, ...]: ...


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A request's stamp, and what goes into its bytes."""

    stamp: Stamp
    placements: tuple[Placement, ...]
    splices: tuple[Splice, ...]
    draws: tuple[Draw, ...] = ()


class _Adopted(msgspec.Struct, frozen=True, gc=False):
    """What a session took over when its current segment began. `skills` is None where only the record of it is left."""

    segment: int
    generation: int
    hash: str
    placements: tuple[Placement, ...]
    skills: tuple[Skill, ...] | None
    draws: tuple[Draw, ...] = ()


class Placer:
    """Chooses skills at the beginning of a segment and repeats the choice until its end."""

    def __init__(
        self,
        view: Callable[[], View],
        *,
        max_placed: int,
        budget_tokens: int,
        enabled: bool = True,
        canary_share: float = 1.0,
        holdout_share: float = 0.0,
        teams: Teams | None = None,
        policy: Policy | None = None,
        policy_answers: Callable[[Wire, str], bool] = lambda wire, model: True,
        max_sessions: int = 4096,
    ) -> None:
        """`policy_answers` says whether the policy's weights are the first that are asked for a model."""
        self._view = view
        self._chance = Chance(canary_share, holdout_share)
        self._teams = teams
        self._policy = policy
        self._policy_answers = policy_answers
        self._limit = max_placed if enabled else 0
        self._budget_tokens = budget_tokens
        self._max_sessions = max_sessions
        self._brought = Brought()
        self._adopted: OrderedDict[SessionId, _Adopted] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, ...], tuple[tuple[Skill, ...], Block]] = OrderedDict()

    def place(self, incoming: Incoming, origin: Origin) -> Placed:
        """Read the shelf once, and settle stamp and placements of this request."""
        view = self._view()
        version = BASE_POLICY if self._policy is None else self._policy.pick(origin.session)
        if origin.kind is _SIDE:
            return Placed(Stamp(view.generation, version, view.hash, ()), (), ())
        # What is remembered of a session that begins only now is somebody else's.
        before = adopted = None if origin.session_began else self._adopted.get(origin.session)
        if adopted is None or origin.segment_began or adopted.segment != origin.segment:
            adopted = self._adopt(incoming, origin, view, before, version)
        held = () if before is None else _held_by_provider(incoming, before)
        wanted = [placement for placement in adopted.placements if placement not in held] if held else adopted.placements
        if not wanted and not held:
            return Placed(Stamp(adopted.generation, version, adopted.hash, ()), (), (), _in_effect(adopted.draws, ()))
        spliced = placement_splices(incoming.wire, incoming.body, incoming.json, wanted, origin.anchors)
        if spliced.refused is not None:
            log.warning("skills_not_placed session=%s reason=%s", origin.session, spliced.refused)
        standing = (*held, *spliced.placed) if held else spliced.placed
        skills = standing[0].skills if len(standing) == 1 else tuple([name for one in standing for name in one.skills])
        stamp = Stamp(adopted.generation, version, adopted.hash, skills)
        return Placed(stamp, spliced.placed, spliced.splices, _in_effect(adopted.draws, skills) if adopted.draws else ())

    def restore(
        self, session: SessionId, segment: int, stamp: Stamp, placements: Sequence[Placement], draws: Sequence[Draw] = ()
    ) -> None:
        """Take up again what a session's last recorded turn had in its prompt."""
        self._remember(session, _Adopted(segment, stamp.generation, stamp.library_hash, tuple(placements), None, tuple(draws)))

    def forget(self, sessions: Iterable[SessionId]) -> None:
        """These sessions are over."""
        for session in sessions:
            self._adopted.pop(session, None)

    def _adopt(self, incoming: Incoming, origin: Origin, view: View, before: _Adopted | None, version: int) -> _Adopted:
        kept, skills = ((), ()) if before is None else self._still_valid(before, origin, view)
        found = self._find(incoming, origin, view, version) if self._limit and origin.task else ()
        new = self._not_yet(found, skills, incoming)
        draws: tuple[Draw, ...] = ()
        if new and self._chance.concerns(new):
            found, draws = self._leave_to_chance(origin, found, new)
            new = tuple(skill for skill in new if skill in found)
        if (
            len(skills) + len(new) > self._limit
            and new
            and sum(not skill.applies_always for skill in (*skills, *new)) > self._limit
        ):
            kept, skills, new = (), (), self._not_yet(found, (), incoming)
        if new:
            block = self._render(new)
            if block.skills:
                kept = (*kept, Placement(_anchor(origin, before), block.skills, block.text))
                skills += new if len(block.skills) == len(new) else tuple([skill for skill in new if skill.name in block.skills])
        adopted = _Adopted(origin.segment, view.generation, view.hash, kept, skills, draws)
        self._remember(origin.session, adopted)
        return adopted

    def _not_yet(self, found: tuple[Skill, ...], placed: Sequence[Skill], incoming: Incoming) -> tuple[Skill, ...]:
        """The found skills that are not in the prompt, neither by us nor by the client itself."""
        if placed:
            names = {skill.name for skill in placed}
            found = tuple([skill for skill in found if skill.name not in names])
        brought = self._brought.among(found, incoming.body, incoming.json) if found else ()
        return tuple([skill for skill in found if skill not in brought]) if brought else found

    def _find(self, incoming: Incoming, origin: Origin, view: View, version: int) -> tuple[Skill, ...]:
        """The skills for the task, without those that the weights which will answer have absorbed."""
        absorbed = self._policy.absorbed(version) if self._policy is not None else frozenset[SkillName]()
        if absorbed and not self._policy_answers(incoming.wire, incoming.model):
            absorbed = frozenset()
        found = view.retrieve(query_text(origin.task or ""), self._limit + len(absorbed), origin.scope, self._teams)
        if not absorbed:
            return found
        return tuple(skill for skill in found if skill.name not in absorbed)[: self._limit]

    def _leave_to_chance(
        self, origin: Origin, found: tuple[Skill, ...], new: tuple[Skill, ...]
    ) -> tuple[tuple[Skill, ...], tuple[Draw, ...]]:
        """The found skills without those that chance withholds, or that would have no room if it withheld none."""
        fitting = set(self._render(found).skills)
        draws = self._chance.draw(origin.session, origin.segment, [skill for skill in new if skill.name in fitting])
        withheld = {draw.skill for draw in draws if not draw.placed}
        return tuple(skill for skill in found if skill.name in fitting and skill.name not in withheld), draws

    def _still_valid(self, before: _Adopted, origin: Origin, view: View) -> tuple[tuple[Placement, ...], tuple[Skill, ...]]:
        """The blocks that may stay: their place is still in the history, and every skill in them is in force, says what it said and
        is still for whoever speaks."""
        now = {name: view.get(name) for placement in before.placements for name in placement.skills}
        if not all(skill is not None and self._is_for(skill, origin.scope) for skill in now.values()):
            return (), ()
        if not _says_the_same(before, now):
            return (), ()
        present = {anchor.digest for anchor in origin.anchors}
        kept = tuple(placement for placement in before.placements if not placement.anchor or placement.anchor in present)
        return kept, tuple(skill for placement in kept for name in placement.skills if (skill := now[name]) is not None)

    def _is_for(self, skill: Skill, scope: Scope) -> bool:
        return skill.is_for_workspace(scope.workspace) and applies(skill.scope, scope, self._teams)

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


def _held_by_provider(incoming: Incoming, before: _Adopted) -> tuple[Placement, ...]:
    """Blocks the provider has already: with `previous_response_id` it adds the history itself, our item in it included."""
    json = incoming.json
    if not json.get("previous_response_id") or isinstance(json.get("instructions"), str):
        return ()
    return tuple(placement for placement in before.placements if not placement.anchor)


def _says_the_same(before: _Adopted, now: Mapping[SkillName, Skill | None]) -> bool:
    """Whether skills that stand in a prompt still read as they do there; how far they have come does not matter."""
    if before.skills is None:
        blocks = [(placement.text, now[name]) for placement in before.placements for name in placement.skills]
        return all(skill is not None and is_placed_in(skill, text) for text, skill in blocks)
    changed = [(was, skill) for was in before.skills if (skill := now.get(was.name)) is not None and skill is not was]
    return all(was.content_hash == skill.content_hash for was, skill in changed)


def _in_effect(draws: tuple[Draw, ...], placed: Sequence[SkillName]) -> tuple[Draw, ...]:
    """The draws, if they came true: a request that took no block was not left to chance."""
    return draws if all(draw.skill in placed for draw in draws if draw.placed) else ()


def _anchor(origin: Origin, before: _Adopted | None) -> bytes:
    """The first block of a session goes to the system text; later ones behind the newest task's user message."""
    if before is None and len(origin.anchors) <= 1:
        return b""
    return origin.anchors[-1].digest if origin.anchors else b""
