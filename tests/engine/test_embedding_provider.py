"""Search by meaning with vectors that a provider makes: what is fetched, what is kept, and what a
failure does.
"""

import asyncio
import os
import signal
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.engine.embedding import MeaningSearch, client
from metaclaw.engine.embedding.client import ORDINARY_REQUESTS, VectorFetcher
from metaclaw.errors import UpstreamError
from metaclaw.skills.index import SkillIndex
from tests.support.embeddings import DIMENSIONS, toy_vector

np = pytest.importorskip("numpy")

TRAVEL = Skill(
    SkillName("travel"),
    "When a trip must be arranged",
    "Train.",
    examples=("Book a hotel",),
)
NOTES = Skill(
    SkillName("notes"),
    "When release notes are due",
    "Group.",
    examples=("Write the changelog",),
)
HERS = Skill(SkillName("hers"), "When packing for a journey", "Light.", scope="user:alice")


class Toy:
    """An embedding model in this process."""

    name = "toy/model"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.dimensions = DIMENSIONS
        self.most = 1_000
        self.error: UpstreamError | None = None
        self.gate: asyncio.Event | None = None
        self.offset = 0.0

    @property
    def texts(self) -> list[str]:
        return [text for call in self.calls for text in call]

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.calls.append(list(texts))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if len(texts) > self.most:
            raise UpstreamError("too many texts", status=413)
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> bytes:
        vector = toy_vector(text, self.dimensions)
        length = sum(value * value for value in vector) ** 0.5
        return array(
            "f",
            [value / length + (self.offset if at == 0 else 0) for at, value in enumerate(vector)],
        ).tobytes()


@asynccontextmanager
async def searching(
    folder: Path, toy: Toy, skills: Iterable[Skill], *, is_ready: bool = True
) -> AsyncIterator[MeaningSearch]:
    search = MeaningSearch(folder, deadline_s=30.0, embeddings=toy)
    try:
        search.follow(skills)
        if is_ready:
            await until(search, "ready")
        yield search
    finally:
        await search.aclose()


async def until(search: MeaningSearch, state: str) -> None:
    async with asyncio.timeout(60):
        while not search.state.startswith(state):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_the_right_skill_is_found_and_none_for_an_ordinary_request_however_alike_a_model_finds_all_texts(
    tmp_path: Path, offset: float
) -> None:
    async def story() -> None:
        toy, index = Toy(), SkillIndex().changed([TRAVEL, NOTES])
        toy.offset = offset
        async with searching(tmp_path, toy, [TRAVEL, NOTES]) as search:
            for query, matches in (
                ("reserve lodging", ["travel"]),
                ("who painted the Mona Lisa", []),
            ):
                nearness = await search.near(query, ())
                assert nearness is not None
                assert [
                    one.skill.name for one in index.rank(query, nearness) if one.is_match
                ] == matches

    asyncio.run(story())


def test_a_model_that_finds_all_texts_the_same_leaves_the_decision_to_words(tmp_path: Path) -> None:
    async def story() -> None:
        toy = Toy()
        toy.offset = 1_000.0
        async with searching(tmp_path, toy, [TRAVEL]) as search:
            assert await search.near("reserve lodging", ()) is None

    asyncio.run(story())


def test_scopes_are_kept_apart(tmp_path: Path) -> None:
    async def story() -> None:
        async with searching(tmp_path, Toy(), [TRAVEL, HERS]) as search:
            mine, others = (
                await search.near("a journey", ["user:alice"]),
                await search.near("a journey", ["user:bob"]),
            )
            assert mine is not None
            assert others is not None
            assert "hers" in set(mine.names)
            assert "hers" not in set(others.names)

    asyncio.run(story())


