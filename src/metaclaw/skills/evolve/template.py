"""Skills by template, from a person's own words: no model is asked, and the words stay as they were said."""

import re

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.chat import Message, Role, Text
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Source
from metaclaw.skills.evolve.corrections import find_correction
from metaclaw.skills.evolve.failure import Failure
from metaclaw.skills.evolve.grammar import Polarity
from metaclaw.skills.evolve.instructions import Instruction, find_instructions
from metaclaw.skills.evolve.names import slug
from metaclaw.skills.evolve.topics import is_manner, related_words, topic_terms, topic_words
from metaclaw.skills.query import query_text
from metaclaw.skills.scopes import scope_of_lesson

TEMPLATE = "template"
ALWAYS = "always"
_HOW_TO_FOLLOW = (
    "Before you answer or act, see whether these words bear on it.",
    "Where they do, keep to them exactly, also where the task does not mention them.",
)
_HOW_TO_CORRECT = ("Before you answer such a task, see what these words ask for.", "Do it that way from the beginning.")
OWN_STEPS = frozenset((*_HOW_TO_FOLLOW, *_HOW_TO_CORRECT))
"""What the templates themselves say: the program's words, for which nobody in the session has to answer."""
_MAX_RULE_CHARS = 1_500
_TASK_WORDS = 8
_IN_NAME = 4
_PREFIX = {Polarity.DO: "always", Polarity.DONT: "never", Polarity.BOTH: "rule"}
_HERE = re.compile(
    r"\b(?:this|our) (?:project|repo|repository|code ?base|monorepo|package)\b|\bdiese[mrs]? (?:projekt|repo)|\beste"
    r" (?:proyecto|repo)|\bce (?:projet|dépôt|repo)\b"
    r"|(?:这个|這個|本)(?:项目|專案|仓库|倉庫)|この(?:プロジェクト|リポジトリ)",
    re.IGNORECASE,
)
_ANTI_PATTERN = {
    Polarity.DO: "leaving it out because a task does not ask for it again.",
    Polarity.DONT: "doing it all the same, even once, even where it would be quicker.",
    Polarity.BOTH: "leaving out what the words ask for, or doing what they rule out, because a task does not say it again.",
}


def from_words(step: Step) -> tuple[Proposal, ...]:
    """The skills that a person's standing instructions make, one each, from what they said after this turn or in its task.

    A task is read at its first turn only. Empty where nothing is laid down, and where another agent speaks in a person's place.
    """
    if step.is_hired:
        return ()
    heard = ((step.said_after, step.task), (_task_anew(step), _task_before(step)))
    proposals = [
        _propose_rule(step, instruction, context)
        for text, context in heard
        if text
        for instruction in find_instructions(text)
        if len(instruction.words) <= _MAX_RULE_CHARS
    ]
    return tuple({" ".join(proposal.skill.body.casefold().split()): proposal for proposal in proposals}.values())


def from_correction(failure: Failure) -> Proposal | None:
    """The skill that a person's correction makes, where they say what should have been done; None where they do not."""
    step, verdict = failure.step, failure.verdict
    if not verdict.teaches:
        return None
    said = verdict.comment if verdict.source is Source.USER and verdict.comment.strip() else step.said_after
    words = find_correction(said) if said else None
    if words is None:
        return None
    about, of_task = topic_words(words), topic_words(step.task, _TASK_WORDS)
    name = slug([*(of_task or about)[:_IN_NAME]]) or "task"
    body = (
        "A task of this kind went wrong before. What the person said about it:\n\n"
        f"{_quote(words)}\n\n"
        f"{_numbered(_HOW_TO_CORRECT)}\n\n"
        "Anti-pattern: answering as before and waiting to be told again."
    )
    skill = _skill(step, f"corrected-{name}", _trigger(of_task or about, about if of_task else []), body, {})
    return Proposal(skill, Change.NEW, (), (step.turn,), f"correction-{name}", TEMPLATE)


def _propose_rule(step: Step, instruction: Instruction, context: str) -> Proposal:
    """`context` is the task that the words followed, if any."""
    words, about = instruction.words, topic_words(instruction.words)
    is_general = not about or is_manner(about, words)
    name = slug([_PREFIX[instruction.polarity], *about[:_IN_NAME]])
    body = (
        "The person's own words, to be followed as they stand:\n\n"
        f"{_quote(words)}\n\n"
        f"{_numbered(_HOW_TO_FOLLOW)}\n\n"
        f"Anti-pattern: {_ANTI_PATTERN[instruction.polarity]}"
    )
    extra: dict[str, object] = {"applies": ALWAYS} if is_general else {}
    if step.scope.user and step.scope.workspace and _HERE.search(words):
        extra["workspace"] = step.scope.workspace
    trigger = f"Whatever the task is: {_one_line(words)}" if is_general else _trigger(about, _of_task(about, context))
    skill = _skill(step, name, trigger, body, extra)
    return Proposal(skill, Change.NEW, (), (step.turn,), f"instruction-{name}", TEMPLATE, is_instruction=True)


def _skill(step: Step, name: str, trigger: str, body: str, extra: dict[str, object]) -> Skill:
    scope = scope_of_lesson(step.scope)
    return Skill(
        name=SkillName(name),
        trigger=trigger,
        body=body,
        category="instruction" if name.startswith(tuple(_PREFIX.values())) else "correction",
        scope=scope,
        extra=extra,
        state=SkillState.DRAFT,
        author=Authorship.INSTRUCTION,
    )


def _task_anew(step: Step) -> str | None:
    return step.task if step.previous is None or step.previous.task != step.task else None


def _task_before(step: Step) -> str:
    """What the person had asked for before this task; empty where it is the first."""
    if step.previous is not None:
        return step.previous.task
    asked = [query_text(_words(message)) for message in step.history if message.role is Role.USER]
    before = [words for words in asked if words]
    return before[-2] if len(before) > 1 else ""


def _words(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def _of_task(about: list[str], task: str) -> list[str]:
    """The words of the task that the person's rule followed: where it came up once, it comes up again."""
    known = topic_terms(" ".join(about))
    return [word for word in topic_words(task, _TASK_WORDS) if not topic_terms(word) <= known]


def _trigger(about: list[str], beside: list[str]) -> str:
    related = related_words(about)
    text = f"When the task has to do with {', '.join(about)}"
    if related:
        text += f", or with {', '.join(related)}"
    if beside:
        text += f"; it came up with: {', '.join(beside)}"
    return text + "."


def _numbered(steps: tuple[str, ...]) -> str:
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _quote(words: str) -> str:
    return "\n".join(f"> {line}" for line in words.splitlines())


def _one_line(words: str) -> str:
    return " ".join(words.split())[:200]
