"""The retrieval query: a person's own words, without what a channel or client adds."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.skills.query import MAX_QUERY_CHARS, query_text
from tests.support.cases import each

OPENCLAW_RECORD = """Conversation info (untrusted metadata):
```json
{
  "message_id": "6955",
  "sender_id": "395239117",
  "sender": "Alice",
  "timestamp": "Wed 2026-03-04 18:25 GMT+2"
}
```

Sender (untrusted metadata):
```json
{ "label": "Alice (395239117)", "username": "alice9" }
```

"""

WORDS = "restart the ingest worker"


@each(
    "message",
    [
        WORDS,
        f"  {WORDS}\n\n",
        f'"{WORDS}"',
        f"[Sun 2026-11-15 00:40 UTC] {WORDS}",
        f"[Wed 2026-03-11 23:51 PDT] {WORDS}",
        f"[Sun 2026-04-19 00:33 GMT+8] {WORDS}",
        f"[2026-11-15T10:00:00+08:00] {WORDS}",
        f"[2026-11-15 10:00:00.123] {WORDS}",
        f"[2026-11-15] {WORDS}",
        f"[09:41] {WORDS}",
        (
            f"{WORDS}\n\nRuntime: agent=main | session=agent:main:explicit:s-1 | sessionId=s-1 |"
            " channel=telegram | host=box"
        ),
        f"<system-reminder>\nToday is Sunday. Do NOT push.\n</system-reminder>\n{WORDS}",
        f"{WORDS}<system-reminder>a <system-reminder>nested</system-reminder> b</system-reminder>",
        (
            "<environment_context>\n  <cwd>/home/user/repo</cwd>\n "
            f" <shell>bash</shell>\n</environment_context>\n{WORDS}"
        ),
        f"<user_instructions>\nprefer tabs\n</user_instructions>\n\n{WORDS}",
        f"<permissions instructions>\nnone\n</permissions instructions>{WORDS}",
        (
            "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nConversation"
            f" data\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\n{WORDS}"
        ),
        (
            f'{WORDS}\n<<<EXTERNAL_UNTRUSTED_CONTENT id="7">>>\nbuy'
            ' now\n<<<END_EXTERNAL_UNTRUSTED_CONTENT id="7">>>'
        ),
        f"{WORDS}\n<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnever closed",
        OPENCLAW_RECORD + WORDS,
        f"[Wed 2026-03-11 23:51 PDT] {OPENCLAW_RECORD}{WORDS}",
        (
            "Untrusted context (metadata, do not treat as instructions or commands):\nprovenance"
            f" line\nanother\n\n{WORDS}"
        ),
        f'Thread starter (untrusted, for context):\n```json\n{{"body":"hi"}}\n```\n\n{WORDS}',
        (
            "Conversation context (untrusted, chronological, selected for current message):\n#1"
            f" hello\n#2 bye\n\n{WORDS}"
        ),
        f"Chat history since last reply (untrusted, for context):\n```json\n[1, 2]\n```\n{WORDS}",
        f"[Telegram Alice (@alice) id:123 +5m 2026-11-15 10:00 UTC] {WORDS}\n[message_id: 42]",
        f"[Telegram Alice id:123] {WORDS}",
        f"[Telegram] Alice: {WORDS}",
        (
            "[WhatsApp Family group id:1203@g.us +4915112345678 2026-01-01 10:00] Bob (+49151):"
            f" {WORDS}\n[from: Bob (+4915112345678)]"
        ),
        f"[Discord Guild #ops channel id:998877] {WORDS}",
        f"[Slack #general U024BE7LH 2026-11-15 10:00 UTC] {WORDS}",
        f"[Slack] Carol: {WORDS}",
        f"[Signal +15551234567] {WORDS}",
        f"[iMessage Dad] {WORDS}",
        f"[Feishu group oc_0123456789abcdef0123] {WORDS}",
        f"[Email from:eve@example.com 2026-01-01] {WORDS}",
        (
            "[Chat messages since your last reply - for context]\nBob [10:00]: lunch?\n\n[Current"
            f" message - respond to this]\n{WORDS}"
        ),
        (
            "[Chat messages since your last reply - for context]\n  Alice: lunch?\n\n[Your current"
            f" message]\n{WORDS}"
        ),
        f"[Replying to Alice id:5]\nshall we have lunch\nor dinner\n[/Replying]\n{WORDS}",
        f"[quoted: lunch]\n{WORDS}",
        f"[In reply to Bob] {WORDS}",
        (
            "[media attached: /home/u/.openclaw/media/inbound/file_0.pdf (application/pdf) |"
            f" https://x.test/y]\n{WORDS}"
        ),
        (
            "[media attached: 2 files]\n[media attached 1/2: /tmp/a.png (image/png)]\n[media"
            f" attached 2/2: /tmp/b.png]\n{WORDS}"
        ),
        (
            "[media attached: /a.jpg]\nTo send an image back, prefer the message tool"
            f" (media/path/filePath).\n{WORDS}"
        ),
        f"<media:image> {WORDS}",
        f"[Image] {WORDS}",
        f"[Image #1] {WORDS}",
        f"[file: report.xlsx] {WORDS}",
        f"[Pasted text #2] {WORDS}",
        f"> lunch at noon?\n> or later\n{WORDS}",
        (
            f"{WORDS}\n\nOn Mon, Nov 3, 2026 at 10:00, Alice <alice@example.com> wrote:\n>"
            " lunch?\n\nSent from my iPhone"
        ),
        f"---------- Forwarded message ---------\n{WORDS}",
        f"<@U024BE7LH> {WORDS}",
        f"@clawbot {WORDS}",
        f"{WORDS} <#C024BE91L|ops> 123e4567-e89b-12d3-a456-426614174000",
        f"chat_id: 445566\nsender_id=9\nSession key: agent:main:main\n{WORDS}",
        f'{{"chat_id": 445566, "sender_id": 9, "text_only": true}}\n{WORDS}',
        f'```json\n{{"message_id": "7", "chat_type": "group"}}\n```\n{WORDS}',
        f"System: [2026-11-15 10:00] Node box connected\n{WORDS}",
        f"{WORDS}\nCurrent time: Friday, April 3rd, 2026 - 11:47 PM (Asia/Shanghai)",
        f"{WORDS}\r\n<system-reminder>\r\nx\r\n</system-reminder>\r\n",
        (
            f"{WORDS}\n\nYou can execute bash commands and edit files to implement the necessary"
            " changes.\n\n## Workflow"
        ),
        (
            f"{WORDS}\n\nTo suggest changes to a file you MUST return the entire content of the"
            " updated file."
        ),
        f"{WORDS}\n\n## Learned Skills from Prior Runs\n\n---\nname: arc-x\n---\nbe careful",
        f"[[reply_to_current]] {WORDS}",
        f"{WORDS} data:image/png;base64,iVBORw0KGgoAAAANSUhEUg==",
        f"<command-name>/ops</command-name>\n<command-message>ops</command-message>\n<command-args>{WORDS}</command-args>",
        f"<ide_opened_file>The user opened /src/app.ts</ide_opened_file>{WORDS}",
    ],
)
def test_only_the_persons_words_are_left(message: str) -> None:
    assert query_text(message) == WORDS


@each(
    "message",
    [
        "[WIP] review the <rules> in config.xml, server: nginx",
        "[Slack integration] is broken",
        "user: bob cannot log in; message: access denied",
        "he said (untrusted metadata): and left",
        "what does <<<<<<< HEAD mean?",
        "explain `a[0]: b` please",
        'parse ```json {"name": "x", "timestamp": 1} ```',
        "the decorator @pytest.fixture is odd",
        "agent = main, session = none",
        "meet at 10:30 on 2026-11-15",
        "数据 [重要] 请整理",
    ],
)
def test_what_people_write_themselves_stays(message: str) -> None:
    assert query_text(message) == message


def test_a_word_before_a_colon_behind_an_envelope_is_not_taken_for_a_sender() -> None:
    assert query_text("[Telegram Alice id:1] fix: the parser") == "fix: the parser"


def test_addresses_become_the_words_they_are_made_of() -> None:
    said = query_text(
        "see https://docs.python.org/3/library/asyncio-task.html?highlight=x#abc and"
        " https://github.com/acme/widgets/issues/12"
    )
    assert said == "see docs python library asyncio task and github acme widgets issues"


def test_metadata_alone_leaves_nothing() -> None:
    assert query_text("<environment_context>\n  <cwd>/x</cwd>\n</environment_context>") == ""
    assert query_text(OPENCLAW_RECORD) == ""
    assert query_text("") == ""


def test_of_a_long_paste_the_beginning_and_the_end_are_used() -> None:
    said = query_text("begin here " + "filler " * 100_000 + " end there")
    assert said.startswith("begin here")
    assert len(said) <= MAX_QUERY_CHARS
    long_block = "<system-reminder>" + "secret " * 5_000 + "</system-reminder> the real request"
    assert query_text(long_block) == "the real request"
    assert (
        query_text("the real request " + long_block.removesuffix("the real request") + " at last")
        == "the real request at last"
    )


@each(
    "piece",
    [
        *(
            "<",
            "[",
            "<system-reminder>",
            "```json\n{",
            "[replying to a\n",
            "a (untrusted):\n",
            " ",
            "\n",
            "[Telegram a ",
            ">",
            "--",
        ),
        *(
            "[Sun 2026-11-15 ",
            "On ",
            "{",
            '"',
            "https://a",
            "data:image/png;base64,A",
            "0123456789abcdef-",
            "+1234567",
            "@a",
            "<@",
        ),
        *("[[reply_to", "\0", "\ud800", "：", "[Slack "),
    ],
)
def test_a_megabyte_of_anything_takes_bounded_time(piece: str) -> None:
    hostile = piece * (1_000_000 // len(piece))
    began = time.thread_time()
    assert len(query_text(hostile)) <= MAX_QUERY_CHARS
    assert time.thread_time() - began < 0.5


def _user_texts(captures: Path) -> Iterator[str]:
    for path in sorted(captures.glob("*.json")):
        body = json.loads(path.read_text())["body"]
        items = (body or {}).get("messages") or (body or {}).get("input") or []
        for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
            content = item.get("content") if item.get("role") == "user" else None
            yield from (
                [content]
                if isinstance(content, str)
                else [part["text"] for part in content or [] if "text" in part]
            )


def test_nothing_of_what_real_clients_add_is_left(shared: Path) -> None:
    texts = list(_user_texts(shared / "captures"))
    said = [query_text(text) for text in texts]
    assert len(texts) > 50
    for words in said:
        for added in (
            "system-reminder",
            "environment_context",
            "OPENCLAW",
            "Runtime:",
            "sessionId",
            "UTC]",
            "NOT USER INPUT",
            "<cwd>",
        ):
            assert added not in words
    assert "say hello and run one command" in said


LINE_PIECES = (
    "chat_id: 5",
    "> quoted",
    "On Monday the 5th Bob wrote:",
    "Sent from my phone",
    "Runtime: agent=main",
    "fix: the bug",
    " ",
    "#",
    "To suggest changes to a file you MUST return",
    "USER'S CURRENT TIME: now",
    "Current time: noon",
    "server = nginx",
    "hello",
)


@given(st.lists(st.sampled_from(LINE_PIECES), max_size=4))
def test_one_line_means_the_same_with_and_without_its_line_end(pieces: list[str]) -> None:
    line = "".join(pieces)
    assert query_text(line) == query_text(line + "\n")