def test_each_text_is_fetched_once_in_batches_also_over_restarts_and_crashes(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        toy = Toy()
        async with searching(tmp_path, toy, [TRAVEL, NOTES]) as search:
            texts = toy.texts
            assert sorted(texts) == sorted({*texts})
            assert {*ORDINARY_REQUESTS, "Book a hotel", "Write the changelog"} <= {*texts}
            assert max(len(call) for call in toy.calls) == 16
            await until_saved(tmp_path, len(texts))
            pid = search.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while search.pid == pid:
                await asyncio.sleep(0.01)
            await until(search, "ready")
        async with searching(tmp_path, toy, [TRAVEL, NOTES]):
            assert toy.texts == texts

    asyncio.run(story())


def test_what_leaves_the_library_leaves_the_file_and_another_models_file_is_removed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        (tmp_path / "vectors.npz").write_bytes(b"of another model")
        async with searching(tmp_path, Toy(), [TRAVEL, NOTES]) as search:
            assert not (tmp_path / "vectors.npz").exists()
            search.follow([TRAVEL])
            await until_saved(tmp_path, len(ORDINARY_REQUESTS) + 2)
            search.follow([])
            await until_saved(tmp_path, len(ORDINARY_REQUESTS))

    asyncio.run(story())


async def until_saved(folder: Path, count: int) -> None:
    async with asyncio.timeout(60):
        while saved(folder) != count:
            await asyncio.sleep(0.01)


def saved(folder: Path) -> int:
    for path in folder.glob("vectors-*.npz"):
        if ".part" not in path.name:
            with np.load(path) as stored:
                return len(stored["vectors"])
    return 0


def test_what_has_left_the_library_is_not_sent_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_BATCH", 1)

    async def story() -> None:
        toy = Toy()
        toy.gate = asyncio.Event()
        async with searching(tmp_path, toy, [TRAVEL, NOTES], is_ready=False) as search:
            async with asyncio.timeout(60):
                while not toy.calls:
                    await asyncio.sleep(0.01)
            search.follow([TRAVEL])
            toy.gate.set()
            await until(search, "ready")
            assert "Book a hotel" in toy.texts
            assert "Write the changelog" not in toy.texts
            nearness = await search.near("changelog", ())
            assert nearness is not None
            assert list(nearness.names) == ["travel"]

    asyncio.run(story())


def test_a_model_that_was_replaced_by_one_of_other_dimensions_gets_all_texts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_FIRST_FETCH_PAUSE_S", 0.05)

    async def story() -> None:
        toy = Toy()
        async with searching(tmp_path, toy, [TRAVEL]) as search:
            toy.dimensions = 64
            before = len(toy.texts)
            assert await search.near("reserve lodging", ()) is None
            assert "another length" in search.state
            async with asyncio.timeout(60):
                while (nearness := await search.near("reserve lodging", ())) is None:
                    await asyncio.sleep(0.02)
            assert list(nearness.names) == ["travel"]
            assert "Book a hotel" in toy.texts[before:]

    asyncio.run(story())


def test_a_failure_is_logged_once_pauses_everything_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_FIRST_FETCH_PAUSE_S", 0.05)

    async def story() -> None:
        toy = Toy()
        async with searching(tmp_path, toy, [TRAVEL]) as search:
            toy.error = UpstreamError("out of order", status=503)
            assert await search.near("one", ()) is None
            calls = len(toy.calls)
            assert await search.near("two", ()) is None
            assert len(toy.calls) == calls
            assert search.state == "words decide for now: out of order"
            search.follow([TRAVEL, NOTES])
            await asyncio.sleep(0.3)
            assert len(toy.calls) <= calls + 4
            toy.error = None
            await until(search, "ready")
            assert await search.near("one", ()) is not None

    with caplog.at_level("INFO"):
        asyncio.run(story())
    messages = [record.message for record in caplog.records if "embeddings_" in record.message]
    assert messages == [
        "embeddings_failed model=toy/model reason=out of order",
        "embeddings_recovered model=toy/model",
    ]


def test_a_late_answer_is_kept_for_the_next_time_and_forgotten_when_asked_to(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        toy = Toy()
        async with searching(tmp_path, toy, [TRAVEL]) as search:
            search._deadline_s = 0.01
            toy.gate = asyncio.Event()
            assert await search.near("reserve lodging", ()) is None
            toy.gate.set()
            async with asyncio.timeout(60):
                while await search.near("reserve lodging", ()) is None:
                    await asyncio.sleep(0.01)
            toy.gate.clear()
            search.forget()
            assert await search.near("reserve lodging", ()) is None

    asyncio.run(story())


def test_a_server_that_takes_fewer_texts_at_once_gets_fewer() -> None:
    async def story() -> None:
        toy, got = Toy(), list[str]()
        toy.most = 10
        fetcher = VectorFetcher(
            toy, lambda text: text != "no", lambda texts, vectors: got.extend(texts)
        )
        wanted = [f"text {number}" for number in range(40)]
        fetcher.want([*wanted[:20], "no", *wanted[20:]])
        async with asyncio.timeout(30):
            while len(got) < 40:
                await asyncio.sleep(0.01)
        assert got == wanted
        assert [len(call) for call in toy.calls] == [16, 8, 8, 8, 8, 8]
        assert fetcher.trouble is None
        await fetcher.aclose()

    asyncio.run(story())
