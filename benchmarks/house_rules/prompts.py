"""A task as the tokens that serving makes of it: the product's own block of skills, its chat template, its tokenizer."""

from collections.abc import Sequence
from typing import Final

from benchmarks.house_rules.rules import SKILLS
from benchmarks.house_rules.tasks import Task
from metaclaw.engine.text import Vocabulary
from metaclaw.skills.block import render_block

SYSTEM: Final = "You work for an office. Answer with what was asked for, nothing else."
BUDGET_TOKENS: Final = 1500
"""As much room as skills have in a prompt unless the owner says otherwise."""


def turns(task: Task, *, with_skill: bool) -> list[tuple[str, str]]:
    """The conversation. The block of the skill that fits stands at the end of the system text, as in a session's first task."""
    block = render_block([SKILLS[task.rule]], BUDGET_TOKENS).text if with_skill else ""
    return [("system", SYSTEM + block), ("user", task.question)]


def encode(vocabulary: Vocabulary, tasks: Sequence[Task], *, with_skill: bool) -> list[tuple[int, ...]]:
    """The tokens of each task's prompt."""
    return [tuple(vocabulary.render(turns(task, with_skill=with_skill), "")) for task in tasks]
