"""Secrets to plant, made from what vendors document of their formats, and the texts that carry
them.

Nothing here knows how secrets are found: no pattern of the program is used, and every secret is
drawn anew from a seed."""

import base64
import json
import random
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

_ALNUM = string.ascii_letters + string.digits
_URL = _ALNUM + "_-"
_BASE64 = _ALNUM + "+/"
_HEX = "0123456789abcdef"
_BASE32 = string.ascii_uppercase + "234567"
_UPPER = string.ascii_uppercase + string.digits


@dataclass(frozen=True, slots=True)
class Secret:
    """What is planted: the whole token as it would be copied, the part of it that must not be seen,
    and names it goes by.

    `plain` is true where the token alone gives itself away, so that it may stand in text with
    nothing around it."""

    whole: str
    hidden: str
    names: tuple[str, ...]
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Planted:
    """A text with a secret in it."""

    kind: str
    carrier: str
    text: str
    hidden: tuple[str, ...]
    known: str | None = None


Draw = random.Random


def _some(rng: Draw, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def _tail(prefix: str, alphabet: str, count: int, *names: str) -> Callable[[Draw], Secret]:
    """A prefix that anyone may see and characters drawn from an alphabet: how most vendors write
    keys.
    """

    def make(rng: Draw) -> Secret:
        rest = _some(rng, alphabet, count)
        return Secret(prefix + rest, rest, names, plain=True)

    return make


def _bare(alphabet: str, count: int, *names: str) -> Callable[[Draw], Secret]:
    """Characters with nothing to tell them by: only their name says that they are a secret."""

    def make(rng: Draw) -> Secret:
        rest = _some(rng, alphabet, count)
        return Secret(rest, rest, names)

    return make


def _openai_project(rng: Draw) -> Secret:
    left, right = _some(rng, _URL, 74), _some(rng, _URL, 74)
    return Secret(
        f"sk-proj-{left}T3BlbkFJ{right}",
        left + "T3BlbkFJ" + right,
        ("OPENAI_API_KEY", "openai_api_key"),
        plain=True,
    )


def _openai_legacy(rng: Draw) -> Secret:
    rest = f"{_some(rng, _ALNUM, 20)}T3BlbkFJ{_some(rng, _ALNUM, 20)}"
    return Secret("sk-" + rest, rest, ("OPENAI_API_KEY", "apiKey"), plain=True)


def _anthropic(rng: Draw) -> Secret:
    rest = _some(rng, _URL, 93) + "AA"
    return Secret(f"sk-ant-api03-{rest}", rest, ("ANTHROPIC_API_KEY", "anthropic_key"), plain=True)


def _github_fine(rng: Draw) -> Secret:
    rest = f"{_some(rng, _ALNUM, 22)}_{_some(rng, _ALNUM, 59)}"
    return Secret("github_pat_" + rest, rest, ("GITHUB_TOKEN", "GH_TOKEN"), plain=True)


def _slack(rng: Draw, start: str, end: str) -> Secret:
    rest = f"{_some(rng, string.digits, 12)}-{_some(rng, string.digits, 13)}-{end}"
    return Secret(start + rest, end, ("SLACK_TOKEN", "SLACK_BOT_TOKEN"), plain=True)


def _slack_webhook(rng: Draw) -> Secret:
    end = _some(rng, _ALNUM, 24)
    return Secret(
        f"https://hooks.slack.com/services/T{_some(rng, _UPPER, 10)}/B{_some(rng, _UPPER, 10)}/{end}",
        end,
        ("SLACK_WEBHOOK_URL",),
        plain=True,
    )


def _discord_bot(rng: Draw) -> Secret:
    owner = base64.b64encode(_some(rng, string.digits, 18).encode()).decode().rstrip("=")
    end = f"{_some(rng, _URL, 6)}.{_some(rng, _URL, 38)}"
    return Secret(f"{owner}.{end}", end, ("DISCORD_TOKEN", "bot_token"), plain=True)


def _telegram(rng: Draw) -> Secret:
    rest = "AA" + _some(rng, _URL, 33)
    return Secret(
        f"{rng.randrange(10**8, 10**10)}:{rest}",
        rest,
        ("TELEGRAM_BOT_TOKEN", "BOT_TOKEN"),
        plain=True,
    )


def _sendgrid(rng: Draw) -> Secret:
    rest = f"{_some(rng, _URL, 22)}.{_some(rng, _URL, 43)}"
    return Secret("SG." + rest, rest, ("SENDGRID_API_KEY",), plain=True)


def _mailgun(rng: Draw) -> Secret:
    if rng.random() < 0.5:
        return _tail("key-", _HEX, 32, "MAILGUN_API_KEY")(rng)
    whole = f"{_some(rng, _HEX, 32)}-{_some(rng, _HEX, 8)}-{_some(rng, _HEX, 8)}"
    return Secret(whole, whole, ("MAILGUN_API_KEY", "MAILGUN_SIGNING_KEY"), plain=True)


def _jwt(rng: Draw) -> Secret:
    def part(value: object) -> str:
        return (
            base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode())
            .decode()
            .rstrip("=")
        )

    head = part({"alg": rng.choice(("HS256", "RS256", "ES256")), "typ": "JWT"})
    body = part(
        {
            "sub": str(rng.randrange(10**9)),
            "name": "Jo Doe",
            "iat": rng.randrange(10**9),
            "scope": "admin",
        }
    )
    signature = _some(rng, _URL, rng.choice((43, 86)))
    return Secret(
        f"{head}.{body}.{signature}", signature, ("ACCESS_TOKEN", "id_token", "jwt"), plain=True
    )


