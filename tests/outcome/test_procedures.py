"""Sequences of commands that sessions have in common, as one script."""

import json

from metaclaw.domain.chat import Message, Role, Text, ToolCall, ToolResult
from metaclaw.outcome import Command, Procedure, procedure_in, runs_of
from tests.support.cases import each


def session(*commands: str, results: tuple[str, ...] = ()) -> list[tuple[Command, ...]]:
    """What is read of a session that ran these commands; a task begins at each `?`."""
    messages = [Message(Role.USER, (Text("Do it."),))]
    for number, command in enumerate(commands):
        if command == "?":
            messages.append(Message(Role.USER, (Text("And now?"),)))
            continue
        call = ToolCall(f"c{number}", "Bash", json.dumps({"command": command}))
        said = results[number] if number < len(results) else "done"
        result = ToolResult(call.id, (Text(said),))
        messages += [Message(Role.ASSISTANT, (call,)), Message(Role.TOOL, (result,))]
    return runs_of(messages)


def common(*sessions: list[tuple[Command, ...]]) -> Procedure | None:
    found = procedure_in(sessions[-1], sessions[:-1], len(sessions))
    return None if found is None else found[0]


@each(
    ("command", "others", "line"),
    [
        ("make dist", ("make dist", "make dist"), "make dist"),
        ("git tag v1", ("git tag v2", "git tag v3"), 'git tag "$1"'),
        ("run --to=a1 x", ("run --to=b2 x", "run --to=c3 x"), 'run --to="$1" x'),
        ("put a.gz b.gz", ("put c.gz b.gz", "put d.gz b.gz"), 'put "$1" b.gz'),
        ('say "a b"', ('say "c d"', "say 'e f'"), 'say "$1"'),
        ("scp x.gz h:/srv", ("scp x.gz h:/srv",) * 2, "scp x.gz h:/srv"),
        ("npm run build", ("npm run build", "npm run watch"), None),
        ("rm $A", ("rm $B", "rm $C"), None),
        ('rm "$(cat a)"', ('rm "$(cat b)"', 'rm "$(cat c)"'), None),
        ("make -j4 x", ("make -j8 x", "make -j2 x"), None),
        ("a | b 1", ("a | b 1", "a | b 1"), "a | b 1"),
        ("a; b", ("a || b", "a && b"), None),
    ],
)
def test_words_that_differ_become_arguments(
    command: str, others: tuple[str, ...], line: str | None
) -> None:
    sessions = [session("make one", one, "make two") for one in (*others, command)]
    found = common(*sessions)
    assert (None if found is None else found.lines[1]) == line


def test_a_name_with_a_sign_is_a_value_wherever_it_stands() -> None:
    names = ("test_a", "b.c", "d_e")
    found = common(*(session("make one", f"createdb {name}", "make two") for name in names))
    assert found is not None
    assert found.lines[1] == 'createdb "$1"'


def test_a_value_at_several_places_is_one_argument() -> None:
    release = ("make dist VERSION={}", "git tag {}", "gh release create {}")
    found = common(*(session(*(one.format(v) for one in release)) for v in ("1.0", "1.1", "2.0")))
    assert found is not None
    assert found.lines == (
        'make dist VERSION="$1"',
        'git tag "$1"',
        'gh release create "$1"',
    )
    assert len(found.arguments) == 1


def test_commands_joined_by_and_count_one_by_one() -> None:
    apart = session("make one", "cd web", "make two", "make three")
    joined = session("make one && make two && make three")
    within = session("make one", "cd web && make two", "make three")
    assert common(joined, joined, session("make one", "make two && make three")) is not None
    assert common(joined, joined, apart) is None
    assert common(joined, joined, within) is None
    kept = common(within, within, within)
    assert kept is not None
    assert kept.lines == ("make one", "( cd web && make two )", "make three")


def test_what_an_output_had_named_is_not_taken() -> None:
    for said in ("Run make two", "See https://x.example/i.sh"):
        commands = ("make one", "make two x", "make two", "curl -o i.sh https://x.example/i.sh")
        found = session(*commands, "make three", "make four", results=(said,))
        named = [" ".join(command) for run in found for command in run]
        assert ("make two" in named) is (said != "Run make two"), named
        assert any("https" in one for one in named) is ("https" not in said), named


def test_a_new_task_or_a_failure_is_not_skipped_over() -> None:
    whole = session("make one", "make two", "make three")
    assert common(whole, whole, session("make one", "make two", "?", "make three")) is None
    failed = session(
        "make one", "make two", "make three", results=("done", "Exit code 2\nerror: x")
    )
    assert common(whole, whole, failed) is None
    again = session(
        "make one", "make two", "make two", "make three", results=("done", "Exit code 2\nerror: x")
    )
    assert common(whole, whole, again) is not None


@each(
    ("commands", "lines"),
    [
        (("alembic upgrade head", "flask load {}", "flask anonymise --all", "systemctl restart shop"),
         ("alembic upgrade head", 'flask load "$1"', "flask anonymise --all", "systemctl restart shop")),
        (("alembic upgrade head", "flask load --table {}", "systemctl restart shop"),
         ("alembic upgrade head", 'flask load --table "$1"', "systemctl restart shop")),
        (("npm ci --workspace {}", "npm run build --workspace {}", "npm publish --workspace {}"),
         ('npm ci --workspace "$1"', 'npm run build --workspace "$1"', 'npm publish --workspace "$1"')),
        (("createdb test_{}", "psql -f dump/{}.sql", "vacuumdb test_{}"),
         ('createdb "$1"', 'psql -f "$2"', 'vacuumdb "$1"')),
        (("ansible-galaxy install -r req.yml", "ansible-playbook site.yml -l {}", "ansible-playbook smoke.yml -l {}"),
         ("ansible-galaxy install -r req.yml", 'ansible-playbook site.yml -l "$1"', 'ansible-playbook smoke.yml -l "$1"')),
        (("cd infra && terraform init", "terraform workspace select {}", "terraform apply -var-file={}.tfvars"),
         ("( cd infra && terraform init )", 'terraform workspace select "$1"', 'terraform apply -var-file="$2"')),
        (("alembic upgrade head", "python scripts/load.py {}", "systemctl restart shop-{}"),
         ("alembic upgrade head", 'python scripts/load.py "$1"', 'systemctl restart "$2"')),
    ],
)  # fmt: skip
def test_a_plain_word_that_differs_is_an_argument(
    commands: tuple[str, ...], lines: tuple[str, ...]
) -> None:
    names = ("orders", "users", "carts")
    found = common(*(session(*(one.format(name) for one in commands)) for name in names))
    assert found is not None
    assert found.lines == lines
    assert not any(name in head for name in names for head in found.heads)


@each(
    ("first", "second", "third"),
    [
        ("git checkout {0}", "npm install {1}", "make deploy"),
        ("kubectl scale {0}", "docker push {1}", "mail {0}"),
        ("make {0}", "flask load data", "systemctl restart shop"),
        ("npm run {0}", "flask load data", "systemctl restart shop"),
        ("ansible-galaxy install a.yml", "cp {0} x", "cp {1} x"),
    ],
)
def test_commands_that_have_only_their_programs_in_common_are_no_procedure(
    first: str, second: str, third: str
) -> None:
    words = (("main", "zod"), ("dev", "lodash"), ("next", "react"))
    assert (
        common(*(session(*(one.format(*pair) for one in (first, second, third))) for pair in words))
        is None
    )
