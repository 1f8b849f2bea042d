"""Main or side: the housekeeping of known clients, of unknown ones, and what must not be taken for
it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.turn import SUBAGENT, Origin, TurnKind
from metaclaw.proxy.sessions import Origins
from tests.support.cases import each

TOOLS: list[Json] = [{"type": "function", "function": {"name": "sh", "parameters": {}}}]
CLAUDE = {
    "user-agent": "claude-cli/2.1.325 (external, cli)",
    "x-claude-code-session-id": "01a1dc98-5699-7411-9f18-0bae2f67e745",
}
CODEX = {"user-agent": "codex_exec/0.166.0", "originator": "codex_exec", "session-id": "s"}
HERMES = "You are Hermes Agent, an intelligent AI assistant created by Nous Research."
QWEN = {"user-agent": "QwenCode/0.15.10 (linux; arm64)"}
OPENCLAW = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant running inside OpenClaw."


def identify(
    prompt: str | list[Json],
    *,
    wire: Wire = Wire.CHAT,
    system: str | None = None,
    headers: Mapping[str, str] | None = None,
    path: str = "",
    after: tuple[Json, ...] = (),
    **extra: Json,
) -> Origin:
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    items: list[Json] = [{"role": "user", "content": prompt}, *after]
    body: dict[str, Json] = {
        "model": "m",
        "input" if wire is Wire.RESPONSES else "messages": items,
        **extra,
    }
    if system is not None and wire is Wire.MESSAGES:
        body["system"] = system
    elif system is not None:
        items.insert(0, {"role": "system", "content": system})
    if wire is Wire.MESSAGES:
        body.setdefault("max_tokens", 100)
    return origins.identify(wire, headers or {}, body, path=path)


def test_what_the_caller_says_outranks_what_we_see() -> None:
    side = identify("fix the bug", headers={"x-turn-type": "side"}, tools=TOOLS)
    main = identify("HEARTBEAT", headers={"x-turn-type": "Main"})
    assert (side.kind, side.kind_reason) == (TurnKind.SIDE, "header")
    assert (main.kind, main.kind_reason) == (TurnKind.MAIN, "header")
    assert identify("hi", headers={"x-turn-type": "whatever"}).kind_reason == "main"


@pytest.mark.parametrize(
    "origin",
    [
        identify(
            "Find all tests. Never edit a file.",
            system="You are a file search specialist agent. You excel",
            headers=QWEN,
            tools=TOOLS,
        ),
        identify(
            "<fork-boilerplate>\nSTOP.</fork-boilerplate>\nRename it.",
            system="You are Qwen Code, an",
            headers=QWEN,
            tools=TOOLS,
        ),
        identify(
            "Never edit files.",
            system=(
                f"{HERMES}{'.' * 8000}\nYou are a focused subagent working on a specific delegated"
                " task."
            ),
        ),
        identify(
            "Count them. Never edit.\n\nRuntime: agent=main | session=agent:main:subagent:4ad05c93"
            " | sessionId=x",
            system=OPENCLAW,
            tools=TOOLS,
        ),
        identify(
            "Review it. Never edit.",
            wire=Wire.RESPONSES,
            headers={**CODEX, "x-openai-subagent": "review"},
            tools=TOOLS,
        ),
        identify(
            "Always answer in JSON.",
            system="You are a research sub-agent. Report to the one who asked.",
            tools=TOOLS,
        ),
        identify(
            "Always answer in JSON.",
            system="You are now acting as the code review subagent for an assistant.",
        ),
    ],
)
def test_what_another_agent_asks_for_is_work_but_no_persons(origin: Origin) -> None:
    assert (origin.kind, origin.kind_reason) == (TurnKind.MAIN, SUBAGENT)


@pytest.mark.parametrize(
    "system",
    [
        "You are Qwen Code, an interactive CLI agent",
        "You are an agent. You may start a subagent for long searches.",
        "You are a planner",
    ],
)
def test_an_agent_that_may_hire_others_is_not_hired(system: str) -> None:
    assert identify("Fix the bug.", system=system, tools=TOOLS).kind_reason == "main"


def test_the_end_of_a_research_run_is_answered_by_nobody_and_ends_its_session() -> None:
    headers = {"x-session-id": "arc-1", "x-session-done": "true", "x-turn-type": "main"}
    end = identify("session complete", headers=headers, model="session-end", max_tokens=1)
    assert (end.kind, end.kind_reason, end.ends_session, end.session) == (
        TurnKind.SIDE,
        "session-end",
        True,
        "arc-1",
    )
    assert end.agent == "autoresearchclaw"


TITLE_FORMAT: Json = {
    "effort": "low",
    "format": {"type": "json_schema", "schema": {"properties": {"title": {"type": "string"}}}},
}


@each(
    ("reason", "origin"),
    [
        (
            "claude-code-title",
            identify("x", wire=Wire.MESSAGES, headers=CLAUDE, output_config=TITLE_FORMAT),
        ),
        (
            "claude-code-title",
            identify(
                "x",
                wire=Wire.MESSAGES,
                headers=CLAUDE,
                system="Generate a concise, sentence-case title (3-7 words)",
            ),
        ),
        (
            "claude-code-compaction",
            identify(
                "CRITICAL: Respond with TEXT ONLY. …",
                wire=Wire.MESSAGES,
                headers=CLAUDE,
                tools=TOOLS,
            ),
        ),
        (
            "claude-code-suggestion",
            identify(
                "[SUGGESTION MODE: Suggest what …]", wire=Wire.MESSAGES, headers=CLAUDE, tools=TOOLS
            ),
        ),
        (
            "claude-code-web-page",
            identify("Web page content:\n---\nx", wire=Wire.MESSAGES, headers=CLAUDE),
        ),
        (
            "codex-compaction",
            identify(
                "x",
                wire=Wire.RESPONSES,
                headers={**CODEX, "x-codex-turn-metadata": '{"request_kind": "compaction"}'},
            ),
        ),
        (
            "codex-compaction",
            identify(
                "You are performing a CONTEXT CHECKPOINT COMPACTION.",
                wire=Wire.RESPONSES,
                headers=CODEX,
            ),
        ),
        (
            "codex-compaction",
            identify("x", wire=Wire.RESPONSES, headers={**CODEX, "x-openai-subagent": "compact"}),
        ),
        (
            "codex-memory",
            identify(
                "x", wire=Wire.RESPONSES, headers={**CODEX, "x-openai-memgen-request": "true"}
            ),
        ),
        (
            "opencode-title",
            identify(
                "Generate a title for this conversation:\n",
                headers={"user-agent": "opencode/1.18.33"},
            ),
        ),
        (
            "opencode-title",
            identify("x", system="You are a title generator. You output ONLY a thread title."),
        ),
        (
            "opencode-compaction",
            identify(
                "x",
                system="You are an anchored context summarization assistant",
                headers={"user-agent": "opencode/1"},
            ),
        ),
        (
            "aider-commit-message",
            identify(
                "diff",
                system="You are an expert … concise, one-line Git commit messages based on …",
            ),
        ),
        (
            "aider-summary",
            identify(
                "x", system="*Briefly* summarize this partial conversation about programming."
            ),
        ),
        (
            "hermes-title",
            identify("x", system="You name chat sessions. Given the user's opening message, …"),
        ),
        (
            "hermes-summary",
            identify("x", system="You are a summarization agent creating a context checkpoint."),
        ),
        ("copaw-summary", identify("x", system="You are a context compaction assistant (CoPaw).")),
        (
            "autoresearchclaw-judge",
            identify(
                "x",
                system="You are a quality reviewer for an automated academic research pipeline.",
            ),
        ),
        (
            "autoresearchclaw-lesson",
            identify("x", system="You are a skill designer for an AI agent system."),
        ),
        (
            "autoresearchclaw-lesson",
            identify(
                "x",
                system=(
                    "You MUST respond with valid JSON only.\n\nYou are a skill designer for an AI"
                    " agent system."
                ),
            ),
        ),
        (
            "hermes-memory",
            identify(
                "Review the conversation above and update the skill library. Be ACTIVE",
                system=HERMES,
                tools=TOOLS,
            ),
        ),
        (
            "hermes-memory",
            identify(
                "Review the conversation above and consider saving to memory if",
                system=HERMES,
                tools=TOOLS,
            ),
        ),
        (
            "hermes-skills",
            identify(
                "You are running as Hermes' background skill CURATOR.", system=HERMES, tools=TOOLS
            ),
        ),
        (
            "cron",
            identify(
                "[IMPORTANT: You are running as a scheduled cron job. Never do x.]\n\nReport.",
                system=HERMES,
                tools=TOOLS,
            ),
        ),
        (
            "hermes-judge",
            identify(
                "x", system="You are a strict judge evaluating whether an autonomous agent has"
            ),
        ),
        (
            "hermes-advisor",
            identify(
                "x", system="You are a reference advisor in a Mixture of Agents (MoA) process."
            ),
        ),
        (
            "qwen-code-memory",
            identify(
                "Scan the history.",
                system="You are now acting as the managed memory extraction subagent",
                headers=QWEN,
                tools=TOOLS,
            ),
        ),
        (
            "qwen-code-title",
            identify(
                "x", system="Generate a concise, sentence-case title (3-7 words)", headers=QWEN
            ),
        ),
        (
            "qwen-code-compaction",
            identify(
                "x",
                system="\nYou are the component that summarizes internal chat history",
                headers=QWEN,
            ),
        ),
        (
            "qwen-code-next-speaker",
            identify(
                "Analyze *only* the content and structure of your immediately preceding response",
                headers=QWEN,
            ),
        ),
        ("heartbeat", identify("Read HEARTBEAT.md if it exists.", system=OPENCLAW, tools=TOOLS)),
        (
            "heartbeat",
            identify(
                "[Sun 2026-11-15 00:40 UTC] Read HEARTBEAT.md if it exists.",
                system=OPENCLAW,
                tools=TOOLS,
            ),
        ),
        (
            "heartbeat",
            identify(
                "Check the inbox. If nothing needs attention, reply HEARTBEAT_OK.", tools=TOOLS
            ),
        ),
        (
            "memory-flush",
            identify("Pre-compaction memory flush. Store durable memories now.", tools=TOOLS),
        ),
        (
            "memory-flush",
            identify(
                "Pre-compaction memory flush. Store durable memories now.",
                system=OPENCLAW,
                tools=TOOLS,
            ),
        ),
        (
            "cron",
            identify("[cron:job-1 morning report] Write the report", system=OPENCLAW, tools=TOOLS),
        ),
        (
            "openclaw-slug",
            identify(
                "Based on this conversation, generate a short 1-2 word filename slug",
                system=OPENCLAW,
            ),
        ),
        (
            "summary",
            identify(
                "Your task is to create a detailed summary of the conversation so far", tools=TOOLS
            ),
        ),
        (
            "summary",
            identify("You are a summarization agent creating a context checkpoint. TURNS: …"),
        ),
        (
            "summary",
            identify(
                "x", system="You are a helpful assistant tasked with summarizing conversations."
            ),
        ),
        (
            "summary",
            identify("x", system="Summarize the following conversation in three sentences."),
        ),
        (
            "title",
            identify(
                "x", system="Generate a short title for this chat. Reply with the title only."
            ),
        ),
        (
            "title",
            identify(
                "### Task:\nGenerate a concise, 3-5 word title with an emoji.\n### Chat"
                " History:\n<chat_history>"
            ),
        ),
        (
            "suggestion",
            identify("### Task:\nSuggest 3-5 relevant follow-up questions.\n### Chat History:"),
        ),
        (
            "suggestion",
            identify("[SUGGESTION MODE: Suggest what the user might naturally type next.]"),
        ),
        ("probe", identify("quota", max_tokens=1)),
        ("probe", identify("hi", wire=Wire.RESPONSES, max_output_tokens=1)),
        ("count-tokens", identify("x", wire=Wire.MESSAGES, path="/v1/messages/count_tokens")),
    ],
)
def test_housekeeping_is_recognised(reason: str, origin: Origin) -> None:
    assert (origin.kind, origin.kind_reason) == (TurnKind.SIDE, reason)


@each(
    "origin",
    [
        identify("write a title for my essay"),
        identify("Summarize this conversation for me"),
        identify("hello"),
        identify("hello", max_tokens=16),
        identify("Is this A or B? Answer with one letter.", max_tokens=1, logprobs=True),
        identify("x" * 200, max_tokens=1),
        identify(
            "go",
            system=(
                "You are a friendly assistant. You can summarize conversations and suggest titles"
                " for a chat."
            ),
        ),
        identify("go", system="You write titles for newspaper articles."),
        identify("go", system="You are a summarization expert for legal documents."),
        identify("what does HEARTBEAT.md say?", system=OPENCLAW, tools=TOOLS),
        identify("say hello", wire=Wire.MESSAGES, headers=CLAUDE, tools=TOOLS),
        identify("x", wire=Wire.MESSAGES, headers=CLAUDE, tools=TOOLS, output_config=TITLE_FORMAT),
        identify(
            "go",
            wire=Wire.RESPONSES,
            headers={**CODEX, "x-codex-turn-metadata": '{"request_kind":"turn"}'},
        ),
        identify("x", wire=Wire.MESSAGES, path="/v1/messages"),
        identify(
            "x",
            system="*Briefly* summarize this partial conversation about programming.",
            tools=TOOLS,
        ),
        identify("x", system="You are a title generator.", tools=TOOLS),
    ],
)
def test_work_is_not_taken_for_housekeeping(origin: Origin) -> None:
    assert (origin.kind, origin.kind_reason) == (TurnKind.MAIN, "main")


def test_a_body_for_counting_tokens_is_recognised_without_its_path() -> None:
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    body: dict[str, Json] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert origins.identify(Wire.MESSAGES, {}, body).kind_reason == "count-tokens"
    assert origins.identify(Wire.CHAT, {}, body).kind_reason == "main"


def test_the_whole_run_of_a_heartbeat_is_housekeeping() -> None:
    call: Json = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "function": {"name": "sh", "arguments": "{}"}}],
    }
    result: Json = {"role": "tool", "tool_call_id": "c", "content": "nothing"}
    assert (
        identify(
            "Read HEARTBEAT.md if it exists.", system=OPENCLAW, tools=TOOLS, after=(call, result)
        ).kind_reason
        == "heartbeat"
    )


def test_a_compaction_prompt_counts_only_at_the_end() -> None:
    answer: Json = {"role": "assistant", "content": "the summary"}
    origin = identify(
        "CRITICAL: Respond with TEXT ONLY.",
        wire=Wire.MESSAGES,
        headers=CLAUDE,
        tools=TOOLS,
        after=(answer,),
    )
    assert origin.kind is TurnKind.MAIN


def test_a_compaction_prompt_may_share_its_message_with_a_tools_output() -> None:
    parts: list[Json] = [
        {"type": "tool_result", "tool_use_id": "t", "content": "ok"},
        {"type": "text", "text": "CRITICAL: Respond with TEXT ONLY."},
    ]
    assert (
        identify(parts, wire=Wire.MESSAGES, headers=CLAUDE, tools=TOOLS).kind_reason
        == "claude-code-compaction"
    )


@each(
    ("agent", "origin"),
    [
        (
            "claude-code",
            identify("x", headers={"user-agent": "claude-cli/2.1.325 (external, cli)"}),
        ),
        ("codex", identify("x", headers={"originator": "codex_exec"})),
        (
            "opencode",
            identify("x", headers={"x-session-id": "ses_1", "x-session-affinity": "ses_1"}),
        ),
        ("openclaw", identify("x", system=OPENCLAW, headers={"user-agent": "OpenAI/JS 7.15.0"})),
        (
            "hermes",
            identify(
                "x",
                system="You are Hermes Agent, an intelligent AI assistant",
                headers={"user-agent": "OpenAI/Python 2.24.0"},
            ),
        ),
        ("aider", identify("x", system="Act as an expert software developer.\nTake requests…")),
        (
            "mini-swe-agent",
            identify("x", system="You are a helpful assistant that can interact with a computer."),
        ),
        ("copaw", identify("x", system="# AGENTS.md\n\nrules\n\n# SOUL.md\n\nsoul")),
        (
            "autoresearchclaw",
            identify(
                "x",
                headers={"user-agent": "Mozilla/5.0 (Macintosh; x)", "accept-encoding": "identity"},
            ),
        ),
        ("litellm", identify("x", headers={"user-agent": "litellm/1.106.2"})),
        ("openai-sdk", identify("x", headers={"user-agent": "AsyncOpenAI/Python 3.49.0"})),
        ("anthropic-sdk", identify("x", headers={"user-agent": "Anthropic/Python 2.8.0"})),
        (
            "unknown",
            identify(
                "x", headers={"user-agent": "Mozilla/5.0 (Macintosh; x)", "accept-encoding": "gzip"}
            ),
        ),
        ("unknown", identify("x")),
    ],
)
def test_clients_are_called_by_their_names(agent: str, origin: Origin) -> None:
    assert origin.agent == agent
