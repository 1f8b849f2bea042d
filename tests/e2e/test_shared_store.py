"""Two homes on one store: a home that joins gets what the store has, and a change in one reaches
the other.
"""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.postgres import PostgresServer, running_postgres
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["postgresql", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.prepared_database()


NewHome = Callable[[str], Program]


@pytest.fixture
def new_home(provider: Provider, store_url: str, tmp_path: Path) -> Iterator[NewHome]:
    programs: list[Program] = []

    def make(name: str) -> Program:
        config = f'{providers_toml(provider.url)}\n[store]\nurl = "{store_url}"\n'
        programs.append(Program(tmp_path / name, config, env=NOT_LEARNING))
        return programs[-1]

    yield make
    for program in programs:
        program.kill()


def add(program: Program, text: str) -> str:
    """The name of the new rule."""
    answer = httpx.post(
        f"{program.url}/api/rules", json={"text": text}, headers=program.auth, timeout=PATIENCE_S
    )
    assert answer.status_code < 300, answer.text
    return str(answer.json()["name"])


def rules(program: Program) -> set[str]:
    return {rule["name"] for rule in program.get("/api/rules")["rules"]}


def files(program: Program) -> set[str]:
    return {path.parent.name for path in (program.home / "skills").glob("[!.]*/SKILL.md")}


def reasons(program: Program) -> list[str]:
    return [row["reason"] for row in program.get("/api/generations")["generations"]]


def wait_for_rules(program: Program, wanted: set[str]) -> None:
    """Wait until these are served, and are the files."""
    program.wait_for(
        "/api/rules",
        lambda found: (
            {rule["name"] for rule in found["rules"]} == wanted and files(program) == wanted
        ),
    )


def placed(program: Program) -> set[str]:
    body = {"model": "echo", "messages": [{"role": "user", "content": "Install numpy."}]}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=program.auth, timeout=PATIENCE_S
    )
    return set(answer.headers["x-metaclaw-skills"].split(",")) - {""}


def test_homes_that_share_a_store_share_the_library_and_only_their_own_edits_change_it(
    new_home: NewHome,
) -> None:
    first = new_home("a").start()
    pirate = add(first, "Always answer in the style of a pirate.")
    second = new_home("b").start()
    assert (rules(second), files(second), placed(second)) == ({pirate}, {pirate}, {pirate})
    assert (rules(first), len(reasons(second))) == ({pirate}, 2), "joining changes nothing"

    metric = add(second, "Always use metric units.")
    wait_for_rules(first, {pirate, metric})
    assert placed(first) == {pirate, metric}

    with ThreadPoolExecutor() as pool:  # both publish at the same time, again and again
        texts = [f"Always mention the number {number}." for number in range(6)]
        added = set(pool.map(add, [first, second] * 3, texts))
    everything = {pirate, metric} | added
    for program in (first, second):
        wait_for_rules(program, everything)

    assert second.stop() == 0
    shutil.rmtree(second.home / "skills" / metric)
    httpx.delete(
        f"{first.url}/api/rules/{min(added)}", headers=first.auth, timeout=PATIENCE_S
    ).raise_for_status()
    added -= {min(added)}
    second.start()
    for program in (second, first):
        wait_for_rules(program, {pirate} | added)

    assert second.stop() == 0
    shutil.rmtree(second.home)
    fresh = new_home("b").start()
    for program in (fresh, first):
        wait_for_rules(program, {pirate} | added)
    shutil.rmtree(fresh.home / "skills")  # a volume that is lost while the program runs
    wait_for_rules(fresh, {pirate} | added)
    assert rules(first) == {pirate} | added
    changed_by_hand = [reason for reason in reasons(first) if reason.startswith("files")]
    assert changed_by_hand == ["files changed while stopped"]


def test_a_home_that_brings_skills_of_its_own_adds_them_and_removes_nothing(
    new_home: NewHome,
) -> None:
    first = new_home("a").start()
    pirate = add(first, "Always answer in the style of a pirate.")
    second = new_home("b")
    own = second.home / "skills" / "metric" / "SKILL.md"
    own.parent.mkdir(parents=True)
    own.write_text(
        "---\nname: metric\ndescription: Always.\nkind: rule\napplies: always\n---\n\nUse metric"
        " units.\n"
    )
    second.start()
    for program in (second, first):
        wait_for_rules(program, {pirate, "metric"})


def test_a_home_that_is_killed_while_it_joins_retires_nothing(new_home: NewHome) -> None:
    first = new_home("a").start()
    many = [{"text": f"Always mention the number {number}."} for number in range(150)]
    httpx.post(
        f"{first.url}/api/rules", json={"rules": many}, headers=first.auth, timeout=PATIENCE_S
    ).raise_for_status()
    everything = rules(first)
    assert len(everything) == 150
    wait_for_rules(first, everything)
    second = new_home("b")
    for _ in range(3):
        second.start()
        second.kill()
    second.start()
    for program in (second, first):
        wait_for_rules(program, everything)
    assert not [reason for reason in reasons(first) if reason.startswith("files")]
