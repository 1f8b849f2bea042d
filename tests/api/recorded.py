"""What the stage's store holds: turns, skills, candidates."""

from datetime import UTC, datetime

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Change,
    Proposal,
    Standing,
)
from metaclaw.domain.chat import Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId, new_session_id, new_turn_id
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from tests.api.stage import Stage


async def record(stage: Stage, session: SessionId | None = None) -> Turn:
    """A turn of a session, of a new one where none is given."""
    turn = Turn(
        id=new_turn_id(),
        session=session or new_session_id(),
        kind=TurnKind.MAIN,
        kind_reason="test",
        scope=Scope(user="ann"),
        stamp=Stamp(stage.library.view.generation, 0, "", ()),
        agent="some-agent",
        wire=Wire.CHAT,
        path="/chat/completions",
        stream=False,
        model="m-1",
        provider="main",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(request=b'{"model": "m-1"}', said=b'{"id": "x"}'),
        finish=None,
        usage=Usage(11, 7),
        tokens=None,
        times=Times(datetime.now(UTC), 0.1, 0.25),
    )
    await stage.record(turn)
    return turn


def skill(name: str) -> Skill:
    """A skill as an evolver writes it."""
    body = "1. Find the dates.\n2. Write them as YYYY-MM-DD.\n\nDo not use month names."
    return Skill(
        SkillName(name),
        "When writing release notes with dates",
        body,
        scope="user:ann",
        author=Authorship.EVOLVER,
    )


def candidate(
    stage: Stage, name: str, taught_by: TurnId, standing: Standing = Standing.WAITING
) -> Candidate:
    """A candidate that is kept, and in force if it was accepted."""
    proposal = Proposal(skill(name), Change.NEW, (), (taught_by,), "dates", "some-model")
    made = Candidate(
        CandidateId(f"c_{name}"),
        proposal,
        standing,
        "it adds a host",
        1,
        datetime.now(UTC),
    )
    stage.candidates.save_candidate(made)
    if standing is Standing.ACCEPTED:
        stage.library.publish([proposal.skill], (), f"learned {name}")
    return made


def spoil(stage: Stage, name: str) -> None:
    """Make a skill's file unreadable."""
    folder = stage.library.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text("no front matter")


def mend(stage: Stage, name: str) -> None:
    """Take the unreadable file away again."""
    (stage.library.folder / name / "SKILL.md").unlink()
