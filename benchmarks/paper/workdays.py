"""The paper's table: days of office tasks, one night of training, and held-out days.

An *arm* is one program in a home of its own, by who writes its skills: a *scripted* evolver, the
model *itself*, or *nobody*. Its exams on the held-out days are the table's rows:

| row | arm | weights | skills |
|---|---|---|---|
| baseline | nobody | untrained | none |
| skills only | scripted, itself | untrained | its own |
| weights only | nobody | trained without skills | none |
| full | scripted, itself | trained with them | its own |

Exams before the night cost the night nothing: their sessions stay open, so that nothing is learned
from them. The arm without skills goes on for what each loop does for the other: it is asked with
the skills of the other arms of its seed; then it learns skills from what its *trained* weights do
wrong, and both weights are asked with these."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Final

from anyio.from_thread import start_blocking_portal

from benchmarks.home import TO_READ, Machine, running
from benchmarks.paper.course import Course, make_course
from benchmarks.paper.scripted import ScriptedModel, skill_name, told
from benchmarks.paper.stage import OutOfTimeError, Settings, Stage, policy_config
from benchmarks.program_runs import RunLog
from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.simulated.model import MODEL
from metaclaw_bench.simulated.server import serving
from metaclaw_bench.workdays import Answer, Item, Marks, Workday, score

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
"""An exchange before each question that shows both forms of an answer; small models do not find
them otherwise.
"""
_MOST: Final = 3
"""Corrections for each rule and day."""
_DAILY_TOKENS: Final = 1_000_000_000
"""The person's own learning budget: the scripted judge costs nothing, and the default would end
training after a few steps.
"""


class Writer(StrEnum):
    """Who writes an arm's skills."""

    SCRIPTED = "scripted"
    ITSELF = "itself"
    NOBODY = "nobody"


WRITERS: Final = (Writer.SCRIPTED, Writer.ITSELF)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The skills that arms wrote, for the arm of the same seed that has none."""

    _written: dict[str, "Future[dict[str, str]]"] = field(default_factory=dict)

    def give(self, log: RunLog, writer: Writer, skills: dict[str, str]) -> None:
        """An arm's days are over. What is given first counts."""
        with suppress(InvalidStateError):
            self._of(log, writer).set_result(skills)

    def take(self, stage: Stage, writer: Writer) -> dict[str, str]:
        """Wait for them; none where the arm wrote none in this one's time."""
        try:
            return self._of(stage.log, writer).result(max(0.0, stage.seconds_left))
        except TimeoutError:
            return {}

    def _of(self, log: RunLog, writer: Writer) -> "Future[dict[str, str]]":
        return self._written.setdefault(f"{log.course} {writer} {log.seed}", Future())


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
class Arm:
    """A program, its course, and the person."""

    course: Course
    stage: Stage

    def work(self, days: Sequence[Workday]) -> None:
        """Days. The person says what is wrong with a file as long as no skill says it in the
        prompt, a few times for each rule and day.
        """
        for day in days:
            answered = self._ask(day, teaches=True)
            self.stage.correct(
                (one.turn, one.item.round.feedback.incorrect) for one in corrected(answered)
            )
            self.stage.settle()
            self._tell(f"day {day.number}", day, answered)
            self.stage.log.tell("skills", day=day.number, skills=self.stage.skills())

    def examine(self, weights: str, skills: str) -> None:
        """Held-out days, with these weights and skills in force."""
        began = self.stage.log.seconds
        for day in self.course.held_out:
            answered = self._ask(day, teaches=False)
            self._tell("exam", day, answered, weights=weights, skills=skills)
        self.stage.log.tell(
            "exam", weights=weights, skills=skills, seconds=self.stage.log.seconds - began
        )

    def _ask(self, day: Workday, *, teaches: bool) -> list[Answered]:
        talks = [[("system", SYSTEM), *EXAMPLES, ("user", shown(day, item))] for item in day.items]
        answered = []
        for item, reply in zip(day.items, self.stage.ask(talks, teaches=teaches), strict=True):
            words, files = files_in(reply.text)
            marks = score(item, Answer(words, files), day.begins_with)
            answered.append(
                Answered(item, reply.text, reply.turn, reply.version, reply.skills, marks)
            )
        return answered

    def _tell(self, when: str, day: Workday, answered: Sequence[Answered], **facts: str) -> None:
        for one in answered:
            self.stage.log.tell(
                "answer",
                when=when,
                **facts,
                day=day.number,
                question=one.item.round.id,
                is_file=bool(one.item.parts),
                rules=one.item.rules,
                score=one.marks.score,
                is_passed=one.marks.passed,
                said=one.text[:120],
                version=one.version,
                is_placed=bool(one.skills),
                placed=one.skills,
            )


