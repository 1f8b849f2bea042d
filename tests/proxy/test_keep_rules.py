"""The rule that is built in while others are held: an agent does not lift the person's rules."""

import pytest

from metaclaw.domain.chat import ToolCall
from metaclaw.domain.check import PatternCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.proxy.enforcement.held_rules import keep_rules
from metaclaw.skills import run_check, screen_of
from tests.checks.spellings import call, edit_call
from tests.support.cases import each


def _check(port: int) -> PatternCheck:
    check = keep_rules(port).check
    assert isinstance(check, PatternCheck)
    return check


CHECK = _check(30000)
LIFTS = [
    "metaclaw undo",
    "metaclaw skills revert 5",
    "python -mmetaclaw enforce off",
    "python3 -m metaclaw.cli enforce off",
    "metaclaw config set proxy.enforce_opt_out true",
    "metaclaw stop && metaclaw start --detach --set proxy.enforce_opt_out=true",
    "metaclaw stop",
    "metaclaw --home /h sessions forget s1 --yes",
    "metaclaw candidates approve c_1",
    "metaclaw store restore /tmp/old.db",
    "metaclaw agents disconnect claude-code",
    "uv run metaclaw rules remove no-sudo",
    "pkill -f metaclaw",
    "sudo pkill -9 -f 'metaclaw start'",
    "killall metaclaw",
    "killall -9 metaclaw",
    "kill $(pgrep -f metaclaw)",
    "pgrep -f metaclaw | xargs kill",
    "kill -9 $(cat ~/.metaclaw/metaclaw.pid)",
    "systemctl --user stop metaclaw",
    "lsof -ti:30000 | xargs kill -9",
    "cat ~/.metaclaw/run/metaclaw.pid | xargs kill",
    "netstat -ltnp | grep 30000 | awk '{print $7}' | xargs kill",
    "find ~/.metaclaw/skills -name SKILL.md -exec sed -i s/hold/off/ {} +",
    'sed -i s/hold/off/ "$METACLAW_HOME"/skills/no-sudo/SKILL.md',
    "ln -sfn /tmp/empty ~/.metaclaw/skills",
    "tar xf /tmp/s.tar -C ~/.metaclaw/skills",
    "fuser -k 30000/tcp",
    "kill $(lsof -ti :30000)",
    "rm -rf ~/.metaclaw/skills/no-sudo",
    "sed -i 's/hold/off/' ~/.metaclaw/skills/no-sudo/SKILL.md",
    "curl -s -X POST http://127.0.0.1:30000/api/undo",
    "curl -X POST -H 'Authorization: Bearer x' $ANTHROPIC_BASE_URL/api/undo",
    "curl -XPOST ${OPENAI_BASE_URL%/v1}/api/enforce -d '{}'",
    "curl -X POST http://localhost:30000/k/KEY/api/generations/revert",
    "curl -X POST http://127.0.0.1:30000/api/skills/no-sudo/retire",
    "curl -X DELETE http://[::1]:30000/api/rules/no-sudo",
    "http POST :30000/api/undo",
    "http :30000/api/enforce on:=false",
    "python3 -c \"import requests; requests.post('http://127.0.0.1:30000/api/undo')\"",
    (
        "python3 -c \"import requests; B='http://localhost:30000'; requests.delete(B +"
        " '/api/rules/no-sudo')\""
    ),
    (
        "python3 - <<'EOF'\nimport urllib.request as"
        " u\nu.urlopen(u.Request('http://127.0.0.1:30000/api/enforce', data=b'{}'))\nEOF"
    ),
    "python3 -c \"import os, httpx; httpx.post(os.environ['ANTHROPIC_BASE_URL'] + '/api/undo')\"",
    "node -e \"fetch('http://127.0.0.1:30000/api/rules/x', {method: 'DELETE'})\"",
    (
        "python3 -c \"import http.client as h; c = h.HTTPConnection('127.0.0.1', 30000);"
        " c.request('POST', '/api/undo')\""
    ),
]
OTHERS = [
    "metaclaw rules list",
    "metaclaw status && metaclaw why --last",
    "metaclaw config set providers.0.name x",
    "metaclaw sessions list",
    "metaclaw rules add 'Stop and ask before undo'",
    "metaclaw sessions search stop",
    "metaclaw store check",
    "metaclaw rules edit --help",
    "metaclaw stop --help",
    "lsof -ti:3000 | xargs kill -9",
    "find ~/.metaclaw/skills -name SKILL.md",
    "tar czf /tmp/backup.tgz -C /home/ann project",
    "metaclaw store backup /tmp/a.db",
    "metaclaw logs | grep stop",
    "pgrep -f metaclaw",
    "pkill -f 'npm run dev'",
    "killall node",
    "kill $(lsof -ti :3000)",
    "fuser -k 8080/tcp",
    "systemctl --user status metaclaw",
    "docker stop web",
    "grep -rn 'metaclaw stop' docs",
    "cat ~/.metaclaw/config.toml",
    "curl http://127.0.0.1:30000/api/rules",
    "curl -X GET http://127.0.0.1:30000/api/rules",
    "curl -X DELETE https://api.example.com/api/rules/7",
    "curl -X PUT http://firewall.local/api/rules/12",
    "curl -X POST http://localhost:8000/api/rules -d '{}'",
    "curl -X DELETE http://127.0.0.1:3000/api/rules/7",
    "curl -X POST $BASE_URL/api/rules -d '{}'",
    "python3 -c \"import requests; requests.post('http://localhost:8000/api/rules', json={})\"",
    (
        'python3 -c "import requests;'
        " print(requests.get('http://127.0.0.1:30000/api/rules').json())\""
    ),
    "node -e \"fetch('http://localhost:5173/api/rules', {method: 'POST'})\"",
    "curl -X POST http://127.0.0.1:30000/v1/chat/completions -d '{}'",
    "git commit -m 'metaclaw undo works'",
]


