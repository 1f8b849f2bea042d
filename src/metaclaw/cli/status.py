"""`metaclaw status`: show the state of the running proxy."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import at, connect, rows
from metaclaw.cli.cost import asked_about, budget_lines
from metaclaw.cli.output import (
    counted,
    duration,
    home_and_json,
    plain,
    print_facts,
    print_json,
    print_wrapped,
    short,
)
from metaclaw.domain.status import LoopState, outcome_word, reason_words
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_NOTED_SHOWN = 3
_WORDS_SHOWN = 3
_MOST_TEXT = 80
_GATES = {
    "off": "learned skills serve at once",
    "lint": "learned skills serve once their text is sound",
}
"""What each value of `skills.gate` means."""
_LOST = {
    "judge": "Answers get no verdict from it",
    "evolver": "No skills are written from failures",
}
"""The consequence when a model in this role gives unusable answers."""
_BRIEF = {
    *(
        "mode",
        "recorded",
        "rules",
        "skills",
        "learning",
        "to learn",
        "noted",
        "counted",
        "budget",
        "listening",
    ),
    *("policy", "training", "provider", "embedded"),
}


@click.command()
@click.option(
    "--all", "show_all", is_flag=True, help="Show everything, not only the most important lines."
)
@home_and_json
def status(home: Path, show_all: bool, as_json: bool) -> int:
    """Show the state of the running proxy: first problems and decisions that wait for you, then
    what it serves and learns.
    """
    if as_json and find(home) is None:
        print_json({"running": False, "home": str(home), "start_with": "metaclaw start --detach"})
        return 1
    running, api = connect(home)
    facts = api.facts("/api/status")
    if as_json:
        print_json(
            {"running": True, "pid": running.pid, "url": running.url, "home": str(home), **facts}
        )
        return 0
    if at(facts, "training", "state") not in (None, "off"):
        facts["newest_version"] = next(
            iter(rows(at(api.get("/api/policy?limit=1")[1], "versions"))), None
        )
    state = "serves, degraded," if at(facts, "degraded") else "serves"
    click.echo(
        f"MetaClaw {plain(at(facts, 'version'))} {state} at {running.url} (pid {running.pid})"
    )
    troubles, waiting = list(_troubles(facts)), at(facts, "counts", "candidates", "waiting")
    for trouble in troubles:
        print_wrapped(f"! {plain(trouble)}", bold=True)
    if isinstance(waiting, int) and waiting:
        _call_for_decision(waiting)
    questions = rows(at(facts, "questions"))
    for question in questions:
        print_wrapped(
            f"! rule {plain(at(question, 'name'))}"
            f" ({plain(short(at(question, 'text'), _MOST_TEXT))}):",
            bold=True,
        )
        print_wrapped(f"    {plain(at(question, 'question'))}", indent="    ")
    if not (waiting or troubles or questions):
        click.echo("No problems, and nothing waits for you.")
    print_facts(_words(facts) if show_all else _brief(_words(facts)))
    if not show_all:
        click.echo("More: metaclaw status --all")
    return 0


def _troubles(facts: "Json") -> Iterator[str]:
    """Current problems, one sentence each."""
    if notice := at(facts, "store", "notice"):
        yield f"store: {notice}"
    elif at(facts, "degraded"):
        yield (
            "turns are not being recorded:"
            f" {at(facts, 'store', 'reason') or 'the store cannot be written'}"
        )
    for provider in rows(at(facts, "providers")):
        if trouble := failing(provider):
            yield trouble
    yield from _unread_messages(at(facts, "learning", "listener"))
    for one in rows(at(facts, "learning", "unusable")):
        yield (
            f"{unusable_answers(one)}. {_LOST[str(at(one, 'role'))]}. Another model:"
            f" {other_model(one)}"
        )
    if unread := at(facts, "skills", "trouble"):
        yield str(unread)
    for skipped in rows(at(facts, "skills", "skipped")):
        yield f"skipped {at(skipped, 'path')}: {at(skipped, 'reason')}"
    for broken in rows(at(facts, "skills", "broken_checks")):
        yield f"the check of {at(broken, 'name')} is not run: {at(broken, 'reason')}"
    for one in rows(at(facts, "learning", "set_aside")):
        yield (
            f"passed over: {at(one, 'loop')} {at(one, 'item')}: the learner died of it, or failed,"
            f" {at(one, 'tries')} times"
        )
    for untrained in rows(at(facts, "training", "troubles")):
        yield f"training: {untrained}"
    for signal in rows(at(facts, "window", "signals")):
        if at(signal, "trouble"):
            yield f"signal {at(signal, 'name')} says nothing: {at(signal, 'why')}"
    states = at(facts, "loops")
    for name, state in states.items() if isinstance(states, dict) else ():
        if state not in ("running", "done"):
            yield f"{name}: {state}"


def unusable_answers(one: "Json") -> str:
    """A sentence about a model that gives unusable answers."""
    what = {"judge": "judges", "evolver": "writes skills"}.get(str(at(one, "role")), "is asked")
    answers = at(one, "answers")
    last = "its last answer" if answers == 1 else f"{answers} of the last {answers}"
    return (
        f"the model that {what} ({at(one, 'model')}) gives unusable answers ({last}:"
        f" {at(one, 'reason')})"
    )


def other_model(one: "Json") -> str:
    """The command that sets another model for the role."""
    return f"metaclaw config set {at(one, 'role')}.model MODEL"


def _unread_messages(listener: "Json") -> Iterator[str]:
    """Why messages of people are not read at present."""
    for one in rows(at(listener, "failing")):
        waiting = counted(at(listener, "unread"), "message")
        yield (
            f"your messages are not read since {at(one, 'since')}: {at(one, 'model')} does not"
            f" answer ({at(one, 'reason')}). Unread: {waiting}. It is asked again within a minute"
        )
    for one in rows(at(listener, "not_understood")):
        if in_a_row := at(one, "in_a_row"):
            last = "the last message" if in_a_row == 1 else f"the last {in_a_row} messages"
            yield (
                f"{at(one, 'model')} read {last} and gave no usable answer (most recently at"
                f" {at(one, 'at')}: {at(one, 'reason')}). Such messages teach nothing. Another"
                " model can read them: metaclaw config set listen.model MODEL"
            )


def _brief(pairs: Iterator[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Only the most important lines; a line without a label belongs to the line before it."""
    is_kept = False
    for label, value in pairs:
        is_kept = label in _BRIEF if label else is_kept
        if is_kept:
            yield label, value


