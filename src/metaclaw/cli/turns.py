"""`metaclaw why`: the rules, skills and lessons in a turn's prompt. `metaclaw feedback`: a person's
verdict on a turn. Also describes turns for `metaclaw sessions`."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import WHERE_TURNS, Facts, check_choice, last_turn, read, request, segment
from metaclaw.cli.output import CommandOutput, answers, counted, moment, short
from metaclaw.domain.status import (
    CAME_LATER,
    KEEP_RULES,
    NOT_JUDGED,
    outcome_word,
    source_words,
)
from metaclaw.instance import find

_MOST_TEXT = 90
_LATER_SHOWN = 3
_SECTIONS = (
    ("placed", "placed in full"),
    ("listed", "listed in one line"),
)
_REMINDERS = (
    ("reminded", "reminded of at the end of the conversation"),
    ("reminders_left_out", "not reminded of, to measure whether reminders help"),
)


@click.command()
@click.argument("turn", required=False)
@click.option("--last", is_flag=True, help="The last main turn.")
@answers
def why(home: Path, turn: str | None, last: bool) -> CommandOutput:
    """Show what was in the prompt of TURN, what was not, and why."""
    check_choice(turn, last, "turn")
    wanted = last_turn(home)["id"] if turn is None else turn
    facts = read(home, f"/api/turns/{segment(wanted)}/why", advice=WHERE_TURNS)
    return CommandOutput(facts, _told(facts))


def _told(facts: Facts) -> Iterator[str]:
    words = {"user": "user", "workspace": "project", "channel": "channel"}
    known = [f"{words[field]} {found}" for field, found in facts["scope"].items() if found]
    yield ", ".join([facts["turn"], facts["kind"], moment(facts["at"]), *known])
    yield _prompt_words(len(facts["placed"]), len(facts["considered"]))
    for field, title in _SECTIONS:
        yield from _section(title, facts[field])
    absent = facts["not_placed"]
    later = [one for one in absent if one["reason"] == CAME_LATER]
    if len(later) <= _LATER_SHOWN:
        yield from _section("not placed", absent)
    else:
        yield from _section("not placed", [one for one in absent if one not in later])
        yield (
            f"{len(later)} rules and skills came into force after this turn (metaclaw rules,"
            " metaclaw skills list)"
        )
    for field, title in _REMINDERS:
        if names := facts[field]:
            yield f"{title}: {', '.join(names)}"
    if facts["enforced"]:
        yield from _held(facts)
    for one in facts["broken"]:
        yield f"broken and not held: {one['rule']}: {one['reason']}"
    for name in facts["forgotten"]:
        yield f"  {name} was there and is forgotten"


def _prompt_words(placed: int, considered: int) -> str:
    if not considered:
        return "No rule or skill was in force for it."
    if considered == 1:
        return f"The one rule or skill in force for it was {'' if placed else 'not '}in its prompt."
    number = {0: "None", considered: "All"}.get(placed, placed)
    return (
        f"{number} of the {considered} rules and skills in force for it"
        f" {'was' if placed == 1 else 'were'} in its prompt."
    )


def _section(title: str, items: list[Facts]) -> Iterator[str]:
    if items:
        yield f"{title}:"
    for one in items:
        yield f"  {one['kind']} {one['name']}: {short(one['text'], _MOST_TEXT)}"
        yield f"    {one['reason']}"
        if said := one.get("said"):
            channel = f" on {said['channel']}" if said["channel"] else ""
            yield f"    said to {said['agent']}{channel} in {said['turn']}"
        if failed := one.get("failed"):
            yield f"    call: {failed['name']} {short(failed['arguments'], _MOST_TEXT)}"
            yield f"    result: {short(failed['result'], _MOST_TEXT)}"
        if note := one.get("check_note"):
            yield f"    {note}"


def _held(facts: Facts) -> Iterator[str]:
    """The attempts at an answer whose calls were held, and what the client got."""
    yield "held:"
    for one in facts["enforced"]:
        broken = f"was broken in {counted(one['attempts'], 'attempt')}"
        what = broken if one["attempts"] else "could not be checked"
        yield f"  {one['rule']} {what}: {one['reason']}"
    for number, attempt in enumerate(facts["attempts"], 1):
        calls = "; ".join(f"{call['name']} {call['arguments']}" for call in attempt["calls"])
        yield f"  attempt {number} ({attempt['turn']}), {attempt['became']}: {calls or 'no calls'}"
    yield f"  {facts['got']} The usage is the sum of all attempts."
    rules = [one for one in facts["enforced"] if one["rule"] != KEEP_RULES]
    if rules:
        yield (
            f"  To lift it: metaclaw rules edit {rules[0]['rule']} --enforce remind (all rules:"
            " metaclaw enforce off)"
        )
    if unchecked := [one["rule"] for one in rules if not one["attempts"]]:
        yield (
            f"  To let calls pass that cannot be checked: metaclaw rules edit {unchecked[0]}"
            " --on-error pass"
        )


_OUTCOMES = ("pass", "fail")


@click.command()
@click.argument("said", nargs=-1, metavar="[TURN] pass|fail [COMMENT]...", required=True)
@click.option("--last", is_flag=True, help="The last main turn; then no TURN is named.")
@answers
def feedback(home: Path, said: tuple[str, ...], last: bool) -> CommandOutput:
    """Say whether a turn was good. Your verdict overrides the judge's; with fail, skills are
    written from your COMMENT.

    TURN is an id or the beginning of one. For example: metaclaw feedback --last fail "the date must
    be ISO" """
    named, outcome, words = _parse_words(said, last=last)
    comment = " ".join(words)
    turn = last_turn(home)["id"] if named is None else named
    fields = {"turn": turn, "outcome": outcome, "comment": comment}
    facts = request(home, "POST", "/api/feedback", fields, advice=WHERE_TURNS)
    noted = f"Noted: {facts['turn']} was {outcome_word(outcome)}."
    return CommandOutput(facts, [noted, *_next_step(home, outcome, comment)])


