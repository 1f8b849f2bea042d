"""`metaclaw doctor --bundle`: secrets and words planted everywhere, and none of them in the file."""

import json
import stat
from pathlib import Path
from zipfile import ZipFile

import httpx

from tests.cli.program import program as command
from tests.support.program import KEY, NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

SECRETS = {
    "literal": "sk-proj-9fQ2LmXw71TzKb4RvYc8NdHs",
    "variable": "Zx81kQpLw02VtYbN55sRmEeUu7",
    "file": "hunter2-Tq9WmZx4Lk7VbNc1",
    "service": "qJ7nV3xK9pR2wT5yB8mD1fG4",
    "url": "p4ssW0rd-in-Url-77Kq",
    "calendar": "private-5e1f9a7cc2d84b03",
    "log": "ghp_a8Kd02LmPq7RsTu3VwXy9ZbCdEfGh1JkLmNo",
    "header": "3fKq8ZtWm2LpXv6RbYc9",
    "override": "tR5vQ8zK2mW7xL4nB9pC",
}
WORDS = (
    *("albatross", "marmalade", "periwinkle", "quetzal", "ocarina", "zeppelin", "tamarind"),
    *("gondola", "mandolin", "saffron", "4917055512"),
)
CONFIG = """
[[providers]]
name = "literal"
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "{literal}"

[[providers]]
name = "variable"
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "env:PLANTED_KEY"

[[providers]]
name = "tamarind"
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "file:{folder}/gondola"

[learning]
prices = [{{ model = "mandolin", input = 1, output = 2 }}]

[[schedule.calendars]]
kind = "ics"
url = "https://calendar.example/ical/{calendar}/basic.ics"

[[teams]]
name = "ocarina"
users = ["zeppelin"]
"""


def test_a_bundle_holds_neither_secrets_nor_words(
    provider: Provider, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "gondola").write_text(SECRETS["file"])
    own = CONFIG.format(folder=tmp_path, **SECRETS)
    env = {
        **NOT_LEARNING,
        "PLANTED_KEY": SECRETS["variable"],
        "HTTPS_PROXY": f"http://me:{SECRETS['url']}@127.0.0.1:9",
        "METACLAW__LOG__LEVEL": "debug",
    }
    program = Program(home, providers_toml(provider.url) + own, env=env)
    (home / "service.env").write_text(f"SERVICE_TOKEN={SECRETS['service']}\n")
    skill = home / "skills" / "fruit" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(f"---\nname: fruit\ndescription: quetzal\n---\nUse {SECRETS['log']}.\n")
    broken = home / "skills" / "saffron" / "SKILL.md"
    broken.parent.mkdir()
    broken.write_text("---\nname: [periwinkle\n---\n")
    program.start()
    try:
        for model in ("openai/echo", "openai/status-500"):
            httpx.post(
                f"{program.url}/v1/chat/completions",
                json={"model": model, "messages": [{"role": "user", "content": "albatross"}]},
                headers={
                    "authorization": f"Bearer {KEY}",
                    "x-api-key": SECRETS["header"],
                    "x-session-id": "zeppelin-trip",
                    "x-user-id": "ocarina",
                },
                timeout=PATIENCE_S,
            )
        logs = home / "logs"
        logs.mkdir(exist_ok=True)
        stamp = "2026-11-19 04:00:00,123"
        planted = "\n".join(
            (
                program.log.read_text(),
                f"{stamp} INFO metaclaw.proxy.pipeline turn_failed turn=t1 provider=openai"
                f" status=500 error=the model said marmalade with {SECRETS['literal']}",
                f"{stamp} WARNING metaclaw.app.policy lost key={SECRETS['variable']} tries=3",
                f"{stamp} ERROR metaclaw.proxy.http.server unexpected_error path=/v1/x",
                "Traceback (most recent call last):",
                '  File "/x/metaclaw/proxy/pipeline.py", line 7, in answer',
                f'    raise ValueError("periwinkle {SECRETS["service"]}")',
                "ValueError: periwinkle",
                f"{stamp} INFO metaclaw.learn.rules rule_stated text=always say marmalade",
                f"{stamp} INFO metaclaw.proxy.pipeline turn_failed turn=t1 provider=tamarind"
                " status=4917055512x error=I said status=7 and my turn=4917055512",
                f"{stamp} INFO metaclaw.proxy.pipeline albatross turn=t1",
                f"{stamp} INFO metaclaw.quetzal turn_failed status=500",
                f"{stamp} INFO metaclaw.proxy.pipeline turn_failed pin=4917055512 status=502",
                f"{stamp} INFO metaclaw.proxy.sessions.origins session_began"
                " session=zeppelin-trip agent=saffron keyed=True",
                f"{stamp} WARNING metaclaw.skills.folder skills_not_recorded"
                " folder=/home/periwinkle/skills reason=gone",
                '  File "/home/periwinkle/metaclaw/quetzal.py", line 7, in marmalade',
                '  File "/home/periwinkle/checks.py", line 7, in marmalade',
                *(f"{stamp} INFO metaclaw.x said value={secret}" for secret in SECRETS.values()),
            )
        )
        (logs / "metaclaw.log").write_text(planted)
        (home / "run" / "launch.json").write_text(
            json.dumps({"overrides": [f"proxy.api_key={SECRETS['override']}"]})
        )
        path = tmp_path / "bundle.zip"
        done = command(
            "--home", str(home), "doctor", "--json", "--bundle", str(path), env=program.env
        )
    finally:
        assert program.stop() == 0
    assert done.facts["bundle"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with ZipFile(path) as bundle:
        assert bundle.namelist() == done.facts["holds"]
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    for name, text in texts.items():
        for kind, secret in {**SECRETS, "key": KEY}.items():
            assert secret not in text, (name, kind)
        for word in WORDS:
            assert word not in text, (name, word)
    assert json.loads(texts["versions.json"])["installed"]["pydantic"]
    settings = json.loads(texts["settings.json"])
    assert settings["schedule.calendars.0.url"] == "(set)"
    assert settings["providers.3.base_url"] == "http://127.0.0.1:9"
    assert settings["providers.3.kind"] == "openai"
    assert settings["proxy.max_concurrency"] == 1024
    assert json.loads(texts["store.json"])["main_turns"] == 2
    told = texts["log.txt"].splitlines()
    assert f"{stamp} INFO metaclaw.proxy.pipeline turn_failed status=500" in told
    assert f"{stamp} INFO metaclaw.proxy.pipeline turn_failed status=502" in told
    assert f"{stamp} INFO metaclaw.proxy.sessions.origins session_began keyed=True" in told
    assert '  File "metaclaw/proxy/pipeline.py", line 7, in answer' in told
    assert any(" metaclaw.app.serving serving rules=0 facts=0 skills=1" in line for line in told)
    found = json.loads(texts["doctor.json"])
    assert {"provider", "skills", "store", "clock"} <= {one["name"] for one in found}
    assert [one["state"] for one in found if one["name"] == "skills"].count("warn") == 1
