"""The prompt of a recorded turn as the provider got it, and the same prompt with and without a
skill.

A skill is placed where the proxy places it: at the end of the system text for a session's first
task, after the person's own words for a later task."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.chat import (
    ChatRequest,
    Message,
    Part,
    Role,
    Text,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Placement, Turn
from metaclaw.errors import (
    MetaClawError,
    WireError,
)
from metaclaw.learn.steps import read_request
from metaclaw.skills import Budgets, render_block
from metaclaw.wires import wire_format

_BLANK_LINE: Final = "\n\n"


class UnplayableError(MetaClawError):
    """A recorded turn cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class Arms:
    """The two prompts of a trial."""

    without: ChatRequest
    with_skill: ChatRequest


class ReplayPrompt:
    """The prompt of a recorded turn, into which a skill can be placed. `own_words` returns a
    person's own words in a message.
    """

    def __init__(
        self,
        turn: Turn,
        known: Mapping[SkillName, Skill],
        own_words: Callable[[Message], str],
        budgets: Budgets,
    ) -> None:
        """`known` are the skills that were in the prompt, as they were then. Raises
        UnplayableError.
        """
        self.request = sent_request(turn)
        """The request that the provider got."""
        self._placements = tuple(placement for placement in turn.placements if placement.is_lasting)
        self._known = known
        self._own_words = own_words
        self._budgets = budgets

    def arms(self, skill: Skill, replaces: Collection[SkillName]) -> Arms:
        """The prompt without and with the skill; the skills it replaces are in neither. Raises
        UnplayableError.
        """
        gone = {skill.name, *replaces}
        without = self.request
        host: tuple[Placement, int] | None = None
        for placement in self._placements:
            if not gone.isdisjoint((*placement.skills, *placement.listed)):
                without = _swap(without, placement.text, self._text(placement, gone))
                at = next((at for at, name in enumerate(placement.skills) if name in gone), None)
                if host is None and at is not None:
                    host = placement, at
        if host is None:
            return Arms(without, self._with_new(without, skill, gone))
        return Arms(without, self._with_host(skill, gone, *host))

    def _with_host(
        self, skill: Skill, gone: Collection[SkillName], host: Placement, at: int
    ) -> ChatRequest:
        """The prompt in which the skill takes the place of the first skill that it replaces."""
        request = _swap(self.request, host.text, self._text(host, gone, skill, at))
        for placement in self._placements:
            if placement is not host and not set(gone).isdisjoint(
                (*placement.skills, *placement.listed)
            ):
                request = _swap(request, placement.text, self._text(placement, gone))
        return request

    def _with_new(
        self, request: ChatRequest, skill: Skill, gone: Collection[SkillName]
    ) -> ChatRequest:
        """The prompt with the skill, added to `request`, which is the prompt without the skills in
        `gone`.
        """
        tasks = [at for at, message in enumerate(request.messages) if self._own_words(message)]
        spot = tasks[-1] if len(tasks) > 1 else None
        texts = (
            (placement, self._text_in(request, placement, gone)) for placement in self._placements
        )
        beside = next(
            (
                (placement, text)
                for placement, text in texts
                if _is_placed_at(placement, text, request, spot)
            ),
            None,
        )
        if beside is None:
            block = self._text(Placement(b"", (), ""), gone, skill)
            return _in_system(request, block) if spot is None else _behind(request, spot, block)
        placement, text = beside
        return _swap(request, text, self._text(placement, gone, skill))

    def _text_in(
        self, request: ChatRequest, placement: Placement, gone: Collection[SkillName]
    ) -> str:
        """The text of a block in the prompt without the skills in `gone`."""
        is_touched = not set(gone).isdisjoint((*placement.skills, *placement.listed))
        return self._text(placement, gone) if is_touched else placement.text

    def _skill(self, name: SkillName) -> Skill:
        found = self._known.get(name)
        if found is None:
            raise UnplayableError(f"the skill {name} that was in the prompt is no longer known")
        return found

    def _text(
        self,
        placement: Placement,
        gone: Collection[SkillName],
        new: Skill | None = None,
        at: int | None = None,
    ) -> str:
        """A block without the skills in `gone` and with the new skill, which is last unless `at`
        gives its place.
        """
        before = placement.skills if at is None else placement.skills[:at]
        behind = () if at is None else placement.skills[at:]
        placed = [self._skill(name) for name in before if name not in gone]
        if new is not None and new.is_skill and at is None:
            # At most `max_placed` skills are placed in full: drop the last to make room.
            full = [skill for skill in placed if skill.is_skill and not skill.applies_always]
            dropped = {skill.name for skill in full[max(0, self._budgets.max_placed - 1) :]}
            placed = [skill for skill in placed if skill.name not in dropped]
        if new is not None:
            placed.append(new)
        placed += [self._skill(name) for name in behind if name not in gone]
        listed = [self._skill(name) for name in placement.listed if name not in gone]
        block = render_block(
            placed,
            self._budgets.skills_tokens,
            listed=listed,
            rules_budget_tokens=self._budgets.rules_tokens,
        )
        if new is not None and new.name not in block.skills:
            tokens = self._budgets.skills_tokens if new.is_skill else self._budgets.rules_tokens
            raise UnplayableError(
                f"the skill {new.name} does not fit into the prompt's budget of {tokens} tokens"
            )
        return block.text.removeprefix(_BLANK_LINE)


