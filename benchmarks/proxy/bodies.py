"""The requests the benchmark sends: a short turn, a long agent conversation, streams; the same
bytes on every machine.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

# Eight bytes each: the load clients replace them by eight digits before every send
# (tools/client.h).
CONVERSATION = "<<conv>>"
TURN = "<<turn>>"

MODEL = "bench-model"
CHUNKS = 64
PACE_US = 5000
PACED = f"[[bench delay_us=0 pace_us={PACE_US} chunks={CHUNKS}]]"
BURST = f"[[bench delay_us=0 pace_us=0 chunks={CHUNKS}]]"
KEEP = "[[bench keep]]"

# JSON as it goes over the wire: nested mappings and lists of plain values.
Message = Mapping[str, object]

_SYSTEM = (
    "You are a careful coding agent working in a git repository. Read before you write, change as"
    " little as the task needs, run the tests before you say that you are done, and keep your"
    " answers short. Never touch generated files by hand. When a command fails, show its last lines"
    " and say what you will try next."
)
_OPENING = (
    f"Ticket {CONVERSATION}: the alembic migration that adds the required column billing_email to"
    " the accounts table fails on every database that already holds rows. The deploy is blocked"
    " since this morning, please have a look at the revision."
)
_REPLY = (
    "I read the revision. It adds the column with nullable=False and no server default, so"
    " PostgreSQL refuses it for old rows."
)
_LAST = (
    f"Turn {TURN}: split the alembic migration so that the required column reaches a populated"
    " table safely, fill the old rows in batches, and write a test that runs the downgrade as"
    " well."
)


def _dialogue(wish: str) -> list[Message]:
    last = f"{_LAST} {wish}".strip()
    return [
        {"role": "user", "content": _OPENING},
        {"role": "assistant", "content": _REPLY},
        {"role": "user", "content": last},
    ]


def chat(wish: str = "", *, stream: bool = False) -> bytes:
    """A chat completion request of about a kilobyte."""
    messages = [{"role": "system", "content": _SYSTEM}, *_dialogue(wish)]
    body: dict[str, object] = {
        "model": MODEL,
        "messages": messages,
        "temperature": 0.2,
        "max_tokens": 512,
    }
    return _encode(body | ({"stream": True} if stream else {}))


def messages(wish: str = "", *, stream: bool = False) -> bytes:
    """The same turn on the Anthropic wire."""
    body: dict[str, object] = {
        "model": MODEL,
        "system": _SYSTEM,
        "messages": _dialogue(wish),
        "temperature": 0.2,
        "max_tokens": 512,
    }
    return _encode(body | ({"stream": True} if stream else {}))


def long_chat(size: int = 200_000, exchanges: int = 74) -> bytes:
    """An agent's conversation of about 150 messages and `size` bytes: tool calls, file contents,
    test output.
    """
    words = random.Random(11)
    share = size // exchanges - 420
    history: list[Message] = []
    for step in range(exchanges):
        history += _tool_exchange(words, step, share)
    opening, _reply, last = _dialogue("")
    conversation = [{"role": "system", "content": _SYSTEM}, opening, *history, last]
    return _encode(
        {
            "model": MODEL,
            "messages": conversation,
            "tools": _tools(),
            "temperature": 0.2,
            "max_tokens": 512,
        }
    )


def write_all(folder: Path) -> dict[str, Path]:
    """Writes every body into a folder and returns their paths by name."""
    made = {
        "short": chat(),
        "keep": chat(KEEP),
        "long": long_chat(),
        "paced": chat(PACED, stream=True),
        "burst": chat(BURST, stream=True),
        "messages": messages(),
        "messages-paced": messages(PACED, stream=True),
    }
    paths = {name: folder / f"{name}.json" for name in made}
    for name, path in paths.items():
        path.write_bytes(made[name])
    return paths


def _encode(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


_FILES = (
    "accounts/models.py",
    "billing/invoice.py",
    "migrations/env.py",
    "tests/test_migrations.py",
    "api/routes.py",
)
_LINES = (
    "    def upgrade(self, revision: str) -> None:",
    '        op.add_column("accounts", sa.Column("billing_email", sa.String(320), nullable=True))',
    "        for batch in iterate_rows(session, size=500):",
    (
        "           "
        ' session.execute(update(accounts).where(accounts.c.id.in_(batch)).values(billing_email=""))'
    ),
    '    assert row["billing_email"] is not None, f"row {row[\'id\']} was left behind"',
    (
        "E       sqlalchemy.exc.IntegrityError: (psycopg.errors.NotNullViolation) column"
        ' "billing_email" contains null values'
    ),
    (
        "tests/test_migrations.py::test_upgrade_then_downgrade FAILED                              "
        "              [ 62%]"
    ),
    "        # old rows keep the path C:\\exports\\billing until they are moved",
    (
        '    return [invoice for invoice in invoices if invoice.state != "void" and invoice.total >'
        ' Decimal("0.00")]'
    ),
    "",
)


def _tool_exchange(words: random.Random, step: int, share: int) -> Sequence[Message]:
    path = words.choice(_FILES)
    call_id = f"call_{step:04d}"
    arguments = json.dumps({"path": path, "from_line": words.randrange(400), "to_line": 900})
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": "read_file", "arguments": arguments},
    }
    lines: list[str] = []
    length = 0
    while length < share:
        lines.append(f"{len(lines) + 1:4d}  {words.choice(_LINES)}")
        length += len(json.dumps(lines[-1]))
    return (
        {"role": "assistant", "content": f"Step {step}: reading {path}.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "\n".join(lines)},
    )


def _tools() -> list[Message]:
    def tool(name: str, says: str, *parameters: str) -> Message:
        properties = {
            p: {"type": "string", "description": f"the {p.replace('_', ' ')} to use"}
            for p in parameters
        }
        schema = {"type": "object", "properties": properties, "required": list(parameters)}
        return {
            "type": "function",
            "function": {"name": name, "description": says, "parameters": schema},
        }

    return [
        tool(
            "read_file", "Reads part of a file of the repository.", "path", "from_line", "to_line"
        ),
        tool("write_file", "Replaces a file of the repository.", "path", "content"),
        tool(
            "run", "Runs a command in the repository and returns the end of its output.", "command"
        ),
        tool("search", "Finds text in the repository.", "pattern", "path"),
    ]
