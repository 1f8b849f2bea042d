"""Law 1: what a wire renders, it parses back unchanged, over everything it can express."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Finish,
    Image,
    Json,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Sampling,
    Text,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
    Usage,
    Wire,
)
from metaclaw.wires import deltas_of, estimate_tokens, plain, wire_format
from metaclaw.wires.translation import custom_arguments
from tests.support.depth import tries

few = settings(
    max_examples=tries(12, nightly=100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
many = settings(few, max_examples=tries(40, nightly=500))
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,12}", fullmatch=True)
scalars: st.SearchStrategy[Json] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
)
values: st.SearchStrategy[Json] = st.one_of(
    scalars, st.lists(scalars, max_size=2), st.dictionaries(words, scalars, max_size=2)
)
objects: st.SearchStrategy[dict[str, Json]] = st.dictionaries(words, values, max_size=3)
unknown_fields: st.SearchStrategy[Mapping[str, Json]] = st.dictionaries(
    names.map("x_{}".format), values.filter(lambda value: value is not None), max_size=2
)
urls = st.sampled_from(
    [
        "https://example.org/a.png",
        "data:image/png;base64,aGVsbG8=",
        "data:image/jpeg;base64,/9j/4A==",
    ]
)
warmth = st.none() | st.floats(0, 1)
counts = st.none() | st.integers(1, 100_000)


def some(parts: st.SearchStrategy[Part], size: int = 3) -> st.SearchStrategy[tuple[Part, ...]]:
    return st.lists(parts, min_size=1, max_size=size).map(tuple)


def alone(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[tuple[Part, ...]]:
    return parts.map(lambda part: (part,))


def json_text(value: Json) -> str:
    return msgspec.json.encode(value).decode()


texts: st.SearchStrategy[Part] = st.builds(Text, words, unknown_fields)
refusals: st.SearchStrategy[Part] = st.builds(Text, words, st.just({"type": "refusal"}))
arguments = objects.map(json_text)
tools: st.SearchStrategy[Tool | Opaque] = st.builds(
    Tool, names, st.none() | words, objects.filter(bool), st.none() | st.booleans(), unknown_fields
)
choices = (
    st.none()
    | st.sampled_from(list(ToolMode)).map(ToolChoice)
    | names.map(lambda name: ToolChoice(ToolMode.REQUIRED, name))
)
ANY_OBJECT: dict[str, Json] = {"schema": {"type": "object"}}


def named_schema(name: str, schema: dict[str, Json]) -> dict[str, Json]:
    return {"name": name, "schema": schema}


schemas = st.none() | st.just(ANY_OBJECT) | st.builds(named_schema, names, objects)
efforts = st.none() | st.sampled_from(["low", "medium", "high"])


@st.composite
def tooling(draw: st.DrawFn, offered: st.SearchStrategy[Tool | Opaque]) -> dict[str, object]:
    """Tools with a choice among them; a choice without tools means nothing on most wires."""
    found = tuple(draw(st.lists(offered, max_size=3)))
    if not found:
        return {"tools": found}
    return {
        "tools": found,
        "tool_choice": draw(choices),
        "parallel_tool_calls": draw(st.none() | st.booleans()),
    }


# Chat completions

chat_images: st.SearchStrategy[Part] = st.builds(
    Image, urls, st.none() | st.sampled_from(["low", "high"]), unknown_fields
)
chat_files: st.SearchStrategy[Part] = st.builds(
    Opaque, st.just(Wire.CHAT), st.builds(lambda file: {"type": "file", "file": file}, objects)
)
chat_calls: st.SearchStrategy[Part] = st.builds(
    ToolCall, names, names, words, unknown_fields
) | st.builds(
    lambda identity, name, text: ToolCall(
        identity, name, custom_arguments(text), {"type": "custom"}
    ),
    names,
    names,
    words,
)
chat_results: st.SearchStrategy[Part] = st.builds(
    ToolResult, names, some(texts | chat_images) | st.just(())
)
chat_custom = st.builds(
    Opaque,
    st.just(Wire.CHAT),
    st.builds(lambda name: {"type": "custom", "custom": {"name": name}}, names),
)


def _assistant(thought: list[Part], said: list[Part], calls: list[Part]) -> tuple[Part, ...]:
    return (*thought, *said, *calls)


chat_messages = (
    st.builds(
        Message,
        st.just(Role.SYSTEM),
        some(texts),
        extra=st.just({}) | st.just({"role": "developer"}),
    )
    | st.builds(
        Message,
        st.just(Role.USER),
        some(texts | chat_images | chat_files),
        st.none() | names,
        unknown_fields,
    )
    | st.builds(
        Message,
        st.just(Role.ASSISTANT),
        st.builds(
            _assistant,
            st.lists(st.builds(Reasoning, words), max_size=1),
            st.lists(texts | refusals, max_size=2),
            st.lists(chat_calls, max_size=3),
        ),
        st.none() | names,
        unknown_fields,
    )
    | st.builds(
        Message,
        st.just(Role.TOOL),
        chat_results.map(lambda part: (part,)),
        st.none() | names,
        unknown_fields,
    )
    | st.builds(Message, st.just("critic"), some(texts))
)
chat_sampling = st.builds(
    Sampling,
    max_tokens=counts,
    temperature=warmth,
    top_p=warmth,
    top_k=counts,
    stop=st.lists(words, max_size=4).map(tuple),
    seed=st.none() | st.integers(0, 2**31),
    frequency_penalty=warmth,
    presence_penalty=warmth,
    logprobs=st.booleans(),
    top_logprobs=st.none() | st.integers(0, 20),
    n=st.integers(1, 4),
)


@st.composite
def chat_requests(draw: st.DrawFn) -> ChatRequest:
    return ChatRequest(
        Wire.CHAT,
        draw(names),
        tuple(draw(st.lists(chat_messages, min_size=1, max_size=4))),
        **draw(tooling(tools | chat_custom)),  # type: ignore[arg-type]
        sampling=draw(chat_sampling),
        stream=draw(st.booleans()),
        include_usage=draw(st.booleans()),
        reasoning_effort=draw(efforts),
        json_schema=draw(schemas),
        extra=draw(unknown_fields),
    )


# Anthropic messages

block_images: st.SearchStrategy[Part] = st.builds(Image, urls, extra=unknown_fields)
documents: st.SearchStrategy[Part] = st.builds(
    Opaque,
    st.just(Wire.MESSAGES),
    st.builds(lambda source: {"type": "document", "source": source}, objects),
)
signed: st.SearchStrategy[Part] = st.builds(
    Reasoning, words, names.map("messages:{}".format), extra=unknown_fields
)
redacted: st.SearchStrategy[Part] = st.builds(
    Reasoning, st.just(""), names.map("messages:{}".format), st.just(True)
)
block_calls: st.SearchStrategy[Part] = st.builds(ToolCall, names, names, arguments, unknown_fields)
block_results: st.SearchStrategy[Part] = st.builds(
    ToolResult,
    names,
    some(texts | block_images | documents) | st.just(()),
    st.booleans(),
    unknown_fields,
)
block_messages = (
    st.builds(
        Message,
        st.just(Role.USER),
        some(texts | block_images | documents | block_results) | st.just(()),
        extra=unknown_fields,
    )
    | st.builds(
        Message,
        st.just(Role.ASSISTANT),
        some(texts | signed | redacted | block_calls),
        extra=unknown_fields,
    )
    | st.builds(Message, st.just(Role.SYSTEM), some(texts), extra=unknown_fields)
)
hosted = st.builds(
    Opaque, st.just(Wire.MESSAGES), st.just({"type": "web_search_20260318", "name": "web_search"})
)


@st.composite
def messages_requests(draw: st.DrawFn) -> ChatRequest:
    system = draw(
        st.just(()) | st.builds(lambda parts: (Message(Role.SYSTEM, parts),), some(texts))
    )
    first = draw(st.builds(Message, st.just(Role.USER), some(texts)))
    stream = draw(st.booleans())
    tooled = draw(tooling(tools | hosted))
    choice = tooled.get("tool_choice")
    if not isinstance(choice, ToolChoice) or choice.mode is ToolMode.NONE:
        tooled["parallel_tool_calls"] = None  # this wire says it inside the choice
    return ChatRequest(
        Wire.MESSAGES,
        draw(names),
        (*system, first, *draw(st.lists(block_messages, max_size=4))),
        **tooled,  # type: ignore[arg-type]
        sampling=draw(
            st.builds(
                Sampling,
                max_tokens=st.integers(1, 100_000),
                temperature=warmth,
                top_p=warmth,
                top_k=counts,
                stop=st.lists(words, max_size=4).map(tuple),
            )
        ),
        stream=stream,
        include_usage=stream,
        reasoning_effort=draw(efforts),
        json_schema=draw(st.none() | objects.map(lambda schema: {"schema": schema})),
        extra=draw(unknown_fields),
    )


# OpenAI responses

item_images: st.SearchStrategy[Part] = st.builds(
    Image, urls, st.none() | st.sampled_from(["low", "high"]), unknown_fields
)
item_files: st.SearchStrategy[Part] = st.builds(
    Opaque,
    st.just(Wire.RESPONSES),
    st.builds(lambda data: {"type": "input_file", "file_data": data}, words),
)
proofs = st.none() | names.map("responses:{}".format) | names.map("messages:{}".format)
thoughts: st.SearchStrategy[Part] = st.builds(
    Reasoning, st.just("") | words, proofs, extra=unknown_fields
) | st.builds(
    Reasoning, st.just(""), names.map("messages:{}".format), st.just(True), st.just({"id": "rs_1"})
)
rich_thoughts: st.SearchStrategy[Part] = st.builds(
    lambda first, second: Reasoning(
        f"{first}\n\n{second}",
        None,
        extra={
            "summary": [
                {"type": "summary_text", "text": first},
                {"type": "summary_text", "text": second},
            ]
        },
    ),
    words,
    words,
)
item_calls: st.SearchStrategy[Part] = st.builds(
    ToolCall, names, names, words, unknown_fields | st.just({"id": "fc_1", "namespace": "agents"})
) | st.builds(
    lambda identity, name, text: ToolCall(
        identity, name, custom_arguments(text), {"id": "ctc_1", "type": "custom_tool_call"}
    ),
    names,
    names,
    words,
)
item_results: st.SearchStrategy[Part] = st.builds(
    ToolResult,
    names,
    some(texts | item_images | item_files) | st.just(()),
    extra=unknown_fields | st.just({"type": "custom_tool_call_output"}),
)
item_messages = (
    st.builds(
        Message,
        st.just(Role.SYSTEM),
        some(texts),
        extra=unknown_fields | st.just({"role": "developer", "id": "msg_1"}),
    )
    | st.builds(
        Message,
        st.just(Role.USER),
        some(texts | item_images | item_files) | st.just(()),
        extra=unknown_fields,
    )
    | st.builds(
        Message,
        st.just(Role.ASSISTANT),
        some(texts | refusals),
        extra=unknown_fields | st.just({"id": "msg_2", "status": "completed"}),
    )
    | st.builds(Message, st.just(Role.ASSISTANT), alone(thoughts | rich_thoughts | item_calls))
    | st.builds(Message, st.just(Role.TOOL), alone(item_results))
    | st.builds(
        Message,
        st.just(Role.ASSISTANT),
        alone(st.just(Opaque(Wire.RESPONSES, {"type": "web_search_call", "id": "ws_1"}))),
    )
    | st.builds(
        Message,
        st.just(Role.SYSTEM),
        alone(
            st.just(
                Opaque(
                    Wire.RESPONSES, {"type": "additional_tools", "role": "developer", "tools": []}
                )
            )
        ),
    )
)
item_custom = st.builds(
    Opaque, st.just(Wire.RESPONSES), st.builds(lambda name: {"type": "custom", "name": name}, names)
)


@st.composite
def responses_requests(draw: st.DrawFn) -> ChatRequest:
    stream = draw(st.booleans())
    return ChatRequest(
        Wire.RESPONSES,
        draw(names),
        tuple(draw(st.lists(item_messages, min_size=1, max_size=5))),
        **draw(tooling(tools | item_custom)),  # type: ignore[arg-type]
        sampling=draw(
            st.builds(
                Sampling,
                max_tokens=counts,
                temperature=warmth,
                top_p=warmth,
                logprobs=st.booleans(),
                top_logprobs=st.none() | st.integers(0, 20),
            )
        ),
        stream=stream,
        include_usage=stream,
        reasoning_effort=draw(efforts),
        json_schema=draw(schemas),
        extra=draw(
            unknown_fields
            | st.just(
                {
                    "reasoning": {"summary": "auto"},
                    "text": {"verbosity": "low"},
                    "include": ["reasoning.encrypted_content"],
                }
            )
        ),
    )


# Gemini

gemini_fields: st.SearchStrategy[Mapping[str, Json]] = st.dictionaries(
    names.map(lambda name: f"x{name.replace('_', '')}"),
    values.filter(lambda value: value is not None),
    max_size=2,
)
gemini_texts: st.SearchStrategy[Part] = st.builds(Text, words, gemini_fields)
gemini_images: st.SearchStrategy[Part] = st.builds(Image, urls)
gemini_files: st.SearchStrategy[Part] = st.builds(
    lambda data: Opaque(
        Wire.MESSAGES,
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": data},
        },
    ),
    words,
)
gemini_results: st.SearchStrategy[Part] = st.builds(
    lambda identity, said, shown, failed, name: ToolResult(
        identity, (*said, *shown), failed, {"name": name}
    ),
    names,
    st.lists(words.map(Text), max_size=1),
    st.lists(gemini_images, max_size=1),
    st.just(False),
    names,
)
gemini_tools: st.SearchStrategy[Tool | Opaque] = st.builds(
    Tool, names, st.none() | words, objects.filter(bool), st.none(), gemini_fields
)


@st.composite
def gemini_answers(draw: st.DrawFn) -> Message:
    """An answer: thoughts, which may be signed, a text, and calls."""
    proof = names.map(lambda name: f"gemini:_{name}")  # no base64
    thought = draw(st.lists(st.builds(Reasoning, words, st.none() | proof), max_size=1))
    said = draw(st.lists(words.map(Text), max_size=1))
    calls = draw(
        st.lists(
            st.builds(ToolCall, names, names, arguments),
            min_size=0 if thought or said else 1,
            max_size=3,
            unique_by=lambda call: call.id,
        )
    )
    return Message(Role.ASSISTANT, (*thought, *said, *calls))


@st.composite
def gemini_requests(draw: st.DrawFn) -> ChatRequest:
    system = draw(
        st.just(()) | st.builds(lambda parts: (Message(Role.SYSTEM, parts),), some(gemini_texts))
    )
    person = st.builds(
        Message,
        st.just(Role.USER),
        some(gemini_texts | gemini_images | gemini_files | gemini_results),
    )
    spoken = [draw(person)]
    for _ in range(draw(st.integers(0, 2))):
        spoken += [draw(gemini_answers()), draw(person)]
    tooled = draw(tooling(gemini_tools))
    tooled["parallel_tool_calls"] = None
    stream = draw(st.booleans())
    return ChatRequest(
        Wire.GEMINI,
        draw(names),
        (*system, *spoken),
        **tooled,  # type: ignore[arg-type]
        sampling=draw(
            st.builds(
                Sampling,
                max_tokens=counts,
                temperature=warmth,
                top_p=warmth,
                top_k=counts,
                stop=st.lists(words, max_size=4).map(tuple),
                seed=st.none() | st.integers(0, 2**31),
                frequency_penalty=warmth,
                presence_penalty=warmth,
                n=st.integers(1, 4),
            )
        ),
        stream=stream,
        include_usage=stream,
        reasoning_effort=draw(efforts),
        json_schema=draw(st.none() | st.just(ANY_OBJECT)),
        extra=draw(gemini_fields),
    )


def through_bytes(body: dict[str, Json]) -> dict[str, Json]:
    decoded = msgspec.json.decode(msgspec.json.encode(body))
    assert isinstance(decoded, dict)
    return decoded


requests = st.one_of(chat_requests(), messages_requests(), responses_requests(), gemini_requests())


@many
@given(requests)
def test_a_request_survives_its_own_wire(request: ChatRequest) -> None:
    wire = wire_format(request.wire)
    assert wire.parse_request(through_bytes(wire.render_request(request))) == request


@few
@given(requests)
def test_parsing_does_not_touch_the_clients_body(request: ChatRequest) -> None:
    wire = wire_format(request.wire)
    body = through_bytes(wire.render_request(request))
    before = msgspec.json.encode(body)
    wire.parse_request(body)
    assert msgspec.json.encode(body) == before


@few
@given(requests)
def test_the_estimate_grows_with_the_request(request: ChatRequest) -> None:
    longer = ChatRequest(
        request.wire,
        request.model,
        (*request.messages, Message(Role.USER, (Text("four more words here"),))),
        request.tools,
    )
    shorter = ChatRequest(request.wire, request.model, request.messages, request.tools)
    assert 0 < estimate_tokens(shorter) < estimate_tokens(longer)


# Answers

sums = st.integers(0, 5_000)
usages = st.builds(
    lambda fresh, out, read, written, thought: Usage(
        fresh + read + written, out + thought, read, written, thought
    ),
    sums,
    sums,
    sums,
    sums,
    sums,
)
probabilities = st.floats(-50, 0)
logprobs = st.lists(
    st.builds(
        TokenLogprob,
        words,
        probabilities,
        st.lists(st.tuples(words, probabilities), max_size=2).map(tuple),
    ),
    max_size=3,
).map(tuple)
finishes = st.sampled_from([Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER])
said: st.SearchStrategy[Part] = words.map(Text)
made: st.SearchStrategy[Part] = st.builds(ToolCall, names, names, arguments)


def ended(parts: tuple[Part, ...], finish: Finish) -> Finish:
    return (
        Finish.TOOL_CALLS
        if finish is Finish.STOP and any(isinstance(part, ToolCall) for part in parts)
        else finish
    )


@st.composite
def completions(draw: st.DrawFn, wire: Wire) -> Completion:
    finish = draw(finishes)
    match wire:
        case Wire.CHAT:
            thought = draw(st.lists(st.builds(Reasoning, words), max_size=1))
            parts = (*thought, *draw(st.lists(said, max_size=1)), *draw(st.lists(made, max_size=3)))
            return Completion(
                "chatcmpl-1",
                draw(names),
                parts,
                ended(parts, finish),
                draw(st.none() | usages),
                logprobs=draw(logprobs),
            )
        case Wire.MESSAGES:
            parts = tuple(
                draw(
                    st.lists(
                        said
                        | made
                        | st.builds(Reasoning, words, names.map("messages:{}".format))
                        | redacted,
                        max_size=4,
                    )
                )
            )
            stop = draw(st.none() | words) if ended(parts, finish) is Finish.STOP else None
            return Completion(
                "msg_1", draw(names), parts, ended(parts, finish), draw(usages), stop_sequence=stop
            )
        case Wire.RESPONSES:
            parts = tuple(
                draw(st.lists(said | made | st.builds(Reasoning, words, proofs), max_size=4))
            )
            spoke = any(isinstance(part, Text) for part in parts)
            chances = draw(logprobs) if spoke else ()
            return Completion(
                "resp_1",
                draw(names),
                parts,
                ended(parts, finish),
                draw(st.none() | usages),
                logprobs=chances,
            )
        case Wire.GEMINI:
            calls = draw(st.lists(made, max_size=3))
            parts = (*draw(gemini_answers()).parts, *calls)
            counted = st.builds(
                lambda fresh, out, read, thought: Usage(
                    fresh + read, out + thought, read, 0, thought
                ),
                *(sums, sums, sums, sums),
            )
            return Completion(
                "answer-1", draw(names), parts, ended(parts, finish), draw(st.none() | counted)
            )


@pytest.mark.parametrize("wire", Wire)
@many
@given(st.data())
def test_an_answer_survives_its_own_wire(wire: Wire, data: st.DataObject) -> None:
    completion = data.draw(completions(wire))
    request = ChatRequest(wire, "model", (Message(Role.USER, (Text("hi"),)),))
    spoken = wire_format(wire)
    assert spoken.parse_answer(spoken.render_answer(completion, request)) == completion


@pytest.mark.parametrize("source", Wire)
@pytest.mark.parametrize("target", Wire)
@few
@given(st.data())
def test_an_answer_keeps_its_words_and_calls_on_every_wire(
    source: Wire, target: Wire, data: st.DataObject
) -> None:
    completion = data.draw(completions(source))
    request = ChatRequest(target, "model", (Message(Role.USER, (Text("hi"),)),))
    spoken = wire_format(target)
    shown = spoken.parse_answer(spoken.render_answer(completion, request))
    assert [part for part in shown.parts if isinstance(part, ToolCall)] == [
        part for part in completion.parts if isinstance(part, ToolCall)
    ]
    assert "".join(_words(shown)).replace("\n\n", "") == "".join(_words(completion)).replace(
        "\n\n", ""
    )
    assert shown.finish == completion.finish
    counted = completion.usage
    if counted is not None and target is Wire.GEMINI:
        counted = replace(counted, cache_write_tokens=0)  # Google's form has no place for it
    assert shown.usage == counted or counted is None
    assert next(deltas_of(shown))


def _words(completion: Completion) -> list[str]:
    return [part.text for part in completion.parts if isinstance(part, Text)]


@few
@given(requests)
def test_a_plain_request_is_plain(request: ChatRequest) -> None:
    known = ChatRequest(
        request.wire,
        request.model,
        tuple(m for m in request.messages if isinstance(m.role, Role)) or request.messages,
    )
    if any(not isinstance(message.role, Role) for message in known.messages) or _has_strange_part(
        known
    ):
        return
    said = plain(known)
    previous: Role | str | None = None
    for message in said.messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        assert len(results) == (1 if message.role is Role.TOOL else 0)
        assert not (message.role is Role.ASSISTANT and previous is Role.ASSISTANT)
        assert not message.extra
        previous = message.role


def _has_strange_part(request: ChatRequest) -> bool:
    parts = [part for message in request.messages for part in message.parts]
    parts += [inner for part in parts if isinstance(part, ToolResult) for inner in part.parts]
    return any(isinstance(part, Opaque) for part in parts)
