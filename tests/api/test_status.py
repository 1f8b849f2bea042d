"""How the program is, in one tree: what is known is told, what cannot be read now is null."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from metaclaw.app.application import Application
from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Wire
from metaclaw.domain.status import Health, StoreHealth, StoreSize
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import StoreError
from metaclaw.store import LearningCounts, LedgerCounts
from tests.api.recorded import candidate, record, skill
from tests.api.stage import Stage

HEALTHY = StoreHealth(Health.HEALTHY, None, 0, 0)
BROKEN = StoreHealth(Health.DEGRADED, "the disk is full", 7, 2)


@pytest.mark.anyio
async def test_what_was_recorded_and_learned_is_counted(stage: Stage) -> None:
    turn = await record(stage)
    await stage.http.post("/api/feedback", json={"turn": turn.id, "outcome": "fail"})
    stage.candidates.begin_attempt("dates", stage.library.view.generation, [turn.id])
    candidate(stage, "dates", turn.id)
    stage.library.publish([skill("one"), skill("other")], (), "learned two")
    stage.app.origins.identify(Wire.CHAT, {}, {"messages": [{"role": "user", "content": "Hello."}]})
    told = await stage.app.status.tell()
    assert told["counts"] == {
        "turns": 1,
        "sessions": 1,
        "active_sessions": 1,
        "verdicts": {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.UNKNOWN: 0},
        "support": 1,
        "query": 0,
        "candidates": {one: int(one is Standing.WAITING) for one in Standing},
        "rejections": {},
        "skills": {"live": 2},
        "rules": 0,
        "facts": 0,
    }
    assert (told["generation"], told["degraded"], told["engine"]) == (
        stage.library.view.generation,
        False,
        None,
    )
    learning, providers = told["learning"], told["providers"]
    assert isinstance(learning, dict)
    assert (learning["on"], learning["gate"], learning["rejected"]) == (
        True,
        "lint",
        {"reasons": {}, "last": []},
    )
    assert learning["pending"] == {
        "turns": 1,
        "sessions": 0,
        "listening": 1,
        "lessons": 1,
        "evolutions": 0,
        "candidates": 0,
    }
    assert [(one["reason"], [put["name"] for put in one["put"]]) for one in learning["noted"]] == [
        ("learned two", ["one", "other"])
    ]
    assert isinstance(providers, list)
    (main,) = providers
    assert "connection refused" in main.pop("last_failure")["reason"]
    assert main == {
        "name": "main",
        "kind": "openai",
        "wires": ["chat", "responses"],
        "models": ("m-1",),
        "state": "failing",
    }


@dataclass
class Reader:
    """A reader of a store that cannot be read."""

    def counts(self) -> LedgerCounts:
        raise StoreError("the disk is away")

    def learning_counts(self) -> LearningCounts:
        raise StoreError("the disk is away")


@dataclass
class Upkeep:
    def size(self) -> StoreSize:
        raise StoreError("the disk is away")


@dataclass
class Learning:
    """Training of weights in this state."""

    state: dict[str, object]
    is_readable: bool = True

    def training_state(self) -> dict[str, object]:
        return self.state

    def rejections(self) -> dict[str, int]:
        if not self.is_readable:
            raise StoreError("the disk is away")
        return {"no verdict": 4}


def put(app: Application, name: str, part: object) -> None:
    """Put something else in the place of a part of the program."""
    setattr(app, name, part)


@pytest.mark.anyio
async def test_a_store_that_cannot_be_read_leaves_nulls_and_no_error(stage: Stage) -> None:
    put(stage.app, "reader", Reader())
    put(stage.app, "upkeep", Upkeep())
    put(stage.app, "ledger", SimpleNamespace(health=BROKEN))
    told = await stage.app.status.tell()
    counts = told["counts"]
    assert isinstance(counts, dict)
    assert [
        counts[name] for name in ("turns", "sessions", "verdicts", "support", "candidates")
    ] == [None] * 5
    assert told["degraded"] is True
    assert told["store"] == {
        "kind": "sqlite",
        "health": "degraded",
        "reason": "the disk is full",
        "waiting_turns": 7,
        "lost_turns": 2,
        "notice": None,
        "size_bytes": None,
        "free_bytes": None,
        "max_bytes": None,
        "removed_sessions": None,
    }
    put(stage.app, "ledger", stage.ledger)


@pytest.mark.parametrize(
    ("store", "engine", "why"),
    [
        (HEALTHY, None, None),
        (HEALTHY, "ready", None),
        (HEALTHY, "loading", "the embedded model is loading"),
        (BROKEN, None, "turns are not being recorded: the disk is full"),
    ],
)
@pytest.mark.anyio
async def test_readiness_is_a_store_that_records_and_a_model_that_answers(
    stage: Stage, store: StoreHealth, engine: str | None, why: str | None
) -> None:
    put(stage.app, "ledger", SimpleNamespace(health=store))
    put(stage.app, "embedded", engine and SimpleNamespace(state=engine))
    assert stage.app.status.unready() == why
    put(stage.app, "ledger", stage.ledger)
    put(stage.app, "embedded", None)


@pytest.mark.anyio
async def test_what_trains_and_why_turns_do_not_is_told(stage: Stage) -> None:
    told = await stage.app.status.tell()
    assert isinstance(told["training"], dict)
    assert (told["policy_version"], told["training"]["state"], told["window"]) == (0, "off", None)
    training = {"state": "training", "step": 3, "version": 2, "paused_reason": None}
    put(stage.app, "learning", Learning(training))
    told = await stage.app.status.tell()
    assert isinstance(told["counts"], dict)
    assert (told["training"], told["counts"]["rejections"]) == (training, {"no verdict": 4})
    put(stage.app, "learning", Learning(training, is_readable=False))
    told = await stage.app.status.tell()
    assert isinstance(told["counts"], dict)
    assert told["counts"]["rejections"] is None
