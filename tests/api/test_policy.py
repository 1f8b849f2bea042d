"""The routes about weights, on a real store: what is told, and what a person may have done."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from metaclaw.api import Api, PolicyOwner
from metaclaw.app.application import Application
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Comparison, GateReport, Habit, PolicyVersion, Serving, Weights
from metaclaw.errors import TrainingError
from metaclaw.store import SqlBatches, SqlPolicies
from tests.api.recorded import record
from tests.api.stage import Stage
from tests.support.application import configured

pytestmark = pytest.mark.anyio
WEIGHTS = Weights("embedded", "policies/1")
PASSED = GateReport(
    True,
    ("not worse",),
    Comparison(40, 12, 3, 0.2, 25.0),
    0.9,
    0.95,
    0.01,
    "judge",
    habits=(Habit(SkillName("uv"), 60.0, 5.0),),
    left_recording=0.25,
)


@dataclass
class Owner:
    """Does what it is told in the store alone: no weights are loaded. `broken` is why it cannot."""

    policies: SqlPolicies
    broken: str | None = None

    async def train(self) -> Mapping[str, Json]:
        self._refuse()
        return {"started": True, "turns": 3}

    async def promote(self, number: int) -> PolicyVersion:
        self._refuse()
        self.policies.promote(number)
        found = self.policies.version(number)
        assert found is not None
        return found

    async def rollback(self, to: int | None) -> int:
        self._refuse()
        self.policies.rollback(to)
        return self.policies.serving().version

    def training(self) -> Mapping[str, Json]:
        return {"state": "training", "step": 2, "version": 1, "paused_reason": None}

    def _refuse(self) -> None:
        if self.broken is not None:
            raise TrainingError(self.broken)


class Studio(Stage):
    """The program's API where weights are trained: what serves is what the store says."""

    def __init__(self, app: Application) -> None:
        self.policies, self.batches = SqlPolicies(app.database), SqlBatches(app.database)
        self.trainer = Owner(self.policies)
        home = replace(
            app.api_parts.home, serving=lambda: self.policies.serving(), trainer=self._owner
        )
        super().__init__(app, Api(replace(app.api_parts, home=home)))

    async def _owner(self) -> PolicyOwner:
        return self.trainer

    async def post(self, verb: str, **said: object) -> tuple[int, Any]:
        answer = await self.http.post(f"/api/policy/{verb}", json=said)
        body = answer.json()
        return answer.status_code, body if answer.status_code == 200 else body["error"]["message"]


@pytest.fixture
async def studio(stage: Stage) -> AsyncIterator[Studio]:
    made = Studio(stage.app)
    yield made
    await made.http.aclose()


async def test_without_versions_the_untrained_model_answers(stage: Stage, tmp_path: Path) -> None:
    told = await stage.get("/api/policy")
    assert (told["policy_version"], told["versions"]) == (0, [])
    assert (told["training"]["state"], "[policy]" in told["training"]["paused_reason"]) == (
        "off",
        True,
    )
    embedded = Stage(configured(tmp_path, providers=[{"name": "embedded", "kind": "embedded"}]))
    for verb, said in (("train", {}), ("promote", {"version": 1}), ("rollback", {})):
        path = f"/api/policy/{verb}"
        assert "write [policy] into config.toml" in await embedded.refused(
            409, "POST", path, json=said
        )
        assert "configured providers (main) cannot be trained" in await stage.refused(
            409, "POST", path, json=said
        )


