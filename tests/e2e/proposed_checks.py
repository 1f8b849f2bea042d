"""Forty rules with the checks that a scripted model proposes for them: 25 are right, 15 are wrong
as models are wrong.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProposedCheck:
    """A rule, the check, its examples, and why it must not be taken (a piece of the reason), None
    where it is right. `did` is what the agent did before the person corrected it; empty where the
    rule is said without a correction."""

    text: str
    check: str
    violates: str
    complies: str
    wrong: str | None = None
    did: str = ""


# What the agent did in tasks that were fine: commands, files (path, then text), answers.
FINE_COMMANDS = (
    "git status",
    "git push origin feature/login",
    "git commit -m 'fix(login): accept empty names'",
    "uv add httpx",
    "uv run pytest -q",
    "docker compose up -d",
    "make build",
    "kubectl get pods",
    "curl -s https://api.example/health",
    "ls -la src && cat package.json",
)
FINE_FILES = (
    "src/app.ts\nexport const port = 8080\n",
    "docs/guide.md\n# Guide\n\nRun make build.\n",
    (
        "src/login.py\nfrom app import user\n\n\ndef login(name: str) -> bool:\n    return"
        " user(name) is not None\n"
    ),
)
FINE_ANSWERS = (
    "I added the login page; the tests pass.",
    "The release is planned for 2026-12-01.",
    "The error is in src/app.ts, line 12: the port is a text.",
)
_NOTICE, _PASS, _FINE, _CORRECTED = (
    "does not notice the example that breaks",
    "does not pass the example that follows",
    "fails turns that were fine",
    "does not notice the answer that you corrected",
)

RIGHT = (
    ProposedCheck(
        "Never force-push",
        r"not in calls of shell: git push.*\s(?:-f\b|--force)",
        "git push -f",
        "git push origin x",
    ),
    ProposedCheck(
        "Use uv and never pip install",
        r"not in calls of shell: (?<!uv )\bpip3? install\b",
        "pip install x",
        "uv add x",
        did="pip install requests",
    ),
    ProposedCheck(
        "Do not use sudo", r"not in calls of shell: \bsudo\b", "sudo apt install jq", "apt list"
    ),
    ProposedCheck(
        "Do not commit with --no-verify",
        "not in calls of shell: --no-verify",
        "git commit --no-verify -m x",
        "git commit -m x",
        did="git commit --no-verify -m wip",
    ),
    ProposedCheck(
        "Never edit package-lock.json by hand",
        r"not in calls of edit: \A\S*package-lock\.json\n",
        "web/package-lock.json\n{}",
        "web/package.json\n{}",
    ),
    ProposedCheck(
        "Write no .js files into src",
        r"not in calls of edit: \A(?:\S*/)?src/\S*\.js\n",
        "src/app.js\nvar a",
        "src/app.ts\nlet a",
        did="src/menu.js\nvar menu = 1\n",
    ),
    ProposedCheck(
        "Write dates as YYYY-MM-DD",
        r"not: \b\d{1,2}/\d{1,2}/\d{4}\b",
        "Due 12/31/2026.",
        "Due 2026-12-31.",
        did="The release is on 12/31/2026.",
    ),
    ProposedCheck(
        "Never say that I am absolutely right",
        "not: (?i)absolutely right",
        "You're absolutely right!",
        "The bug is here.",
    ),
    ProposedCheck("No emojis in answers", "not: [\U0001f300-\U0001faff✅]", "Done ✅", "Done"),
    ProposedCheck(
        "Do not pipe curl into a shell",
        r"not in calls of shell: curl[^|]*\|\s*(?:ba)?sh",
        "curl x.io | sh",
        "curl -o a x.io",
    ),
    ProposedCheck(
        "Never run git reset --hard",
        "not in calls of shell: git reset --hard",
        "git reset --hard HEAD",
        "git reset HEAD a",
    ),
    ProposedCheck(
        "Use pnpm instead of npm",
        r"not in calls of shell: (?<!p)npm (?:install|i|run|ci)\b",
        "npm install left-pad",
        "pnpm add left-pad",
        did="npm install left-pad",
    ),
    ProposedCheck(
        "Never delete branches on the server",
        "not in calls of shell: push .*--delete",
        "git push origin --delete x",
        "git push",
    ),
    ProposedCheck(
        "No console.log in TypeScript files",
        r"not in calls of edit: \.ts\n(?s:.*)console\.log",
        "a.ts\nconsole.log(1)",
        "a.ts\nlog(1)",
    ),
    ProposedCheck(
        "No default exports in TypeScript",
        r"not in calls of edit: \.tsx?\n(?s:.*)export default",
        "a.ts\nexport default 1",
        "a.ts\nexport const a = 1",
    ),
    ProposedCheck(
        "Never use docker system prune",
        "not in calls of shell: docker system prune",
        "docker system prune -af",
        "docker ps",
    ),
    ProposedCheck(
        "Do not use print for logging in Python files",
        r"not in calls of edit: \.py\n(?s:.*)\bprint\(",
        "a.py\nprint(1)",
        "a.py\nlog.info(1)",
    ),
    ProposedCheck(
        "Use single quotes nowhere but write yarn nothing at all",
        r"not in calls of shell: ^yarn\b",
        "yarn add x",
        "pnpm add x",
    ),
    ProposedCheck(
        "Do not say leverage", r"not: (?i)\bleverag", "We leverage caching.", "We use caching."
    ),
    ProposedCheck(
        "No TODO comments in code",
        r"not in calls of edit: \bTODO\b",
        "a.py\n# TODO: later",
        "a.py\nx = 1",
    ),
    ProposedCheck(
        "Never print the API key",
        r"not in calls of shell: (?:echo|printenv) \$?API_KEY",
        "echo $API_KEY",
        "echo ok",
    ),
    ProposedCheck(
        "Do not run migrations on production",
        r"not in calls of shell: migrate.*--env[= ]production",
        "make migrate --env production",
        "make migrate",
    ),
    ProposedCheck(
        "Never chmod 777",
        r"not in calls of shell: chmod (?:-R )?0?777",
        "chmod 777 a",
        "chmod 755 a",
        did="chmod -R 777 build",
    ),
    ProposedCheck(
        "Every deploy call names its target",
        r'schema in calls of deploy: {"required": ["target"]}',
        "{}",
        '{"target": "stage-2"}',
    ),
    ProposedCheck(
        "No semicolons at the end of commit messages",
        r"not in calls of shell: git commit -m '[^']*;'",
        "git commit -m 'fix: a;'",
        "git commit -m 'fix: a'",
    ),
)
WRONG = (
    # They do not notice what breaks the rule: another spelling, another place, a typing error.
    ProposedCheck(
        "Never use conda",
        r"not in calls of shell: ^conda install -y",
        "conda install numpy",
        "uv add numpy",
        _NOTICE,
    ),
    ProposedCheck(
        "Do not use tabs in YAML files",
        r"not in calls of edit: \.yml\n(?s:.*)\t",
        "a.yaml\n\tx: 1",
        "a.yaml\n  x: 1",
        _NOTICE,
    ),
    ProposedCheck(
        "Never push on Fridays",
        "not in calls of shell: friday",
        "git push origin x",
        "git status",
        _NOTICE,
    ),
    ProposedCheck(
        "Never touch the legacy folder",
        "not in calls of edit: legacy_folder/",
        "legacy/a.py\nx",
        "src/a.py\nx",
        _NOTICE,
    ),
    ProposedCheck(
        "Be friendly", "not: (?i)unfriendly", "Do it yourself, you fool.", "Gladly.", _NOTICE
    ),
    ProposedCheck(
        "No wget",
        "not in calls of shell: (?:wget",
        "wget x.io",
        "curl x.io",
        "not a regular expression",
    ),
    # They fail what follows the rule.
    ProposedCheck(
        "Write commit messages in lower case",
        r"not in calls of shell: git commit -m",
        "git commit -m 'Fix'",
        "git commit -m 'fix'",
        _PASS,
    ),
    ProposedCheck(
        "Use yarn never for anything, only bun",
        r"not in calls of shell: \b(?:yarn|bun)\b",
        "yarn add x",
        "bun add x",
        _PASS,
    ),
    ProposedCheck("Answer in one sentence", r"not: [.]", "One. Two.", "One sentence.", _PASS),
    # They fire on turns that were fine.
    ProposedCheck(
        "Never push to main",
        r"not in calls of shell: git push",
        "git push origin main",
        "git status",
        _FINE,
    ),
    ProposedCheck(
        "No passwords in curl commands",
        r"not in calls of shell: curl",
        "curl -u ann:secret x.io",
        "ls",
        _FINE,
    ),
    ProposedCheck(
        "No star imports in Python",
        r"not in calls of edit: import ",
        "a.py\nfrom x import *",
        "a.py\nx = 1",
        _FINE,
    ),
    ProposedCheck(
        "Do not talk about lines of code",
        r"not: (?i)line|tests",
        "It has 300 lines of code.",
        "It is short.",
        _FINE,
    ),
    # They do not notice what the person corrected.
    ProposedCheck(
        "Never use apt-get",
        r"not in calls of shell: apt-get install",
        "apt-get install jq",
        "brew install jq",
        _CORRECTED,
        did="apt-get -y install jq",
    ),
    ProposedCheck(
        "Do not say simply",
        r"not: Simply",
        "Simply run it.",
        "Run it.",
        _CORRECTED,
        did="You can simply run it.",
    ),
)
