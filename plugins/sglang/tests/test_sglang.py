"""Versions beside each other on SGLang: the cases of every such server, against a fake of it; and its
tokens.
"""

import json
from pathlib import Path

import pytest

from metaclaw.engine import Vocabulary
from metaclaw.errors import TrainingError
from metaclaw.training import HostSettings, SampleRequest, ServerReply
from metaclaw.upstream import HttpEndpoint
from metaclaw_sglang import SglangRoutes, connect
from plugins.sglang.tests.conftest import FakeSglang
from tests.support import tiny
from tests.training.hosts.test_adapter_server import *  # noqa: F403

ASKED = SampleRequest((1, 2, 3), 2, 8, 1.0, 7)


def drawn(tokens: list[int], finish: str) -> dict[str, object]:
    ids = [*tokens, *([tiny.END] if finish == "stop" else [])]
    pairs = [[-0.5, token, None] for token in ids]
    return {
        "meta_info": {
            "output_token_logprobs": pairs,
            "output_token_logprobs_length": len(ids),
            "finish_reason": {"type": finish},
        }
    }


@pytest.mark.anyio
async def test_rollouts_are_drawn_from_an_adapter_in_tokens(tmp_path: Path) -> None:
    tiny.make_tokenizer(tmp_path)
    vocabulary = Vocabulary(tmp_path)
    one, two = vocabulary.encode("one"), vocabulary.encode("two")
    server = FakeSglang(drawn=[drawn(one, "stop"), drawn(two, "length")])
    endpoint = HttpEndpoint("gpu", "openai", f"{server.url}/v1")
    host = connect(HostSettings(endpoint.at_root(), "qwen", frozenset, lambda: vocabulary))
    assert host.draws is not None
    first, second = await host.draws.rollouts("policy-run-000001-step-000", ASKED)
    assert (first.text, first.is_whole) == ("one", True)
    assert first.tokens_T == (*one, tiny.END)
    assert (second.text, second.is_whole) == ("two", False)
    path, body, _ = server.asked[-1]
    assert path == "/generate"
    assert (body["lora_path"], body["input_ids"]) == ("policy-run-000001-step-000", [1, 2, 3])
    assert body["sampling_params"]["stop_token_ids"] == sorted(vocabulary.end_ids)
    server.drawn = {"error": {"message": "no such adapter"}}
    with pytest.raises(TrainingError, match="sent no tokens"):
        await host.draws.rollouts("policy-run-000001-step-000", ASKED)
    await endpoint.aclose()
    server.stop()


@pytest.mark.parametrize("is_cumulative", [True, False])
def test_the_tokens_of_a_stream_come_once_whichever_way_the_server_counts(
    is_cumulative: bool,
) -> None:
    routes, seen = SglangRoutes(frozenset), 0
    said: list[int] = []
    for upto, length in ((2, 2), (5, 3)):
        pairs = [[-0.1, token, None] for token in range(upto)]
        event = {
            "meta_info": {
                "output_token_logprobs": pairs if is_cumulative else pairs[-length:],
                "output_token_logprobs_length": upto,
                "finish_reason": None if upto < 5 else {"type": "stop"},
            }
        }
        [piece] = routes.read(json.dumps(event), seen)
        said += piece.tokens
        seen += len(piece.tokens)
    assert said == [0, 1, 2, 3, 4]
    assert piece.finish == "stop"


def test_words_of_refusal_of_another_program_are_told_as_they_are() -> None:
    assert (
        SglangRoutes(frozenset).complaint(ServerReply(404, '{"detail": "Not Found"}'))
        == '{"detail": "Not Found"} (status 404)'
    )
