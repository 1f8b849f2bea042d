"""A recorded prompt with a skill in it and without: what the provider got, but for the one skill that is on trial.

The block stands where the proxy puts it (`proxy/placement`, `proxy/splice`): at the end of the system text for a session's first
task, behind the person's own words for a later one. Everything else stays as it was recorded, other skills included.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.chat import ChatRequest, Message, Part, Reasoning, Role, Text, ToolCall, ToolMode, ToolResult
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Placement, Turn
from metaclaw.errors import MetaClawError, WireError
from metaclaw.learn.steps import read_request
from metaclaw.skills import Budgets, render_block
from metaclaw.wires import wire_format

_BLANK_LINE: Final = "\n\n"


class UnplayableError(MetaClawError):
    """A recorded turn on which nothing can be tried; the message says why."""


@dataclass(frozen=True, slots=True)
class Arms:
    """The two prompts of a trial."""

    without: ChatRequest
    with_skill: ChatRequest


class ReplayPrompt:
    """A recorded turn's prompt, ready to have a skill put into it. `own_words` gives what a person says in a message."""

    def __init__(self, turn: Turn, known: Mapping[SkillName, Skill], own_words: Callable[[Message], str], budgets: Budgets) -> None:
        """`known` are the skills that stood in the prompt, as they were then. Raises UnplayableError."""
        self._request = sent_request(turn)
        self._placements = tuple(placement for placement in turn.placements if placement.is_lasting)
        self._known = known
        self._own_words = own_words
        self._budgets = budgets

    @property
    def request(self) -> ChatRequest:
        """The request that the provider got."""
        return self._request

    def arms(self, skill: Skill, replaces: Collection[SkillName]) -> Arms:
        """The prompt without and with the skill; those it replaces are in neither. Raises UnplayableError."""
        gone = {skill.name, *replaces}
        without = self._request
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

    def _with_host(self, skill: Skill, gone: Collection[SkillName], host: Placement, at: int) -> ChatRequest:
        """The skill takes the place of the first that it replaces."""
        request = _swap(self._request, host.text, self._text(host, gone, skill, at))
        for placement in self._placements:
            if placement is not host and not set(gone).isdisjoint((*placement.skills, *placement.listed)):
                request = _swap(request, placement.text, self._text(placement, gone))
        return request

    def _with_new(self, request: ChatRequest, skill: Skill, gone: Collection[SkillName]) -> ChatRequest:
        """`request` is the prompt without what is `gone`."""
        tasks = [at for at, message in enumerate(request.messages) if self._own_words(message)]
        spot = tasks[-1] if len(tasks) > 1 else None
        texts = ((placement, self._text_in(request, placement, gone)) for placement in self._placements)
        beside = next(((one, text) for one, text in texts if _stands_at(one, text, request, spot)), None)
        if beside is None:
            block = self._text(Placement(b"", (), ""), gone, skill)
            return _in_system(request, block) if spot is None else _behind(request, spot, block)
        placement, text = beside
        return _swap(request, text, self._text(placement, gone, skill))

    def _text_in(self, request: ChatRequest, placement: Placement, gone: Collection[SkillName]) -> str:
        """The text of a block as it stands in the prompt without what is gone."""
        is_touched = not set(gone).isdisjoint((*placement.skills, *placement.listed))
        return self._text(placement, gone) if is_touched else placement.text

    def _skill(self, name: SkillName) -> Skill:
        found = self._known.get(name)
        if found is None:
            raise UnplayableError(f"the skill {name} that stood in the prompt is not known any more")
        return found

    def _text(self, placement: Placement, gone: Collection[SkillName], new: Skill | None = None, at: int | None = None) -> str:
        """A block without what is gone, and with the new skill, which comes last unless it takes the place `at`."""
        before = placement.skills if at is None else placement.skills[:at]
        behind = () if at is None else placement.skills[at:]
        placed = [self._skill(name) for name in before if name not in gone]
        if new is not None and new.is_skill and at is None:
            # The best few stand there in full: the last of them makes room.
            full = [one for one in placed if one.is_skill and not one.applies_always]
            dropped = {one.name for one in full[max(0, self._budgets.max_placed - 1) :]}
            placed = [one for one in placed if one.name not in dropped]
        if new is not None:
            placed.append(new)
        placed += [self._skill(name) for name in behind if name not in gone]
        listed = [self._skill(name) for name in placement.listed if name not in gone]
        block = render_block(placed, self._budgets.skills_tokens, listed=listed, rules_budget_tokens=self._budgets.rules_tokens)
        if new is not None and new.name not in block.skills:
            tokens = self._budgets.skills_tokens if new.is_skill else self._budgets.rules_tokens
            raise UnplayableError(f"the skill {new.name} does not fit into the prompt's budget of {tokens} tokens")
        return block.text.removeprefix(_BLANK_LINE)


