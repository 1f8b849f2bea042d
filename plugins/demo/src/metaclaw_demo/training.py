"""Act two of `metaclaw demo`: train weights while no request comes, test them in the gate, swap
them in, and roll back.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.status import LoopState
from metaclaw.plugin import Facts, bar, duration, short, show_progress
from metaclaw_demo.stage import DemoHome, DemoReply, Stage, running, show_reply

_TRAINING = (LoopState.TRAINING, LoopState.CHOOSING)
_NAME = "document-metadata"
_SAYS = "Write about, by and rev in braces, and nothing else."
SKILL = r"""---
name: document-metadata
description: When metadata for a document is wanted.
examples:
  - Write the metadata for a document about copper by Laura, revision 4.
  - Karl wrote a document about lemon. It is revision 7. What is its metadata?
check: |
  program: |
    import difflib, json, re, sys
    given = json.load(sys.stdin)
    task, said = given["task"], given["text"].strip()
    topic = re.search(r"document about (\w+)", task)
    person = re.search(r"\bby (\w+)|^(\w+) wrote|to (\w+)'s", task)
    revision = re.search(r"revision (\d+)", task)
    if not (topic and person and revision): sys.exit(2)  # another kind of task: this check has nothing to say
    parts = [topic[1], next(filter(None, person.groups())), revision[1]]
    wanted = "{about: %s, by: %s, rev: %s}" % tuple(parts)
    found = sum(part in said for part in parts) / 3
    form = difflib.SequenceMatcher(None, said[:200], wanted, False).ratio()
    near = (2 * found + form) / 3 * min(1, len(wanted) / max(1, len(said)))
    print(json.dumps({"score": 1 if said == wanted else round(0.48 * near, 3)}))
---

Write about, by and rev in braces, and nothing else. Examples:
Write the metadata for a document about copper by Laura, revision 4. -> {about: copper, by: Laura, rev: 4}
Karl wrote a document about lemon. It is revision 7. What is its metadata? -> {about: lemon, by: Karl, rev: 7}
"""
"""A form that cannot be guessed, with a check that computes the right answer and scores similar
ones. Measured: the embedded model never gives it untrained, and learns it."""
_CONFIG = """
[policy]
mode = "auto"
learning_rate = 0.0006
batch_turns = 16
prompts_per_step = 4
group_size = 8
steps = 18
max_new_tokens = 24
held_out_share = 0.3
{base}

[schedule]
sleep = []
idle_minutes = 0.1
min_window_minutes = 0.01
cooldown_minutes = 0.0
max_load = 0
max_temperature_c = 0
"""
"""Few turns, few steps and short answers, for two processor cores. The gate has its default
settings.
"""
_FORMS = (
    "Write the metadata for a document about {topic} by {person}, revision {revision}.",
    "{person} wrote a document about {topic}. It is revision {revision}. What is its metadata?",
    "I need metadata: revision {revision} of a document about {topic}, written by {person}.",
    "What metadata belongs to {person}'s document about {topic}, revision {revision}?",
)
_TOPICS = """\
budget travel market water energy music health safety school winter summer harvest
forest river bridge station library museum castle ocean planet paper iron gold stone
glass wood sugar bread apple rice fish research training customer product design
security network storage memory window table office factory hospital traffic weather
"""
_PEOPLE = "Maria Peter Anna John Sarah David Alice Henry Victor Simon Martin Jane"
_NEW_TOPICS = "climate history science film radio email letter tax stamp wheel coal storm"
_NEW_PEOPLE = "Thomas Mary Frank Kim Robert"
_LOOK_S = 1.0
_TOKENS = 24
_WIDTH = 70


@dataclass
class _Run:
    """The observed progress of the training run."""

    began: float
    has_opened: bool = False
    steps_seen: int = 0
    has_come_back: bool = False


def act_two(stage: Stage) -> None:
    base = f'base_model = "{stage.base_model}"' if stage.base_model else ""
    stage.say("\n== Act two: it learns while you are away")
    model = (
        f"the model in {stage.base_model} (not the embedded one)"
        if stage.base_model
        else "the embedded model (135 million parameters)"
    )
    stage.say(
        f"Starting the program with training on: {model}, windows after six seconds of silence …"
    )
    skills = {} if stage.check else {_NAME: SKILL}
    with running(stage, "two", _CONFIG.format(base=base), stage.sets, skills) as proxy:
        stage.say(f"It serves at {proxy.url}. Watch it on its page: {proxy.page}")
        if stage.check:
            proxy.post("/api/rules", {"text": _SAYS, "check": f"pattern: {stage.check}"})
        stage.say(
            f"A skill with a check that scores answers: for the metadata of documents, “{_SAYS}”"
        )
        stage.say(
            f"You work: {len(work_questions())} questions, such as “{work_questions()[0].text}”"
        )
        worked = _ask_all(stage, proxy, work_questions(), stage.check, temperature=1.0)
        stage.say(f"Untrained, {_share(worked)} answers are right.")
        stage.say("You are away. Waiting for a window; the machine should have nothing else to do.")
        version = _await_version(stage, proxy)
        if version is not None and version["state"] == "serving":
            _compare_weights(stage, proxy)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its only right answer."""

    text: str
    answer: str


def work_questions() -> list[Question]:
    """Questions asked before training; their turns train the weights and test them."""
    return _questions(_TOPICS, _PEOPLE)


def new_questions() -> list[Question]:
    """Questions about other topics and people, asked only after training."""
    return _questions(_NEW_TOPICS, _NEW_PEOPLE)


