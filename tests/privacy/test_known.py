"""The user's own secrets: collected from the environment and dotfiles, kept as hashes, found in any
form.
"""

import base64
import gc
import json
from pathlib import Path
from urllib.parse import quote

from metaclaw.config import build
from metaclaw.privacy import KnownSecrets, Redactor, secrets_of
from tests.support.cases import each

PROVIDER = {
    "name": "p",
    "kind": "openai",
    "base_url": "http://127.0.0.1:1/v1",
    "api_key": "env:NOT_THERE",
}
SECRET = "Falcon 17 over Bremen"
TOKEN = "qZxyTrwqpLmK"


@each(
    "text",
    [
        f"it said {SECRET} twice",
        f"x{SECRET}y",
        base64.b64encode(f"jo:{SECRET}".encode()).decode(),
        quote(SECRET, safe=""),
        SECRET.encode().hex(),
        json.dumps({"a": json.dumps({"b": f'"{SECRET}"'})}),
        SECRET.replace(" 17", "\u200b 17"),
    ],
)
def test_a_known_secret_is_found_in_any_form(text: str) -> None:
    result = Redactor(KnownSecrets((SECRET,))).text(text)
    assert "<SECRET:known>" in result.text
    assert "Bremen" not in result.text


def test_nothing_is_found_where_nothing_is_known() -> None:
    assert not Redactor().text(f"it said {SECRET} and {TOKEN}").found


@each("weak", ["postgres", "development", "true", "12345", "/home/jo/key.pem", "", "\n\n"])
def test_a_word_that_everybody_uses_is_not_hunted_for(weak: str) -> None:
    assert len(KnownSecrets((weak,))) == 0


def test_no_secret_is_held_as_text() -> None:
    known = KnownSecrets((SECRET, TOKEN))
    assert len(known) == 2
    seen: set[int] = set()
    waiting: list[object] = [known]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            text = one if isinstance(one, str) else one.decode("latin-1")
            assert not any(piece in text for piece in ("Falcon", "Bremen", TOKEN[:6]))
        waiting += [inner for inner in gc.get_referents(one) if not callable(inner)]
    assert "Falcon" not in repr(known)


def test_secrets_are_collected_from_the_environment_and_dotfiles(tmp_path: Path) -> None:
    files = {
        ".netrc": "machine x login jo password netrc-Secret-1",
        ".aws/credentials": "[default]\naws_secret_access_key = aws/Secret+2abcdef",
        ".npmrc": "//registry.npmjs.org/:_authToken=npmSecret-3abc",
        ".pypirc": "[pypi]\nusername = jo\npassword = pypiSecret-4abc",
        ".config/gh/hosts.yml": "github.com:\n    oauth_token: ghSecret5abcdef\n    user: jo",
        ".docker/config.json": json.dumps(
            {"auths": {"r": {"auth": base64.b64encode(b"jo:dockerSecret-6").decode()}}}
        ),
        ".env": "export APP_SECRET='envSecret-7abc'\nLOG_LEVEL=info",
        ".pgpass": "db:5432:prod:app:pgSecret-8abc",
        ".git-credentials": "https://jo:gitSecret-9abc@github.com",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {
        "STRIPE_API_KEY": "envSecret-10abc",
        "DATABASE_URL": "postgres://a:urlSecret-11@h/d",
        "PATH": "/usr/bin-Secret-99",
        "PWD": str(tmp_path),
    }
    redactor = Redactor(KnownSecrets(secrets_of(environ, tmp_path)))
    for secret in (
        "netrc-Secret-1",
        "aws/Secret+2abcdef",
        "npmSecret-3abc",
        "pypiSecret-4abc",
        "ghSecret5abcdef",
        "dockerSecret-6",
        "envSecret-7abc",
    ):
        assert secret not in redactor.text(f"saw {secret} there").text
    for secret in ("pgSecret-8abc", "gitSecret-9abc", "envSecret-10abc", "urlSecret-11"):
        assert secret not in redactor.text(f"saw {secret} there").text
    assert not redactor.text(f"in {tmp_path} with /usr/bin-Secret-99 at info").found


def test_our_own_configuration_counts_and_a_missing_secret_does_not_hurt(tmp_path: Path) -> None:
    config = build({"proxy": {"api_key": "mc-own-Secret-77"}, "providers": [PROVIDER]}, tmp_path)
    assert (
        Redactor(KnownSecrets(secrets_of({}, tmp_path, config)))
        .text("the key mc-own-Secret-77 was used")
        .found
    )


def test_an_unreadable_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".netrc").mkdir()
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text("{not json")
    assert len(KnownSecrets(secrets_of({}, tmp_path))) == 0
