"""Why each rule and skill is in a turn's prompt or not."""

from datetime import UTC, date, datetime

from metaclaw.domain.chat import Wire
from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SkillName, new_session_id, new_turn_id
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import (
    Exchange,
    Placement,
    Scope,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.skills import Budgets, LibraryView, explain

TODAY = date(2026, 11, 16)
TASK = "please rehair the violin bow"


def skill(
    name: str,
    trigger: str = "When rehairing a violin bow",
    scope: str | None = None,
    **extra: object,
) -> Skill:
    return SkillRecord(
        SkillName(name), trigger, f"As {name} says.", scope=scope, extra=extra
    ).read()


def rule(name: str, when: str = "always", scope: str | None = None, **extra: object) -> Skill:
    always: dict[str, object] = {"applies": "always"} if when == "always" else {}
    return skill(name, when, scope, **extra, **always, kind="rule")


def turn(
    placed: tuple[str, ...] = (),
    listed: tuple[str, ...] = (),
    **fields: object,
) -> Turn:
    names, others = (tuple(map(SkillName, some)) for some in (placed, listed))
    known: dict[str, object] = {
        "kind": TurnKind.MAIN,
        "kind_reason": "main",
        "scope": Scope("ann", "/shop"),
        "exchange": Exchange(b'{"messages":[]}'),
        "placements": (Placement(b"", names, "text", others),),
    }
    return Turn(
        id=new_turn_id(),
        session=new_session_id(),
        stamp=Stamp(1, 0, "hash", names),
        agent="codex",
        wire=Wire.CHAT,
        path="/v1/chat/completions",
        stream=False,
        model="m",
        provider="p",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        finish=None,
        usage=None,
        tokens=None,
        times=Times(datetime(2026, 11, 16, tzinfo=UTC), None, 1.0),
        **(known | fields),  # type: ignore[arg-type]
    )


def reasons(
    served: Turn, *skills: Skill, budgets: Budgets | None = None, absorbed: tuple[str, ...] = ()
) -> dict[str, str]:
    view = LibraryView.of(1, skills)
    told = explain(
        served, TASK, view, budgets or Budgets(), today=TODAY, absorbed=frozenset(absorbed)
    )
    return {one.skill.name: f"{one.fate}: {one.reason}" for one in told}


def test_what_was_placed_and_listed_is_told_with_its_reason() -> None:
    told = reasons(
        turn(("german", "bows"), ("bread",)),
        rule("german"),
        skill("bows"),
        skill("bread", "When baking bread"),
    )
    assert list(told) == ["bows", "german", "bread"]
    assert told["german"] == "placed: applies to every task"
    assert told["bows"] == "placed: matches the request"
    assert told["bread"].startswith("listed: in scope")


def test_what_was_not_placed_is_told_with_its_reason() -> None:
    brought = Exchange(b'{"messages":[{"role":"system","content":"---\\nname: theirs\\n"}]}')
    told = reasons(
        turn(exchange=brought),
        rule("bobs", scope="user:bob"),
        rule("blogs", workspace="/blog"),
        rule("chatty", channel="slack"),
        rule("over", expires="2026-11-15"),
        rule("known"),
        rule("old"),
        rule("new", overrides=["old"]),
        skill("theirs"),
        absorbed=("known",),
    )
    assert "bobs" not in told, "other people's rules are not shown"
    assert told["blogs"] == "not placed: out of scope: it is for the project /blog"
    assert told["chatty"] == "not placed: out of scope: it is for the channel slack"
    assert told["over"] == "not placed: expired after 2026-11-15"
    assert "weights" in told["known"]
    assert told["old"] == "not placed: new counts instead"
    assert told["theirs"] == "not placed: the client has put it into the prompt itself"


def test_over_budget_and_below_the_bar_are_told_apart() -> None:
    rules = [rule(f"r-{number}", f"When on platform {number}") for number in range(20)]
    budgets = Budgets(rules_tokens=50, skills_tokens=20)
    told = reasons(
        turn(),
        *rules,
        *(skill(f"s-{number}", f"When number {number} is up") for number in range(40)),
        budgets=budgets,
    )
    assert "over budget" in told["r-7"]
    assert "list" in told["s-7"]


def test_a_side_turn_says_that_it_is_one() -> None:
    told = reasons(turn(kind=TurnKind.SIDE, kind_reason="title"), rule("german"))
    assert (
        told["german"] == "not placed: a side turn (title): it gets only rules about what it writes"
    )
