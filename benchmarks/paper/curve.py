"""Do weights that were taught rules follow rules that they were not taught? After 0, 1, 2, 4 and 8
rules, one night each time, the program is asked about rules that only stand in the prompt.

Which rules are taught and which stay new is drawn by the seed. All skills are there from the
beginning; only chats about the taught ones are held."""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from benchmarks.home import Machine, running
from benchmarks.house_rules.driver import SYSTEM
from benchmarks.house_rules.pools import Split
from benchmarks.paper.rules import RULES, NewRule
from benchmarks.paper.stage import OutOfTimeError, Settings, Stage, policy_config
from benchmarks.program_runs import RunLog

COUNTS: Final = (1, 2, 4, 8)
_MOST_TOKENS: Final = 32


def order_of(seed: int) -> tuple[list[NewRule], list[NewRule]]:
    """The rules that are taught, in order, and the new ones."""
    shuffled = random.Random(f"curve {seed}").sample(RULES, len(RULES))
    return shuffled[: COUNTS[-1]], shuffled[COUNTS[-1] :]


def run(counts: Sequence[int], settings: Settings, log: RunLog, machine: Machine) -> None:
    """Night after night in one home."""
    taught, new = order_of(log.seed)
    settings = replace(settings, max_tokens=min(settings.max_tokens, _MOST_TOKENS))
    log.tell("begin", settings=asdict(settings), new=[rule.name for rule in new])
    skills = {rule.skill: rule.skill_file for rule in (*taught, *new)}
    arguments, config = settings.arguments(), policy_config(machine)
    with running(machine, log.name, *arguments, config=config, skills=skills) as program:
        stage, before = Stage(settings, log, program), 0
        try:
            _examine(stage, 0, [("new", new), ("untrained", taught[: counts[-1]])])
            for count in counts:
                lesson = taught[before:count]
                tasks = [
                    task
                    for rule in lesson
                    for task in rule.tasks(Split.TRAIN, log.seed, settings.chats)
                ]
                random.Random(log.seed).shuffle(tasks)
                stage.ask([_talk(task.question) for task in tasks], teaches=True)
                stage.sleep(count=count)
                _examine(stage, count, [("new", new), ("trained", lesson)])
                before = count
        except OutOfTimeError:
            log.tell("stopped", after=before)
        log.tell("end", total_s=log.seconds)


def _examine(stage: Stage, count: int, groups: Sequence[tuple[str, Sequence[NewRule]]]) -> None:
    asked = [
        (group, rule, task)
        for group, rules in groups
        for rule in rules
        for task in rule.tasks(Split.HELD_OUT, stage.log.seed, stage.settings.questions)
    ]
    began = stage.log.seconds
    replies = stage.ask([_talk(task.question) for _, _, task in asked], teaches=False)
    for (group, rule, task), reply in zip(asked, replies, strict=True):
        stage.log.tell(
            "answer",
            count=count,
            group=group,
            rule=rule.name,
            wanted=task.answer,
            said=reply.text[:80],
            is_exact=task.is_exact(reply.text),
            is_placed=rule.skill in reply.skills.split(","),
            version=reply.version,
        )
    stage.log.tell("exam", count=count, asked=len(asked), seconds=stage.log.seconds - began)


def _talk(question: str) -> list[tuple[str, str]]:
    return [("system", SYSTEM), ("user", question)]
