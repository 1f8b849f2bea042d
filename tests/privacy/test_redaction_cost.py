"""What redaction costs: linear in the length of the text, whatever the text is, and bounded for
each call.
"""

import base64
import json
import random
import time

import pytest

from benchmarks.secrets_ordinary import PROSE
from metaclaw.privacy import KnownSecrets, Redactor
from tests.privacy.stage import redacted_arguments
from tests.support.cases import each

KNOWN = KnownSecrets(f"Known{at}-{random.Random(at).getrandbits(80):020x}" for at in range(20))
ORDINARY = "\n".join(PROSE.values())
MOST_TIMES_ORDINARY = 120
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

# One input or more for each detector: shapes, armour, carriers, names, tables, encodings, random
# tokens, views.
REPEATED = {
    "key headers on one line": "-----BEGIN RSA PRIVATE KEY-----",
    "key headers": "-----BEGIN RSA PRIVATE KEY-----\n",
    "key ends on one line": "-----END RSA PRIVATE KEY-----",
    "key ends": "A" * 28 + "\n-----END RSA PRIVATE KEY-----\n\n",
    "PuTTY headers": "Private-Lines: 8 ",
    "certificate headers": "-----BEGIN CERTIFICATE-----\naB3dE6gH9jK2mN5pQ8sT1v ",
    "JWT beginnings": "eyJhbGciOiaaaaaaaa.eyJ",
    "Discord tokens": "aB3dE6gH9jK2mN5pQ8sT1vX4z.aB3dE6.aB3dE6gH9jK2mN5pQ8sT1vX4zaa.",
    "private key bodies": "b3BlbnNzaC1rZXktdjEaaaaaaaaaa ",
    "URLs": "://a:b/a@",
    "bearer": "bearerx1",
    "authorization": "authorization=x1",
    "session cookies": "sid=",
    "cookie headers": "set-cookie: sid=abcdef1234\n",
    "cookies on one line": "cookie: a=b",
    "query fields": "&a-token=aaaaaa",
    "vendor headers": "x-a-key=aaaaaa",
    "curl": "curl -u a",
    "logins": "ldap",
    "sshpass": "sshpass=",
    "Kubernetes": "kind: secret\ndata:\n a: AAAA\n",
    "passwords in Chinese": "密码是",
    "assigned in Chinese": "密码=",
    "assigned": "pw=",
    "arrows": "pw→",
    "quoted": 'pw=\\"',
    "spoken": "the token of my friend is ",
    "flags": "--password ",
    "names in a row": "api_key_token_secret_",
    "tables": "|password|\n|--|\n",
    "base64 of secrets": base64.b64encode(b"password=hunter2 and more ").decode().rstrip("="),
    "hexadecimal of secrets": b"password=hunter2 and more".hex(),
    "steps of a path": "aB3dE6gH9jK2mN5pQ8sT1v/",
    "data URLs": "data:image/png;base64,iVBO",
    "escapes": "\\u0070assword=\\u0041b1",
    "percents": "%70assword=%41b1",
    "pieces of strings": 'password="a"+"b1"',
    "wrapped lines": "password=aB3dE6gH9\n",
    "zero-width": "pass\u200bword=a1",
    "look-alikes": "раssword=a1b2",
    "placeholders": "<API_KEY:openai>",
    "one long token": "a1B2",
    "backslashes": "\\",
    "quotes": "\"'",
    "spaces": " ",
    "data without a kind": "data:\n a: AAAA\nkind: secre\n",
    "cut private keys": "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n-",
    "lines of base64": "A1b2" * 16 + "\n",
    "tokens without digits": "aBcDeFgHiJkLmNoPqRsT.",
    "values that are names": "bearer_bearer_",
}


def repeated(seed: str, size: int) -> str:
    return (seed * (size // len(seed) + 1))[:size]


def cost_s(text: str) -> float:
    began = time.thread_time()
    Redactor(KNOWN, limit_s=1_000).text(text)
    return time.thread_time() - began


def least(costs: list[float]) -> float:
    return max(1e-4, min(costs))


@pytest.fixture(scope="module")
def ordinary_s() -> float:
    """What 20,000 characters of ordinary text cost here."""
    return least([cost_s(repeated(ORDINARY, 20_000)) for _ in range(5)])


@each("seed", REPEATED.values(), ids=REPEATED)
def test_hostile_text_costs_time_linear_in_its_length_and_a_bounded_multiple_of_ordinary_text(
    seed: str, ordinary_s: float
) -> None:
    short, long = repeated(seed, 5_000), repeated(seed, 20_000)
    once, four_times = [cost_s(short)], [cost_s(long)]
    while len(once) < 4 and (
        least(four_times) > 7 * least(once) + ordinary_s
        or least(four_times) > MOST_TIMES_ORDINARY * ordinary_s
    ):
        once.append(cost_s(short))
        four_times.append(cost_s(long))
    assert least(four_times) <= 7 * least(once) + ordinary_s
    assert least(four_times) <= MOST_TIMES_ORDINARY * ordinary_s


def test_a_picture_in_one_line_of_base64_costs_little_more_than_ordinary_text(
    ordinary_s: float,
) -> None:
    picture = base64.b64encode(random.Random(0).randbytes(150_000)).decode()
    costs = [cost_s(f'{{"image": "{picture}"}}') for _ in range(3)]
    assert least(costs) / 10 <= 8 * ordinary_s


def test_what_the_time_is_too_short_for_is_withheld_as_a_whole() -> None:
    secret = "hunter2-Xk9"
    hidden = f"my password is {secret}"
    redactor = Redactor(limit_s=0)
    assert redactor.text(hidden).text == "<WITHHELD>"
    assert hidden not in redacted_arguments(json.dumps({"note": hidden, "n": [hidden]}), redactor)


def test_the_rest_of_a_long_text_is_withheld_when_the_time_is_up_in_the_middle_of_it() -> None:
    text = "Nothing secret here. " * 100_000
    redacted = Redactor(limit_s=0.02).text(text)
    assert redacted.text.startswith("Nothing secret here. ")
    assert redacted.text.endswith("<WITHHELD>")
    assert len(redacted.text) < len(text)


def test_secrets_at_the_edges_of_the_windows_of_a_long_text_are_found() -> None:
    secrets = [f"hunter{at:05}-Xk9" for at in range(4_000)]
    text = "\n".join(
        f"line {at}: export DB_PASSWORD={secret} # and some more words"
        for at, secret in enumerate(secrets)
    )
    assert len(text) > 200_000
    shown = Redactor().text(text).text
    assert not [secret for secret in secrets if secret in shown]
