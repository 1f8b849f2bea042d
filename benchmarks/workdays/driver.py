"""One run: days of chats whose answers a person marks, nights in which the program trains, held-out
days at the end.

Nothing here trains, rewards or judges weights: that is the program's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

import httpx
from anyio.from_thread import start_blocking_portal

from benchmarks.home import Machine, running, settle, wait_until_judged
from benchmarks.program_runs import ANSWER_S, RunLog, chats, train
from benchmarks.workdays.course import Course, make_course
from benchmarks.workdays.scripted import ScriptedModel, skill_name, told
from metaclaw.engine import MODEL_ID
from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.simulated.model import MODEL
from metaclaw_bench.simulated.server import serving
from metaclaw_bench.workdays import Answer, Item, Marks, Workday, score
from tests.support.program import Program

SYSTEM: Final = (
    "You work for an office. Answer with what was asked for, nothing else: letters in a box, or"
    " files. Examples:\nWhich of these are fruits? A. plum B. brick C. pear -> \\bbox{A,C}\nPut"
    " this into notes/today.txt: lamp: new. -> FILE notes/today.txt\nlamp: new"
)
EXAMPLES: Final = (
    (
        "user",
        (
            "Which of these are tools?\n\nA. cloud\nB. hammer\nC. river\nD. saw\n\nAnswer using"
            " \\bbox{X} or \\bbox{X,Y} format."
        ),
    ),
    ("assistant", "\\bbox{B,D}"),
    ("user", "Put this into notes/monday.txt: tea: cold."),
    ("assistant", "FILE notes/monday.txt\ntea: cold"),
)
"""An exchange before each question that shows both forms of an answer; so small a model does not
find them otherwise.
"""
NUMBERS: Final = ("days", "night_every", "max_tokens", "at_once", "minutes")
"""The settings that are numbers."""
_DAILY_TOKENS: Final = 1_000_000_000
"""The person's own learning budget: the scripted judge costs nothing, and the default would end
training after a few steps.
"""


class Condition(StrEnum):
    """What the program may do."""

    BASELINE = "baseline"
    SKILLS = "skills"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of a run. After every `night_every` days weights are trained; `sets` are for
    `metaclaw start --set`.
    """

    days: int = 10
    night_every: int = 10
    max_tokens: int = 80
    at_once: int = 12
    minutes: float = 15.0
    device: str = "auto"
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and its marks."""

    item: Item
    text: str
    turn: str
    version: str
    skills: str
    marks: Marks


@dataclass(frozen=True, slots=True)
class _Run:
    settings: Settings
    log: RunLog
    program: Program

    def work(self, number: int, day: Workday) -> None:
        """A day. The person says what is wrong with a file as long as no skill for a rule that it
        breaks stands in the prompt.
        """
        program = self.program
        answered = self._ask(day, temperature=1.0)
        with httpx.Client(timeout=ANSWER_S) as http:
            for one in filter(is_corrected, answered):
                body = {
                    "turn": one.turn,
                    "outcome": "fail",
                    "comment": one.item.round.feedback.incorrect,
                }
                http.post(
                    f"{program.url}/api/feedback", json=body, headers=program.auth
                ).raise_for_status()
        settle(program, 120.0)
        skills = [skill["name"] for skill in program.get("/api/skills")["skills"]]
        self.log.tell("day", day=number, skills=skills, **_summary(answered))

    def sleep(self, number: int) -> None:
        """A night of training."""
        deadline = self.log.began + 60 * self.settings.minutes
        is_over = not train(self.log, self.program, day=number) or wait_until_judged(
            self.program, deadline, self.log.tell
        )
        self.log.tell("night", day=number, is_over=is_over)

    def examine(self, days: Sequence[Workday]) -> None:
        """Held-out days. The last record is `end`."""
        log, before_s = self.log, self.log.seconds
        for version in self.program.get("/api/policy?limit=100")["versions"]:
            log.tell("version", **version)
        answered = [one for day in days for one in self._ask(day, temperature=0.0)]
        for one in answered:
            log.tell(
                "answer",
                question=one.item.round.question,
                said=one.text,
                score=one.marks.score,
                version=one.version,
                skills=one.skills,
            )
        rules = sorted({rule for one in answered for rule in one.item.rules})
        by_rule = {
            rule: _mean([one.marks.passed for one in answered if rule in one.item.rules])
            for rule in rules
        }
        log.tell(
            "end",
            seconds=log.seconds - before_s,
            total_s=log.seconds,
            by_rule=by_rule,
            **_summary(answered),
        )

    def _ask(self, day: Workday, *, temperature: float) -> list[Answered]:
        replies = chats(
            self.log,
            self.program,
            [[("system", SYSTEM), *EXAMPLES, ("user", shown(day, item))] for item in day.items],
            self.settings.at_once,
            model=f"embedded/{MODEL_ID}",
            max_tokens=self.settings.max_tokens,
            temperature=temperature,
        )
        answered = []
        for item, reply in zip(day.items, replies, strict=True):
            words, files = files_in(reply.text)
            marks = score(item, Answer(words, files), day.begins_with)
            answered.append(
                Answered(item, reply.text, reply.turn, reply.version, reply.skills, marks)
            )
        return answered


def run(condition: Condition, settings: Settings, log: RunLog, machine: Machine) -> None:
    """One course under one condition with one seed."""
    course = make_course(log.course, log.seed)
    # A baseline learns nothing from its days, so it has none.
    days = () if condition is Condition.BASELINE else course.days[: settings.days]
    is_trained = condition is Condition.FULL
    log.tell("begin", settings=asdict(settings))
    # Weights are trained at night and at no other time, so no window opens by itself.
    arguments = ["--mode", "auto" if is_trained else "skills_only"]
    sets = (f"policy.device={settings.device}", *settings.sets) if is_trained else settings.sets
    for one in sets:
        arguments += ["--set", one]
    with (
        _scripted(course) as url,
        running(machine, log.name, *arguments, config=_config(condition, url)) as program,
    ):
        one_run = _Run(settings, log, program)
        for number, day in enumerate(days, 1):
            one_run.work(number, day)
            if is_trained and (number % settings.night_every == 0 or number == len(days)):
                one_run.sleep(number)
        one_run.examine(course.held_out)


@contextmanager
def _scripted(course: Course) -> Iterator[str]:
    days = (*course.days, *course.held_out)
    items = [item for day in days for item in day.items]
    before = {item.round.question: day.begins_with for day in days for item in day.items}
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(ScriptedModel(items, before))) as url,
    ):
        yield url


def _config(condition: Condition, url: str) -> str:
    provider = (
        f'[[providers]]\nname = "scripted"\nkind = "openai"\nbase_url = "{url}"\nwires ='
        f' ["chat"]\nmodels = ["{MODEL}"]\n'
    )
    parts = ['[[providers]]\nname = "embedded"\nkind = "embedded"\n', provider]
    if condition is Condition.BASELINE:
        return "\n".join([*parts, "[skills]\nenabled = false\nlearn = false\n"])
    asked = f'provider = "scripted"\nmodel = "{MODEL}"\n'
    # The scripted evolver's skills are good by construction: what is measured comes after them.
    parts += [
        '[skills]\ngate = "off"\n',
        f"[judge]\n{asked}",
        f"[evolver]\n{asked}",
        f"[listen]\n{asked}",
    ]
    parts += [f"[learning]\ndaily_tokens = {_DAILY_TOKENS}\n"]
    if condition is Condition.FULL:
        parts += [
            "[policy]\ntrain_share = 0.0\n",
            "[schedule]\nsleep = []\nidle_minutes = 1440.0\n",
        ]
    return "\n".join(parts)


def is_corrected(one: Answered) -> bool:
    """Whether the person says what is wrong: a rule is broken that no skill in the prompt says."""
    said = set(one.skills.split(","))
    return not one.marks.passed and any(skill_name(rule) not in said for rule, _ in told(one.item))


def shown(day: Workday, item: Item) -> str:
    """What the model reads: the question, and the files that it names and does not quote, since
    there are no tools.
    """
    question = item.round.question
    named = [
        (path, text)
        for path, text in day.begins_with.items()
        if path in question and text.strip() not in question
    ]
    return "\n\n".join([question, *(f"{path}:\n{text.strip()}" for path, text in named)])


def _summary(answered: Sequence[Answered]) -> dict[str, object]:
    """`exact` is the published accuracy: partial credit for choices, all or nothing for files."""
    files = [one for one in answered if one.item.parts]
    return {
        "asked": len(answered),
        "exact": _mean([one.marks.score for one in answered]),
        "files_passed": _mean([one.marks.passed for one in files]),
        "with_skill": sum(bool(one.skills) for one in answered),
        "versions": sorted({one.version for one in answered}),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