def _aws_session(rng: Draw) -> Secret:
    rest = _some(rng, _BASE64, rng.randrange(300, 500))
    return Secret(
        f"IQoJb3JpZ2luX2Vj{rest}==", rest, ("AWS_SESSION_TOKEN", "aws_session_token"), plain=True
    )


def _azure_storage(rng: Draw) -> Secret:
    key = base64.b64encode(rng.randbytes(64)).decode()
    whole = f"DefaultEndpointsProtocol=https;AccountName=prod{rng.randrange(99)};AccountKey={key};EndpointSuffix=core.windows.net"
    return Secret(whole, key, ("AZURE_STORAGE_CONNECTION_STRING",), plain=True)


def _azure_secret(rng: Draw) -> Secret:
    rest = f"{_some(rng, _ALNUM, 3)}{rng.randrange(10)}Q~{_some(rng, _URL + '~.', 31)}{_some(rng, _ALNUM, 3)}"
    return Secret(rest, rest, ("AZURE_CLIENT_SECRET", "client_secret"), plain=True)


def _pem(rng: Draw, title: str, size: int) -> Secret:
    body = base64.b64encode(rng.randbytes(size)).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    whole = "\n".join((f"-----BEGIN {title}-----", *lines, f"-----END {title}-----"))
    return Secret(whole, "\n".join(lines), ("PRIVATE_KEY", "TLS_KEY"), plain=True)


def _service_account(rng: Draw) -> Secret:
    key = _pem(rng, "PRIVATE KEY", 600)
    whole = json.dumps(
        {
            "type": "service_account",
            "project_id": "acme-prod",
            "private_key_id": _some(rng, _HEX, 40),
            "private_key": key.whole + "\n",
            "client_email": "ci@acme-prod.iam.gserviceaccount.com",
        },
        indent=rng.choice((None, 2)),
    )
    return Secret(whole, key.hidden, ("GOOGLE_CREDENTIALS",), plain=True)


_WORDS = (
    "falcon",
    "Winter",
    "blue",
    "Harbor",
    "pepper",
    "Mango",
    "tiger",
    "Summit",
    "copper",
    "Delta",
    "ocean",
    "Quartz",
)


def password(rng: Draw) -> str:
    """A password as people choose them: words and years with signs, or characters from a
    generator.
    """
    if rng.random() < 0.5:
        end = rng.choice(("", "!", "$", "?x"))
        return f"{rng.choice(_WORDS)}{rng.choice('!@_-.#')}{rng.choice(_WORDS)}{rng.randrange(10, 9999)}{end}"
    return (
        rng.choice((_some(rng, _ALNUM, 1), _some(rng, _ALNUM, 1), rng.choice("!#@^*+&")))
        + _some(rng, _ALNUM + "!@^*_-+.", rng.randrange(10, 22))
        + str(rng.randrange(10))
        + _some(rng, _ALNUM, 1)
    )


