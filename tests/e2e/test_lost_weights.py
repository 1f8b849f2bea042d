"""Weights that are to serve and cannot be read: the program says so, serves what it can, and goes
on training.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.domain.policy import Weights
from metaclaw.store import SqlPolicies, open_database
from tests.engine.small import write_adapter
from tests.support.postgres import running_postgres
from tests.support.program import Program
from tests.support.tiny import make_opinionated_model

pytestmark = pytest.mark.slow

POLICY = """
[policy]
mode = "rl"
base_model = "{}"
"""


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_opinionated_model(tmp_path_factory.mktemp("model") / "miniature")


class Home:
    """A home whose versions were trained one from the other, before the program is started."""

    def __init__(self, folder: Path, miniature: Path, store: str | None = None) -> None:
        self.folder = folder
        self._miniature = miniature
        config = POLICY.format(miniature)
        if store is not None:
            config += f'[store]\nurl = "{store}"\n'
        self.program = Program(folder, config)
        self._database = open_database(store or f"sqlite:///{folder / 'ledger.db'}")
        self.policies = SqlPolicies(self._database)

    def trained(self) -> Weights:
        """The next version's weights; they can be read."""
        parent = len(self.policies.versions())
        weights = write_adapter(
            self._miniature, self.folder / "policies" / f"{parent + 1:06d}", seed=parent, size=0.3
        )
        self.policies.publish(weights, parent=parent, base=self._miniature.name)
        return weights

    def start(self) -> Program:
        self._database.close()
        return self.program.start()


@pytest.fixture
def home(tmp_path: Path, miniature: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home", miniature)
    yield made
    made.program.kill()  # where a test has not ended it


def ask(program: Program, session: str) -> httpx.Response:
    body = {"model": "any", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}
    return httpx.post(
        f"{program.url}/v1/chat/completions",
        json=body,
        headers=program.auth | {"X-Session-Id": session},
        timeout=120,
    )


def states_of(policy: Any) -> dict[int, str]:
    return {one["version"]: one["state"] for one in reversed(policy["versions"])}


def test_lost_weights_are_given_up_with_their_reason_what_is_left_serves_from_the_first_request_on_and_training_goes_on(
    home: Home,
) -> None:
    for number in (1, 2, 3):
        weights = Path(home.trained().adapter) / "adapter_model.safetensors"
        home.policies.promote(number, "better")
        if number > 1:
            os.truncate(weights, weights.stat().st_size // 2)
    program = home.start()
    answers = [ask(program, f"s_{number}") for number in range(8)]
    assert {(answer.status_code, answer.headers["x-metaclaw-policy"]) for answer in answers} == {
        (200, "1")
    }
    before = program.wait_for("/api/policy", lambda facts: facts["training"]["troubles"])
    assert [trouble.split(":")[0] for trouble in before["training"]["troubles"]] == [
        "version 3 is to answer and does not",
    ]
    policy = program.wait_for(
        "/api/policy", lambda facts: states_of(facts)[1] == "serving", within_s=90
    )
    assert states_of(policy) == {1: "serving", 2: "rolled back", 3: "rolled back"}
    assert [trouble.split(":")[1] for trouble in policy["training"]["troubles"]] == [
        " its weights are lost"
    ] * 2
    program.wait_for("/api/status", lambda facts: facts["training"]["state"] == "waiting for turns")
    assert ask(program, "s_8").headers["x-metaclaw-policy"] == "1"
    assert program.command("policy", "list").stdout.count("its weights are lost") == 2
    assert program.stop() == 0


def test_weights_that_served_at_one_home_serve_at_every_home_on_its_store_and_outlive_it(
    miniature: Path, tmp_path: Path
) -> None:
    with running_postgres() as server:
        store = server.prepared_database()
        first, second = (Home(tmp_path / name, miniature, store) for name in "ab")
        try:
            adapter = Path(first.trained().adapter)
            first.policies.promote(1, "better")
            first.start()
            first.program.wait_for(
                "/api/status", lambda facts: facts["training"]["state"] == "waiting for turns"
            )
            second.start()
            assert ask(second.program, "s_1").headers["x-metaclaw-policy"] == "1"
            assert first.program.command("policy", "rollback").returncode == 0
            second.program.wait_for("/api/policy", lambda facts: facts["policy_version"] == 0)
            assert second.program.command("policy", "promote", "1").returncode == 0
            first.program.wait_for("/api/policy", lambda facts: facts["policy_version"] == 1)
            first.program.kill()
            shutil.rmtree(adapter)
            second.program.wait_for("/api/status", lambda facts: facts["leads"])
            assert ask(second.program, "s_2").headers["x-metaclaw-policy"] == "1"
            first.program.start()
            assert ask(first.program, "s_3").headers["x-metaclaw-policy"] == "1"
        finally:
            first.program.kill()
            second.program.kill()