async def test_versions_are_told_newest_first_with_why(studio: Studio) -> None:
    turn = await record(studio)
    batch = studio.batches.open_batch(0, [turn.id])
    studio.policies.publish(
        WEIGHTS,
        parent=0,
        base="smol",
        batch=batch,
        steps=4,
        note="first",
        absorbed=[SkillName("a")],
    )
    studio.policies.promote(1)
    studio.policies.publish(WEIGHTS, parent=1, base="smol")
    studio.policies.reject(2, PASSED)
    told = await studio.get("/api/policy")
    assert told["policy_version"] == 1
    assert told["training"] == {"state": "training", "step": 2, "version": 1, "paused_reason": None}
    assert [one["version"] for one in told["versions"]] == [2, 1]
    assert told["versions"][0]["report"] == {
        "passed": True,
        "reasons": ["not worse"],
        "held_out": {"pairs": 40, "better": 12, "worse": 3, "mean_gain": 0.2, "e_value": 25.0},
        "golden": {"untrained": 0.9, "candidate": 0.95},
        "kl": 0.01,
        "judge": "judge",
        "left_recording": 0.25,
        "drawn_by": None,
        "habits": [{"rule": "uv", "before": 60.0, "after": 5.0}],
    }
    assert len((await studio.get("/api/policy?limit=1"))["versions"]) == 1
    one = await studio.get("/api/policy/1")
    assert one["turns"] == [turn.id]
    assert one["since"].endswith("+00:00")
    assert {
        name: one[name]
        for name in (
            "state",
            "parent",
            "base",
            "batch",
            "steps",
            "note",
            "absorbed",
            "report",
            "is_kept",
        )
    } == {
        "state": "serving",
        "parent": 0,
        "base": "smol",
        "batch": batch,
        "steps": 4,
        "note": "first",
        "absorbed": ["a"],
        "report": None,
        "is_kept": True,
    }


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/policy/9", "there is no version 9; /api/policy lists the versions"),
        ("/api/policy/0", "version 0 is the untrained model"),
        ("/api/policy/one", "'one' is not the number of a version"),
        (f"/api/policy/{10**30}", "is not the number of a version"),
    ],
)
async def test_a_version_that_is_not_there_is_said_to_be_so(
    studio: Studio, path: str, words: str
) -> None:
    answer = await studio.http.get(path)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (404, True)


async def test_a_person_promotes_and_goes_back(studio: Studio) -> None:
    for number in (1, 2):
        studio.policies.publish(WEIGHTS, parent=number - 1, base="smol")
        assert await studio.post("promote", version=number) == (
            200,
            {"promoted": number, "policy_version": number},
        )
    assert await studio.post("rollback", version=1) == (
        200,
        {"policy_version": 1, "rolled_back": [2]},
    )
    assert await studio.post("rollback", version=0) == (
        200,
        {"policy_version": 0, "rolled_back": [1]},
    )
    assert studio.policies.serving() == Serving(0)
    assert await studio.post("train") == (200, {"started": True, "turns": 3})


async def test_what_cannot_be_done_is_refused_with_the_reason(studio: Studio) -> None:
    studio.policies.publish(WEIGHTS, parent=0, base="smol")
    studio.policies.promote(1)
    for verb, said, status, words in (
        ("promote", {"version": 1}, 409, "serves already"),
        ("promote", {"version": 0}, 409, "untrained model; roll back to it"),
        ("promote", {"version": 7}, 404, "no version 7"),
        ("promote", {}, 400, "'version' is a required property"),
        ("promote", {"version": True}, 400, "version: True is not"),
        ("promote", {"version": -1}, 400, "version: -1 is less than"),
        ("promote", {"versoin": 1}, 400, "'versoin' is not a field here; write version"),
        ("rollback", {"version": 1}, 409, "serves already"),
        ("rollback", {"version": 7}, 404, "no version 7"),
        ("rollback", {"version": "1"}, 400, "version: '1' is not"),
    ):
        found, sentence = await studio.post(verb, **said)
        assert (found, words in sentence) == (status, True), (verb, said, sentence)
    studio.trainer.broken = "the weights cannot be loaded"
    for verb in ("train", "rollback"):
        assert await studio.post(verb) == (409, "the weights cannot be loaded")
    assert await studio.post("promote", version=1) == (409, "the weights cannot be loaded")


async def test_the_routes_are_described(studio: Studio) -> None:
    paths = (await studio.get("/api/openapi.json"))["paths"]
    assert set(paths["/api/policy/{version}"]) == {"get"}
    schema = paths["/api/policy/promote"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert (schema["required"], schema["properties"]["version"]["type"]) == (["version"], "integer")
    assert (await studio.http.get("/api/policy/promote")).status_code == 404
    assert (await studio.http.post("/api/policy")).status_code == 405
