"""The models of a home: the folder that `policy.base_model` means, and models that are brought
from a folder, a file or a hub.

Imports nothing heavy."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from metaclaw.durable_files import sync_path
from metaclaw.engine.client import MODEL_ID
from metaclaw.errors import EngineError

if TYPE_CHECKING:
    from urllib.response import addinfourl

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a file's name, the bytes that are there, and all its bytes."""

_HUB: Final = "https://huggingface.co"
_WANTED: Final = (".safetensors", ".json", ".jinja", ".model")
_BLOCK: Final = 1 << 20
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A model's folder. `convert` says what it is made of if it does not exist: the model that comes
    with the program (True), a GGUF file, or nothing (False)."""

    folder: Path
    convert: bool | Path


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the home."""

    name: str
    path: Path
    size_bytes: int


def locate_model(models: Path, base_model: str | None) -> ModelPlace:
    """Where the model of this name is; `models` is the home's folder of them. A GGUF file is
    converted to a folder there, again if the file was replaced."""
    if base_model is None:
        return ModelPlace(models / MODEL_ID, convert=True)
    path = Path(base_model).expanduser()
    if path.suffix.lower() != ".gguf":
        return ModelPlace(path, convert=False)
    try:
        state = path.stat()
        seen = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
    except OSError:
        return ModelPlace(path, convert=False)  # the engine says what is wrong, the proxy starts
    label = hashlib.sha256(seen.encode()).hexdigest()[:8]
    return ModelPlace(models / f"{path.stem}-{label}", convert=path)


def stored_models(models: Path) -> list[StoredModel]:
    """The models in the home's folder of them, by name."""
    found = []
    for path in sorted(models.glob("*")) if models.is_dir() else ():
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        if not path.name.startswith(".") and files:
            found.append(StoredModel(path.name, path, sum(one.stat().st_size for one in files)))
    return found


def remove_model(models: Path, name: str) -> StoredModel:
    """Delete a model of the home. Raises EngineError if there is none of this name."""
    model = next((one for one in stored_models(models) if one.name == name), None)
    if model is None:
        raise EngineError(f"there is no model {name!r} in {models}; metaclaw model list has them")
    if model.path.is_dir():
        shutil.rmtree(model.path)
    else:
        model.path.unlink()
    return model


def import_model(models: Path, source: str, file: str | None, progress: Progress) -> Path:
    """The path of a model for `policy.base_model`: a folder or GGUF file of this machine as it is,
    or one of a hub (`owner/name`), brought into the home. What a broken download left is
    continued."""
    path = Path(source).expanduser()
    if path.exists():
        if path.is_dir() and not (path / "config.json").is_file():
            raise EngineError(f"{path} is not a model's folder: it has no config.json")
        if path.is_file() and path.suffix.lower() != ".gguf":
            raise EngineError(f"{path} is neither a model's folder nor a GGUF file")
        return path.resolve()
    owner, _, name = source.partition("/")
    if not owner or not name or "/" in name or source.startswith((".", "~")):
        raise EngineError(
            f"{source} is neither a folder or file of this machine nor a model of a hub"
            " (owner/name)"
        )
    hub = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    from urllib.parse import quote

    files = _choose(_listing(hub, source), source, file)
    folder = models / f"{owner}--{name}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for one in files:
        address = f"{hub}/{source}/resolve/main/{quote(one.name)}"
        _download(address, folder / one.name, one, progress)
    sync_path(folder)
    return folder if file is None else folder / file


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A file of a hub. Large files are named by the SHA-256 of their content, others by git's
    hash."""

    name: str
    size: int
    sha256: str | None
    blob: str | None

    def is_content_of(self, path: Path) -> bool:
        """Whether a file has this content."""
        if path.stat().st_size != self.size:
            return False
        digest = hashlib.sha256() if self.sha256 else hashlib.sha1(usedforsecurity=False)
        if not self.sha256:
            digest.update(f"blob {self.size}\0".encode())
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest() == (self.sha256 or self.blob)


def _listing(hub: str, name: str) -> list[_HubFile]:
    with _opened(f"{hub}/api/models/{name}?blobs=true", name) as (answer, _):
        try:
            found = json.load(answer)["siblings"]
            return [
                _HubFile(
                    str(one["rfilename"]),
                    int(one["size"]),
                    (one.get("lfs") or {}).get("sha256"),
                    one.get("blobId"),
                )
                for one in found
            ]
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(
                f"{hub} did not list the files of {name} in a form this program knows"
            ) from error


def _choose(files: list[_HubFile], name: str, wanted: str | None) -> list[_HubFile]:
    """The files to bring. Those in folders are other forms of the same weights."""
    plain = [one for one in files if "/" not in one.name and not one.name.startswith(".")]
    if wanted is not None:
        chosen = [one for one in plain if one.name == wanted]
        if not chosen:
            ggufs = ", ".join(one.name for one in plain if one.name.endswith(".gguf"))
            raise EngineError(f"{name} has no file {wanted}" + (f"; it has {ggufs}" * bool(ggufs)))
        return chosen
    chosen = [one for one in plain if one.name.endswith(_WANTED)]
    if not any(one.name.endswith(".safetensors") for one in chosen):
        ggufs = ", ".join(one.name for one in plain if one.name.endswith(".gguf"))
        hint = f"; choose one with --file: {ggufs}" if ggufs else ""
        raise EngineError(f"{name} has no weights in the safetensors format{hint}")
    return chosen


def _download(address: str, target: Path, file: _HubFile, progress: Progress) -> None:
    if target.is_file() and target.stat().st_size == file.size:
        return
    part = target.with_name(f".{target.name}.part")
    begin = part.stat().st_size if part.is_file() else 0
    if begin < file.size or not file.size:
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with _opened(address, file.name, headers) as (answer, status):
            # A server that does not know ranges sends the whole file.
            is_continued = status == 206
            with part.open("ab" if is_continued else "wb") as stream:
                done = begin if is_continued else 0
                while block := answer.read(_BLOCK):
                    stream.write(block)
                    done += len(block)
                    progress(file.name, done, file.size)
    if not file.is_content_of(part):
        broke_off = part.stat().st_size < file.size
        if not broke_off:
            part.unlink()
        what = "broke off" if broke_off else "is not what the hub says it is, and was deleted"
        raise EngineError(f"the download of {file.name} {what}; run the command again")
    part.replace(target)
    sync_path(target)


@contextmanager
def _opened(
    address: str, what: str, headers: Mapping[str, str] | None = None
) -> "Iterator[tuple[addinfourl, int]]":
    """A response and its status. Raises EngineError."""
    # A proxy that starts does not wait for this import.
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import Request, urlopen

    request = Request(address, headers=dict(headers or {}))
    if token := os.environ.get("HF_TOKEN"):
        # Not sent to the server that a redirection names.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            yield answer, answer.status
    except HTTPError as error:
        why = {
            401: "it does not exist, or needs your token in HF_TOKEN",
            403: "its owner must allow you to have it (HF_TOKEN)",
            404: "it does not exist",
        }.get(error.code, f"the hub answered {error.code}")
        raise EngineError(f"cannot download {what}: {why}") from error
    except OSError as error:
        raise EngineError(
            f"cannot download {what} from {urlsplit(address).netloc}: {error}; run"
            " the command again to continue"
        ) from error
