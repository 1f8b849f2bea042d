"""Commands in the many ways in which shells, wrappers and tools run them, and words that only look
like them.
"""

import pytest

from metaclaw.domain.chat import ToolCall
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import parse_check, rule_example, run_check
from tests.checks.spellings import call, shell_call
from tests.support.cases import each

PUSH = "git push --force"
STARTED = [
    "docker compose exec app {}",
    "docker compose -f dev.yml run --rm -e A=1 app {}",
    "docker run --rm -v $PWD:/w -w /w alpine/git:latest {}",
    "docker-compose exec -T app {}",
    "podman run -it img {}",
    "time -p {}",
    "taskset -c 0 {}",
    "chrt -f 50 {}",
    "direnv exec . {}",
    "xvfb-run -a {}",
    "corepack {}",
    "nvm exec 20 {}",
    "nvm exec {}",
    "cross-env A=1 {}",
    "uvx --from x {}",
    "trap '{}' EXIT",
    "function x {{ {}; }}; x",
    "mise x -- {}",
    "systemd-run --user {}",
    "find . -type d -exec {} \\;",
    "fd . -x {}",
    "npx -y concurrently '{}' 'echo x'",
    "tmux send-keys -t 0 '{}' Enter",
    "script -qc '{}' /dev/null",
    "git submodule foreach '{}'",
    "git rebase -x '{}' main",
    "nix-shell --run '{}'",
    "ssh host -- {}",
    "kubectl exec pod -c app -- {}",
    "bash -c $'{}'",
    "source <(echo '{}')",
    ". <(printf '%s' '{}')",
    "bash <(echo '{}')",
    "echo '{}' | tee a.sh; sh a.sh",
    "echo '{}' > a.sh; cat a.sh | sh",
    "cat > a.sh <<'EOF'\n{}\nEOF\nchmod +x a.sh && ./a.sh",
    "sh < <(echo '{}')",
    "(echo '{}') | sh",
    "{{ echo '{}'; }} | sh",
    "if true; then echo '{}'; fi | bash",
    "echo '{}' | (cat; sh)",
    "${{x:-$({})}}",
    "echo $((1 + $({} | wc -l)))",
    "arr[0]=1 {}",
    "A=1 B[2]=x {}",
    "alias p='{}'; p",
    "eval \"$(echo '{}')\"",
    "python3 -c \"import os; os.system('{}')\"",
    "node -e \"require('child_process').execSync('{}')\"",
    "perl -e 'system(\"{}\")'",
    "awk 'BEGIN {{ system(\"{}\") }}'",
    "python3 <<'EOF'\nimport subprocess\nsubprocess.run('{}', shell=True)\nEOF",
    "until {}; do sleep 1; done",
    "time {{ {}; }}",
    "exec 3>&1; {}",
    "coproc {}",
    "{} &>/dev/null",
    "echo '{}' |\n  bash",
    "cat <<'E' |\n{}\nE\n  sh -s -- -y",
    ">out {}",
]
VARIED = [
    "export F=--force; git push $F",
    "declare -r F=--force; git push $F",
    "readonly F=--force; git push ${F}",
    "typeset F=--force; git push ${F:-x}",
    "for f in --force; do git push $f; done",
    "for r in origin up; do git push $r --force; done",
    "git push ${F:---force}",
    "git push ${F:=--force}",
    'set -- push --force; git "$@"',
    "set -- --force; git push $1",
    'f() { git push "$@"; }; f --force',
    'f() { git "$1" $2; }; f push --force',
    "p() { git push $1; }\np --force",
    "git${IFS}push${IFS}--force",
    'c=(git push --force); "${c[@]}"',
    "c=git; c+=' push --force'; $c",
    'C="git push origin $(git branch --show-current) --force"; sudo $C',
    "read c <<< 'git push --force'; $c",
    "$(echo git) push --force",
    "`echo git` push --force",
    "echo --force | xargs git push",
    'git push "$(echo --force)"',
    "G=git; $G push --force",
    "X='push --force'; git $X",
    "git push -o 'a;b' --force",
    'git push -o "a|b&c" origin x -f',
    "git push origin 'x' \\\n  -f",
    "git -c alias.p='!git push --force' p",
]
SPARED = [
    "find . -name '*.md' -exec grep -l 'git push --force' {} +",
    "git log -S'git push --force'",
    "git log -S 'git push --force' --oneline",
    "git log --grep='git push --force'",
    "git blame -L '/git push --force/,+3' a.sh",
    "pytest -k 'git push --force'",
    "jest -t 'git push --force'",
    "go test -run 'git push --force' ./...",
    "my-notes add 'git push --force'",
    'my-notes add "git push --force" --tag x',
    "git push --help --force",
    "git push --force --help",
    "pkill -f 'git push --force'",
    "curl -d 'git push --force' https://x.example",
    "curl https://x.example/?q=git+push+--force",
    "echo 'git push --force' > NOTES.md; sh build.sh",
    "for f in 'git push --force'; do echo \"$f\"; done",
    "case $x in 'git push --force') echo no;; esac",
    "alias p='git push --force'",
    "test \"$c\" = 'git push --force'",
    "docker build -t x --build-arg C='git push --force' .",
    "tmux rename-window 'git push --force'",
    "echo git push --force | tee a.md",
    "python3 -c \"print('git push --force')\"",
    "gh pr create --title x --body \"$(cat <<'EOF'\ngit push --force\nEOF\n)\"",
]


