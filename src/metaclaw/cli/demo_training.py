"""Act two of `metaclaw demo`: weights are trained while nobody asks anything, proven, swapped in, and taken back."""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaclaw.cli.client import at, rows
from metaclaw.cli.demo import Stage, running, show_reply
from metaclaw.cli.demo_home import DemoHome, Reply
from metaclaw.cli.output import bar, duration, plain, show_progress

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_RULE = "Answer in one short sentence of three to eight words."
_PATTERN = r"^\W*(?:[\w'-]+\W+){2,7}[\w'-]+\W*$"
"""A sentence of three to eight words; the gate does not believe a check that accepts a single word."""
_CONFIG = """
[policy]
mode = "auto"
lora_rank = 8
learning_rate = 0.001
batch_turns = 24
prompts_per_step = 4
group_size = 8
steps = 16
max_new_tokens = 24
held_out_share = 0.4
{base}

[schedule]
sleep = []
idle_minutes = 0.1
min_window_minutes = 0.01
cooldown_minutes = 0.0
max_load = 0
max_temperature_c = 0
"""
"""Small enough for two processor cores: few steps, short answers. The gate is as it always is."""
_THINGS = (
    *("a baker", "a bee", "a bicycle", "a book", "a bridge", "a candle", "a castle", "a cat", "a clock", "a cloud"),
    *("a desert", "a doctor", "a door", "a farmer", "a ferry", "a garden", "a hammer", "a harbour", "a horse", "a kettle"),
    *("a key", "a ladder", "a lamp", "a library", "a map", "a mirror", "a mountain", "a nurse", "a pencil", "a piano"),
    *("a pilot", "a river", "a school", "a ship", "a shoe", "a spoon", "a teacher", "a telescope", "a train", "a tree"),
)
_NEW_THINGS = (
    *("a boat", "a chair", "a dentist", "a dog", "a forest", "a guitar"),
    *("a hotel", "a lake", "a market", "a needle", "a pump", "a wheel"),
)
_LOOK_S = 1.0
_TOKENS = 24


@dataclass
class _Run:
    """What was seen of the training run."""

    began: float
    has_opened: bool = False
    steps_seen: int = 0
    has_come_back: bool = False


def act_two(stage: Stage) -> None:
    """Play it."""
    base = f'base_model = "{stage.base_model}"' if stage.base_model else ""
    pattern = stage.check or _PATTERN
    stage.say("\n== Act two: it learns while you are away")
    model = (
        f"the model in {stage.base_model} (not the embedded one)"
        if stage.base_model
        else "the embedded model (135 million parameters)"
    )
    stage.say(f"Starting the program with training on: {model}, windows after six seconds of silence …")
    with running(stage, "two", _CONFIG.format(base=base), stage.sets) as proxy:
        proxy.post("/api/rules", {"text": _RULE, "check": f"pattern: {pattern}"})
        stage.say(f"A rule, with a check that scores answers: {_RULE}")
        before = _examine(proxy, pattern)
        stage.say(f"New questions, untrained: {_share(before)} of the answers follow it.")
        stage.say(f"You work: {len(_THINGS)} questions.")
        _work(proxy)
        stage.say("You are away. Waiting for a window; the machine should have nothing else to do.")
        version = _await_version(stage, proxy)
        if version is not None and at(version, "state") == "serving":
            _after(stage, proxy, pattern, before)


def _question(thing: str) -> str:
    return f"What is {thing} or what does it do?"


def _work(proxy: DemoHome) -> None:
    for number, thing in enumerate(_THINGS):
        show_progress(f"asking {bar(number / len(_THINGS))}")
        proxy.ask(_question(thing), temperature=1.0, max_tokens=_TOKENS, seed=number)
    show_progress("")


def _examine(proxy: DemoHome, pattern: str) -> list[tuple[Reply, bool]]:
    """Ask questions that are never trained on, and look whether the answers follow the rule."""
    found = []
    for number, thing in enumerate(_NEW_THINGS):
        show_progress(f"asking {bar(number / len(_NEW_THINGS))}")
        reply = proxy.ask(_question(thing), temperature=0.0, max_tokens=_TOKENS)
        found.append((reply, re.search(pattern, reply.text) is not None))
    show_progress("")
    return found


def _share(answers: Sequence[tuple[Reply, bool]]) -> str:
    return f"{sum(follows for _, follows in answers)} of {len(answers)}"


