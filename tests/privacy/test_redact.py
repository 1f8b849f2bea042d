"""Secrets in texts: found by shape, name, carrier and chance, in any disguise; and what only looks
like one stays.
"""

import random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.secrets_planted import KINDS, plant
from metaclaw.privacy import Redactor
from metaclaw.privacy.secret_values import PLACEHOLDER, TABLE, pattern

KEY = "sk-proj-Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"
GITHUB = "ghp_Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF2hJ5"


def shown(text: str) -> str:
    return Redactor().text(text).text


REPLACED = (
    (f"key {KEY} end", "key <API_KEY:openai> end"),
    (f"{GITHUB}\n", "<TOKEN:github>\n"),
    ("postgres://app:s3cr3t-pw@db:5432/x", "postgres://app:<PASSWORD:url>@db:5432/x"),
    ('{"password": "hunter2"}', '{"password": "<PASSWORD>"}'),
    ("DB_PASSWORD=tiger", "DB_PASSWORD=<PASSWORD>"),
    ("my password is hunter2, thanks", "my password is <PASSWORD>, thanks"),
    ("Authorization: Bearer abc123def456ghi789", "Authorization: Bearer <TOKEN:bearer>"),
    ("https://x.example/?token=a1b2c3d4e5f6&page=2", "https://x.example/?token=<TOKEN:url>&page=2"),
    ("tool --password hunter2 --verbose", "tool --password <PASSWORD> --verbose"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc123\n-----END RSA PRIVATE KEY-----", "<PRIVATE_KEY>"),
    ("token 9Fz3kQ8vLx2Wm7Rt5Yb1Nc6Hd4Jg0Ps", "token <SECRET>"),
    ("das Passwort lautet Blau!Wal77", "das Passwort lautet <PASSWORD>"),
)


def test_a_secret_gives_way_to_a_placeholder_that_says_what_it_was() -> None:
    for text, expected in REPLACED:
        assert shown(text) == expected


KEPT = (
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "id 550e8400-e29b-41d4-a716-446655440000",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    (
        '"integrity":'
        ' "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="'
    ),
    "/usr/lib/python3.11/site-packages/sqlalchemy/dialects/postgresql/psycopg2.py",
    "Donaudampfschifffahrtsgesellschaftskapitän und Rechtsschutzversicherungsgesellschaften",
    "def login(password: str, token: str | None = None) -> Secret: ...",
    'api_key = os.environ["OPENAI_API_KEY"]',
    "max_tokens=4096 eos_token=</s> primary_key=True cache_key=user:17:profile",
    "export TOKEN=$TOKEN PASSWORD=${PASSWORD:?} SECRET={{ vault.secret }}",
    "password: string;\npassword: Optional[str] = None",
    "The password is required and the token is invalid.",
    "PASS: tests/unit/session.test.ts",
    "getpass = unix_getpass",
    "call_Ab3dE6gH9jK2mN5pQ8sT1vW4 returned 12345678901234567890",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF2hJ5lM8oP1r me@host",
    "密码不能为空。请输入您的密码。",
    "ANTHROPIC_API_KEY=<your-key> password=******** token=[REDACTED]",
)


def test_what_only_looks_like_a_secret_stays() -> None:
    for text in KEPT:
        assert shown(text) == text


DISGUISED = (
    f'key = "{KEY[:12]}" + "{KEY[12:]}"',
    f"some output that goes on {KEY[:25]}\n{KEY[25:]}\nnext line",
    "note=" + "".join(f"%{ord(char):02x}" for char in KEY),
    f'{{"out": "{{\\"k\\": \\"{KEY}\\"}}"}}',
    "\u200b".join(KEY),
    "".join(chr(ord(char) + 0xFEE0) for char in KEY),
    f"line \\\n{KEY[:20]}\\\n{KEY[20:]}",
)


def test_a_disguised_key_is_found() -> None:
    for text in DISGUISED:
        assert "<API_KEY:openai>" in shown(text), text
        assert KEY[14:24] not in shown(text), text


def test_a_whole_key_at_the_end_of_a_line_does_not_swallow_the_next_word() -> None:
    assert (
        shown(f"token is {GITHUB}\nrestarting the service")
        == "token is <TOKEN:github>\nrestarting the service"
    )


def test_the_same_secret_has_the_same_placeholder_and_another_one_has_a_number() -> None:
    other = GITHUB[::-1].replace("_phg", "")
    text = f"{GITHUB} ghp_{other} {GITHUB}"
    assert shown(text) == "<TOKEN:github> <TOKEN:github#2> <TOKEN:github>"


def test_findings_say_where_and_what_but_not_the_secret() -> None:
    (finding,) = Redactor().text(f"a {KEY} b").found
    assert (finding.start, finding.end, finding.placeholder) == (
        2,
        2 + len(KEY),
        "<API_KEY:openai>",
    )
    assert KEY not in repr(finding)


def test_a_private_key_that_was_cut_off_is_taken_out_as_far_as_it_goes() -> None:
    body = "MIIEowIBAAKCAQEAx7Qm2v9dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF2hJ5lM8oP1rS"
    assert (
        shown(f"-----BEGIN PRIVATE KEY-----\n{body}\n{body}\nand then words")
        == "<PRIVATE_KEY>\nand then words"
    )
    assert body[:20] not in shown(
        f"tail of the log:\n{body}\n{body}\n-----END PRIVATE KEY-----\nmore"
    )


def test_every_kind_is_found_wherever_it_is_planted() -> None:
    rng = random.Random("every kind")
    for kind in [*KINDS] * 12:
        planted = plant(rng, kind)
        text = shown(planted.text)
        for hidden in planted.hidden:
            assert hidden[: max(8, len(hidden) // 2)] not in text, planted


FORMATS = [entry for entry in TABLE["secrets"] if "in" not in entry and "test" not in entry]


@given(
    st.sampled_from(FORMATS).flatmap(
        lambda entry: st.tuples(
            st.just(entry), st.from_regex(pattern(entry["regex"]), fullmatch=True)
        )
    )
)
@settings(
    max_examples=200,
    phases=(Phase.generate,),
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_format_of_the_table_is_found_and_has_a_placeholder(
    drawn: tuple[dict[str, str], str],
) -> None:
    entry, key = drawn
    assert PLACEHOLDER.fullmatch(f"<{entry['label']}>")
    if len(key) >= 16 and key.isascii() and any(map(str.isdigit, key)):
        assert key not in shown(f"it was {key} before"), entry