def _password(*names: str) -> Callable[[Draw], Secret]:
    def make(rng: Draw) -> Secret:
        word = password(rng)
        return Secret(word, word, names)

    return make


def _url_password(rng: Draw) -> str:
    return _some(rng, _ALNUM, 1) + _some(rng, _ALNUM + "_-.!*", 13) + str(rng.randrange(10))


def _database_url(rng: Draw) -> Secret:
    word = _url_password(rng)
    scheme, port = rng.choice(
        (
            ("postgresql", 5432),
            ("mysql+pymysql", 3306),
            ("mongodb+srv", 27017),
            ("redis", 6379),
            ("amqp", 5672),
        )
    )
    user = (
        rng.choice(("app", "admin", "svc_user", ""))
        if scheme == "redis"
        else rng.choice(("app", "admin", "svc_user"))
    )
    return Secret(
        f"{scheme}://{user}:{word}@db{rng.randrange(9)}.internal.example:{port}/prod",
        word,
        ("DATABASE_URL", "db_url"),
        plain=True,
    )


def _basic_url(rng: Draw) -> Secret:
    word = _url_password(rng)
    return Secret(
        f"https://deploy:{word}@git.example.com/team/app.git",
        word,
        ("REPO_URL", "REMOTE"),
        plain=True,
    )


def _query_token(rng: Draw) -> Secret:
    word = _some(rng, _ALNUM, rng.randrange(24, 48))
    name = rng.choice(("access_token", "api_key", "token", "auth_token", "sig"))
    return Secret(
        f"https://api.example.com/v2/items?page=2&{name}={word}&limit=50",
        word,
        ("CALLBACK_URL", "ENDPOINT"),
        plain=True,
    )


def _azure_sas(rng: Draw) -> Secret:
    sig = quote(base64.b64encode(rng.randbytes(32)).decode(), safe="")
    return Secret(
        f"https://acme.blob.core.windows.net/backup?sv=2024-11-04&ss=b&srt=sco&sp=rl&se=2027-01-01T00:00:00Z&sig={sig}",
        sig,
        ("SAS_URL",),
        plain=True,
    )


def _bearer(rng: Draw) -> Secret:
    word = _some(rng, _ALNUM + "-_.", 40) + "7q"
    return Secret(f"Authorization: Bearer {word}", word, (), plain=True)


def _basic_header(rng: Draw) -> Secret:
    coded = base64.b64encode(f"svc-deploy:{password(rng)}".encode()).decode()
    return Secret(f"Authorization: Basic {coded}", coded.rstrip("="), (), plain=True)


def _cookie(rng: Draw) -> Secret:
    word = _some(rng, _ALNUM, 32)
    name = rng.choice(("sessionid", "PHPSESSID", "connect.sid", "JSESSIONID", "_app_session"))
    return Secret(
        rng.choice(
            (
                f"Cookie: theme=dark; {name}={word}; lang=en",
                f"Set-Cookie: {name}={word}; Path=/; HttpOnly",
            )
        ),
        word,
        (),
        plain=True,
    )


def _command(rng: Draw) -> Secret:
    word = _url_password(rng)
    form = rng.choice(
        (
            f"sshpass -p '{word}' ssh root@10.0.0.5 uptime",
            f"sshpass -p {word} scp build.tgz deploy@web1:/srv",
            f"mysql -h db1 -u root -p{word} -e 'select 1'",
            f"curl -s -u admin:{word} https://jenkins.example.com/api/json",
            f"redis-cli -h cache1 -a {word} ping",
            f"docker login -u bot -p {word} registry.example.com",
            f"PGPASSWORD={word} psql -h db1 -U app prod",
            f"tool login --username ci --password {word}",
            f"tool login --password={word} --username ci",
            f"echo {word} | sudo -S systemctl restart app",
        )
    )
    return Secret(form, word, (), plain=True)


def _netrc(rng: Draw) -> Secret:
    word = _url_password(rng)
    return Secret(
        f"machine api.example.com\n  login ci-bot\n  password {word}", word, (), plain=True
    )


