"""Worked examples of skills, as demonstrations.

A line such as `Write 2:17 pm for the roster. -> 14:17+05:30` in the text of a skill is one: the
prompt of a recorded turn, with the example's request in place of what was asked and without the
line itself, and the example's answer. Only examples that the skill's own check confirms are
used."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.chat import ChatRequest, Message, Role, Text
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import Step
from metaclaw.errors import EngineError, WireError
from metaclaw.ports import Tokeniser
from metaclaw.training.imitation import Demonstration
from metaclaw.training.records import FULL_REWARD
from metaclaw.training.rewards import Rewards
from metaclaw.training.training_turns import TrainingTurn
from metaclaw.wires import plain

log = logging.getLogger(__name__)

_BULLET: Final = r"[ \t]*(?:[-*+][ \t]+|\d+[.)][ \t]+|>[ \t]*)?"
_ARROW: Final = re.compile(rf"{_BULLET}(?P<asked>\S.*?)[ \t]*(?:->|=>|→|⇒|⟶)[ \t]*(?P<said>.*)")
_CELLS: Final = re.compile(r"[ \t]*\|(?P<asked>[^|]+)\|(?P<said>[^|]+)\|[ \t]*")
_ASKED: Final = re.compile(
    rf"{_BULLET}\W*(?:q|question|user|request|input|task|asked|prompt)\W*:\**[ \t]*(?P<text>\S.*)",
    re.I,
)
_SAID: Final = re.compile(
    rf"{_BULLET}\W*(?:a|answer|assistant|reply|response|output|result)\W*:\**[ \t]*(?P<text>\S.*)",
    re.I,
)
_QUOTES: Final = (("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("„", "“"))
_MOST_OF_A_KEY: Final = 6
_HOSTS: Final = 2
_MOST_ANSWER_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A request, what may be its answer (the likeliest reading first), and the lines of the text
    they were read from.
    """

    asked: str
    answers: tuple[str, ...]
    lines: str


@dataclass(eq=False, kw_only=True)
class Examples:
    """Finds the worked examples of the skills in the prompts of turns. `request` is what the
    provider got for a turn, None where that cannot be read; it may block."""

    skill: Callable[[SkillName], Skill | None]
    request: Callable[[TurnId], ChatRequest | None]
    rewards: Rewards
    tokeniser: Tokeniser

    async def of(self, turns: Sequence[TrainingTurn]) -> list[Demonstration]:
        """The confirmed examples of the skills in these turns' prompts."""
        by_key: dict[str, list[TrainingTurn]] = {}
        for turn in turns:
            by_key.setdefault(turn.key, []).append(turn)
        return [
            one for key, some in by_key.items() for one in await self._of_key(key, some[:_HOSTS])
        ]

    async def _of_key(self, key: str, hosts: Sequence[TrainingTurn]) -> list[Demonstration]:
        found: list[Demonstration] = []
        for example in self._written(hosts[0].step):
            said = await self._confirmed(hosts[0].step, example)
            if said is None:
                continue
            prompts = [
                prompt
                for host in hosts
                if (prompt := await run_sync(self._prompt, host, example)) is not None
            ]
            tokens = await run_sync(
                lambda text: (*self.tokeniser.encode(text), self.tokeniser.end), said
            )
            if prompts:
                found.append(Demonstration(key, prompts, list(tokens)))
            if len(found) >= _MOST_OF_A_KEY:
                break
        return found

    def _written(self, step: Step) -> Iterator[WorkedExample]:
        for name in step.stamp.skills:
            skill = self.skill(name)
            yield from worked_examples(skill.body) if skill is not None else ()

    async def _confirmed(self, step: Step, example: WorkedExample) -> str | None:
        """The reading of an answer that the checks find right."""
        history = tuple(_asked_in(message, step.task, example.asked) for message in step.history)
        asked = replace(step, task=example.asked, history=history, answer=())
        answers = [Rollout((0,), (0.0,), text, True) for text in example.answers]
        worth = await self.rewards.score(asked, answers) if answers else []
        return next(
            (
                text
                for text, one in zip(example.answers, worth, strict=True)
                if one is not None and one >= FULL_REWARD
            ),
            None,
        )

    def _prompt(self, host: TrainingTurn, example: WorkedExample) -> list[int] | None:
        request = self.request(host.id)
        if request is None or not is_asked_in(request, host.step.task):
            return None
        messages = tuple(_without(message, example.lines) for message in request.messages)
        shown = asking(replace(request, messages=messages), host.step.task, example.asked)
        try:
            return list(self.tokeniser.prompt(plain(shown)))
        except (WireError, EngineError, ValueError) as error:
            log.info("no_demonstration turn=%s reason=%s", host.id, error)
            return None


