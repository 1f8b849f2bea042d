"""What one program is taught: rules of this package, or a rule of one's own from a folder."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.rules import Rule
from benchmarks.house_rules.tasks import Task, make_tasks


@dataclass(frozen=True, slots=True)
class Course:
    """Rules that are taught to one program together."""

    name: str
    rules: tuple[str, ...]
    skills: Mapping[str, str]
    """The text of each SKILL.md, by the name of its skill."""
    tasks: Callable[[Split, int, int], list[Task]]
    """Chats or held-out questions, for a seed; so many for each rule."""
    knows_chats: bool = True
    """Whether the chats, too, have their right answers."""


def course_of(name: str, rules: Sequence[Rule]) -> Course:
    """Rules of this package."""

    def tasks(split: Split, seed: int, count: int) -> list[Task]:
        return make_tasks(rules, split, seed, count * len(rules))

    return Course(
        name,
        tuple(rule.name for rule in rules),
        {rule.skill: rule.skill_file for rule in rules},
        tasks,
    )


def read_course(folder: Path) -> Course:
    """A rule from a folder with three files: SKILL.md; chats.txt, a question in each line;
    questions.jsonl, held-out questions as {"ask": …, "answer": …}."""
    name, skill = folder.name, (folder / "SKILL.md").read_text(encoding="utf-8")
    stated = re.search(r"^name: *(\S+)$", skill, re.MULTILINE)
    if stated is None:
        raise ValueError(f"{folder / 'SKILL.md'} states no name")
    chats = [
        Task(name, line, "")
        for line in (folder / "chats.txt").read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [
        Task(name, item["ask"], item["answer"])
        for item in map(json.loads, filter(str.strip, lines))
    ]

    def tasks(split: Split, seed: int, count: int) -> list[Task]:
        given = chats if split is Split.TRAIN else questions
        return random.Random(seed).sample(given, min(count, len(given)))

    return Course(name, (name,), {stated[1]: skill}, tasks, knows_chats=False)