def _npmrc(rng: Draw) -> Secret:
    word = str(uuid.UUID(int=rng.getrandbits(128)))
    return Secret(f"//registry.example.com/:_authToken={word}", word, (), plain=True)


def _kubernetes(rng: Draw) -> Secret:
    coded = base64.b64encode(password(rng).encode()).decode()
    whole = (
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: app\ntype: Opaque\ndata:\n  username:"
        f" YWRtaW4=\n  password: {coded}\n"
    )
    return Secret(whole, coded.rstrip("="), (), plain=True)


def _docker_config(rng: Draw) -> Secret:
    coded = base64.b64encode(f"bot:{password(rng)}".encode()).decode()
    return Secret(
        json.dumps({"auths": {"registry.example.com": {"auth": coded}}}),
        coded.rstrip("="),
        (),
        plain=True,
    )


def _spoken(rng: Draw) -> Secret:
    word = password(rng)
    form = rng.choice(
        (
            f"the password for staging is {word}",
            f"My password is {word} if you need it",
            f"Das Passwort lautet {word}",
            f"use password '{word}' for the admin account",
            f"log in as admin, password: {word}",
            f"pw: {word}",
            f"El password es {word}",
            f"密码是 {word}",
        )
    )
    return Secret(form, word, (), plain=True)


def _heroku(rng: Draw) -> Secret:
    word = str(uuid.UUID(int=rng.getrandbits(128)))
    return Secret(word, word, ("HEROKU_API_KEY", "heroku_api_key"))