def sent_request(turn: Turn) -> ChatRequest:
    """The request that the provider got for a turn, with its skills. Raises UnplayableError."""
    wire = turn.wire if turn.exchange.translated is None else turn.provider_wire
    try:
        request = read_request(wire, turn.exchange.sent)
    except (WireError, ValueError) as error:
        raise UnplayableError(f"what the provider got cannot be read: {error}") from error
    if any(request.extra.get(name) for name in wire_format(wire).kept_history_keys):
        raise UnplayableError("a part of the prompt lies with the provider and was never seen here")
    return request


def _stands_at(placement: Placement, text: str, request: ChatRequest, spot: int | None) -> bool:
    if not text:
        return False
    if spot is None:
        return not placement.anchor
    return any(isinstance(part, Text) and text in part.text for part in request.messages[spot].parts)


def _swap(request: ChatRequest, old: str, new: str) -> ChatRequest:
    """The request with one block in another's place; nothing where `new` is empty."""
    messages = list(request.messages)
    for at, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            if not isinstance(part, Text) or old not in part.text:
                continue
            text = _swapped(part.text, old, new)
            kept: tuple[Part, ...] = (replace(part, text=text),) if text else ()
            parts = (*message.parts[:number], *kept, *message.parts[number + 1 :])
            messages[at : at + 1] = [replace(message, parts=parts)] if parts else []
            return replace(request, messages=tuple(messages))
    raise UnplayableError("the skills that were placed are not found in what the provider got")


def _swapped(text: str, old: str, new: str) -> str:
    before, _, behind = text.partition(old)
    if new:
        return before + new + behind
    # With a block goes the blank line that set it off.
    return before.removesuffix(_BLANK_LINE) + behind if before else behind.removeprefix(_BLANK_LINE)


def _in_system(request: ChatRequest, block: str) -> ChatRequest:
    """The block at the end of the system text, as the wire of the request has it."""
    messages = request.messages
    leading = next((at for at, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    wire = wire_format(request.wire)
    if leading and not wire.has_system_field:
        return _behind(request, leading - 1, block)
    if leading and not messages[0].extra:
        return _behind(request, 0, block)
    at = leading if wire.later_system else 0
    added = Message(Role.SYSTEM, (Text(block),), extra=dict(wire.later_system))
    return replace(request, messages=(*messages[:at], added, *messages[at:]))


def _behind(request: ChatRequest, at: int, block: str) -> ChatRequest:
    """The block at the end of one message: in its text where that is all it holds, else as a part of its own."""
    message = request.messages[at]
    apart = wire_format(request.wire).appends_parts and message.role is not Role.SYSTEM
    match message.parts:
        case (Text(text, extra),) if not extra and not apart:
            parts: tuple[Part, ...] = (Text(f"{text}{_BLANK_LINE}{block}" if text else block),)
        case _:
            parts = (*message.parts, Text(block))
    messages = (*request.messages[:at], replace(message, parts=parts), *request.messages[at + 1 :])
    return replace(request, messages=messages)


def askable(prompt: ChatRequest, seed: int) -> ChatRequest:
    """The prompt as one whole answer is asked for, with nothing left behind at the provider."""
    sampling = replace(prompt.sampling, seed=seed, n=1, logprobs=False, top_logprobs=None)
    dropped = ("stream_options", "background")
    extra = {name: value for name, value in prompt.extra.items() if name not in dropped} | dict(wire_format(prompt.wire).unkept)
    return replace(prompt, stream=False, include_usage=False, sampling=sampling, extra=extra)


def carried_on(request: ChatRequest, answer: Sequence[Part], results: Sequence[ToolResult]) -> ChatRequest:
    """The next request of the same conversation, as a client would make it."""
    parts = tuple(said for part in answer if (said := _said_again(request, part)) is not None)
    if wire_format(request.wire).joins_results:
        given: tuple[Message, ...] = (Message(Role.USER, tuple(results)),)
    else:
        given = tuple(Message(Role.TOOL, (result,)) for result in results)
    choice = request.tool_choice
    # A model that must call a tool each time would never end.
    free = None if choice is not None and choice.mode is ToolMode.REQUIRED else choice
    return replace(request, messages=(*request.messages, Message(Role.ASSISTANT, parts), *given), tool_choice=free)


def _said_again(request: ChatRequest, part: Part) -> Part | None:
    """A part of an answer in the request that follows it."""
    match part:
        case Text():
            return Text(part.text)
        case Reasoning() if not wire_format(request.wire).needs_signed_reasoning:
            # Some servers want their models' thoughts back and some refuse them; the client that was recorded knew.
            thoughts = (isinstance(said, Reasoning) for message in request.messages for said in message.parts)
            return part if any(thoughts) else None
        case Reasoning():
            return part if part.signature is not None else None
        case ToolCall():
            # The provider's own id of the item would refer to something it was told not to keep.
            return replace(part, extra={name: value for name, value in part.extra.items() if name not in ("id", "status")})
        case _:
            return part
