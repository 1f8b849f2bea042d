"""The prompt of a recorded turn as the provider got it, and the same prompt without some skills."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from metaclaw.domain.chat import ChatRequest, Part, Text
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Placement, Turn
from metaclaw.errors import MetaClawError, WireError
from metaclaw.learn import read_request
from metaclaw.skills import SKILL_TOOL, Budgets, render_block
from metaclaw.wires import wire_format

_BLANK_LINE: Final = "\n\n"


class UnplayableError(MetaClawError):
    """A recorded turn cannot be replayed; the message says why."""


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


def request_without(
    turn: Turn, gone: Collection[SkillName], known: Mapping[SkillName, Skill], budgets: Budgets
) -> ChatRequest:
    """The request of a turn without some of the skills that were placed in it. `known` are these
    skills, as they were then. Raises UnplayableError.
    """
    request = sent_request(turn)
    for placement in turn.placements:
        placed = {*placement.skills, *placement.listed}
        if placement.is_lasting and not placed.isdisjoint(gone):
            text = _text_without(placement, gone, known, budgets)
            request = _swap(request, placement.text, text)
    return request


def _text_without(
    placement: Placement,
    gone: Collection[SkillName],
    known: Mapping[SkillName, Skill],
    budgets: Budgets,
) -> str:
    names = {*placement.skills, *placement.listed}.difference(gone)
    if unknown := sorted(names - known.keys()):
        raise UnplayableError(f"the skill {unknown[0]} that was in the prompt is no longer known")
    block = render_block(
        [known[name] for name in placement.skills if name not in gone],
        budgets.skills_tokens,
        listed=[known[name] for name in placement.listed if name not in gone],
        rules_budget_tokens=budgets.rules_tokens,
        has_tool=SKILL_TOOL in placement.text,
    )
    return block.text.removeprefix(_BLANK_LINE)


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
