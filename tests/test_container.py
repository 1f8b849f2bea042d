"""The container files: what they copy exists, and what they set is a configuration. Building the
image needs a daemon, and is not tested.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from metaclaw.config import load

ROOT = Path(__file__).resolve().parents[1]
CONTAINERFILE = (ROOT / "Containerfile").read_text()
GIVEN = {"METACLAW_KEY": "a-key", "POSTGRES_PASSWORD": "secret", "OPENAI_API_KEY": "sk-1"}


def own_settings() -> dict[str, str]:
    """What the image sets."""
    return dict(re.findall(r"(METACLAW\w*)=(\S+)", CONTAINERFILE.partition("ENV ")[2]))


def test_the_image_copies_what_exists_and_nothing_else_reaches_the_build() -> None:
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".containerignore").read_text()
    assert ignored == (ROOT / ".dockerignore").read_text()
    let_through = [line[1:] for line in ignored.splitlines() if line.startswith("!")]
    assert sorted(let_through) == sorted(copied)


def test_the_image_does_not_run_as_root_and_keeps_its_home() -> None:
    user = re.findall(r"^USER (\d+)$", CONTAINERFILE, re.MULTILINE)
    assert user == ["10001"]
    home = own_settings()["METACLAW_HOME"]
    assert f"VOLUME {home}\n" in CONTAINERFILE
    assert f"--owner metaclaw --group metaclaw {home}\n" in CONTAINERFILE


def test_each_proxy_of_the_compose_file_has_a_whole_configuration(home: Path) -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    proxies = [service for name, service in services.items() if name.startswith("proxy")]
    assert len(proxies) == 2
    assert len({one["volumes"][0] for one in proxies}) == 2
    for one in proxies:
        settings = own_settings() | {
            name: re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: GIVEN[found[1]], value)
            for name, value in one["environment"].items()
        }
        config = load(home, settings)
        assert config.proxy.host == "0.0.0.0"
        assert config.proxy.api_key is not None
        assert config.proxy.api_key.resolve(settings) == "a-key"
        address = "postgresql://metaclaw:secret@postgres/metaclaw"
        assert config.store.url.resolve(settings) == address
        [provider] = config.providers
        assert provider.api_key is not None
        assert provider.api_key.resolve(settings) == "sk-1"
        _, port = one["ports"][0].rsplit(":", 1)
        assert int(port) == config.proxy.port
        assert one["volumes"][0].endswith(own_settings()["METACLAW_HOME"])


def test_each_service_of_the_gpu_machine_has_a_gpu_and_a_port_of_its_own() -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]
    devices = [
        one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"][0]
        for one in services.values()
    ]
    assert devices == ["0", "1", "2"]
    assert len({one["ports"][0].rpartition(":")[0] for one in services.values()}) == 3
    # SkyRL's server has no key.
    assert services["skyrl"]["ports"][0].startswith("127.0.0.1:")