def sent_request(turn: Turn) -> ChatRequest:
    """The request that the provider got for a turn, with its skills. Raises UnplayableError."""
    wire = turn.wire if turn.exchange.translated is None else turn.provider_wire
    try:
        request = read_request(wire, turn.exchange.sent)
    except (WireError, ValueError) as error:
        raise UnplayableError(f"the request to the provider cannot be read: {error}") from error
    if any(request.extra.get(name) for name in wire_format(wire).kept_history_keys):
        raise UnplayableError("a part of the prompt is stored at the provider and was not recorded")
    return request


def _is_placed_at(placement: Placement, text: str, request: ChatRequest, spot: int | None) -> bool:
    """Whether the block is in the message `spot`; None: in the system text."""
    if not text:
        return False
    if spot is None:
        return not placement.anchor
    return any(
        isinstance(part, Text) and text in part.text for part in request.messages[spot].parts
    )


def _swap(request: ChatRequest, old: str, new: str) -> ChatRequest:
    """The request with the block `new` in the place of `old`, or without `old` if `new` is
    empty.
    """
    messages = list(request.messages)
    for at, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            if not isinstance(part, Text) or old not in part.text:
                continue
            text = _swapped(part.text, old, new)
            changed: tuple[Part, ...] = (replace(part, text=text),) if text else ()
            parts = (*message.parts[:number], *changed, *message.parts[number + 1 :])
            messages[at : at + 1] = [replace(message, parts=parts)] if parts else []
            return replace(request, messages=tuple(messages))
    raise UnplayableError("the placed skills are not found in the request to the provider")


def _swapped(text: str, old: str, new: str) -> str:
    before, _, behind = text.partition(old)
    if new:
        return before + new + behind
    # Remove the blank line before or after the block, too.
    return before.removesuffix(_BLANK_LINE) + behind if before else behind.removeprefix(_BLANK_LINE)


def _in_system(request: ChatRequest, block: str) -> ChatRequest:
    """The request with the block at the end of the system text, in the form of its wire."""
    messages = request.messages
    leading = next(
        (at for at, message in enumerate(messages) if message.role is not Role.SYSTEM),
        len(messages),
    )
    wire = wire_format(request.wire)
    if leading and not wire.has_system_field:
        return _behind(request, leading - 1, block)
    if leading and not messages[0].extra:
        return _behind(request, 0, block)
    at = leading if wire.later_system else 0
    added = Message(Role.SYSTEM, (Text(block),), extra=dict(wire.later_system))
    return replace(request, messages=(*messages[:at], added, *messages[at:]))


def _behind(request: ChatRequest, at: int, block: str) -> ChatRequest:
    """The request with the block at the end of one message: in its text if it has no other parts,
    else as a separate part.
    """
    message = request.messages[at]
    apart = wire_format(request.wire).appends_parts and message.role is not Role.SYSTEM
    match message.parts:
        case (Text(text, extra),) if not extra and not apart:
            parts: tuple[Part, ...] = (Text(f"{text}{_BLANK_LINE}{block}" if text else block),)
        case _:
            parts = (*message.parts, Text(block))
    messages = (*request.messages[:at], replace(message, parts=parts), *request.messages[at + 1 :])
    return replace(request, messages=messages)
