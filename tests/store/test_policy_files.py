"""The files of weights in the store: what serves at one proxy can be read by every other."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from metaclaw.domain.policy import PolicyVersion, Weights
from metaclaw.errors import WeightsLostError
from metaclaw.store import Database, PolicyFiles, SqlPolicies, open_database
from metaclaw.store.policy_versions import give_up
from metaclaw.store.schema import policy_files
from tests.support.postgres import PostgresServer

BIG = bytes(range(256)) * 40_000  # several parts


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    opened = open_database(postgres.prepared_database())
    yield opened
    opened.close()


def trained(database: Database, home: Path, content: bytes = BIG) -> PolicyVersion:
    folder = home / "000001"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_bytes(b"{}")
    (folder / "adapter_model.safetensors").write_bytes(content)
    weights = Weights("embedded", str(folder), str(folder))
    return SqlPolicies(database).publish(weights, parent=0, base="smol")


def content_of(weights: Weights) -> bytes:
    return (Path(weights.adapter) / "adapter_model.safetensors").read_bytes()


def test_a_home_without_the_files_gets_a_copy_once(database: Database, tmp_path: Path) -> None:
    version = trained(database, tmp_path / "a")
    first, second = PolicyFiles(database, tmp_path / "a"), PolicyFiles(database, tmp_path / "b")
    first.keep(version)
    first.keep(version)
    assert first.local(version) == version.weights
    shutil.rmtree(tmp_path / "a")
    copy = second.local(version)
    assert content_of(copy) == BIG
    assert Path(copy.adapter).is_relative_to(tmp_path / "b")
    assert copy.training is None
    written = (Path(copy.adapter) / "adapter_model.safetensors").stat().st_mtime_ns
    assert second.local(version) == copy
    assert (Path(copy.adapter) / "adapter_model.safetensors").stat().st_mtime_ns == written


def test_other_weights_at_the_same_path_and_a_damaged_copy_do_not_serve(
    database: Database, tmp_path: Path
) -> None:
    version = trained(database, tmp_path / "a")
    files = PolicyFiles(database, tmp_path / "a")
    files.keep(version)
    path = Path(version.weights.adapter) / "adapter_model.safetensors"
    path.write_bytes(b"trained by another that was not published")
    copy = files.local(version)
    assert content_of(copy) == BIG
    (Path(copy.adapter) / "adapter_model.safetensors").write_bytes(b"torn")
    assert content_of(files.local(version)) == BIG


def test_what_is_damaged_in_the_store_is_refused(database: Database, tmp_path: Path) -> None:
    version = trained(database, tmp_path / "a")
    PolicyFiles(database, tmp_path / "a").keep(version)
    with database.writing("damaging") as connection:
        damage = update(policy_files).where(policy_files.c.part == 1)
        connection.execute(damage, {"data": b"torn"})
    other = PolicyFiles(database, tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(WeightsLostError, match="damaged"):
        other.local(version)
    assert list((tmp_path / "b" / "copies").iterdir()) == []


def test_what_is_given_up_leaves_the_store_and_the_copies_and_is_not_kept_again(
    database: Database, tmp_path: Path
) -> None:
    version = trained(database, tmp_path / "a")
    first, second = PolicyFiles(database, tmp_path / "a"), PolicyFiles(database, tmp_path / "b")
    first.keep(version)
    shutil.move(tmp_path / "a", tmp_path / "away")
    copy = Path(second.local(version).adapter)
    second.tidy()
    assert copy.is_dir()
    with database.writing("forgetting") as connection:
        give_up(connection, [version.number], "forgotten", version.made)
    shutil.move(tmp_path / "away", tmp_path / "a")
    first.keep(version)
    second.tidy()
    assert not copy.exists()
    with database.reading("looking") as connection:
        assert connection.execute(policy_files.select()).all() == []


def test_on_sqlite_the_files_stay_where_they_are(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    version = trained(database, tmp_path / "a")
    files = PolicyFiles(database, tmp_path / "a")
    files.keep(version)
    assert files.local(version) == version.weights
    with database.reading("looking") as connection:
        assert connection.execute(policy_files.select()).all() == []
    database.close()