def run(
    writer: Writer,
    others: Sequence[Writer],
    settings: Settings,
    exchange: Exchange,
    log: RunLog,
    machine: Machine,
) -> None:
    """One arm. The arms of the writers `others` run beside this one."""
    course = make_course(settings.course, log.seed)
    log.tell("begin", settings=asdict(settings), writer=writer)
    config = policy_config(machine)
    try:
        with (
            _scripted(course) as (url, model),
            running(
                machine, log.name, *settings.arguments(), config=_config(writer, url) + config
            ) as program,
        ):
            # Without an evolver, lessons wait for ever.
            kinds = ("turns", "listening") if writer is Writer.NOBODY else TO_READ
            arm = Arm(course, Stage(settings, log, program, kinds))
            try:
                _live(writer, arm, exchange)
                if writer is Writer.NOBODY:
                    _use_others(others, arm, exchange)
                    _learn_again(others, arm, model)
            except OutOfTimeError:
                log.tell("stopped")
            log.tell("end", total_s=log.seconds)
    finally:
        exchange.give(log, writer, {})


def _live(writer: Writer, arm: Arm, exchange: Exchange) -> None:
    """Days and a night, with exams before and after it."""
    stage = arm.stage
    if writer is Writer.NOBODY:
        arm.examine("untrained", "none")
    arm.work(arm.course.days[: stage.settings.days])
    skills = stage.skills()
    exchange.give(stage.log, writer, skills)
    if writer is not Writer.NOBODY:
        arm.examine("untrained", writer)
    stage.sleep()
    if writer is not Writer.NOBODY:
        arm.examine("trained", writer)
        stage.put({})
    arm.examine("trained", "none")


def _use_others(others: Sequence[Writer], arm: Arm, exchange: Exchange) -> None:
    """Exams of the weights that were trained without skills, with those of the other arms."""
    for other in others:
        if skills := exchange.take(arm.stage, other):
            arm.stage.put(skills)
            arm.examine("trained", other)
    arm.stage.put({})


def _learn_again(writers: Sequence[Writer], arm: Arm, model: ScriptedModel) -> None:
    """Skills from what the trained weights do wrong, and exams with these, also of the untrained
    weights. The model itself comes first, so that no earlier skills can help it.
    """
    stage, program = replace(arm.stage, kinds=TO_READ), arm.stage.program
    arm = replace(arm, stage=stage)
    days = arm.course.days[stage.settings.days :][: stage.settings.days_after]
    serving = program.get("/api/policy")["policy_version"]
    for writer in sorted(writers, key=WRITERS.index, reverse=True):
        provider = ["--set", f"evolver.provider={_PROVIDERS[writer]}"]
        program.stop()
        program.start(*stage.settings.arguments(), "--set", "skills.learn=true", *provider)
        program.wait_for("/api/status", lambda status: status["engine"]["state"] == "ready")
        model.forget()
        arm.work(days)
        skills = f"{writer}, of trained"
        arm.examine("trained", skills)
        if serving:
            stage.send("POST", "/api/policy/rollback", version=0)
            arm.examine("untrained", skills)
            stage.send("POST", "/api/policy/promote", version=serving)
        stage.put({})


@contextmanager
def _scripted(course: Course) -> Iterator[tuple[str, ScriptedModel]]:
    days = (*course.days, *course.held_out)
    items = [item for day in days for item in day.items]
    before = {item.round.question: day.begins_with for day in days for item in day.items}
    model = ScriptedModel(items, before)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(model)) as url,
    ):
        yield url, model


_PROVIDERS: Final = {
    Writer.SCRIPTED: "scripted",
    Writer.ITSELF: "embedded",
    Writer.NOBODY: "scripted",
}
"""What writes an arm's skills."""


def _config(writer: Writer, url: str) -> str:
    asked = f'provider = "scripted"\nmodel = "{MODEL}"\n'
    # The scripted evolver's skills are good by construction: what is measured comes after them.
    gate = "lint" if writer is Writer.ITSELF else "off"
    learns = "false" if writer is Writer.NOBODY else "true"
    return (
        '[[providers]]\nname = "embedded"\nkind = "embedded"\n'
        f'[[providers]]\nname = "scripted"\nkind = "openai"\nbase_url = "{url}"\n'
        f'wires = ["chat"]\nmodels = ["{MODEL}"]\n'
        f'[skills]\ngate = "{gate}"\nlearn = {learns}\n[judge]\n{asked}[listen]\n{asked}'
        f'[evolver]\nprovider = "{_PROVIDERS[writer]}"\nmodel = "{MODEL}"\n'
        f"[learning]\ndaily_tokens = {_DAILY_TOKENS}\n"
    )


def corrected(answered: Sequence[Answered]) -> list[Answered]:
    """The misses of which the person says what was wrong: those that break a rule which no skill in
    the prompt says, at most a few for each rule.
    """
    found: list[Answered] = []
    times: Counter[str] = Counter()
    for one in answered:
        placed = set(filter(None, one.skills.split(",")))
        missed = [rule.id for rule, _ in told(one.item) if skill_name(rule) not in placed]
        # Skills of other names are not the scripted evolver's: the person takes them at their word.
        is_said = not missed or any(not name.startswith("house-") for name in placed)
        if not one.marks.passed and not is_said and min(times[rule] for rule in missed) < _MOST:
            times.update(missed)
            found.append(one)
    return found


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
