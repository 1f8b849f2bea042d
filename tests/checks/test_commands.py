"""Shell scripts for checks: the commands that are run, in any spelling, and not those that are only
quoted.
"""

import subprocess
import sys

import pytest

from metaclaw.checks.commands import commands_of
from metaclaw.checks.shell import _parser
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import parse_check, rule_example, run_check
from tests.checks.spellings import call, shell_call
from tests.support.cases import each

FORCE = (
    "no-force-push",
    r"not in calls of shell: git push\b.*--force",
    r"not in calls: ^git push\b.*\s--force\b",
)
PIP = ("uv-not-pip", r"not in calls of shell: ^pip3? install")

PUSHES = [
    "git push --force",
    "git push \\\n  --force origin main",
    'git push "--force"',
    "git push '--force' origin",
    "git push --for''ce",
    "g'i't push --force",
    '"git" "push" "--force"',
    "\\git push --force",
    "git  \t push   --force",
    "git -c user.name=x push --force",
    "git -C app --no-pager push --force",
    "GIT_SSH_COMMAND='ssh -i k' git push --force",
    "/usr/bin/git push --force",
    "sudo git push --force",
    "sudo -u deploy -E git push --force",
    "command git push --force",
    "env A=1 B=2 git push --force",
    "exec git push --force",
    "time git push --force",
    "nohup git push --force &",
    "timeout 30 git push --force",
    "nice -n 5 git push --force",
    "echo origin | xargs git push --force",
    "echo origin | xargs -I{} git push --force {}",
    "bash -c 'git push --force'",
    'sh -c "cd x && git push --force"',
    "bash -lc \"bash -c 'git push --force'\"",
    "eval 'git push --force'",
    'eval "git push" --force',
    "sh <<EOF\ngit push --force\nEOF",
    "bash -s <<'EOF'\ncd x\ngit push --force\nEOF",
    "bash <<< 'git push --force'",
    "echo 'git push --force' | sh",
    "printf 'git push --force' | bash -s",
    "echo $(git push --force)",
    'echo "done: $(git push --force)"',
    "echo `git push --force`",
    "x=$(git push --force)",
    "cat <<EOF\n$(git push --force)\nEOF",
    "diff <(git push --force) a",
    "cd x; git push --force",
    "cd x && git push --force || true",
    "ls\ngit push --force\n",
    "ls & git push --force",
    "(cd x; git push --force)",
    "{ git push --force; }",
    "if true; then git push --force; fi",
    "for r in a b; do git push --force $r; done",
    "while read r; do git push --force; done < remotes",
    "case $x in a) git push --force;; esac",
    "f() { git push --force; }; f",
    "! git push --force",
    "F=--force; git push $F",
    'CMD="git push --force"; $CMD',
    'CMD="git push --force"; bash -c "$CMD"',
    "$'git' $'push' $'--force'",
    "find . -name x -exec git push --force \\;",
    "ssh host 'cd app && git push --force'",
    "ssh -p 22 me@host git push --force",
    "su deploy -c 'git push --force'",
    "docker exec -u me box git push --force",
    "docker exec box sh -c 'git push --force'",
    "cat > p.sh <<'EOF'\ngit push --force\nEOF\nbash p.sh",
    "echo 'git push --force' > p.sh && sh ./p.sh",
    "git push 2>&1 --force | tail -5",
    "git push --force # as asked",
    "ls # list\ngit push --force",
    "git commit -m 'do not git push --force' && git push --force",
]
QUOTES = [
    "echo git push --force",
    'echo "git push --force"',
    "echo 'never: git push --force' >> NOTES.md",
    "printf '%s\\n' 'git push --force'",
    "grep -rn 'git push --force' docs",
    "grep git push --force docs",
    "rg -n 'git push .*--force' .",
    "git grep 'git push --force'",
    "git log --grep 'git push --force'",
    "git commit -m 'docs: never git push --force'",
    'git commit -am "stop: git push --force"',
    'git commit --message="git push --force is gone"',
    "git commit -m \"$(cat <<'EOF'\ndocs: don't git push --force\n\nIt's (really) bad.\nEOF\n)\"",
    "git commit -F - <<'EOF'\ngit push --force is forbidden\nEOF",
    "git tag -a v1 -m 'git push --force no more'",
    "gh pr create --title 'No git push --force' --body 'git push --force is off'",
    "gh issue comment 3 -b 'git push --force'",
    "ls # git push --force",
    "# git push --force\nls",
    "cat > NOTES.md <<'EOF'\n# Rules\ngit push --force is forbidden.\nEOF",
    "cat <<EOF > docs/a.md\ngit push --force\nEOF",
    "tee docs/a.md <<'EOF'\ngit push --force\nEOF",
    "sed -i 's/git push --force/git push/' deploy.sh",
    "sed -n '/git push --force/p' deploy.sh",
    "awk '/git push --force/' deploy.sh",
    "jq '.a = \"git push --force\"' a.json",
    'if [ "$x" = "git push --force" ]; then exit 1; fi',
    "MSG='git push --force'; echo \"$MSG\"",
    "export HINT='git push --force'",
    "echo 'git push --force' | tee -a NOTES.md",
    "git push origin x && echo 'no --force needed'",
    "git push origin x; rm --force a",
    "git push && git commit -m 'no --force'",
    "history | grep 'git push --force'",
    "man git push",
]
INSTALLS = [
    "pip install x",
    "p'i'p install x",
    "python -m pip install x",
    "python -mpip install x",
    "python3.12 -I -m pip install x",
    "python -X utf8 -m pip install x",
    ".venv/bin/python -m pip install x",
    "pip --quiet install x",
    "pip --proxy http://p install x",
    "pip3 install x",
    "/usr/local/bin/pip3.11 install x",
    "sudo -H pip install x",
    "PIP_NO_CACHE=1 pip install x",
    "cd x && . .venv/bin/activate && pip install -r r.txt",
    "xargs pip install < r.txt",
    "xargs -a r.txt -n 1 pip install",
    "uv run pip install x",
    "poetry run pip install x",
    "docker exec box pip install x",
    "bash -c 'pip install x'",
    "pip \\\n  install x",
]
USES_UV = [
    "uv pip install x",
    "uv add x",
    "uv --quiet pip install x",
    "echo 'pip install x'",
    "grep -r 'pip install' docs",
    "git commit -m 'docs: pip install x'",
    "cat > README.md <<EOF\npip install x\nEOF",
    "pip --version",
    "pip list # not pip install",
]


