"""The files of trained weights in the store, so that every proxy on it can serve them.

They go through PostgreSQL, which all proxies reach and trust already, and not from proxy to proxy:
so no proxy needs to know another's address or key, and the weights of one that is gone still serve.
On SQLite every program is on the machine where the files lie."""

import hashlib
import logging
import secrets
import shutil
from pathlib import Path
from typing import Final

from sqlalchemy import func, insert, select

from metaclaw.domain.policy import PolicyVersion, Weights
from metaclaw.durable_files import sync_path, write_file
from metaclaw.errors import TrainingError, WeightsLostError
from metaclaw.store.database import Database, Queries
from metaclaw.store.dialects import lock_table
from metaclaw.store.schema import policies, policy_files

log = logging.getLogger(__name__)

_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
"""What serving needs; the state from which training continues is several times as large."""
_PART_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 1 << 30


class PolicyFiles(Queries):
    """The files of versions that have served, and the copies of them in `folder`. All methods block
    and raise StoreError."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database)
        self._copies = folder / "copies"

    def keep(self, version: PolicyVersion) -> None:
        """Have the store hold the files of a version that is to serve, if they lie here."""
        source = Path(version.weights.adapter)
        paths = [source / name for name in _FILES]
        if self._database.path is not None or not all(path.is_file() for path in paths):
            return
        if self._hashes(version.number):
            return
        if (size := sum(path.stat().st_size for path in paths)) > _MOST_BYTES:
            log.warning("weights_too_large version=%d bytes=%d", version.number, size)
            return
        contents = {path.name: path.read_bytes() for path in paths}
        with self._database.writing("keeping the files of weights") as connection:
            lock_table(connection, policies)  # against forgetting them, and another that keeps them
            ours = policies.c.number == version.number
            is_kept = select(policies.c.number).where(ours, policies.c.gone_us.is_(None))
            held = select(policy_files.c.policy).where(policy_files.c.policy == version.number)
            if connection.scalar(is_kept) is None or connection.scalar(held.limit(1)) is not None:
                return
            for name, content in contents.items():
                row = {
                    "policy": version.number,
                    "name": name,
                    "hash": hashlib.sha256(content).hexdigest(),
                }
                for part, begin in enumerate(range(0, len(content), _PART_BYTES)):
                    data = content[begin : begin + _PART_BYTES]
                    connection.execute(insert(policy_files), {**row, "part": part, "data": data})

    def local(self, version: PolicyVersion) -> Weights:
        """The weights of a version where this program can read them: where they were trained, or in
        a copy of what the store holds. Raises TrainingError if no copy can be written.
        """
        hashes = self._hashes(version.number)
        # By their content: another home may have the same path, with weights that never served.
        if not hashes or _holds(Path(version.weights.adapter), hashes):
            return version.weights
        folder = self._copies / f"{version.number:06d}"
        if not _holds(folder, hashes):
            self._copy(version.number, hashes, folder)
        return Weights(version.weights.backend, str(folder))

    def tidy(self) -> None:
        """Remove the copies of what the store holds no more."""
        if not self._copies.is_dir():
            return
        query = select(policy_files.c.policy).distinct()
        held = self._database.read(
            "listing the files of weights", query, lambda row: f"{row.policy:06d}"
        )
        for folder in self._copies.iterdir():
            if folder.name.partition(".")[0] not in held:
                shutil.rmtree(folder, ignore_errors=True)

    def _copy(self, number: int, hashes: dict[str, str], folder: Path) -> None:
        making = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
        try:
            making.mkdir(parents=True)
            with self._database.reading("copying the files of weights") as connection:
                streaming = connection.execution_options(yield_per=1)
                for name in hashes:
                    parts = (
                        select(policy_files.c.data)
                        .where(policy_files.c.policy == number, policy_files.c.name == name)
                        .order_by(policy_files.c.part)
                    )
                    write_file(making / name, *streaming.execute(parts).scalars())
            if not _holds(making, hashes):
                raise WeightsLostError(f"the files of version {number} in the store are damaged")
            sync_path(making)
            shutil.rmtree(folder, ignore_errors=True)
            making.rename(folder)
            sync_path(folder.parent)
        except OSError as error:
            raise TrainingError(f"cannot copy weights to {folder}: {error}") from error
        finally:
            shutil.rmtree(making, ignore_errors=True)
        log.info("weights_copied version=%d folder=%s", number, folder)

    def _hashes(self, number: int) -> dict[str, str]:
        """The hashes of the stored files by their names; empty if there are none."""
        query = (
            select(policy_files.c.name, func.min(policy_files.c.hash).label("hash"))
            .where(policy_files.c.policy == number)
            .group_by(policy_files.c.name)
        )
        rows = self._database.rows("looking for the files of weights", query)
        return {row.name: row.hash for row in rows}


def _holds(folder: Path, hashes: dict[str, str]) -> bool:
    """Whether a folder has exactly these files' contents."""
    try:
        for name, expected in hashes.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return False
    except OSError:
        return False
    return True
