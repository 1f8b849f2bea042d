"""`metaclaw why`: the rules and skills in a turn's prompt. `metaclaw feedback`: a person's verdict
on a turn. Also describes turns for `metaclaw sessions`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import (
    WHERE_TURNS,
    at,
    check_choice,
    last_turn,
    objects,
    read,
    request,
    rows,
    segment,
)
from metaclaw.cli.output import counted, home_and_json, moment, plain, print_json, short
from metaclaw.domain.status import (
    CAME_LATER,
    KEEP_RULES,
    NOT_JUDGED,
    outcome_word,
    source_words,
)
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json


_MOST_TEXT = 90
_LATER_SHOWN = 3
_REMINDERS = (
    ("reminded", "reminded of at the end of the conversation"),
    ("reminders_left_out", "not reminded of, to measure whether reminders help"),
)


@click.command()
@click.argument("turn", required=False)
@click.option("--last", is_flag=True, help="The last main turn.")
@home_and_json
def why(home: Path, turn: str | None, last: bool, as_json: bool) -> None:
    """Show which rules and skills were in the prompt of TURN, which were not, and why."""
    check_choice(turn, last, "turn")
    wanted = str(last_turn(home)["id"]) if turn is None else turn
    facts = read(home, f"/api/turns/{segment(wanted)}/why", advice=WHERE_TURNS)
    if as_json:
        print_json(facts)
    else:
        _tell(facts)


def _tell(facts: "dict[str, Json]") -> None:
    when = moment(facts["at"])
    scope = {"user": at(facts, "scope", "user"), "project": at(facts, "scope", "workspace")}
    known = [f"{word} {plain(found)}" for word, found in scope.items() if found]
    click.echo(
        ", ".join([f"{plain(facts.get('turn'))}, {plain(facts.get('kind'))}, {when}", *known])
    )
    considered, placed = len(rows(facts.get("considered"))), len(rows(facts.get("placed")))
    click.echo(_prompt_words(placed, considered))
    for field, title in (
        ("placed", "placed in full"),
        ("listed", "listed in one line"),
        ("withheld", "withheld by chance"),
    ):
        _section(title, rows(facts.get(field)))
    not_placed = rows(facts.get("not_placed"))
    later = [one for one in not_placed if at(one, "reason") == CAME_LATER]
    _section(
        "not placed",
        (
            not_placed
            if len(later) <= _LATER_SHOWN
            else [one for one in not_placed if one not in later]
        ),
    )
    if len(later) > _LATER_SHOWN:
        click.echo(
            f"{len(later)} rules and skills came into force after this turn (metaclaw rules,"
            " metaclaw skills list)"
        )
    for field, title in _REMINDERS:
        if names := rows(facts.get(field)):
            click.echo(f"{title}: {', '.join(plain(name) for name in names)}")
    _tell_enforcement(facts)
    for one in rows(facts.get("broken")):
        click.echo(f"broken and not held: {plain(at(one, 'rule'))}: {plain(at(one, 'reason'))}")
    for name in rows(facts.get("forgotten")):
        click.echo(f"  {plain(name)} was there and is forgotten")


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


def _tell_enforcement(facts: "dict[str, Json]") -> None:
    """Print the attempts of an answer whose calls were held, and what the client got."""
    rules = rows(facts.get("enforced"))
    if not rules:
        return
    click.echo("held:")
    for one in rules:
        broken = f"was broken in {counted(at(one, 'attempts'), 'attempt')}"
        what = broken if at(one, "attempts") else "could not be checked"
        click.echo(f"  {plain(at(one, 'rule'))} {what}: {plain(at(one, 'reason'))}")
    for number, attempt in enumerate(rows(facts.get("attempts")), 1):
        calls = "; ".join(
            f"{plain(at(call, 'name'))} {plain(at(call, 'arguments'))}"
            for call in rows(at(attempt, "calls"))
        )
        became = plain(at(attempt, "became"))
        click.echo(
            f"  attempt {number} ({plain(at(attempt, 'turn'))}), {became}: {calls or 'no calls'}"
        )
    click.echo(f"  {plain(facts.get('got'))} The usage is the sum of all attempts.")
    names = [plain(at(one, "rule")) for one in rules if at(one, "rule") != KEEP_RULES]
    if names:
        click.echo(
            f"  To lift it: metaclaw rules edit {names[0]} --enforce remind (all rules: metaclaw"
            " enforce off)"
        )
    unchecked = [
        plain(at(one, "rule"))
        for one in rules
        if not at(one, "attempts") and at(one, "rule") != KEEP_RULES
    ]
    if unchecked:
        click.echo(
            f"  To let calls pass that cannot be checked: metaclaw rules edit {unchecked[0]}"
            " --on-error pass"
        )


def _section(title: str, items: "list[Json]") -> None:
    if not items:
        return
    click.echo(f"{title}:")
    for one in items:
        click.echo(
            f"  {plain(at(one, 'kind'))} {plain(at(one, 'name'))}:"
            f" {plain(short(at(one, 'text'), _MOST_TEXT))}"
        )
        click.echo(f"    {plain(at(one, 'reason'))}")
        if note := at(one, "check_note"):
            click.echo(f"    {plain(note)}")


_OUTCOMES = ("pass", "fail")


@click.command()
@click.argument("said", nargs=-1, metavar="[TURN] pass|fail [COMMENT]...", required=True)
@click.option("--last", is_flag=True, help="The last main turn; then no TURN is named.")
@click.option("--comment", default="", help="The same as COMMENT.")
@home_and_json
def feedback(home: Path, said: tuple[str, ...], last: bool, comment: str, as_json: bool) -> None:
    """Say whether a turn was good. Your verdict overrides the judge's; with fail, skills are
    written from your COMMENT.

    TURN is an id or the beginning of one. For example: metaclaw feedback --last fail "the date must
    be ISO" """
    named, outcome, words = _parse_words(said, last=last)
    comment = " ".join(words) or comment
    turn = str(last_turn(home)["id"]) if named is None else named
    facts = request(
        home,
        "POST",
        "/api/feedback",
        {"turn": turn, "outcome": outcome, "comment": comment},
        advice=WHERE_TURNS,
    )
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Noted: {plain(facts['turn'])} was {outcome_word(outcome)}.")
        if outcome == "fail" and not comment:
            click.echo(
                'It learns more if you say what was wrong: metaclaw feedback --last fail "…"'
            )
        elif outcome == "fail" and find(home) is not None:
            click.echo(
                "It is examined now; see metaclaw watch and metaclaw candidates list for the"
                " results."
            )
        elif outcome == "fail":
            click.echo("It is examined once a proxy runs: metaclaw start --detach")