def _next_step(home: Path, outcome: str, comment: str) -> Iterator[str]:
    if outcome == "pass":
        return
    if not comment:
        yield 'It learns more if you say what was wrong: metaclaw feedback --last fail "…"'
    elif find(home) is None:
        yield "It is examined once a proxy runs: metaclaw start --detach"
    else:
        yield "It is examined now; see metaclaw watch and metaclaw candidates list for the results."


def _parse_words(words: tuple[str, ...], *, last: bool) -> tuple[str | None, str, tuple[str, ...]]:
    """Split the arguments into turn, outcome and comment."""
    named, rest = (None, words) if last else (words[0], words[1:])
    if rest and rest[0] in _OUTCOMES:
        return named, rest[0], rest[1:]
    if named in _OUTCOMES:
        raise click.UsageError("name a turn (the beginning of its id is enough), or use --last")
    problem = f"{rest[0]!r} is neither pass nor fail" if rest else "pass or fail is missing"
    raise click.UsageError(
        f'{problem}; for example: metaclaw feedback --last fail "the date must be ISO"'
    )


_GOT = {
    "complied": "the client got an answer that follows it",
    "stopped": "the client got a text in place of the calls",
    "warned": "the client got them with a warning",
}


def held_in_words(turn: Facts) -> str:
    """Which rules held calls of an answer, and what the client got."""
    rules, times = turn["enforced"], turn["attempts"]
    is_checked = any(one["checked"] for one in rules)
    what = "calls that break" if is_checked else "calls that could not be checked against"
    names = ", ".join(one["rule"] for one in rules)
    asked = f" The model was asked {times} times." if times > 1 else ""
    return f"{what} {names}; {_GOT[rules[0]['end']]}.{asked} (details: metaclaw why)"


def verdict_in_words(verdict: Facts | None) -> str:
    """The verdict on a turn and its source, in words."""
    if verdict is None:
        return NOT_JUDGED
    quotes = (signal["quote"] for signal in verdict["signals"])
    evidence = verdict["comment"] or "; ".join(filter(None, quotes))
    words = f"{outcome_word(verdict['outcome'])}, {source_words(verdict['source'])}"
    return f"{words}: {evidence}" if evidence else words