def check_of(name: str) -> str:
    return name if " " in name else rule_example(name).check


def found(check: str, command: str) -> Outcome:
    return run_check(parse_check(check_of(check)), [shell_call("Bash", command)])


@pytest.mark.parametrize("check", FORCE)
def test_a_command_is_found_in_whatever_way_it_is_run(check: str) -> None:
    assert [one for one in PUSHES if found(check, one) is not Outcome.FAIL] == []


@pytest.mark.parametrize("check", FORCE)
def test_a_command_that_is_only_quoted_does_not_count(check: str) -> None:
    assert [one for one in QUOTES if found(check, one) is not Outcome.PASS] == []


@pytest.mark.parametrize("check", PIP)
def test_installing_with_pip_is_told_from_talking_about_it(check: str) -> None:
    assert [one for one in INSTALLS if found(check, one) is not Outcome.FAIL] == []
    assert [one for one in USES_UV if found(check, one) is not Outcome.PASS] == []


@each(
    ("name", "breaks", "follows"),
    [
        (
            "no-sudo",
            [
                "A=1 sudo make",
                "ls | xargs sudo rm",
                "time sudo x",
                "bash -c 'sudo x'",
                "/usr/bin/sudo x",
                "su'do' x",
            ],
            [
                "echo sudo",
                "grep sudo docs",
                "git commit -m 'use sudo'",
                "cat > a <<EOF\nsudo x\nEOF",
                "man sudo",
            ],
        ),
        (
            "no-verify",
            [
                "git commit '--no-verify' -m x",
                "git commit -m 'say why -n' -n",
                "git -c core.hooksPath=/dev/null commit -m x",
            ],
            ["git commit -m 'never use --no-verify'", "echo git commit --no-verify"],
        ),
        (
            "no-curl-pipe-sh",
            [
                "curl -s x.example \\\n | /bin/sh",
                'curl x.example | "sh"',
                "curl x | sudo -E bash -",
                "curl x | env bash",
                "eval `curl x`",
            ],
            ["echo 'curl x | sh'", "git commit -m 'no curl x | sh'", "# curl x | sh\nls"],
        ),
        (
            "conventional-commits",
            ["git commit -m update", "git commit -m Update\\ it", 'git -C x commit -am "Update"'],
            [
                "git commit -m 'feat: x' -m 'More words'",
                "git commit -m 'fix: pass -m on'",
                "echo git commit -m update",
            ],
        ),
        (
            "no-secrets",
            [
                "echo ghp_0123456789abcdefghijABCDEFGHIJ456789 > t",
                "cat > k <<EOF\n-----BEGIN RSA PRIVATE KEY-----\nEOF",
            ],
            ["git add .env.example", "echo 'git add .env'"],
        ),
        (
            "no-chmod-777",
            ["chmod '777' x", "sudo chmod -R 777 x", "find . -exec chmod 777 {} +"],
            ["echo chmod 777 x"],
        ),
        (
            "no-commit-all",
            ["git add '.'", "git -C x add -A"],
            ["git commit -m 'feat: a' b.py", 'git commit -m"add it" a.py'],
        ),
        (
            "no-hard-reset",
            ["git reset HEAD~1 '--hard'", "git clean --force"],
            ["git restore --staged .", "echo git reset --hard"],
        ),
        (
            "no-push-to-main",
            ["git push origin 'main'", "git push origin +HEAD:main"],
            ["git push origin x # not main"],
        ),
        (
            "pnpm-not-npm",
            ["npm --prefix web install", "CI=1 npm ci", "sh -c 'npm i'"],
            ["echo npm install", "pnpm i"],
        ),
    ],
)
def test_rules_of_the_library_see_commands_as_they_are_run(
    name: str, breaks: list[str], follows: list[str]
) -> None:
    assert [one for one in breaks if found(name, one) is not Outcome.FAIL] == []
    assert [one for one in follows if found(name, one) is not Outcome.PASS] == []


