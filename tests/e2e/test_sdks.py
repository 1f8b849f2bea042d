"""The official SDKs drive every route, on every kind of provider, streamed and whole."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.program import KEY, NOT_LEARNING, Program, gemini_toml, providers_toml
from tests.support.provider import Provider

if TYPE_CHECKING:  # only who asks waits for an SDK
    import anthropic
    import openai
    from google import genai

PROVIDERS = ["openai", "chatonly", "anthropic", "gemini"]
TOOL = {"type": "object", "properties": {"n": {"type": "integer"}}}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": TOOL}}
    for name in ("first", "second")
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": name, "description": name, "parameters": TOOL, "strict": False}
    for name in ("first", "second")
]
MESSAGES_TOOLS: Any = [
    {"name": name, "description": name, "input_schema": TOOL} for name in ("first", "second")
]


GEMINI_TOOLS: Any = [
    {
        "functionDeclarations": [
            {"name": name, "description": name, "parametersJsonSchema": TOOL}
            for name in ("first", "second")
        ]
    }
]


@pytest.fixture(scope="module")
def program(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    config = providers_toml(provider.url) + gemini_toml(provider.url)
    running = Program(tmp_path_factory.mktemp("sdks") / "home", config, env=NOT_LEARNING).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.fixture
def google(program: Program) -> "Iterator[genai.Client]":
    from google import genai

    with genai.Client(api_key=KEY, http_options={"base_url": program.url}) as client:
        yield client


@pytest.fixture
def oai(program: Program) -> "Iterator[openai.OpenAI]":
    import openai

    with openai.OpenAI(base_url=f"{program.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(program: Program) -> "Iterator[anthropic.Anthropic]":
    import anthropic

    with anthropic.Anthropic(base_url=program.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("target", PROVIDERS)
def test_chat_whole(oai: "openai.OpenAI", target: str) -> None:
    answer = oai.chat.completions.create(
        model=f"{target}/echo", messages=[{"role": "user", "content": "good morning"}]
    )
    assert (answer.choices[0].message.content or "").strip() == "echo: good morning"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


@pytest.mark.parametrize("target", PROVIDERS)
def test_chat_streamed(oai: "openai.OpenAI", target: str) -> None:
    stream = oai.chat.completions.create(
        model=f"{target}/echo",
        messages=[{"role": "user", "content": "one two three"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [
        chunk.choices[0].delta.content
        for chunk in chunks
        if chunk.choices and chunk.choices[0].delta.content
    ]
    assert "".join(pieces).strip() == "echo: one two three"
    assert len(pieces) >= 4
    assert [
        chunk.choices[0].finish_reason
        for chunk in chunks
        if chunk.choices and chunk.choices[0].finish_reason
    ] == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 18


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_chat_calls_tools_in_parallel(oai: "openai.OpenAI", target: str, streamed: bool) -> None:
    asked: Any = {
        "model": f"{target}/tools",
        "messages": [{"role": "user", "content": "go"}],
        "tools": CHAT_TOOLS,
    }
    if streamed:
        with oai.chat.completions.stream(**asked) as stream:
            answer = stream.get_final_completion()
    else:
        answer = oai.chat.completions.create(**asked)
    message, finish = answer.choices[0].message, answer.choices[0].finish_reason
    assert finish == "tool_calls"
    calls = [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
        if call.type == "function"
    ]
    assert calls == [("first", {"n": 0}), ("second", {"n": 1})]


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_messages_say_think_and_stop(
    claude: "anthropic.Anthropic", target: str, streamed: bool
) -> None:
    asked: Any = {
        "model": f"{target}/reason",
        "max_tokens": 100,
        "system": "be brief",
        "messages": [{"role": "user", "content": "hello there"}],
    }
    if streamed:
        with claude.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = claude.messages.create(**asked)
    texts = [block.text for block in answer.content if block.type == "text"]
    thoughts = [block.thinking for block in answer.content if block.type == "thinking"]
    assert "".join(texts).strip() == "echo: hello there"
    assert thoughts == ["let me think"]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == 7
    assert answer.usage.input_tokens == 8
    assert answer.usage.cache_read_input_tokens == 3


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_messages_call_tools_in_parallel_and_take_their_results(
    claude: "anthropic.Anthropic", provider: Provider, target: str, streamed: bool
) -> None:
    asked: Any = {
        "model": f"{target}/tools",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "go"}],
        "tools": MESSAGES_TOOLS,
    }
    if streamed:
        with claude.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = claude.messages.create(**asked)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use"
    assert [(call.name, call.input) for call in calls] == [
        ("first", {"n": 0}),
        ("second", {"n": 1}),
    ]
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"result {call.name}"}
        for call in calls
    ]
    followed: Any = {
        **asked,
        "model": f"{target}/echo",
        "messages": [
            *asked["messages"],
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": results},
        ],
    }
    claude.messages.create(**followed)
    sent = provider.requests[-1].body.decode()
    assert sent.index("result first") < sent.index("result second")


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_responses_say_and_count(oai: "openai.OpenAI", target: str, streamed: bool) -> None:
    asked: Any = {"model": f"{target}/reason", "instructions": "be brief", "input": "hello there"}
    if streamed:
        with oai.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            answer = stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.output_text.delta") >= 3
    else:
        answer = oai.responses.create(**asked)
    assert answer.output_text.strip() == "echo: hello there"
    assert answer.status == "completed"
    assert any(item.type == "reasoning" for item in answer.output)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_responses_call_tools_in_parallel(
    oai: "openai.OpenAI", target: str, streamed: bool
) -> None:
    asked: Any = {
        "model": f"{target}/tools",
        "input": [{"role": "user", "content": "go"}],
        "tools": RESPONSES_TOOLS,
    }
    if streamed:
        with oai.responses.stream(**asked) as stream:
            answer = stream.get_final_response()
    else:
        answer = oai.responses.create(**asked)
    calls = [
        (item.name, json.loads(item.arguments))
        for item in answer.output
        if item.type == "function_call"
    ]
    assert calls == [("first", {"n": 0}), ("second", {"n": 1})]


@pytest.mark.parametrize("target", PROVIDERS)
def test_a_picture_reaches_every_kind_of_provider(
    oai: "openai.OpenAI", claude: "anthropic.Anthropic", provider: Provider, target: str
) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
    parts: Any = [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}},
    ]
    oai.chat.completions.create(
        model=f"{target}/echo", messages=[{"role": "user", "content": parts}]
    )
    assert pixel in provider.requests[-1].body.decode()
    blocks: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": pixel}},
        {"type": "text", "text": "what is this"},
    ]
    claude.messages.create(
        model=f"{target}/echo", max_tokens=9, messages=[{"role": "user", "content": blocks}]
    )
    assert pixel in provider.requests[-1].body.decode()


def test_errors_have_the_providers_status_and_the_clients_shape(
    oai: "openai.OpenAI", claude: "anthropic.Anthropic"
) -> None:
    import anthropic
    import openai

    for target in PROVIDERS:
        with pytest.raises(openai.BadRequestError, match="scripted 400"):
            oai.chat.completions.create(
                model=f"{target}/status-400", messages=[{"role": "user", "content": "x"}]
            )
        with pytest.raises(openai.RateLimitError, match="scripted 429"):
            oai.responses.create(model=f"{target}/status-429", input="x", stream=True)
        with pytest.raises(anthropic.PermissionDeniedError, match="scripted 403"):
            claude.messages.create(
                model=f"{target}/status-403",
                max_tokens=1,
                messages=[{"role": "user", "content": "x"}],
            )


def test_models_tokens_and_other_routes(
    oai: "openai.OpenAI", claude: "anthropic.Anthropic", provider: Provider
) -> None:
    assert {"echo", "chat-model", "claude-model"} <= {model.id for model in oai.models.list()}
    assert "claude-model" in {model.id for model in claude.models.list()}
    assert (
        claude.messages.count_tokens(
            model="claude-model", messages=[{"role": "user", "content": "hi"}]
        ).input_tokens
        == 42
    )
    estimated = claude.messages.count_tokens(
        model="chatonly/echo", messages=[{"role": "user", "content": "four words of text"}]
    ).input_tokens
    assert 3 <= estimated <= 30
    assert oai.embeddings.create(model="e", input="x", encoding_format="float").data[
        0
    ].embedding == [0.5]
    assert provider.requests[-1].path == "/v1/embeddings"
    assert provider.requests[-1].header("authorization") == "Bearer sk-openai"


def test_a_wrong_key_is_refused_in_the_wires_shape_and_told_nothing_else(
    program: Program, provider: Provider
) -> None:
    import anthropic
    import openai

    before = len(provider.requests)
    with (
        openai.OpenAI(base_url=f"{program.url}/v1", api_key="wrong", max_retries=0) as oai,
        anthropic.Anthropic(base_url=program.url, api_key="wrong", max_retries=0) as claude,
    ):
        with pytest.raises(openai.AuthenticationError):
            oai.models.list()
        with pytest.raises(anthropic.AuthenticationError) as caught:
            claude.messages.create(
                model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]
            )
    assert KEY not in str(caught.value)
    assert len(provider.requests) == before


def said(google: "genai.Client", streamed: bool, **asked: Any) -> "list[genai.types.Part]":
    """The parts of an answer, and checks of what ends it."""
    answers = (
        list(google.models.generate_content_stream(**asked))
        if streamed
        else [google.models.generate_content(**asked)]
    )
    parts = [
        part
        for answer in answers
        for candidate in answer.candidates or []
        if candidate.content is not None
        for part in candidate.content.parts or []
    ]
    candidates = answers[-1].candidates
    assert candidates is not None
    assert candidates[0].finish_reason == "STOP"
    usage = answers[-1].usage_metadata
    assert usage is not None
    thought = usage.thoughts_token_count or 0
    assert (usage.prompt_token_count, (usage.candidates_token_count or 0) + thought) == (11, 7)
    assert usage.cached_content_token_count == 3
    return parts


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_gemini_says_and_thinks(google: "genai.Client", target: str, streamed: bool) -> None:
    asked: Any = {"config": {"system_instruction": "be brief", "temperature": 0.5}}
    parts = said(google, streamed, model=f"{target}/reason", contents="hello there", **asked)
    assert "".join(part.text or "" for part in parts if part.thought) == "let me think"
    texts = [part.text for part in parts if part.text and not part.thought]
    assert "".join(texts).strip() == "echo: hello there"
    assert not streamed or len(texts) >= 3


@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("streamed", [False, True])
def test_gemini_calls_tools_in_parallel_and_takes_their_results(
    google: "genai.Client", provider: Provider, target: str, streamed: bool
) -> None:
    asked: Any = {"config": {"tools": GEMINI_TOOLS}}
    question: Any = {"role": "user", "parts": [{"text": "go"}]}
    parts = said(google, streamed, model=f"{target}/tools", contents=[question], **asked)
    calls = [part.function_call for part in parts if part.function_call is not None]
    assert [(call.name, call.args) for call in calls] == [("first", {"n": 0}), ("second", {"n": 1})]
    results: Any = [
        {
            "function_response": {
                "id": call.id,
                "name": call.name,
                "response": {"output": f"result {call.name}"},
            }
        }
        for call in calls
    ]
    answer: Any = {"role": "model", "parts": [part for part in parts if part.function_call]}
    followed: Any = [question, answer, {"role": "user", "parts": results}]
    google.models.generate_content(model=f"{target}/echo", contents=followed, **asked)
    sent = provider.requests[-1].body.decode()
    assert sent.index("result first") < sent.index("result second")
    if target == "gemini":
        assert '"thoughtSignature":"c2ln"' in sent.replace(" ", "")


def test_googles_list_of_models_token_counts_and_errors(
    google: "genai.Client", provider: Provider
) -> None:
    from google.genai.errors import ClientError

    listed = {model.name for model in google.models.list()}
    assert {"models/echo", "models/chat-model", "models/gemini-model"} <= listed
    assert google.models.count_tokens(model="gemini-model", contents="hi").total_tokens == 42
    assert provider.requests[-1].path == "/v1beta/models/gemini-model:countTokens"
    counted = google.models.count_tokens(model="chatonly/echo", contents="four words of text")
    assert 3 <= (counted.total_tokens or 0) <= 30
    for target in PROVIDERS:
        with pytest.raises(ClientError, match="scripted 400") as caught:
            google.models.generate_content(model=f"{target}/status-400", contents="x")
        assert caught.value.code == 400


def test_googles_key_is_taken_as_field_or_query_and_never_logged_or_passed_on(
    program: Program, provider: Provider
) -> None:
    url = f"{program.url}/v1beta/models/gemini-model:generateContent"
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    ways: list[dict[str, Any]] = [
        {"headers": {"x-goog-api-key": KEY}},
        {"params": {"key": KEY}},
        {"headers": {"authorization": f"Bearer {KEY}"}},
    ]
    for way in ways:
        assert httpx.post(url, json=body, **way).status_code == 200
        seen = provider.requests[-1]
        assert (seen.path, seen.query) == ("/v1beta/models/gemini-model:generateContent", "")
        assert seen.header("x-goog-api-key") == "sk-gemini"
        assert KEY not in f"{seen.headers}{seen.body!r}"
        assert seen.json == body
    refused = httpx.post(url, json=body, params={"key": "wrong-key-of-mine"})
    assert refused.status_code == 401
    assert refused.json()["error"]["status"] == "UNAUTHENTICATED"
    log = program.log.read_text()
    assert KEY not in log
    assert "wrong-key-of-mine" not in log + refused.text