def _parse_words(words: tuple[str, ...], *, last: bool) -> tuple[str | None, str, tuple[str, ...]]:
    """Split the arguments into turn, outcome and comment."""
    named, rest = (None, words) if last else (words[0], words[1:])
    if not rest or rest[0] not in _OUTCOMES:
        if not last and named in _OUTCOMES:
            raise click.UsageError("name a turn (the beginning of its id is enough), or use --last")
        problem = f"{rest[0]!r} is neither pass nor fail" if rest else "pass or fail is missing"
        raise click.UsageError(
            f'{problem}; for example: metaclaw feedback --last fail "the date must be ISO"'
        )
    return named, rest[0], rest[1:]


_GOT = {
    "complied": "the client got an answer that follows it",
    "stopped": "the client got a text in place of the calls",
    "warned": "the client got them with a warning",
}


def held_in_words(turn: "dict[str, Json]") -> str:
    """Which rules held calls of an answer, and what the client got."""
    rules = objects(turn["enforced"])
    names = ", ".join(plain(one["rule"]) for one in rules)
    what = (
        "calls that break"
        if any(one["checked"] for one in rules)
        else "calls that could not be checked against"
    )
    times = turn["attempts"]
    asked = f" The model was asked {times} times." if isinstance(times, int) and times > 1 else ""
    return f"{what} {names}; {_GOT[str(rules[0]['end'])]}.{asked} (details: metaclaw why)"


def verdict_in_words(verdict: "Json") -> str:
    """The verdict on a turn and its source, in words."""
    if not isinstance(verdict, dict):
        return NOT_JUDGED
    quotes = (str(signal["quote"]) for signal in objects(verdict["signals"]))
    evidence = verdict["comment"] or "; ".join(filter(None, quotes))
    words = f"{outcome_word(verdict['outcome'])}, {source_words(verdict['source'])}"
    return f"{words}: {evidence}" if evidence else words