def worked_examples(text: str) -> list[WorkedExample]:
    """What may be worked examples in a text: `request -> answer`, rows of a table, `Q:` and `A:` on
    lines of their own. An answer may go on over the lines below it."""
    lines = text.splitlines()
    return [one for at in range(len(lines)) if (one := _read(lines, at)) is not None]


def _read(lines: Sequence[str], at: int) -> WorkedExample | None:
    line = lines[at]
    if (cells := _CELLS.fullmatch(line)) is not None:
        return WorkedExample(_bare(cells["asked"]), _readings([cells["said"]]), line)
    if (arrow := _ARROW.fullmatch(line)) is not None:
        below = _until_next(lines, at + 1)
        return WorkedExample(
            _bare(arrow["asked"]), _readings([arrow["said"], *below]), "\n".join([line, *below])
        )
    asked = _ASKED.fullmatch(line)
    said = _SAID.fullmatch(lines[at + 1]) if asked is not None and at + 1 < len(lines) else None
    if asked is None or said is None:
        return None
    below = _until_next(lines, at + 2)
    return WorkedExample(
        _bare(asked["text"]),
        _readings([said["text"], *below]),
        "\n".join([*lines[at : at + 2], *below]),
    )


def _until_next(lines: Sequence[str], first: int) -> list[str]:
    """The lines that an answer may go on over: up to a blank one or the next example."""
    found: list[str] = []
    for line in lines[first:]:
        if not line.strip() or any(pattern.fullmatch(line) for pattern in (_ARROW, _CELLS, _ASKED)):
            break
        found.append(line)
    return found


def _readings(lines: Sequence[str]) -> tuple[str, ...]:
    whole = "\n".join(line.strip() for line in lines).strip()
    first = lines[0].strip()
    readings = (one for text in (whole, first) for one in (text, _bare(text)))
    return tuple(dict.fromkeys(one for one in readings if one and len(one) <= _MOST_ANSWER_CHARS))


def _bare(text: str) -> str:
    """A text without the quotation marks around it."""
    text = text.strip()
    for begin, end in _QUOTES:
        if len(text) > 2 and text.startswith(begin) and text.endswith(end):
            return text[1:-1].strip()
    return text


def is_asked_in(request: ChatRequest, task: str) -> bool:
    """Whether the person's last message holds a task word for word."""
    asked = [message for message in request.messages if message.role is Role.USER]
    return bool(task) and any(
        task in part.text
        for message in asked[-1:]
        for part in message.parts
        if isinstance(part, Text)
    )


def asking(request: ChatRequest, task: str, asked: str) -> ChatRequest:
    """A request that asks something else in place of its task."""
    return replace(
        request, messages=tuple(_asked_in(message, task, asked) for message in request.messages)
    )


def _asked_in(message: Message, task: str, asked: str) -> Message:
    return _changed(message, task, asked) if message.role is Role.USER and task else message


def _without(message: Message, lines: str) -> Message:
    return _changed(_changed(message, f"{lines}\n", ""), lines, "")


def _changed(message: Message, old: str, new: str) -> Message:
    parts = tuple(
        replace(part, text=part.text.replace(old, new)) if isinstance(part, Text) else part
        for part in message.parts
    )
    return replace(message, parts=parts)