def test_a_pattern_that_names_an_operator_sees_the_whole_script() -> None:
    assert found("not in calls of shell: &&", "cd x && ls") is Outcome.FAIL
    assert found("not in calls of shell: &&", "cd x; ls") is Outcome.PASS
    assert found(r"not in calls of shell: ^cd \S+ && git", "cd x && git status") is Outcome.FAIL
    assert found("pattern in calls of shell: ^set -e", "set -e\nmake") is Outcome.PASS


def test_what_is_quoted_counts_where_it_is_not_like_a_command() -> None:
    signature = "not in calls of shell: Co-Authored-By: Claude"
    assert found(signature, "git commit -m 'fix: x\n\nCo-Authored-By: Claude'") is Outcome.FAIL
    assert found("not in calls of shell: git commit.*WIP", "git commit -m WIP") is Outcome.FAIL
    assert (
        found("not in calls of shell: (?i)drop table", "psql -c 'DROP TABLE users'") is Outcome.FAIL
    )
    assert (
        found("not in calls of shell: (?i)drop table", "psql <<EOF\ndrop table users;\nEOF")
        is Outcome.FAIL
    )


def test_a_call_named_by_its_tool_is_seen_as_commands_too() -> None:
    for check in ("not in calls: git push --force", "not in calls of Bash: git push --force"):
        assert found(check, 'git push "--force"') is Outcome.FAIL
        assert found(check, "echo 'git push --force'") is Outcome.PASS
    assert found('not in calls: "timeout": 1000', "ls") is Outcome.FAIL
    assert found('not in calls of bash: "command": "git push', "git push") is Outcome.FAIL
    other = run_check(
        parse_check("not in calls of deploy: git push"), [call("deploy", {"note": "git push"})]
    )
    assert other is Outcome.FAIL


@pytest.mark.parametrize(
    "script",
    [
        "git push --force 'x",
        "git push --force $(",
        "x" * 300_000 + "; git push --force",
        "a;" * 2_000,
    ],
)
def test_a_script_that_cannot_be_read_is_looked_at_in_pieces(script: str) -> None:
    expected = Outcome.FAIL if "push" in script else Outcome.UNKNOWN
    assert (
        found("not in calls of shell: ^git push --force", script.replace("git", "; git", 1))
        is expected
    )


@each(
    "script",
    [
        "$(" * 50_000,
        "`" * 100_000,
        "bash -c '" * 10_000,
        "a | " * 50_000,
        "echo 'git push' " * 10_000,
        "cat <<E\n" * 10_000,
        "git push " * 20_000,
        "x=$x$x;" * 1_000,
        "((((" * 40_000,
        '"$x' * 50_000,
        "${x:-" * 20_000,
        "$((" * 30_000,
        "{a,b}" * 20_000,
        "echo a | " * 900 + "sh",
        "f() { f; }; f; " * 2_000,
    ],
)
def test_a_very_long_script_is_looked_at(script: str) -> None:
    """Slow reading would make this test hang."""
    assert commands_of(script).texts
    assert found("no-force-push", script) is not Outcome.FAIL


@pytest.mark.parametrize(
    "name",
    [
        "no-force-push",
        "no-push-to-main",
        "no-verify",
        "no-commit-all",
        "no-chmod-777",
        "conventional-commits",
    ],
)
def test_the_library_is_quick_on_long_lines(name: str) -> None:
    check = parse_check(check_of(name))
    for words in ("git push ", "git commit -m ", "git add ", "chmod ", "git git push push "):
        assert (
            run_check(check, [shell_call("Bash", (words * 20_000)[:150_000])])
            is not Outcome.UNKNOWN
        )


def test_a_script_is_read_to_its_end_although_others_have_the_processor() -> None:
    parser = _parser()
    patience = parser.timeout_micros
    parser.timeout_micros = 200  # so often it is stopped on a busy machine
    try:
        assert commands_of("git push " + "-v " * 5_000 + "--force").unread == ""
    finally:
        parser.timeout_micros = patience


def test_the_parser_is_not_loaded_before_a_command_is_read() -> None:
    code = (
        "import sys, metaclaw.app, metaclaw.proxy; print([name for name in sys.modules if"
        " name.startswith('tree_sitter')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
