"""What is counted on the request path comes out as Prometheus reads it."""

from datetime import UTC, datetime
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest

from metaclaw.domain.chat import Usage, Wire
from metaclaw.domain.ids import SkillName, new_session_id, new_turn_id
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.proxy import Metrics, NoAttendant


def turn(
    *,
    duration_s: float,
    first_byte_s: float | None = None,
    usage: Usage | None = None,
    skills: tuple[str, ...] = (),
) -> Turn:
    return Turn(
        id=new_turn_id(),
        session=new_session_id(),
        kind=TurnKind.MAIN,
        kind_reason="main",
        scope=Scope(),
        stamp=Stamp(1, 0, "", tuple(SkillName(name) for name in skills)),
        agent="unknown",
        wire=Wire.CHAT,
        path="/chat/completions",
        stream=False,
        model="m",
        provider="p",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(b""),
        finish=None,
        usage=usage,
        tokens=None,
        times=Times(datetime.now(UTC), first_byte_s, duration_s),
    )


def scraped(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(cast("CollectorRegistry", metrics)).decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def test_a_served_turn_is_counted_under_its_labels() -> None:
    metrics = Metrics(NoAttendant())
    metrics.served(
        turn(duration_s=0.02, first_byte_s=0.001, usage=Usage(3, 4), skills=("a", "b")),
        durable=True,
    )
    metrics.served(turn(duration_s=400.0, usage=Usage(1, 0)), durable=False)
    metrics.in_flight += 1
    found = scraped(metrics)
    assert found['metaclaw_turns_total{end="completed",kind="main",wire="chat"}'] == 2
    assert found['metaclaw_tokens_total{direction="input",provider="p"}'] == 4
    assert found['metaclaw_tokens_total{direction="output",provider="p"}'] == 4
    assert found["metaclaw_skills_placed_total"] == 2
    assert found["metaclaw_turns_unrecorded_total"] == 1
    assert found["metaclaw_turns_in_flight"] == 1


def test_durations_fall_into_the_first_bound_they_do_not_exceed() -> None:
    metrics = Metrics(NoAttendant())
    for duration_s in (0.001, 0.005, 0.02, 0.021, 400.0):
        metrics.served(turn(duration_s=duration_s), durable=True)
    found = scraped(metrics)
    counts = [
        found[f'metaclaw_turn_seconds_bucket{{le="{bound}",wire="chat"}}']
        for bound in ("0.005", "0.02", "0.1", "300.0", "+Inf")
    ]
    assert counts == [2, 3, 4, 4, 5]
    assert found['metaclaw_turn_seconds_count{wire="chat"}'] == 5
    assert abs(found['metaclaw_turn_seconds_sum{wire="chat"}'] - 400.047) < 1e-9


def test_refusals_are_counted_by_status_and_a_provider_cannot_count_backwards() -> None:
    metrics = Metrics(NoAttendant())
    metrics.refused(401)
    metrics.refused(401)
    metrics.served(turn(duration_s=1, usage=Usage(-5, 2)), durable=True)
    found = scraped(metrics)
    assert found['metaclaw_requests_refused_total{status="401"}'] == 2
    assert found['metaclaw_tokens_total{direction="input",provider="p"}'] == 0
    assert found['metaclaw_tokens_total{direction="output",provider="p"}'] == 2


def test_two_programs_in_one_process_share_no_numbers() -> None:
    one, other = Metrics(NoAttendant()), Metrics(NoAttendant())
    one.refused(500)
    assert 'metaclaw_requests_refused_total{status="500"}' not in scraped(other)