def found(name: str, command: str) -> Outcome:
    return run_check(parse_check(rule_example(name).check), [shell_call("Bash", command)])


@each("form", STARTED)
def test_a_command_is_found_behind_what_starts_it(form: str) -> None:
    assert found("no-force-push", form.format(PUSH)) is Outcome.FAIL
    assert found("no-force-push", form.format("git push")) is not Outcome.FAIL


@each("script", VARIED)
def test_values_that_a_script_sets_are_known(script: str) -> None:
    assert found("no-force-push", script) is Outcome.FAIL


@each("script", SPARED)
def test_words_that_only_look_like_a_command_are_left_alone(script: str) -> None:
    assert found("no-force-push", script) is Outcome.PASS


@pytest.mark.parametrize(
    "script",
    [
        "echo 'drop table users' | psql",
        "printf 'drop table users;' | sqlite3 a.db",
        "cat <<EOF | mysql x\ndrop table users\nEOF",
        "psql -c 'drop table users'",
        "sudo -u postgres psql <<< 'drop table users'",
        "(echo 'begin;'; echo 'drop table users;') | psql",
    ],
)
def test_text_for_a_database_is_no_quotation(script: str) -> None:
    assert (
        run_check(parse_check("not in calls of shell: drop table"), [shell_call("Bash", script)])
        is Outcome.FAIL
    )


LOCK = "no-lock-file-edits"
WRITES = [
    "echo '{}' > package-lock.json",
    "cat <<'EOF' > ./web/package-lock.json\n{}\nEOF",
    "cat > src/../package-lock.json <<EOF\n{}\nEOF",
    "echo x | tee -a yarn.lock",
    "sed -i 's/a/b/' uv.lock",
    "sed -i.bak -e 's/a/b/' uv.lock",
    "perl -pi -e 's/a/b/' Cargo.lock",
    "cd web && echo > package-lock.json",
    "bash -c 'echo x >> poetry.lock'",
    "jq . a.json > tmp && mv tmp package-lock.json",
    (
        "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: uv.lock\n@@\n-a\n+b\n*** End"
        " Patch\nEOF"
    ),
    "apply_patch '*** Begin Patch\n*** Update File: ./uv.lock\n@@\n-a\n+b\n*** End Patch'",
    "git apply <<'EOF'\n--- a/uv.lock\n+++ b/uv.lock\n@@ -1 +1 @@\n-a\n+b\nEOF",
]


@each("script", WRITES)
def test_files_that_a_script_writes_are_edits(script: str) -> None:
    assert found(LOCK, script) is Outcome.FAIL


@pytest.mark.parametrize(
    "script",
    [
        "cat package-lock.json",
        "npm install > out.log 2>&1",
        "sed -n 1p uv.lock",
        "cp uv.lock /tmp/",
        "echo 'see uv.lock' > a.md",
    ],
)
def test_reading_a_file_is_no_edit(script: str) -> None:
    assert (
        run_check(parse_check(rule_example(LOCK).check), [shell_call("Bash", script)])
        is not Outcome.FAIL
    )