@each("command", LIFTS)
def test_calls_that_lift_rules_are_held(command: str) -> None:
    assert run_check(CHECK, [call("Bash", {"command": command})]) is Outcome.FAIL


@each("command", OTHERS)
def test_other_calls_are_not(command: str) -> None:
    assert run_check(CHECK, [call("Bash", {"command": command})]) is Outcome.PASS


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (
            edit_call("Edit", "/home/ann/.metaclaw/skills/no-sudo/SKILL.md", "enforce: off"),
            Outcome.FAIL,
        ),
        (edit_call("Write", "/home/ann/.metaclaw/config.toml", "[proxy]"), Outcome.FAIL),
        (
            call(
                "execute_code",
                {"code": "import requests\nrequests.post('http://127.0.0.1:30000/api/undo')"},
            ),
            Outcome.FAIL,
        ),
        (edit_call("Write", "docs/rules.md", "metaclaw undo takes back a lesson"), Outcome.PASS),
        (
            call(
                "execute_code",
                {"code": "import requests\nrequests.post('http://127.0.0.1:9000/api/undo')"},
            ),
            Outcome.PASS,
        ),
    ],
)
def test_files_and_code_count_alike(made: ToolCall, outcome: Outcome) -> None:
    assert run_check(CHECK, [made]) is outcome


def test_the_port_is_the_one_the_program_listens_on() -> None:
    lift = [call("Bash", {"command": "curl -X POST http://127.0.0.1:4711/api/undo"})]
    assert run_check(_check(4711), lift) is Outcome.FAIL
    assert run_check(_check(471), lift) is Outcome.PASS


def test_most_calls_need_no_look_at_the_pattern() -> None:
    screen = screen_of(CHECK.pattern)
    assert screen is not None
    assert not screen.may_match(["git status && pytest -q", "src/a.py\nx = 1"])
