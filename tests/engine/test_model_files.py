"""Models that are brought into the home, from a hub that is played by a small server here."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metaclaw.engine import import_model, locate_model, remove_model, stored_models
from metaclaw.errors import EngineError

_WEIGHTS = bytes(range(256)) * 20_000
_CONFIG = b'{"model_type": "llama"}'


@dataclass
class Hub:
    """Serves one model. After `cut` bytes of the weights it hangs up; it keeps the ranges that it
    was asked for.
    """

    url: str = ""
    cut: int | None = None
    weights: bytes = _WEIGHTS
    ranges: list[str | None] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def files(self) -> list[dict[str, object]]:
        blob = hashlib.sha1(b"blob %d\0" % len(_CONFIG) + _CONFIG).hexdigest()
        weights = {"sha256": hashlib.sha256(_WEIGHTS).hexdigest()}
        return [
            {"rfilename": "config.json", "size": len(_CONFIG), "blobId": blob},
            {"rfilename": "model.safetensors", "size": len(_WEIGHTS), "lfs": weights},
            {"rfilename": "onnx/model.onnx", "size": 1, "blobId": "x"},
            {"rfilename": "small-q8.gguf", "size": len(_WEIGHTS), "lfs": weights},
        ]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    played = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            played.tokens.append(self.headers["Authorization"])
            if self.path == "/api/models/someone/small?blobs=true":
                self._send(200, json.dumps({"siblings": played.files()}).encode())
            elif self.path.endswith("/resolve/main/config.json"):
                self._send(200, _CONFIG)
            elif self.path.startswith("/someone/small/resolve/main/"):
                asked = self.headers["Range"]
                played.ranges.append(asked)
                begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
                self._send(206 if asked else 200, played.weights[begin:], played.cut)
            else:
                self._send(404, b"")

        def _send(self, status: int, body: bytes, cut: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    played.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", played.url)
    yield played
    server.shutdown()
    thread.join()
    server.server_close()


def _bring(home: Path, file: str | None = None) -> Path:
    return import_model(home, "someone/small", file, lambda name, done, size: None)


def test_a_model_of_a_hub_is_brought_with_what_serving_needs(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = import_model(
        tmp_path, "someone/small", None, lambda name, done, size: told.append((name, done, size))
    )
    assert sorted(one.name for one in path.iterdir()) == ["config.json", "model.safetensors"]
    assert (path / "model.safetensors").read_bytes() == _WEIGHTS
    assert told[-1] == ("model.safetensors", len(_WEIGHTS), len(_WEIGHTS))
    assert [(one.name, one.size_bytes) for one in stored_models(tmp_path)] == [
        ("someone--small", len(_WEIGHTS) + len(_CONFIG))
    ]


def test_a_download_that_broke_off_continues_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cut = 1_000_000
    with pytest.raises(EngineError, match=r"model\.safetensors broke off; run the command again"):
        _bring(tmp_path)
    hub.cut = None
    path = _bring(tmp_path)
    assert hub.ranges == [None, "bytes=1000000-"]
    assert (path / "model.safetensors").read_bytes() == _WEIGHTS


def test_a_file_that_is_there_is_not_brought_again(hub: Hub, tmp_path: Path) -> None:
    assert _bring(tmp_path) == _bring(tmp_path)
    assert hub.ranges == [None]


def test_a_file_with_another_content_is_deleted(hub: Hub, tmp_path: Path) -> None:
    hub.weights = bytes(len(_WEIGHTS))
    with pytest.raises(EngineError, match="is not what the hub says it is"):
        _bring(tmp_path)
    assert not list(tmp_path.rglob("*model.safetensors*"))


def test_one_file_can_be_chosen(hub: Hub, tmp_path: Path) -> None:
    assert _bring(tmp_path, "small-q8.gguf").read_bytes() == _WEIGHTS
    with pytest.raises(EngineError, match=r"has no file large\.gguf; it has small-q8\.gguf"):
        _bring(tmp_path, "large.gguf")


def test_a_token_is_sent_to_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    _bring(tmp_path)
    assert set(hub.tokens) == {"Bearer hf_secret"}


def test_what_is_no_model_is_refused_with_the_reason(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "folder").mkdir()
    for source, why in {
        str(tmp_path / "notes.txt"): "neither a model's folder nor a GGUF file",
        str(tmp_path / "folder"): "has no config.json",
        "small": "neither a folder or file of this machine nor a model of a hub",
        "someone/other": "cannot download someone/other: it does not exist",
    }.items():
        with pytest.raises(EngineError, match=why):
            import_model(tmp_path / "models", source, None, lambda name, done, size: None)


def test_a_gguf_file_has_a_folder_of_its_own_until_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"one")
    before = locate_model(tmp_path / "models", str(file))
    assert before.convert == file
    assert locate_model(tmp_path / "models", str(file)) == before
    file.write_bytes(b"another")
    assert locate_model(tmp_path / "models", str(file)).folder != before.folder


def test_a_removed_model_is_gone(hub: Hub, tmp_path: Path) -> None:
    path = _bring(tmp_path)
    remove_model(tmp_path, path.name)
    assert stored_models(tmp_path) == []
    with pytest.raises(EngineError, match="there is no model 'someone--small'"):
        remove_model(tmp_path, path.name)