def _await_version(stage: Stage, proxy: DemoHome) -> "Json":
    """Follow the run until the gate has ruled or the time is over; the version, or None."""
    run = _Run(time.monotonic())
    limit_s = 60 * stage.minutes
    while time.monotonic() - run.began < limit_s:
        policy = proxy.api.facts("/api/policy")
        judged = [one for one in rows(at(policy, "versions")) if at(one, "state") != "candidate"]
        if judged:
            show_progress("")
            return _told(stage, judged[0], run)
        _follow(stage, proxy, at(policy, "training"), run)
        time.sleep(_LOOK_S)
    show_progress("")
    stage.claim(
        f"weights were trained and proven within {stage.minutes:g} minutes (it stood at step {run.steps_seen}; give it more with"
        " --minutes, or a machine with nothing else to do)",
        False,
    )
    return None


def _follow(stage: Stage, proxy: DemoHome, training: "Json", run: _Run) -> None:
    state, step, steps = at(training, "state"), at(training, "step"), at(training, "steps")
    share = f" {bar(step / steps)} step {step} of {steps}" if isinstance(step, int) and isinstance(steps, int) and steps else ""
    show_progress(f"{duration(time.monotonic() - run.began)}: {plain(state)}{share}")
    if state == "training" and not run.has_opened:
        run.has_opened = True
        window = proxy.api.facts("/api/windows")
        stage.claim(f"a window opened after {duration(time.monotonic() - run.began)}: {plain(at(window, 'reason'))}", True)
    if isinstance(step, int) and step > run.steps_seen:
        run.steps_seen = step
    if run.steps_seen >= 1 and state == "training" and not run.has_come_back:
        run.has_come_back = True
        _come_back(stage, proxy)


def _come_back(stage: Stage, proxy: DemoHome) -> None:
    """Ask in the middle of training: the answer comes and the trainer stands still."""
    show_progress("")
    stage.say("You are back in the middle of it and ask something:")
    paused: list[Json] = []

    def look(words: str) -> None:
        if not paused:
            paused.append(at(proxy.api.facts("/api/policy"), "training", "paused_reason"))

    reply = proxy.ask("What is a bell?", temperature=0.0, max_tokens=_TOKENS, on_words=look)
    show_reply(reply)
    reason = plain(paused[0]) if paused and paused[0] else ""
    stage.claim(f"training stood still while you were answered (first word after {reply.first_s:.1f} s): {reason}", bool(reason))


def _told(stage: Stage, version: "Json", run: _Run) -> "Json":
    number, state = at(version, "version"), str(at(version, "state"))
    took = duration(time.monotonic() - run.began)
    for reason in rows(at(version, "report", "reasons")):
        stage.say(f"  the gate: {plain(reason)}")
    stage.claim(
        f"version {number} was trained in {at(version, 'steps')} steps and passed the gate, after {took}", state == "serving"
    )
    if state != "serving":
        stage.say(f"Version {number} is {plain(state)}: {plain(at(version, 'note'))}. The untrained model goes on serving.")
    return version


def _after(stage: Stage, proxy: DemoHome, pattern: str, before: Sequence[tuple[Reply, bool]]) -> None:
    after = _examine(proxy, pattern)
    stage.say(f"The same new questions, trained: {_share(after)} of the answers follow the rule.")
    for (old, _), (new, _) in list(zip(before, after, strict=True))[:3]:
        stage.say(f"  before: {plain(' '.join(old.text.split()))[:70]}\n  after:  {plain(' '.join(new.text.split()))[:70]}")
    better = sum(follows for _, follows in after) > sum(follows for _, follows in before)
    stage.claim(f"more answers follow the rule than before: {_share(before)} → {_share(after)}", better)
    _swap(stage, proxy)
    stage.say("Take the weights back (metaclaw policy rollback):")
    proxy.post("/api/policy/rollback")
    reply = proxy.ask("What is a bell?", temperature=0.0, max_tokens=_TOKENS)
    stage.claim("the untrained model answers again", reply.policy == 0)


def _swap(stage: Stage, proxy: DemoHome) -> None:
    """Change the weights under a running answer: back to the untrained model, and to the trained version again."""
    number = at(proxy.api.facts("/api/policy"), "policy_version")
    stage.say("An answer streams; meanwhile the weights are taken back and promoted again:")
    proxy.post("/api/policy/rollback")
    first, swapped = threading.Event(), threading.Event()

    def swap() -> None:
        if first.wait(60):
            proxy.post("/api/policy/promote", {"version": number})
            swapped.set()

    def on_words(words: str) -> None:
        if not first.is_set():
            first.set()
            swapped.wait(60)

    thread = threading.Thread(target=swap)
    thread.start()
    long = proxy.ask("Tell me about the sea.", max_tokens=80, on_words=on_words)
    first.set()
    thread.join()
    after = proxy.ask("What is a bell?", temperature=0.0, max_tokens=_TOKENS)
    show_reply(long)
    stage.claim(
        f"the weights were swapped while an answer streamed: that is whole, by version {long.policy}, the next by {after.policy}",
        swapped.is_set() and long.policy == 0 and after.policy == number and bool(long.text),
    )
