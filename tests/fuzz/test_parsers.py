"""Every parser of what others write meets damaged input: it returns, or raises the error that it
declares.

The corpus holds a folder of good inputs for each parser. An input that once broke one is added
there as a file of its own, so that it is tried each time.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.checks import ShellSyntaxError, parse_check, read_script
from metaclaw.checks.answer import find_json
from metaclaw.checks.code import scan
from metaclaw.config.loader import build, read_file
from metaclaw.domain.chat import Completion, Finish, Text
from metaclaw.engine.checkpoint import read_shape
from metaclaw.engine.gguf_file import GgufFile
from metaclaw.engine.prompt import CallParser
from metaclaw.engine.training.lora import read_adapter
from metaclaw.errors import (
    ConfigError,
    EngineError,
    JudgeError,
    SkillError,
    TrainingError,
    UpstreamError,
    WireError,
)
from metaclaw.learn.rule_checks import read_check
from metaclaw.learn.second_opinion import read_opinion
from metaclaw.learn.stated_rules import read_answer
from metaclaw.outcome.judge import read_ranking, read_vote
from metaclaw.privacy import KnownSecrets
from metaclaw.privacy.provenance import marked_message
from metaclaw.privacy.secret_scan import find_secrets
from metaclaw.proxy.http.body import parse_object
from metaclaw.proxy.http.server import read_target
from metaclaw.skills import parse_skill
from metaclaw.skills.evolver import read_skills
from metaclaw.skills.transfer import read_rules
from metaclaw.upstream.transport import read_address
from metaclaw.wires import parse_error, wire_formats
from tests.support.depth import tries

_CORPUS: Final = Path(__file__).parent / "corpus"
_LIMIT_S: Final = 20.0
"""Processor time for one input; ordinary ones take milliseconds."""


class _Reader(Protocol):
    def feed(self, data: bytes) -> Sequence[object]: ...
    def close(self) -> Sequence[object]: ...


@dataclass(frozen=True)
class Parser:
    """A parser, and the errors that it may raise."""

    name: str
    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode(errors="replace"))


def _completion(parse: Callable[[Completion], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        text = data.decode(errors="replace")
        return parse(Completion("1", "m", (Text(text),), Finish.STOP))

    return read


def _file(parse: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        path = Path(name).absolute()  # in the test's folder
        path.write_bytes(data)
        return parse(path)

    return read


def _stream(reader: Callable[[], _Reader]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        stream = reader()
        half = len(data) // 2
        return [*stream.feed(data[:half]), *stream.feed(data[half:]), *stream.close()]

    return read


def _request(wire: str) -> Callable[[bytes], object]:
    form = next(one for one in wire_formats() if one.wire.value == wire)
    return lambda data: form.parse_request(parse_object(data))


def _calls(text: str) -> object:
    parser = CallParser({"read_file", "run"})
    half = len(text) // 2
    return [*parser.push(text[:half]), *parser.push(text[half:]), *parser.flush()]


def _read_gguf(path: Path) -> object:
    file = GgufFile(path)
    return [file.load(tensor) for tensor in file.tensors[:4]]


_TODAY: Final = date(2026, 5, 17)
_KNOWN: Final = KnownSecrets(["correct-horse-battery-staple-9"])

PARSERS: Final = (
    *(
        Parser(f"{form.wire.value}-request", _request(form.wire.value), (WireError,))
        for form in wire_formats()
    ),
    *(
        Parser(f"{form.wire.value}-answer", form.parse_answer, (UpstreamError,))
        for form in wire_formats()
    ),
    *(
        Parser(f"{form.wire.value}-stream", _stream(form.reader), (UpstreamError,))
        for form in wire_formats()
    ),
    Parser("provider-error", lambda data: parse_error(500, data)),
    Parser("request-target", lambda data: read_target(data), (WireError,)),
    Parser("base-url", _text(read_address), (ConfigError,)),
    Parser(
        "config",
        _file(lambda path: build(read_file(path).tree, path.parent), "config.toml"),
        (ConfigError,),
    ),
    Parser("skill", _text(lambda text: parse_skill(text, "SKILL.md")), (SkillError,)),
    Parser("rules", _text(read_rules), (SkillError,)),
    Parser("check", _text(parse_check), (SkillError,)),
    Parser("shell", _text(read_script), (ShellSyntaxError,)),
    Parser("code", _text(scan)),
    Parser("json-in-text", _text(find_json)),
    Parser("listener", _completion(lambda said: read_answer(said, _TODAY)), (JudgeError,)),
    Parser("second-opinion", _completion(read_opinion), (JudgeError,)),
    Parser("proposed-check", _completion(read_check), (JudgeError,)),
    Parser("vote", _completion(read_vote), (JudgeError,)),
    Parser("ranking", _completion(lambda said: read_ranking(said, 3)), (JudgeError,)),
    Parser("written-skills", _text(read_skills)),
    Parser(
        "secrets", _text(lambda text: find_secrets(text, _KNOWN, time.thread_time() + _LIMIT_S / 2))
    ),
    Parser("message", _text(lambda text: marked_message(text, 16_000))),
    Parser("model-calls", _text(_calls)),
    Parser("gguf", _file(_read_gguf, "model.gguf"), (EngineError,)),
    Parser(
        "model-config", _file(lambda path: read_shape(path.parent), "config.json"), (EngineError,)
    ),
    Parser(
        "adapter-config",
        _file(lambda path: read_adapter(path.parent), "adapter_config.json"),
        (TrainingError,),
    ),
)


# What parsers of text often mistreat: numbers at a limit, deep nesting, halves of characters.
_TOKENS: Final = (
    *b'null true -1 1e999 NaN 9007199254740993 18446744073709551616 "" {} [] {"a": [DONE]'.split(),
    *b"$( ${ ` ' \" && | ; > @ : :// %00 %zz /../ \\u0000 \\ud800 <<EOF data: event: ---".split(),
    *b"``` <tool_call> </tool_call> <system-reminder> \x1b[31m \xff\xfe \x80 \xed\xa0\x80".split(),
    *(b"\n", b"\n\n", b"\r\n", b"\\\n", b"\0" * 8, b"\xff" * 8),
    *(one.encode() for one in ("\ufeff", "\u2028", "é", "\U0001f600")),
    *(b"[" * 200, b"{" * 200, b'{"a":' * 200, b" " * 300, b"a" * 3000),
)


def _inputs(parser: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((_CORPUS / parser).iterdir())]


@st.composite
def damaged(draw: st.DrawFn, parser: str) -> bytes:
    """A good input with up to eight changes: pieces deleted, repeated, moved, inserted, bits
    turned.
    """
    inputs = _inputs(parser)
    data = draw(st.sampled_from(inputs))
    for _ in range(draw(st.integers(1, 8))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 40)))
        match draw(st.integers(0, 5)):
            case 0:
                data = data[:begin] + data[end:]
            case 1:
                data = data[:end] + data[begin:end] * draw(st.integers(1, 20)) + data[end:]
            case 2:
                data = data[:begin] + draw(st.sampled_from(_TOKENS)) + data[end:]
            case 3:
                data = data[:begin] + draw(st.binary(max_size=8)) + data[end:]
            case 4:
                other = draw(st.sampled_from(inputs))
                data = data[:begin] + other[draw(st.integers(0, len(other))) :]
            case _:
                data = data[:begin]
    return data


@contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still parsing after {_LIMIT_S:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _meets_contract(parser: Parser, data: bytes) -> None:
    with _limited():
        with suppress(*parser.errors):
            parser.parse(data)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_each_input_of_the_corpus_is_parsed_or_refused_as_declared(
    parser: Parser, in_folder: None
) -> None:
    assert _inputs(parser.name)
    for data in _inputs(parser.name):
        _meets_contract(parser, data)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # of patterns in checks
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_damaged_input_is_parsed_or_refused_as_declared(parser: Parser, in_folder: None) -> None:
    @settings(
        max_examples=tries(60, nightly=1000),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=damaged(parser.name))
    def check(data: bytes) -> None:
        _meets_contract(parser, data)

    check()
