"""Versions beside each other on a server: the same cases for vLLM and for servers of plugins, against
fakes of them.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from metaclaw.domain.policy import Weights
from metaclaw.errors import TrainingError, WeightsLostError
from metaclaw.training.hosts.adapter_server import AdapterHost, ServerReply
from metaclaw.training.hosts.vllm import VllmRoutes
from tests.support.lora_server import FakeServer

pytestmark = pytest.mark.anyio

Make = Callable[..., AdapterHost]


def adapter(folder: Path, name: str) -> Weights:
    (folder / name).mkdir()
    (folder / name / "adapter_config.json").write_text("{}")
    return Weights("embedded", str(folder / name))


async def test_a_version_is_loaded_under_a_name_of_its_own(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    host = make(f"{server.url}/v1", "the key")
    weights = adapter(tmp_path, "one")
    await host.load(12, weights)
    assert server.adapters == {"policy-000012": weights.adapter}
    assert host.loaded == {12}
    assert server.asked[0][2] == "Bearer the key"
    await host.load(12, weights)
    assert len(server.asked) == 1


async def test_the_last_two_versions_stay_and_those_in_use(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    in_use = {1}
    host = make(server.url, in_use=lambda: frozenset(in_use))
    for version in (1, 2, 3, 4):
        await host.load(version, adapter(tmp_path, str(version)))
    assert host.loaded == {1, 3, 4}
    in_use.clear()
    await host.load(5, adapter(tmp_path, "5"))
    assert host.loaded == {4, 5}
    assert server.adapters.keys() == {"policy-000004", "policy-000005"}


async def test_what_cannot_be_loaded_changes_nothing(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    host = make(server.url)
    await host.load(1, adapter(tmp_path, "one"))
    with pytest.raises(TrainingError, match="policy-000002 cannot be loaded by"):
        await host.load(2, Weights("embedded", str(tmp_path / "nothing here")))
    with pytest.raises(TrainingError, match="not a folder"):
        await host.load(2, Weights("tinker", "tinker://run/sampler_weights/two"))
    with pytest.raises(TrainingError, match="other weights"):
        await host.load(1, adapter(tmp_path, "two"))
    with pytest.raises(TrainingError, match="version 0"):
        await host.load(0, adapter(tmp_path, "zero"))
    assert host.loaded == {1}
    assert server.adapters.keys() == {"policy-000001"}


async def test_weights_that_are_not_all_there_are_lost_and_a_refusal_of_whole_ones_may_pass(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    host = make(server.url)
    server.fails = "no room"
    whole = adapter(tmp_path, "whole")
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    body = len(header).to_bytes(8, "little") + header + bytes(8)
    weights_file = Path(whole.adapter) / "adapter_model.safetensors"
    weights_file.write_bytes(body)
    with pytest.raises(TrainingError, match="no room") as refused:
        await host.load(1, whole)
    assert type(refused.value) is TrainingError
    weights_file.write_bytes(body[:-1])
    with pytest.raises(WeightsLostError, match="no room"):
        await host.load(1, whole)


async def test_a_name_that_is_taken_on_a_server_that_outlived_us_is_loaded_anew(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    await make(server.url).load(1, adapter(tmp_path, "of an earlier life"))
    weights = adapter(tmp_path, "ours")
    host = make(server.url)
    await host.load(1, weights)
    assert server.adapters == {"policy-000001": weights.adapter}


async def test_an_unloaded_version_is_gone_even_if_it_was_already(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    host = make(server.url)
    await host.load(1, adapter(tmp_path, "one"))
    server.adapters.clear()
    await host.unload(1)
    assert host.loaded == frozenset()
    await host.unload(7)
    assert [path.rpartition("/")[2] for path, _, _ in server.asked] == [
        "load_lora_adapter",
        "unload_lora_adapter",
    ]


async def test_an_old_version_that_will_not_go_does_not_hinder_the_new(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    host = make(server.url, keeps=1)
    await host.load(1, adapter(tmp_path, "one"))
    real = server.answer

    def refuse_to_unload(path: str, body: dict[str, object]) -> tuple[int, str]:
        server.fails = "busy" if "unload" in path else None
        return real(path, body)

    server.answer = refuse_to_unload  # type: ignore[method-assign]
    await host.load(2, adapter(tmp_path, "two"))
    assert host.loaded == {1, 2}
    with pytest.raises(TrainingError, match=r"policy-000001 cannot be unloaded by .*busy"):
        await host.unload(1)


async def test_loads_that_come_together_are_done_one_after_another(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    host = make(server.url)
    weights = adapter(tmp_path, "one")
    await asyncio.gather(*(host.load(1, weights) for _ in range(5)))
    assert len(server.asked) == 1


async def test_a_server_that_is_not_there_is_an_error_in_words(
    server: FakeServer, make: Make, tmp_path: Path
) -> None:
    server.stop()
    host = make(server.url)
    with pytest.raises(TrainingError, match=r"cannot be reached: .*refused"):
        await host.load(1, adapter(tmp_path, "one"))
    assert host.loaded == frozenset()


def test_words_of_refusal_of_vllm_are_found_wherever_they_stand() -> None:
    say = VllmRoutes("tiny", frozenset).complaint
    assert say(ServerReply(200, "Success")) is None
    assert say(ServerReply(400, '{"object": "error", "message": "no"}')) == "no (status 400)"
    assert say(ServerReply(404, '{"detail": "Not Found"}')) == "Not Found (status 404)"
    assert say(ServerReply(502, "<html>")) == "<html> (status 502)"
    assert say(ServerReply(502, "")) == "no reason given (status 502)"