def _call_for_decision(waiting: int) -> None:
    """Print how to decide about waiting candidates."""
    wait = "waits" if waiting == 1 else "wait"
    print_wrapped(
        f"! {counted(waiting, 'learned skill')} {wait} for your decision. See and decide:",
        bold=True,
    )
    click.echo("    metaclaw candidates list --standing waiting")
    click.echo("    metaclaw candidates approve ID, or metaclaw candidates reject ID")


def _words(facts: "Json") -> Iterator[tuple[str, object]]:
    uptime = at(facts, "uptime_s")
    since = f", running for {duration(uptime)}" if isinstance(uptime, int | float) else ""
    yield "mode", f"{at(facts, 'mode')}{since}"
    yield "recorded", _recorded(at(facts, "counts"))
    if (rules := _rules(at(facts, "counts"))) is not None:
        yield "rules", rules
    if held := rows(at(facts, "enforcement", "held_rules")):
        is_on = at(facts, "enforcement", "on")
        yield (
            "",
            (
                f"{counted(len(held), 'rule')}"
                f" held{'' if is_on else ', but enforcement is off: metaclaw enforce on'}"
            ),
        )
    yield "skills", _skills(facts)
    if mode := at(facts, "skills", "retrieval", "mode"):
        by = at(facts, "skills", "retrieval", "embeddings")
        searched = f"words and meaning, with {by}" if mode == "hybrid" else "words alone"
        yield "search", f"found by {searched} ({at(facts, 'skills', 'retrieval', 'state')})"
    yield from _learning(at(facts, "learning"), at(facts, "counts"))
    yield from _policy(facts)
    yield "store", _store(at(facts, "store"))
    for provider in rows(at(facts, "providers")):
        yield "provider", _provider(provider)
    if at(facts, "engine") is not None:
        yield "embedded", f"model {at(facts, 'engine', 'state')}"
    states = at(facts, "loops")
    in_order = (
        sum(state in ("running", "done") for state in states.values())
        if isinstance(states, dict)
        else 0
    )
    yield "loops", f"{in_order} of {len(states) if isinstance(states, dict) else 0} in order"


def _rules(counts: "Json") -> str | None:
    rules, facts = at(counts, "rules"), at(counts, "facts")
    if not isinstance(rules, int) or not isinstance(facts, int):
        return None
    return f"{counted(rules, 'rule')}, {counted(facts, 'fact')} of yours; metaclaw rules lists them"


def _noted(noted: "Json") -> Iterator[tuple[str, object]]:
    """The latest lessons with their reasons and texts."""
    label = "noted"
    for one in rows(noted)[:_NOTED_SHOWN]:
        words = " / ".join(
            short(at(lesson, "text"), _MOST_TEXT) for lesson in rows(at(one, "put"))[:_WORDS_SHOWN]
        )
        when = str(at(one, "at") or "")[:16].replace("T", " ")
        yield label, f"{when}  {reason_words(at(one, 'reason'))}{f': {words}' if words else ''}"
        label = ""


