"""One run: days of chats whose answers a person marks, nights in which the program trains, held-out
days at the end.

Nothing here trains, rewards or judges weights: that is the program's.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import count
from typing import Final

import httpx
from anyio.from_thread import start_blocking_portal

from benchmarks.home import Machine, running, settle, wait_until_judged
from benchmarks.workdays.course import Course
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
_ANSWER_S: Final = 600.0
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


Sink = Callable[[Mapping[str, object]], None]


class Run:
    """One course under one condition with one seed."""

    def __init__(
        self,
        course: Course,
        condition: Condition,
        seed: int,
        settings: Settings,
        machine: Machine,
        write: Sink,
    ) -> None:
        self._course, self._condition, self._seed = course, condition, seed
        self._settings, self._machine, self._write = settings, machine, write
        self._began = time.monotonic()
        self._sessions = count(1)

    @property
    def name(self) -> str:
        """The name of its records and of its home."""
        return f"{self._course.name}-{self._condition}-{self._seed}"

    def go(self) -> None:
        """Do it all. The last record is `end`."""
        settings = self._settings
        days, exams = self._course.days[: settings.days], self._course.held_out
        self._tell("begin", settings=asdict(settings))
        # Weights are trained at night and at no other time, so no window opens by itself.
        arguments = ["--mode", "auto" if self._condition is Condition.FULL else "skills_only"]
        if self._condition is Condition.FULL:
            arguments += ["--set", f"policy.device={settings.device}"]
        for one in settings.sets:
            arguments += ["--set", one]
        with (
            self._scripted() as url,
            running(self._machine, self.name, *arguments, config=self._config(url)) as program,
        ):
            # A baseline learns nothing from its days, so it has none.
            for number, day in enumerate(
                days if self._condition is not Condition.BASELINE else (), 1
            ):
                self._work(program, number, day)
                if self._condition is Condition.FULL and (
                    number % settings.night_every == 0 or number == len(days)
                ):
                    self._sleep(program, number)
            self._examine(program, exams)

    @contextmanager
    def _scripted(self) -> Iterator[str]:
        days = (*self._course.days, *self._course.held_out)
        items = [item for day in days for item in day.items]
        before = {item.round.question: day.begins_with for day in days for item in day.items}
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(serving(ScriptedModel(items, before))) as url,
        ):
            yield url

    def _config(self, url: str) -> str:
        provider = (
            f'[[providers]]\nname = "scripted"\nkind = "openai"\nbase_url = "{url}"\nwires ='
            f' ["chat"]\nmodels = ["{MODEL}"]\n'
        )
        parts = ['[[providers]]\nname = "embedded"\nkind = "embedded"\n', provider]
        if self._condition is Condition.BASELINE:
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
        if self._condition is Condition.FULL:
            parts += [
                "[policy]\ntrain_share = 0.0\n",
                "[schedule]\nsleep = []\nidle_minutes = 1440.0\n",
            ]
        return "\n".join(parts)

    def _work(self, program: Program, number: int, day: Workday) -> None:
        """A day. The person says what is wrong with a file as long as no skill for a rule that it
        breaks stands in the prompt.
        """
        answered = self._ask(program, day, temperature=1.0)
        with httpx.Client(timeout=_ANSWER_S) as http:
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
        self._tell("day", day=number, skills=skills, **_summary(answered))

    def _sleep(self, program: Program, number: int) -> None:
        done = program.command("policy", "train", "--json")
        self._tell(
            "train",
            day=number,
            status=done.returncode,
            said=_json(done.stdout),
            errors=done.stderr[-2000:],
        )
        is_over = done.returncode != 0 or wait_until_judged(
            program, self._began + 60 * self._settings.minutes, self._tell
        )
        self._tell("night", day=number, is_over=is_over)

    def _examine(self, program: Program, days: Sequence[Workday]) -> None:
        began = time.monotonic()
        for version in program.get("/api/policy?limit=100")["versions"]:
            self._tell("version", **version)
        answered = [one for day in days for one in self._ask(program, day, temperature=0.0)]
        for one in answered:
            question = one.item.round.question
            self._tell(
                "answer",
                question=question,
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
        self._tell(
            "end",
            seconds=time.monotonic() - began,
            total_s=time.monotonic() - self._began,
            by_rule=by_rule,
            **_summary(answered),
        )

    def _ask(self, program: Program, day: Workday, *, temperature: float) -> list[Answered]:
        with (
            httpx.Client(timeout=_ANSWER_S) as http,
            ThreadPoolExecutor(self._settings.at_once) as pool,
        ):
            return list(
                pool.map(
                    lambda item: self._ask_one(http, program, day, item, temperature), day.items
                )
            )

    def _ask_one(
        self, http: httpx.Client, program: Program, day: Workday, item: Item, temperature: float
    ) -> Answered:
        talk = [("system", SYSTEM), *EXAMPLES, ("user", shown(day, item))]
        body = {
            "model": f"embedded/{MODEL_ID}",
            "messages": [{"role": role, "content": text} for role, text in talk],
            "max_tokens": self._settings.max_tokens,
            "temperature": temperature,
        }
        headers = program.auth | {
            "X-Session-Id": f"{self.name}-{next(self._sessions)}",
            "X-Session-Done": "true",
        }
        response = http.post(f"{program.url}/v1/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        text = str(response.json()["choices"][0]["message"]["content"] or "")
        words, files = files_in(text)
        turn, version, skills = (
            response.headers.get(f"x-metaclaw-{name}", "") for name in ("turn", "policy", "skills")
        )
        return Answered(
            item, text, turn, version, skills, score(item, Answer(words, files), day.begins_with)
        )

    def _tell(self, kind: str, **facts: object) -> None:
        head = {
            "kind": kind,
            "course": self._course.name,
            "condition": self._condition,
            "seed": self._seed,
        }
        self._write({**head, "at_s": round(time.monotonic() - self._began, 2), **facts})


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


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