def _questions(topics: str, people: str) -> list[Question]:
    made, names = [], people.split()
    for number, topic in enumerate(topics.split()):
        given = {
            "topic": topic,
            "person": names[number % len(names)],
            "revision": 1 + number * 5 % 9,
        }
        form = _FORMS[(number + number // len(_FORMS)) % len(_FORMS)]
        made.append(
            Question(
                form.format(**given),
                "{{about: {topic}, by: {person}, rev: {revision}}}".format(**given),
            )
        )
    return made


def _ask_all(
    stage: Stage,
    proxy: DemoHome,
    questions: Sequence[Question],
    check: str | None,
    *,
    temperature: float = 0.0,
) -> list[tuple[DemoReply, bool]]:
    """Ask each question in a new session; return the answers, and whether each is exactly right (or
    satisfies `check`).
    """
    found = []
    for number, question in enumerate(questions):
        stage.progress(f"asking {bar(number / len(questions))} {number} of {len(questions)}")
        reply = proxy.ask(question.text, temperature=temperature, max_tokens=_TOKENS, seed=number)
        is_right = (
            reply.text == question.answer
            if check is None
            else re.search(check, reply.text) is not None
        )
        found.append((reply, is_right))
    show_progress("")
    return found


def _share(answers: Sequence[tuple[DemoReply, bool]]) -> str:
    return f"{sum(is_right for _, is_right in answers)} of {len(answers)}"


def _await_version(stage: Stage, proxy: DemoHome) -> Facts | None:
    """Follow the run until the gate has decided or the time is over; return the version, or
    None.
    """
    run = _Run(time.monotonic())
    limit_s = 60 * stage.minutes
    while time.monotonic() - run.began < limit_s:
        policy = proxy.get("/api/policy")
        judged = [one for one in policy["versions"] if one["state"] != "candidate"]
        if judged:
            show_progress("")
            return _report_version(stage, judged[0], run)
        _follow(stage, proxy, policy["training"], run)
        time.sleep(_LOOK_S)
    show_progress("")
    stage.claim(
        f"weights were trained and passed the gate within {stage.minutes:g} minutes (it reached"
        f" step {run.steps_seen}; allow more with --minutes, or use an idle machine)",
        False,
    )
    return None


def _follow(stage: Stage, proxy: DemoHome, training: Facts, run: _Run) -> None:
    state, elapsed = training["state"], duration(time.monotonic() - run.began)
    is_looking = state not in _TRAINING or not run.has_opened
    window = proxy.get("/api/windows") if is_looking else None
    stage.progress(f"{elapsed}: {state_in_words(training, window)}")
    if state != LoopState.TRAINING:
        return
    if not run.has_opened and window is not None:
        run.has_opened = True
        stage.claim(f"a window opened after {elapsed}: {window['reason']}", True)
    run.steps_seen = max(run.steps_seen, training["step"] or 0)
    if run.steps_seen and not run.has_come_back:
        run.has_come_back = True
        _ask_while_training(stage, proxy)


def state_in_words(training: Facts, window: Facts | None) -> str:
    """The state of training: its step, or why it waits."""
    words, step, steps = training["state"], training.get("step"), training.get("steps")
    if step is not None and steps:
        words += f" {bar(step / steps)} step {step} of {steps}"
    if training.get("paused_reason"):
        return f"{words}; paused: {training['paused_reason']}"
    if training["state"] in _TRAINING or window is None:
        return str(words)
    why = "a window is open" if window["open"] else f"waiting for a window: {window['reason']}"
    busy = ", ".join(window["objections"])
    return f"{words}; {why}{f' (the machine is busy: {busy})' if busy else ''}"


def _ask_while_training(stage: Stage, proxy: DemoHome) -> None:
    """Ask during training: the answer comes, and training pauses."""
    show_progress("")
    stage.say("You are back in the middle of it and ask something:")
    paused: list[str | None] = []

    def look(words: str) -> None:
        if not paused:
            paused.append(proxy.get("/api/policy")["training"]["paused_reason"])

    reply = proxy.ask("What is a bell?", temperature=0.0, max_tokens=_TOKENS, on_words=look)
    show_reply(reply)
    reason = (paused and paused[0]) or ""
    stage.claim(
        f"training paused while you were answered (first word after {reply.first_s:.1f} s):"
        f" {reason}",
        bool(reason),
    )


def _report_version(stage: Stage, version: Facts, run: _Run) -> Facts:
    number, state = version["version"], version["state"]
    took = duration(time.monotonic() - run.began)
    for reason in version["report"]["reasons"] if version["report"] else ():
        stage.say(f"  the gate: {reason}")
    stage.claim(
        f"version {number} was trained in {version['steps']} steps and passed the gate, after"
        f" {took}",
        state == "serving",
    )
    if state != "serving":
        stage.say(
            f"Version {number} is {state}: {version['note']}. The untrained model goes on serving."
        )
    return version


def _compare_weights(stage: Stage, proxy: DemoHome) -> None:
    questions = new_questions()
    trained = _ask_all(stage, proxy, questions, stage.check)
    stage.say(
        f"New questions, about other things and people, by the trained weights: {_share(trained)}"
        " right."
    )
    stage.say("Take the weights back (metaclaw policy rollback), and ask the same questions:")
    proxy.post("/api/policy/rollback")
    untrained = _ask_all(stage, proxy, questions, stage.check)
    for (old, _), (new, _), question in list(zip(untrained, trained, questions, strict=True))[:3]:
        stage.say(f"  {question.text}")
        stage.say(
            f"    untrained: {short(old.text, _WIDTH)}\n    trained:   {short(new.text, _WIDTH)}"
        )
    better = sum(is_right for _, is_right in trained) > sum(is_right for _, is_right in untrained)
    stage.claim(
        f"more answers are right than untrained: {_share(untrained)} → {_share(trained)}", better
    )
    stage.claim(
        "after the rollback the untrained model answers again",
        all(reply.policy == 0 for reply, _ in untrained),
    )
