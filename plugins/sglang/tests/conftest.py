"""A fake of SGLang, as far as adapters go."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaclaw_sglang import SglangRoutes
from tests.support.lora_server import Body, FakeServer
from tests.training.hosts.conftest import make

__all__ = ["make"]


@dataclass
class FakeSglang(FakeServer):
    """SGLang 0.5.23. Every answer tells whether it succeeded; a failure has status 400. What it
    draws is `drawn`.
    """

    drawn: object = None

    def answer(self, path: str, body: Body) -> tuple[int, str]:
        if path == "/generate":
            return 200, json.dumps(self.drawn)
        name = body["lora_name"]
        words: str | None = self.fails
        if words is None and path == "/load_lora_adapter":
            if name in self.adapters:
                words = f"Failed to load LoRA adapter {name} because it is already loaded"
            elif not (Path(body["lora_path"]) / "adapter_config.json").exists():
                words = (
                    f"{body['lora_path']} does not appear to have a file named adapter_config.json"
                )
            else:
                self.adapters[name] = body["lora_path"]
        elif words is None and path == "/unload_lora_adapter":
            if self.adapters.pop(name, None) is None:
                words = f"LoRA with name {name} does not exist. Loaded LoRAs: {list(self.adapters)}"
        elif words is None:
            return 404, json.dumps({"detail": "Not Found"})
        answer = {
            "success": words is None,
            "error_message": words or "",
            "loaded_adapters": self.adapters,
        }
        return 200 if words is None else 400, json.dumps(answer)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeSglang()
    yield fake
    fake.stop()


@pytest.fixture
def routes() -> SglangRoutes:
    return SglangRoutes(frozenset)
