"""Do habits change? Three rules of style that models break often are given as rules of a person.
Violations are counted in answers *without* the rules in the prompt, before and after a night.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, cast

from benchmarks.home import Machine, running
from benchmarks.paper.stage import OutOfTimeError, Settings, Stage, policy_config
from benchmarks.program_runs import RunLog

_HERE: Final = Path(__file__).parent
_MOST_TOKENS: Final = 60
_READ: Final = """
import json
import sys

text = json.load(sys.stdin)["text"].strip()
kept = share_kept(text) if text else 0.0
print(json.dumps({"score": 1.0 if kept == 1.0 else 0.48 * kept}))
"""


@dataclass(frozen=True, slots=True)
class Habit:
    """A rule as a person gives it. The file of its name defines `share_kept`, how far an answer
    keeps it.
    """

    name: str
    says: str

    @property
    def source(self) -> str:
        """Of `share_kept`."""
        return (_HERE / "checks" / f"{self.name}.py").read_text(encoding="utf-8")

    @property
    def check(self) -> str:
        """The rule's check."""
        lines = (self.source + _READ).splitlines()
        return "\n".join(["program: |", *(f"  {line}".rstrip() for line in lines)])

    def share_kept(self, text: str) -> float:
        """How far an answer keeps the rule; 1 is all of it."""
        found: dict[str, object] = {}
        exec(self.source, found)
        return cast("Callable[[str], float]", found["share_kept"])(text)


HABITS: Final = (
    Habit("short", "Answer in at most fifteen words."),
    Habit("no_lists", "Never write a list: no numbered lines, no bullets, no line breaks."),
    Habit("sure", "End every answer with (sure) or (unsure), whatever it is about."),
)
_ASKS: Final = (
    "Name three things that are good about {thing}.",
    "How do I take care of {thing}?",
    "What should I know before I buy {thing}?",
    "Why do people like {thing}?",
    "Give me two reasons against {thing}.",
    "Explain {thing} to a child.",
)
_THINGS: Final = """
a bicycle, a piano, a cat, a tent, a garden, a camera, a lawn mower, a tablet, a sofa, a violin, a canoe, a telescope, a
fish tank, a wood stove, a clock, a sewing machine, a kettle, a pair of skis, a carpet, a chess set, a drone, an oven, a
hammock, a printer, a raincoat, a microscope, a drum kit, a backpack, a desk lamp, a fountain pen, a caravan, a
treadmill, a parrot, a sailing boat, a greenhouse, a globe
"""


def questions(seed: int, count: int, *, is_exam: bool) -> list[str]:
    """So many questions. Those of an exam are about other things."""
    things = " ".join(_THINGS.split()).split(", ")
    random.Random("habits").shuffle(things)
    cut = len(things) // 3
    every = list(product(_ASKS, things[:cut] if is_exam else things[cut:]))
    chosen = random.Random(f"{seed} {is_exam}").sample(every, min(count, len(every)))
    return [ask.format(thing=thing) for ask, thing in chosen]


def run(settings: Settings, log: RunLog, machine: Machine) -> None:
    """Chats and a night, with exams before and after it, with and without the rules."""
    settings = replace(settings, max_tokens=min(settings.max_tokens, _MOST_TOKENS))
    log.tell("begin", settings=asdict(settings))
    arguments, config = settings.arguments(), policy_config(machine)
    with running(machine, log.name, *arguments, config=config) as program:
        stage = Stage(settings, log, program)
        try:
            _examine(stage, "untrained", is_said=False)
            names = _give_rules(stage)
            _examine(stage, "untrained", is_said=True)
            chats = questions(log.seed, len(HABITS) * settings.chats, is_exam=False)
            stage.ask(_talks(chats), teaches=True)
            stage.sleep()
            _examine(stage, "trained", is_said=True)
            # Only what a person promoted stays when the rules go that it has learned.
            if serving := program.get("/api/policy")["policy_version"]:
                stage.send("POST", "/api/policy/rollback", version=0)
                stage.send("POST", "/api/policy/promote", version=serving)
            for name in names:
                stage.send("DELETE", f"/api/rules/{name}")
            _examine(stage, "trained", is_said=False)
        except OutOfTimeError:
            log.tell("stopped")
        log.tell("end", total_s=log.seconds)


def _give_rules(stage: Stage) -> list[str]:
    added = [
        stage.send("POST", "/api/rules", text=habit.says, when="always", check=habit.check)
        for habit in HABITS
    ]
    return [str(one["name"]) for one in added]


def _examine(stage: Stage, weights: str, *, is_said: bool) -> None:
    asked = questions(stage.log.seed, len(HABITS) * stage.settings.questions, is_exam=True)
    for question, reply in zip(asked, stage.ask(_talks(asked), teaches=False), strict=True):
        stage.log.tell(
            "answer",
            weights=weights,
            is_said=is_said,
            question=question,
            said=reply.text[:300],
            broken=broken(reply.text),
            version=reply.version,
        )


def broken(text: str) -> list[str]:
    """The habits that an answer breaks."""
    return [one.name for one in HABITS if one.share_kept(text.strip()) < 1.0]


def _talks(asked: Sequence[str]) -> list[list[tuple[str, str]]]:
    return [[("user", question)] for question in asked]