GENERATED = r"not in calls of edit: \Agen/"


@pytest.mark.parametrize(
    "made",
    [
        call("save_file", {"path": "gen/a.py", "content": "x"}),
        call("create_or_update_file", {"path": "./gen/a.py", "content": "x", "branch": "b"}),
        call("Write", {"file_path": "src/../gen/a.py", "content": "x"}),
        call("my_file_writer_update", {"filePath": "gen//a.py", "newText": "x"}),
        call("Bash", {"command": "echo x > ./gen/a.py"}),
        call("Bash", {"command": "cd gen && echo x > a.py"}),
    ],
)
def test_an_edit_is_known_by_other_names_and_paths(made: ToolCall) -> None:
    assert run_check(parse_check(GENERATED), [made]) is Outcome.FAIL


@each(
    "made",
    [
        call("run_command", {"CommandLine": PUSH, "Cwd": "/x"}),
        call("shell", {"COMMAND": PUSH}),
        call("execute", {"cmdline": PUSH}),
        call(
            "workflow", {"steps": [{"name": "a", "command": "ls"}, {"name": "b", "command": PUSH}]}
        ),
        call("plan", {"steps": [{"run": "x", "cmd": PUSH}]}),
        ToolCall("c", "Bash", '{"command": "ls", "command": "git push --force"}'),
        call("Bash", {"command": "git push $F", "env": {"F": "--force"}}),
        call("Bash", {"command": "ls", "cmd": PUSH}),
        call("python", {"code": f"import os\nos.system('{PUSH}')"}),
        call("python", {"code": "import subprocess\nsubprocess.run(['git', 'push', '--force'])"}),
        call("execute_ipython_cell", {"code": f"!{PUSH}"}),
        call("execute_ipython_cell", {"code": f"%%bash\n{PUSH}"}),
    ],
)
def test_a_command_is_found_under_other_keys(made: ToolCall) -> None:
    assert run_check(parse_check(rule_example("no-force-push").check), [made]) is Outcome.FAIL


@pytest.mark.parametrize(
    "arguments",
    [
        '{"command": "git push --force',
        '{"command": "git push --force",}',
        "{'command': 'git push --force'}",
        '```json\n{"command": "git push --force"}\n```',
        '{"command": "cd x\ngit push --force"}',
        r'{"command": "echo \d && git push --force"}',
        r'"{\"command\": \"git push --force\"}"',
        '{"command": "git push --force"} {"command": "ls"}',
    ],
)
def test_a_command_is_found_in_arguments_that_a_client_may_mend(arguments: str) -> None:
    check = parse_check(rule_example("no-force-push").check)
    assert run_check(check, [ToolCall("c", "Bash", arguments)]) is Outcome.FAIL
    assert (
        run_check(check, [ToolCall("c", "Bash", arguments.replace("--force", "origin x"))])
        is Outcome.PASS
    )


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("pytest -q", Outcome.FAIL),
        ("cd x && pytest -q", Outcome.FAIL),
        ("bash -c 'pytest -q'", Outcome.FAIL),
        ("uv run pytest -q", Outcome.PASS),
        ("A=1 uv run pytest", Outcome.PASS),
    ],
)
def test_a_check_of_commands_as_written_tells_how_a_program_is_started(
    command: str, outcome: Outcome
) -> None:
    check = parse_check("not in calls of shell as written: ^pytest")
    assert run_check(check, [shell_call("Bash", command)]) is outcome


@pytest.mark.parametrize("command", ["docker compose up -d", "docker compose -f dev.yml up"])
def test_a_subcommand_of_docker_is_not_the_old_program(command: str) -> None:
    never_old = parse_check("not in calls of shell: ^docker-compose")
    assert run_check(never_old, [shell_call("Bash", command)]) is Outcome.PASS
    never_up = parse_check("not in calls of shell: ^docker compose up")
    assert run_check(never_up, [shell_call("Bash", command)]) is Outcome.FAIL
