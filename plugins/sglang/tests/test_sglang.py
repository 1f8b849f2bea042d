"""Versions beside each other on SGLang: the cases of every such server, against a fake of it."""

from typing import cast

import pytest

from metaclaw.ports import HttpProvider
from metaclaw.training import HostSettings, ServerReply
from metaclaw_sglang import SglangRoutes, connect
from tests.training.hosts.test_lora_servers import *  # noqa: F403


def test_a_version_is_asked_for_by_its_name_after_the_models() -> None:
    nobody = cast(HttpProvider, None)
    settings = HostSettings(
        nobody, "http://127.0.0.1:9/v1", None, "qwen", frozenset, lambda: pytest.fail("not needed")
    )
    host = connect(settings)
    assert host.serves is None
    assert host.model_of is not None
    assert host.model_of(12) == "qwen:policy-000012"


def test_words_of_refusal_of_another_program_are_told_as_they_are() -> None:
    assert (
        SglangRoutes().complaint(ServerReply(404, '{"detail": "Not Found"}'))
        == '{"detail": "Not Found"} (status 404)'
    )
