"""Worked examples of skills, as demonstrations.

A line such as `Write 2:17 pm for the roster. -> 14:17+05:30` in the text of a skill is one: the
prompt of a recorded turn, with the example's request in place of what was asked and without the
line itself, and the example's answer. Only examples that the skill's own check confirms are
used."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import Step
from metaclaw.training.imitation import Demonstration
from metaclaw.training.prompts import PromptMaker, asking
from metaclaw.training.records import FULL_REWARD
from metaclaw.training.rewards import Rewards
from metaclaw.training.training_turns import TrainingTurn

_BULLET: Final = r"[ \t]*(?:[-*+][ \t]+|\d+[.)][ \t]+|>[ \t]*)?"
_ARROW: Final = re.compile(rf"{_BULLET}(?P<asked>\S.*?)[ \t]*(?:->|=>|→|⇒|⟶)[ \t]*(?P<said>.*)")
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
    """Finds the worked examples of the skills in the prompts of turns."""

    prompts: PromptMaker
    rewards: Rewards

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
                list(prompt)
                for host in hosts
                if (
                    prompt := await run_sync(
                        self.prompts.asking, host, example.asked, example.lines
                    )
                )
                is not None
            ]
            if prompts:
                tokeniser = self.prompts.tokeniser
                tokens = await run_sync(tokeniser.encode, said)
                found.append(Demonstration(key, prompts, [*tokens, tokeniser.end]))
            if len(found) >= _MOST_OF_A_KEY:
                break
        return found

    def _written(self, step: Step) -> Iterator[WorkedExample]:
        for name in step.stamp.skills:
            skill = self.prompts.skill(name)
            yield from worked_examples(skill.body) if skill is not None else ()

    async def _confirmed(self, step: Step, example: WorkedExample) -> str | None:
        """The reading of an answer that the checks find right."""
        history = asking(step.history, step.task, example.asked)
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


def worked_examples(text: str) -> list[WorkedExample]:
    """What may be worked examples in a text: lines of the form `request -> answer`. An answer may
    go on over the lines below it, up to a blank one or the next example."""
    found: list[WorkedExample] = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if (arrow := _ARROW.fullmatch(line)) is not None:
            below = list(
                takewhile(lambda one: one.strip() and not _ARROW.fullmatch(one), lines[at + 1 :])
            )
            answers = _readings([arrow["said"], *below])
            found.append(WorkedExample(_bare(arrow["asked"]), answers, "\n".join([line, *below])))
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
