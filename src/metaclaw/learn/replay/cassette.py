"""A recorded session as a cassette: tool calls are answered from the recording, and nothing outside is ever touched.

A recorded result holds for the world it was seen in. So it is given again only where the same changes were made before it, as far
as they may have to do with it: a file that was read before an edit does not answer for the file after it. Changes themselves are
never made; their recorded results are repeated, and what cannot be answered so is a miss.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from metaclaw.domain.chat import Message, Role, Text, ToolCall, ToolResult
from metaclaw.domain.turn import Step
from metaclaw.learn.replay.calls import CallEffect, CallMeaning, understand
from metaclaw.learn.steps import bare_id

# Clients empty old results to save room, and say so in their place.
_EMPTIED: Final = re.compile(
    r"\W*(?:old )?tool (?:result|output)s?(?: content)? (?:was |were )?(?:cleared|removed|omitted|pruned)", re.I
)
_CUSTOM: Final = {"custom_tool_call": "custom_tool_call_output"}


@dataclass(frozen=True, slots=True)
class Take:
    """A call that was recorded, and its result where there was one."""

    call: ToolCall
    understood: CallMeaning
    result: ToolResult | None

    @property
    def changed(self) -> bool:
        """Whether it changed anything: a tool that could not write a file left it as it was."""
        failed = self.understood.effect is CallEffect.WRITE and self.result is not None and self.result.is_error
        return self.understood.changes and not failed


@dataclass(frozen=True, slots=True)
class Recorded:
    """The very call was recorded in the very world."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Nearest:
    """A call was recorded whose result serves; `differs` says in what it differs."""

    result: ToolResult
    differs: str


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing was recorded that could answer; `why` is for people."""

    why: str


Played: TypeAlias = Recorded | Nearest | Miss


@dataclass(frozen=True, slots=True)
class Recording:
    """The tool calls of a session with their results, in order; the first `start` came before the step it begins with."""

    takes: tuple[Take, ...]
    start: int

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Recording":
        """From the steps of one thread, one after the other."""
        if not steps:
            return cls((), 0)
        before = _takes(steps[0].history)
        return cls(tuple(_takes((*steps[0].history, *_said(steps)))), len(before))


class Cassette:
    """One replay of a recording, from its start. Every play moves it on."""

    def __init__(self, recording: Recording) -> None:
        self._takes = recording.takes
        self._start = recording.start
        self._played: set[int] = set()
        self._changes = [take.understood for take in recording.takes[: recording.start] if take.changed]

    def play(self, call: ToolCall) -> Played:
        """The recorded result of this call, for its id."""
        asked = understand(call)
        same = [at for at, take in enumerate(self._takes) if take.result is not None and take.understood.key == asked.key]
        fitting = [at for at in same if self._is_same_world(at, asked)]
        if fitting:
            return Recorded(self._give(self._choose(fitting), call, asked))
        near = self._near(asked)
        if near is not None:
            at, differs = near
            return Nearest(self._give(at, call, asked), differs)
        if same:
            return Miss(f"{asked.name} was recorded, but not after the same changes")
        known = any(take.understood.name == asked.name for take in self._takes)
        return Miss(f"this call of {asked.name} was not recorded" if known else f"no call of {asked.name} was recorded")

    def closes(self, call: ToolCall) -> bool:
        """Whether the recorded session ended with this very call, so that no result was recorded."""
        last = self._takes[-1] if len(self._takes) > self._start else None
        return last is not None and last.result is None and last.understood.key == understand(call).key

    def _is_same_world(self, at: int, asked: CallMeaning) -> bool:
        before = (take.understood for take in self._takes[:at] if take.changed)
        return _world(before, asked) == _world(self._changes, asked)

    def _choose(self, fitting: Sequence[int]) -> int:
        """The next that was not given yet; a call that is made more often than recorded gets what it got last."""
        fresh = (at for at in fitting if at >= self._start and at not in self._played)
        return next(fresh, fitting[-1])

    def _near(self, asked: CallMeaning) -> tuple[int, str] | None:
        for at, take in enumerate(self._takes):
            known = take.understood
            if take.result is None or known.name != asked.name or known.effect is not asked.effect:
                continue
            match asked.effect:
                case CallEffect.NOTE:
                    return at, "a note, in other words"
                case CallEffect.LOOK if known.loose == asked.loose and self._is_same_world(at, asked):
                    return at, "how much of it is wanted"
                case CallEffect.WRITE if known.paths == asked.paths and not take.result.is_error and self._is_same_world(at, asked):
                    return at, "what is written"
                case _:
                    continue
        return None

    def _give(self, at: int, call: ToolCall, asked: CallMeaning) -> ToolResult:
        take = self._takes[at]
        self._played.add(at)
        if asked.changes and (take.changed or take.understood.key != asked.key):
            self._changes.append(asked)
        result = take.result
        assert result is not None, "only takes with a result are given"
        kind = _CUSTOM.get(str(call.extra.get("type")))
        return replace(result, call_id=call.id, extra={} if kind is None else {"type": kind})


def _world(changes: Iterable[CallMeaning], asked: CallMeaning) -> dict[tuple[str, ...] | None, list[str]]:
    """The changes that may have to do with a call: in order where they are of the same files, in any order else."""
    world: dict[tuple[str, ...] | None, list[str]] = {}
    for change in changes:
        if change.touches(asked):
            world.setdefault(change.paths, []).append(change.key)
    return world


def _said(steps: Sequence[Step]) -> Iterator[Message]:
    for step in steps:
        yield Message(Role.ASSISTANT, step.answer)
        yield from step.after


def _takes(messages: Iterable[Message]) -> list[Take]:
    """Calls with their results. Ids may be used again in one session, so a result belongs to the last open call of its id."""
    takes: list[Take] = []
    waiting: dict[str, int] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCall):
            waiting[bare_id(part.id)] = len(takes)
            takes.append(Take(part, understand(part), None))
        elif isinstance(part, ToolResult):
            at = waiting.pop(bare_id(part.call_id), None)
            if at is not None and not _is_emptied(part):
                takes[at] = replace(takes[at], result=part)
    return takes


def _is_emptied(result: ToolResult) -> bool:
    return len(result.parts) == 1 and isinstance(only := result.parts[0], Text) and _EMPTIED.match(only.text) is not None
