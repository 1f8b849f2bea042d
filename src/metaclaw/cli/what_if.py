"""`metaclaw whatif`: try a rule's check on what is recorded, before it holds anything."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, request
from metaclaw.cli.output import CommandOutput, answers, fact_lines, limit_option, moment, short
from metaclaw.domain.status import agent_word

_MOST_TEXT = 100
_QUICK_TURNS = 200


@click.command()
@click.argument("rule", required=False)
@click.option(
    "--check",
    help="Another check than the rule's own, or that of a new rule; or a file that has it.",
)
@click.option("--text", help="The text of a new rule.")
@click.option("--when", help="The situation that a new rule is for [always].")
@click.option("--project", help="A folder: only what was done there.")
@click.option(
    "--days", type=click.IntRange(1, 3650), default=30, show_default=True, help="How far back."
)
@limit_option(1000, "Most turns to read.")
@answers
def whatif(
    home: Path,
    rule: str | None,
    check: str | None,
    text: str | None,
    when: str | None,
    project: str | None,
    days: int,
    limit: int,
) -> CommandOutput:
    """Count how often the check of RULE, or a new one, would have held calls or found a rule
    broken, in the answers that are recorded. No model is asked, and nothing is changed.
    """
    from metaclaw.cli.rule_files import project_id

    if rule is None and check is None:
        raise click.UsageError(
            "name a rule, or give a check with --check 'not in calls of shell: …'"
        )
    if rule is not None and text is not None:
        raise click.UsageError("use either the name of a rule or --text")
    given = {
        "rule": rule,
        "check": check if check is None else _check_in(check),
        "text": text,
        "when": when,
        "workspace": project if project is None else project_id(project),
        "days": days,
        "turns": min(limit, 10_000),
    }
    asked = {name: value for name, value in given.items() if value is not None}
    facts = request(home, "POST", "/api/whatif", asked)
    return CommandOutput(facts, _lines(facts))


def _check_in(check: str) -> str:
    """The check itself, or the one in the file of this name."""
    path = Path(check).expanduser()
    is_file = "\n" not in check and len(check) < 1000 and path.is_file()
    return path.read_text("utf-8") if is_file else check


def quick_trial(home: Path, name: str) -> str:
    """One line about what the check of a new rule would have done lately."""
    facts = request(home, "POST", "/api/whatif", {"rule": name, "turns": _QUICK_TURNS})
    if not facts["applied"]:
        return f"To try its check on what is recorded: metaclaw whatif {name}"
    return f"{_summary(facts)}: metaclaw whatif {name}"


def _summary(facts: Facts) -> str:
    done = "have held" if facts["can_hold"] else "have found broken"
    what = "answers with such calls" if facts["can_hold"] else "answers"
    span = f"last {facts['days']} days" if facts["stopped"] is None else "newest turns"
    return f"This check would {done} {facts['broken']} of {facts['applied']} {what} of the {span}"


def _lines(facts: Facts) -> Iterator[str]:
    if not facts["applied"]:
        yield f"None of {facts['read']} turns has anything that this check reads."
    else:
        yield f"{_summary(facts)} ({facts['read']} turns were read)."
    if facts["stopped"]:
        since = moment(facts["since"])
        yield f"It stopped early, at {since}: {facts['stopped']}. Older turns may differ."
    if facts["unknown"]:
        yield f"{facts['unknown']} more could not be checked."
    groups = (("by agent", "by_agent"), ("by project", "by_project"))
    yield from fact_lines(
        (label, f"{_group(label, name)} {one['broken']} of {one['applied']}")
        for label, group in groups
        for name, one in facts[group].items()
        if one["broken"]
    )
    for one in facts["turns"]:
        said = short(one["answer"], _MOST_TEXT)
        yield f"  {moment(one['at'])}  {one['turn']}  {agent_word(one['agent'])}  {said}"
    if facts["turns"]:
        yield "Look at one with: metaclaw why TURN"


def _group(label: str, name: str) -> str:
    return agent_word(name) if label == "by agent" else name or "(no project)"