def _counted_failures(counted_kinds: "Json") -> Iterator[tuple[str, object]]:
    label = "counted"
    for one in rows(counted_kinds):
        kind = at(one, "words") or at(one, "kind")
        yield (
            label,
            (
                f"{at(one, 'failures')} of the {at(one, 'needed')} failures from which a skill is"
                f" written: {kind}"
            ),
        )
        label = ""


def _skills(facts: "Json") -> str:
    """The number of skills in force, by state unless all are live."""
    states = at(facts, "counts", "skills")
    by_state = (
        {state: count for state, count in states.items() if count}
        if isinstance(states, dict)
        else {}
    )
    numbers = [count for count in by_state.values() if isinstance(count, int)]
    words = counted(
        sum(numbers) if isinstance(states, dict) else at(facts, "skills", "count"), "skill"
    )
    if set(by_state) - {"live"}:
        words += f" ({', '.join(f'{count} {state}' for state, count in sorted(by_state.items()))})"
    return f"{words}, generation {at(facts, 'generation')}"


def _learning(learning: "Json", counts: "Json") -> Iterator[tuple[str, object]]:
    if learning is None:
        return
    if not at(learning, "on"):
        yield "learning", "off (skills.learn)"
        return
    yield "learning", f"on; {_GATES.get(str(at(learning, 'gate')), at(learning, 'gate'))}"
    yield "to learn", _pending(at(learning, "pending"))
    yield from _noted(at(learning, "noted"))
    yield from _counted_failures(at(learning, "counted"))
    yield "verdicts", _verdicts(at(counts, "verdicts"), at(counts, "support"))
    yield "candidates", _counts(at(counts, "candidates")) or "none"
    if reasons := _counts(at(learning, "rejected", "reasons")):
        yield "rejected", reasons
    for one in rows(at(learning, "rejected", "last")):
        yield "", f"{at(one, 'name')} ({at(one, 'text')}): {at(one, 'reason')}"
    for number, line in enumerate(
        budget_lines(at(learning, "budget")) if at(learning, "budget") else ()
    ):
        yield "" if number else "budget", line
    asked = asked_about(at(learning, "judged_today")) if at(learning, "judge") else ""
    yield "judge", f"{at(learning, 'judge') or 'none'}{asked}"
    yield (
        "listening",
        at(learning, "listen")
        or "no model reads your messages (the embedded model cannot): only sure phrases add rules, "
        "and no phrase takes one back. Use metaclaw rules and metaclaw undo, or set "
        "listen.provider and listen.model",
    )
    for one in rows(at(learning, "listener", "not_understood")):
        yield (
            "",
            (
                f"{at(one, 'model')} gave no usable answer to"
                f" {counted(at(one, 'messages'), 'message')}"
            ),
        )
    yield "evolver", at(learning, "evolver") or "none; only your own words become skills"
    yield from _trust(at(learning, "trust"))
    spent = at(learning, "asked")
    for purpose, cost in spent.items() if isinstance(spent, dict) else ():
        yield "asked", _spent(purpose, cost)


def _policy(facts: "Json") -> Iterator[tuple[str, object]]:
    """The serving policy version, the state of training, and why turns are set aside."""
    training = at(facts, "training")
    version, canary = at(facts, "policy_version"), at(training, "canary")
    tried = f", version {canary} on trial" if canary is not None else ""
    if not version and at(training, "state") == "off":
        yield "policy", "off; no weights are trained"
        return
    serving = f"version {version}" if version else "version 0, the untrained model"
    yield "policy", f"{serving}{tried}{_last_version(at(facts, 'newest_version'))}"
    if training is None or at(training, "state") == "off":
        return
    paused = at(training, "paused_reason")
    yield (
        "training",
        f"{at(training, 'state')}{_progress(training)}" + (f"; paused: {paused}" if paused else ""),
    )
    yield "set aside", _counts(at(facts, "counts", "rejections")) or "no turns"


def _progress(training: "Json") -> str:
    """How far a run is, or the test of its version."""
    if at(training, "state") != LoopState.TRAINING:
        return f" ({test})" if (test := at(training, "test")) else ""
    step, steps, reward = at(training, "step"), at(training, "steps"), at(training, "mean_reward")
    made = (
        ""
        if step is None
        else f", step {step}" + (f" of at most {steps}" if steps is not None else "")
    )
    looked = at(training, "validated")
    made += f", mean reward {reward:.2f}" if isinstance(reward, float) else ""
    return made + (
        f" (likeliest answers to validation prompts: {looked:.2f})"
        if isinstance(looked, float)
        else ""
    )


