"""Whatever a model writes as a tool call, checks look at it in bounds and without an error."""

import json
import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from metaclaw.checks.answer import program_input, texts_at
from metaclaw.checks.calls import seen_calls
from metaclaw.checks.commands import commands_of
from metaclaw.checks.consent import deletion_consent
from metaclaw.domain.chat import Message, Role, Text, ToolCall
from metaclaw.domain.check import CLIENT_TOOLS, Conversation, Place, ToolClass, Where

NAMES = st.sampled_from(
    sorted(
        {name for table in CLIENT_TOOLS.values() for name in table}
        | {"tool_call", "deploy", "batch"}
    )
)
KEYS = st.sampled_from(
    (
        "command",
        "cmd",
        "args",
        "id",
        "name",
        "arguments",
        "input",
        "path",
        "content",
        "edits",
        "tool_uses",
        "diff",
        "patch",
        "x",
    )
)
WORDS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        (
            "bash -lc 'git push'",
            "bash -c",
            '["sh", "-c", "ls"]',
            "*** Begin Patch\n*** Add File: a\n+b",
            "--- a\n+++ b\n@@\n+c",
            "[",
            "'",
        )
    ),
    st.sampled_from(
        (
            'await tools.exec_command({cmd: "ls\\u0020-l"})',
            "tools.apply_patch(`*** Begin Patch",
            "=====\n>>>>>>> REPLACE",
        )
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(NAMES, st.one_of(VALUES.map(json.dumps), WORDS))
def test_every_call_is_looked_at(name: str, arguments: str) -> None:
    call = ToolCall("c", name, arguments)
    first, *_ = seen = seen_calls(call)
    assert (first.name, first.written) == (name, arguments)
    assert len(seen) <= 64
    assert all(text.strip() for one in seen for text in one.texts)
    for tool in (None, "shell|edit", *ToolClass):
        assert all(isinstance(text, str) for text in texts_at([call], Where(Place.CALLS, tool)))
    json.dumps(program_input([call], Conversation()))


SHELL_WORDS = st.sampled_from(
    (
        "git push",
        "--force",
        "echo",
        "bash -c",
        "'",
        '"',
        "$(",
        ")",
        "`",
        "\\",
        "\n",
        ";",
        "&&",
        "|",
        "<<EOF",
        "EOF",
        "#",
        "${x}",
        "x=1",
        "<(",
        "(",
        ">",
    )
)


@given(st.lists(SHELL_WORDS | st.text(max_size=5), max_size=30).map(" ".join))
@example("\n x=1")
def test_every_script_is_read_or_looked_at_in_pieces(script: str) -> None:
    seen = commands_of(script)
    assert len(seen.wholes[0].text) == len(script)
    for one in (*seen.wholes, *seen.texts):
        assert all(0 <= begin <= end <= len(one.text) for begin, end in one.quoted)


@given(
    st.lists(
        st.text(alphabet="abg -_.'\"$\\;&|#\n", min_size=1, max_size=8), min_size=1, max_size=5
    )
)
def test_quoted_words_come_out_as_they_went_in(words: list[str]) -> None:
    assert " ".join(["run", *words]) in [
        one.text for one in commands_of(shlex.join(["run", *words])).texts
    ]


@given(
    st.sampled_from(("[", '{"a":', '{"args":{"id":"x"},"id":"y","edits":[')), st.integers(1, 3_000)
)
def test_deep_nesting_is_looked_at(opening: str, depth: int) -> None:
    call = ToolCall("c", "edit", opening * depth)
    assert seen_calls(call)
    closed = ToolCall("c", "edit", '{"files":[' * depth + "1" + "]}" * depth)
    assert seen_calls(closed)
    assert texts_at([closed], Where(Place.CALLS)) is not None


CODE_WORDS = st.sampled_from(
    (
        *(
            "open(",
            "'a'",
            '"w"',
            ")",
            ".write(",
            "Path(",
            ".write_text(",
            "os.chmod(",
            "0o777",
            "requests.post(",
            "fetch(",
            ",",
            "=",
            "p",
            "+",
        ),
        *(
            "\n",
            "import os as o\n",
            "from os import remove, chmod\n",
            "exec(",
            "b64decode(",
            "`",
            '"""',
            "f'{p}/a'",
            "%pip install x\n",
        ),
        *(
            "base_url=",
            "subprocess.run(",
            "['git', 'push']",
            "repo.git.push(",
            "pip.main([",
            "]",
            "unlink ",
            "$x",
            "{",
            "}",
        ),
    )
)
EDITOR_WORDS = st.sampled_from(
    (
        "s/a/b/",
        "s|",
        "/x/",
        "1,$",
        "a\\",
        "\n",
        ";",
        "{",
        "}",
        "!",
        "i text",
        ".",
        "w",
        "g/a/d",
        "%s/a/b/|x",
        "\\",
        "--- a/f\n+++ b/f\n+x",
    )
)
EDITORS = st.sampled_from(
    ("sed -i", "perl -pi -e", "ed -s", "ex -sc", "gawk -i inplace", "patch", "vim -c", "sed -n")
)


@given(st.lists(CODE_WORDS | st.text(max_size=5), max_size=30).map("".join))
def test_every_program_of_another_language_is_read(code: str) -> None:
    scripts = (f"python3 -c {shlex.quote(code)}", f"node - <<'END_OF_CODE'\n{code}\nEND_OF_CODE")
    for call in (
        ToolCall("c", "execute_code", json.dumps({"code": code})),
        *(ToolCall("c", "bash", json.dumps({"command": one})) for one in scripts),
    ):
        assert seen_calls(call)
        assert texts_at([call], Where(Place.CALLS, "shell|edit")) or not code.strip()


@given(EDITORS, st.lists(EDITOR_WORDS | st.text(max_size=5), max_size=12).map("".join))
def test_every_editor_of_the_command_line_is_read(editor: str, script: str) -> None:
    for command in (
        f"{editor} {shlex.quote(script)} a.txt",
        f"{editor} a.txt <<'END'\n{script}\nEND",
        f"printf %s {shlex.quote(script)} | {editor} a.txt",
    ):
        assert commands_of(command).texts


SAID = st.lists(
    st.sampled_from(
        (
            "delete",
            "rm",
            "yes",
            "src/a.py",
            "`b`",
            "and,",
            "don't",
            "?",
            "the\n- c/d",
            "in",
            "löschen",
            "删除",
            "<x>",
            "```",
        )
    ),
    max_size=12,
)


@given(st.lists(SAID.map(" ".join) | st.text(max_size=100), max_size=5))
def test_every_conversation_is_read_for_consent_to_what_it_names(said: list[str]) -> None:
    roles = [Role.ASSISTANT if place % 2 else Role.USER for place in range(len(said))]
    found = deletion_consent(
        [Message(role, (Text(words),)) for role, words in zip(roles, said, strict=True)]
    )
    assert all(any(name in words for words in said) for name in found.to_delete)