KINDS: dict[str, Callable[[Draw], Secret]] = {
    "openai project": _openai_project,
    "openai legacy": _openai_legacy,
    "anthropic": _anthropic,
    "openrouter": _tail("sk-or-v1-", _HEX, 64, "OPENROUTER_API_KEY"),
    "groq": _tail("gsk_", _ALNUM, 52, "GROQ_API_KEY"),
    "huggingface": _tail("hf_", string.ascii_letters, 34, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    "tinker": _tail("tml-", _ALNUM, 48, "TINKER_API_KEY"),
    "wandb": _bare(_HEX, 40, "WANDB_API_KEY", "wandb_api_key"),
    "google api": _tail("AIzaSy", _URL, 33, "GOOGLE_API_KEY", "MAPS_KEY"),
    "google oauth secret": _tail("GOCSPX-", _URL, 28, "GOOGLE_CLIENT_SECRET"),
    "google oauth token": _tail("ya29.a0", _URL, 160, "access_token"),
    "gcp service account": _service_account,
    "aws key id": _tail("AKIA", _BASE32, 16, "AWS_ACCESS_KEY_ID", "aws_access_key_id"),
    "aws secret": _bare(
        _BASE64, 40, "AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", "SecretAccessKey"
    ),
    "aws session": _aws_session,
    "azure storage": _azure_storage,
    "azure client secret": _azure_secret,
    "azure sas": _azure_sas,
    "github classic": _tail("ghp_", _ALNUM, 36, "GITHUB_TOKEN", "GH_TOKEN"),
    "github fine-grained": _github_fine,
    "github app": _tail("ghs_", _ALNUM, 36, "GITHUB_TOKEN"),
    "gitlab": _tail("glpat-", _URL, 20, "GITLAB_TOKEN", "CI_JOB_TOKEN"),
    "slack bot": lambda rng: _slack(rng, "xoxb-", _some(rng, _ALNUM, 24)),
    "slack user": lambda rng: _slack(rng, "xoxp-", _some(rng, _HEX, 32)),
    "slack webhook": _slack_webhook,
    "discord bot": _discord_bot,
    "telegram bot": _telegram,
    "stripe": lambda rng: _tail(
        rng.choice(("sk_live_", "rk_live_", "sk_test_")),
        _ALNUM,
        rng.choice((24, 99)),
        "STRIPE_SECRET_KEY",
    )(rng),
    "stripe webhook": _tail("whsec_", _ALNUM, 32, "STRIPE_WEBHOOK_SECRET"),
    "twilio auth": _bare(_HEX, 32, "TWILIO_AUTH_TOKEN", "twilio_auth_token"),
    "twilio key": _tail("SK", _HEX, 32, "TWILIO_API_KEY"),
    "sendgrid": _sendgrid,
    "mailgun": _mailgun,
    "npm": _tail("npm_", _ALNUM, 36, "NPM_TOKEN"),
    "npmrc": _npmrc,
    "pypi": _tail("pypi-AgEIcHlwaS5vcmc", _URL, 140, "TWINE_PASSWORD", "PYPI_TOKEN"),
    "shopify": _tail("shpat_", _HEX, 32, "SHOPIFY_ACCESS_TOKEN"),
    "digitalocean": _tail("dop_v1_", _HEX, 64, "DIGITALOCEAN_TOKEN"),
    "heroku": _heroku,
    "datadog": lambda rng: _bare(
        _HEX, rng.choice((32, 40)), "DD_API_KEY", "DATADOG_APP_KEY", "dd_api_key"
    )(rng),
    "cloudflare": lambda rng: _bare(
        *rng.choice(((_URL, 40), (_HEX, 37))), "CLOUDFLARE_API_TOKEN", "CF_API_KEY"
    )(rng),
    "vault": _tail("hvs.CAESI", _URL, 90, "VAULT_TOKEN"),
    "databricks": _tail("dapi", _HEX, 32, "DATABRICKS_TOKEN"),
    "linear": _tail("lin_api_", _ALNUM, 40, "LINEAR_API_KEY"),
    "jwt": _jwt,
    "rsa private key": lambda rng: _pem(rng, "RSA PRIVATE KEY", 1190),
    "openssh private key": lambda rng: _pem(rng, "OPENSSH PRIVATE KEY", 400),
    "ec private key": lambda rng: _pem(rng, "EC PRIVATE KEY", 121),
    "pgp private key": lambda rng: _pem(rng, "PGP PRIVATE KEY BLOCK", 900),
    "password": _password(
        "DB_PASSWORD", "password", "POSTGRES_PASSWORD", "smtp_pass", "ADMIN_PASSWD"
    ),
    "app secret": lambda rng: _bare(
        _ALNUM, rng.randrange(24, 64), "SECRET_KEY", "APP_SECRET", "JWT_SECRET", "session_secret"
    )(rng),
    "password in words": _spoken,
    "password in a command": _command,
    "netrc": _netrc,
    "docker config": _docker_config,
    "kubernetes secret": _kubernetes,
    "database url": _database_url,
    "basic auth url": _basic_url,
    "token in a url": _query_token,
    "bearer header": _bearer,
    "basic header": _basic_header,
    "cookie": _cookie,
}
KNOWN = "known to the user's machine"
"""Secrets without shape or name, which only the user's environment or dotfiles tell."""

Carrier = Callable[[Draw, str, str], str]


def _env(_: Draw, name: str, value: str) -> str:
    return f"HOME=/home/jo\nLANG=en_GB.UTF-8\n{name}={value}\nSHLVL=1\nTERM=xterm-256color\n"


def _exported(rng: Draw, name: str, value: str) -> str:
    mark = rng.choice(("", '"', "'"))
    return (
        f"$ cat ~/.profile\nexport PATH=$HOME/bin:$PATH\nexport {name}={mark}{value}{mark}\nalias"
        " ll='ls -l'"
    )


def _json_field(rng: Draw, name: str, value: str) -> str:
    return json.dumps(
        {"service": "billing", name: value, "retries": 3}, indent=rng.choice((None, 2))
    )


def _json_in_json(_: Draw, name: str, value: str) -> str:
    return json.dumps({"cmd": "print", "stdout": json.dumps({"ok": True, name: value}), "code": 0})


def _yaml(_: Draw, name: str, value: str) -> str:
    return (
        "services:\n  app:\n    image: app:1.4\n    environment:\n      LOG_LEVEL: info\n     "
        f" {name}: {json.dumps(value)}\n"
    )


def _python(rng: Draw, name: str, value: str) -> str:
    literal = rng.choice((repr(value), json.dumps(value)))
    return (
        f"import os\n\n{name} = {literal}\n\ndef connect():\n    return Client({name},"
        " timeout=30)\n"
    )


def _javascript(_: Draw, name: str, value: str) -> str:
    return (
        f"const client = new Client({{ {name}: {json.dumps(value)}, region: 'eu-west-1' }});\nawait"
        " client.send(request);"
    )


def _diff(_: Draw, name: str, value: str) -> str:
    changed = f'-{name} = "old"\n+{name} = "{value}"'
    return (
        "diff --git a/app/settings.py b/app/settings.py\n@@ -3,7 +3,7 @@\n DEBUG ="
        f" False\n{changed}\n ALLOWED = []\n"
    )


def _log(_: Draw, name: str, value: str) -> str:
    first = (
        f"2026-11-15T10:22:31.402Z INFO  app.start pid=4121 config loaded {name}={value}"
        " region=eu-west-1"
    )
    return f"{first}\n2026-11-15T10:22:31.409Z INFO  ready"


def _ini(_: Draw, name: str, value: str) -> str:
    return f"[default]\nregion = eu-central-1\n{name} = {value}\noutput = json\n"


def _toml(_: Draw, name: str, value: str) -> str:
    return f'[provider]\nname = "main"\n{name} = "{value}"\ntimeout_s = 60\n'


def _flag(_: Draw, name: str, value: str) -> str:
    return f"$ deployctl run --region eu --{name.lower().replace('_', '-')} {value} --verbose\nok"


def _chat_named(rng: Draw, name: str, value: str) -> str:
    said = name.replace("_", " ").lower()
    return rng.choice(
        (
            f"Use {name}={value} and try again please.",
            f"here you go, {said}: {value}",
            f"my {said} is {value} – can you set it up?",
        )
    )


def _xml(rng: Draw, name: str, value: str) -> str:
    tag = name.lower().replace("_", "-")
    return rng.choice(
        (
            f"<server>\n  <{tag}>{escape(value)}</{tag}>\n</server>",
            f'<server user="app" {tag}={quoteattr(value)}/>',
        )
    )


def _dockerfile(rng: Draw, name: str, value: str) -> str:
    return f"FROM python:3.11\nENV {name}{rng.choice('= ')}{value}\nRUN make\n"


def _properties(_: Draw, name: str, value: str) -> str:
    return f"spring.application.name=shop\nspring.datasource.{name.lower().replace('_', '-')}={value}\nserver.port=8080\n"


def _call(rng: Draw, name: str, value: str) -> str:
    camel = "".join(part.title() for part in name.split("_"))
    return rng.choice(
        (
            f"client.set{camel}({json.dumps(value)});",
            f"define('{name}', {json.dumps(value)});",
            f"cfg{{{camel}: {json.dumps(value)}}}",
        )
    )


def _container(_: Draw, name: str, value: str) -> str:
    return json.dumps(
        {"Config": {"Env": ["PATH=/usr/bin", f"{name}={value}", "LANG=C"], "Cmd": ["app"]}},
        indent=4,
    )


def _table(_: Draw, name: str, value: str) -> str:
    return f"| service | {name} |\n|---|---|\n| billing | {value} |\n"


def _plain_chat(rng: Draw, _: str, value: str) -> str:
    return rng.choice(
        (
            f"It says invalid: {value} – why?",
            f"try with {value} instead",
            f"I pasted `{value}` into the box.",
            f"({value})",
        )
    )


def _plain_shell(_: Draw, __: str, value: str) -> str:
    return f"$ pbpaste\n{value}\n$ echo $?\n0"


def _plain_log(_: Draw, __: str, value: str) -> str:
    return f"[2026-11-15 10:22:31] DEBUG http.client send: {value} (118 bytes) -> 200"


def _plain_markdown(_: Draw, __: str, value: str) -> str:
    return f"## Notes\n\n- set up CI\n- credential: `{value}`\n- ask Kim\n"


def _plain_string(_: Draw, __: str, value: str) -> str:
    return f"client.connect({json.dumps(value)}, retry=True)"


def _plain_escaped(_: Draw, __: str, value: str) -> str:
    return json.dumps(
        {"type": "tool_result", "content": f"line one\n{value}\nline three", "is_error": False}
    )


def _concatenated(rng: Draw, _: str, value: str) -> str:
    at = rng.randrange(len(value) // 4, 3 * len(value) // 4)
    return f'key = "{value[:at]}" + "{value[at:]}"\nclient = Client(key)'


def _wrapped(rng: Draw, _: str, value: str) -> str:
    lead = "x" * rng.randrange(20, 60) + " "
    line = lead + value
    width = rng.randrange(len(lead) + 8, max(len(lead) + 9, min(len(line) - 4, 100)))
    return "\n".join(line[at : at + width] for at in range(0, len(line), width)) + "\nand so on"


def _percent(_: Draw, __: str, value: str) -> str:
    coded = "".join(
        f"%{ord(char):02X}" if at % 5 == 2 else quote(char, safe="")
        for at, char in enumerate(value)
    )
    return f"GET /redirect?to=https%3A%2F%2Fexample.com&note={coded} HTTP/1.1"


NAMED: tuple[tuple[str, Carrier], ...] = (
    ("environment", _env), ("shell profile", _exported), ("JSON", _json_field), ("JSON in JSON", _json_in_json), ("YAML", _yaml),
    ("Python", _python), ("JavaScript", _javascript), ("diff", _diff), ("log", _log), ("ini", _ini), ("TOML", _toml),
    ("flag", _flag), ("chat", _chat_named), ("XML", _xml), ("Dockerfile", _dockerfile), ("properties", _properties),
    ("call", _call), ("container", _container), ("table", _table),
)  # fmt: skip
PLAIN: tuple[tuple[str, Carrier], ...] = (
    ("plain chat", _plain_chat), ("plain shell", _plain_shell), ("plain log", _plain_log), ("plain Markdown", _plain_markdown),
    ("plain string", _plain_string), ("escaped", _plain_escaped),
)  # fmt: skip
DISGUISED: tuple[tuple[str, Carrier], ...] = (
    ("concatenated", _concatenated),
    ("wrapped", _wrapped),
    ("percent-encoded", _percent),
)
_ONE_LINE_CHARS = 400


def plant(rng: Draw, kind: str) -> Planted:
    """One secret of a kind in a text that could have carried it."""
    if kind == KNOWN:
        return _plant_known(rng)
    secret = KINDS[kind](rng)
    carriers: Sequence[tuple[str, Carrier]] = NAMED if secret.names else ()
    if secret.plain:
        carriers = (*carriers, *PLAIN)
        if (
            "\n" not in secret.whole
            and secret.names
            and len(secret.whole) <= _ONE_LINE_CHARS
            and " " not in secret.whole
        ):
            carriers = (*carriers, *DISGUISED)
    if "\n" in secret.whole:
        carriers = [
            one
            for one in carriers
            if one[0]
            in (
                "JSON",
                "JSON in JSON",
                "YAML",
                "plain shell",
                "plain Markdown",
                "plain string",
                "escaped",
            )
        ]
    name, carrier = rng.choice(carriers)
    variable = rng.choice(secret.names) if secret.names else ""
    return Planted(
        kind, name, carrier(rng, variable, secret.whole), tuple(secret.hidden.split("\n"))
    )


def _plant_known(rng: Draw) -> Planted:
    value = rng.choice(
        (
            _some(rng, _ALNUM, 12),
            password(rng),
            (
                f"{rng.choice(_WORDS)} {rng.choice(_WORDS)} {rng.randrange(100, 999)}"
                f" {rng.choice(_WORDS)}"
            ),
        )
    )
    coded = base64.b64encode(f"jo:{value}".encode()).decode()
    name, text, hidden = rng.choice(
        (
            ("bare", f"it answered {value} to that", value),
            ("glued", f"cfg/{value}.bak exists", value),
            ("base64", f"header was {coded} I think", coded.rstrip("=")),
            ("percent-encoded", f"GET /x?y={quote(value, safe='')}&z=1", quote(value, safe="")),
            ("escaped", json.dumps({"out": f'say "{value}"\n'}), value),
            ("hexadecimal", f"dump: {value.encode().hex()} end", value.encode().hex()),
        )
    )
    return Planted(KNOWN, name, text, (hidden,), known=value)