def _last_version(version: "Json") -> str:
    """That the newest version is being tested, or was rejected and why; empty otherwise."""
    number, state = at(version, "version"), at(version, "state")
    if state == "candidate":
        return f"; version {number} is being tested"
    if state != "rejected":
        return ""
    reason = short(str(next(iter(rows(at(version, "report", "reasons"))), "")), _MOST_TEXT)
    return (
        f"; version {number} was rejected, so nothing changes: {reason} (metaclaw policy show"
        f" {number})"
    )


def _pending(pending: "Json") -> str:
    """The work that waits for learning."""
    if not isinstance(pending, dict):
        return "cannot be counted now"
    kinds = {
        "turns": "turn",
        "sessions": "ended session",
        "listening": "message",
        "lessons": "lesson",
        "evolutions": "skill in writing",
        "candidates": "candidate",
    }
    many = {"evolutions": "skills in writing"}
    left = [
        counted(number, kinds[kind], many.get(kind))
        for kind, number in pending.items()
        if number and kind in kinds
    ]
    return ", ".join(left) or "nothing; everything so far has been examined"


def _verdicts(verdicts: "Json", support: "Json") -> str:
    if verdicts is None:
        return "cannot be counted now"
    taught = f"; {counted(support, 'turn')} taught skills" if support else ""
    in_words = (
        {outcome_word(name): count for name, count in verdicts.items()}
        if isinstance(verdicts, dict)
        else None
    )
    return f"{_counts(in_words) or 'none yet'}{taught}"


def _counts(counts: "Json") -> str:
    return (
        ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        if isinstance(counts, dict)
        else ""
    )


def _trust(trust: "Json") -> Iterator[tuple[str, object]]:
    """The measured reliability of verdicts, if enough turns have feedback."""
    ranked, calibrated = at(trust, "auroc"), at(trust, "ece")
    if isinstance(ranked, int | float) and isinstance(calibrated, int | float):
        known = counted(at(trust, "turns"), "turn")
        yield (
            "trust",
            f"AUROC {ranked:.2f}, ECE {calibrated:.3f} on {known} of which the truth is known",
        )


def _spent(purpose: str, cost: "Json") -> str:
    failures = at(cost, "failures")
    failed = f", {failures} failed" if failures else ""
    tokens = f"{at(cost, 'input_tokens')} → {at(cost, 'output_tokens')} tokens"
    return f"{purpose}: {counted(at(cost, 'calls'), 'call')}{failed}, {tokens}"


def _recorded(counts: "Json") -> str:
    turns, sessions, active = (
        at(counts, "turns"),
        at(counts, "sessions"),
        at(counts, "active_sessions"),
    )
    if turns is None:
        return "cannot be counted now"
    still_open = f", {active} of them open" if active else ""
    return f"{counted(turns, 'turn')} in {counted(sessions, 'session')}{still_open}"


def _store(store: "Json") -> str:
    words = f"{at(store, 'kind')}, {at(store, 'health')}"
    size, limit, removed = (
        at(store, "size_bytes"),
        at(store, "max_bytes"),
        at(store, "removed_sessions"),
    )
    if isinstance(size, int):
        words += f", {size / 1e9:.2f}" + (
            f" of {limit / 1e9:g} GB" if isinstance(limit, int) else " GB"
        )
    if removed:
        words += f", {counted(removed, 'old session')} removed to make room"
    if at(store, "reason"):
        words += f" ({at(store, 'reason')})"
    if at(store, "waiting_turns"):
        words += f"; {counted(at(store, 'waiting_turns'), 'turn')} waiting in memory"
    if at(store, "lost_turns"):
        words += f"; {counted(at(store, 'lost_turns'), 'turn')} lost"
    return words


def failing(provider: "Json") -> str | None:
    """A sentence about a failing provider: how often in a row, when and why. None if its last
    request was answered.
    """
    failure = at(provider, "last_failure")
    in_a_row = at(failure, "in_a_row")
    if not isinstance(in_a_row, int) or not in_a_row:
        return None
    when = at(failure, "at")
    times = (
        f"its last request (at {when})"
        if in_a_row == 1
        else f"its last {in_a_row} requests (most recently at {when})"
    )
    return f"provider {at(provider, 'name')} failed {times}: {at(failure, 'reason')}"


def _provider(provider: "Json") -> str:
    wires = ", ".join(str(wire) for wire in rows(at(provider, "wires")))
    models = ", ".join(str(model) for model in rows(at(provider, "models")))
    kind = f"{at(provider, 'kind')}: {wires}" if wires else str(at(provider, "kind"))
    return f"{at(provider, 'name')} ({kind}), {at(provider, 'state')}" + (
        f"; serves {models}" if models else ""
    )
