"""Builds steps and skills for these tests."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from metaclaw.domain.chat import Message, Part, Role, Text, Tool, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.privacy import Redactor
from metaclaw.text import is_imperative, split_sentences, visible_text

SYSTEM = "You are a coding agent.\nWorking directory: /home/jo/shop\nPlatform: linux"


class Used(NamedTuple):
    """A tool call and what came back."""

    tool: str
    arguments: dict[str, object]
    output: str
    is_error: bool = False


def step(
    task: str,
    *,
    used: Sequence[Used] = (),
    answer: str = "Done.",
    said_after: str | None = None,
    system: str = SYSTEM,
    tools: Sequence[Tool] = (),
    previous: Step | None = None,
    after: Sequence[Message] = (),
) -> Step:
    """A step whose history holds the task and the tools used for it, and whose answer ended it."""
    history = [Message(Role.SYSTEM, (Text(system),)), Message(Role.USER, (Text(task),))]
    for at, one in enumerate(used):
        history.append(
            Message(Role.ASSISTANT, (ToolCall(f"call_{at}", one.tool, json.dumps(one.arguments)),))
        )
        history.append(
            Message(Role.TOOL, (ToolResult(f"call_{at}", (Text(one.output),), one.is_error),))
        )
    then = list(after)
    if said_after is not None:
        then.append(Message(Role.USER, (Text(said_after),)))
    parts: tuple[Part, ...] = (Text(answer),)
    return Step(
        turn=TurnId("t_1"),
        session=SessionId("s_1"),
        scope=Scope(),
        stamp=Stamp(0, 0, "", ()),
        model="model",
        task=task,
        history=tuple(history),
        tools=tuple(tools),
        answer=parts,
        end=TurnEnd.COMPLETED,
        after=tuple(then),
        said_after=said_after,
        previous=previous,
    )


def skill(body: str, trigger: str = "When working on this", name: str = "learned") -> Skill:
    """A skill as an evolver would propose it."""
    return Skill(SkillName(name), trigger, body, state=SkillState.DRAFT, author=Authorship.EVOLVER)


def orders(text: str) -> list[str]:
    """The imperatives in a text."""
    return [one for one in split_sentences(visible_text(text)) if is_imperative(one)]


def redacted_parts(*texts: str, redactor: Redactor | None = None) -> list[str]:
    """These texts as parts of an answer, redacted."""
    done = (redactor or Redactor()).step(replace(step("Go."), answer=tuple(map(Text, texts))))
    return [part.text for part in done.answer if isinstance(part, Text)]


def redacted_arguments(arguments: str, redactor: Redactor | None = None) -> str:
    """The arguments of a tool call, redacted."""
    done = (redactor or Redactor()).step(
        replace(step("Go."), answer=(ToolCall("c", "t", arguments),))
    )
    return done.calls[0].arguments
