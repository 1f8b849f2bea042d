"""Ordinary text with no secret in it: code, prose in several languages, logs, and the
random-looking things that are public.
"""

import base64
import random
import string
import sysconfig
import uuid
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

PROSE = {
    "English": (
        "The password field must not be empty, and the token that the server returns expires after"
        " an hour. My secret to good bread is patience; the key is to wait. Please enter your"
        " password: it should have at least twelve characters. Authentication failed because the"
        " session cookie was missing. I forgot my passphrase again, so the bank sent me a new PIN"
        " by post. The api key rotation policy is described in chapter 4; nobody may share"
        " credentials by mail. Keys to the flat are with Mrs. Oyelaran on the third floor."
    ),
    "German": (
        "Das Passwort muss mindestens zwölf Zeichen lang sein. Die"
        " Donaudampfschifffahrtsgesellschaft hat ihren Fahrplan geändert, und die"
        " Rechtsschutzversicherungsgesellschaften haben widersprochen. Der Schlüssel liegt unter"
        " der Matte. Bitte geben Sie Ihr Kennwort ein; es ist nicht möglich, das Token später zu"
        " ändern. Geschwindigkeitsbegrenzungen gelten auch auf der Umgehungsstraße."
    ),
    "French": (
        "Le mot de passe est obligatoire. La clé du problème est la patience : le jeton expire au"
        " bout d'une heure. Merci de vérifier votre session avant de recommencer."
        " L'anticonstitutionnellement célèbre mot n'est pas le plus long. Aujourd'hui, j'ai oublié"
        " mes clés."
    ),
    "Spanish": (
        "La contraseña debe tener al menos doce caracteres. El secreto de la receta es el tiempo."
        " El token caduca en una hora y la sesión se cierra sola. Desafortunadamente, las"
        " electroencefalografistas llegaron tarde. Escriba su contraseña: no se mostrará."
    ),
    "Russian": (
        "Пароль должен содержать не менее двенадцати символов. Ключ лежит под ковриком. Секрет"
        " успеха в терпении, а токен истекает через час. Достопримечательности города открыты"
        " ежедневно; вход по билетам."
    ),
    "Chinese": (
        "密码不能为空。请在登录页面输入您的密码，令牌将在一小时后过期。成功的秘诀是耐心。"
        "钥匙在门垫下面，会话已经结束。"
    ),
    "Japanese": (
        "パスワードは十二文字以上でなければなりません。トークンは一時間で失効します。"
        "鍵はマットの下にあります。成功の秘訣は忍耐です。"
    ),
    "Turkish": (
        "Parola en az on iki karakter olmalıdır. İstanbul'daki anahtar paspasın altında."
        " Çekoslovakyalılaştıramadıklarımızdan mısınız?"
    ),
    "Vietnamese": (
        "Mật khẩu phải có ít nhất mười hai ký tự. Chìa khóa ở dưới tấm thảm. Mã thông báo hết hạn"
        " sau một giờ."
    ),
}
CODE = {
    "Python": (
        '''
def login(username: str, password: str, token: str | None = None, *, session: Session = Depends(get_session)) -> User:
    """Check the password and return the user; raises AuthError if the token is expired."""
    secret = settings.SECRET_KEY
    api_key = os.environ["OPENAI_API_KEY"]
    token = token or create_access_token(data={"sub": username}, expires_delta=timedelta(minutes=30))
    if not verify_password(password, user.hashed_password):
        raise HTTPException(status_code=401, detail="Incorrect username or password")
    headers = {"Authorization": f"Bearer {token}", "X-Api-Key": api_key}
    max_tokens, pad_token, eos_token = 4096, "<pad>", "</s>"
    primary_key = Column(Integer, primary_key=True); cache_key = f"user:{user.id}:profile"
    return sorted(users, key=lambda u: u.created_at)
'''
    ),
    "TypeScript": (
        """
interface Credentials { password: string; token?: string; apiKey: string | null; secretName: "prod-db" }
export const login = async ({ username, password }: LoginForm): Promise<Session> => {
  const token = await auth.getToken({ secret: process.env.NEXTAUTH_SECRET });
  const res = await fetch(`${baseUrl}/login?token=${token}`, { headers: { authorization: `Bearer ${token}` } });
  if (!password) throw new Error("password is required");
  localStorage.setItem("session", JSON.stringify(res.session)); // keyboard: key === "Enter"
  return { ...res, key: "submit-button-primary-large", tokenType: "refresh" };
};
"""
    ),
    "Minified": (
        '!function(e,t){"object"==typeof exports&&"undefined"!=typeof'
        ' module?module.exports=t():"function"==typeof'
        ' define&&define.amd?define(t):(e=e||self).Vue=t()}(this,function(){"use strict";var'
        " e=Object.freeze({});function t(e){return null==e}function n(e){return null!=e}function"
        ' r(e){return!0===e}var o=Object.prototype.toString;function a(e){return"[object'
        ' Object]"===o.call(e)}var'
        ' s=p("slot,component",!0),c=p("key,ref,slot,slot-scope,is");webpackJsonp([2],{"+E39":function(e,t,n){"use'
        ' strict";n.d(t,"a",function(){return r2d2})},"/5dW":0});'
    ),
    "Shell": (
        """
set -euo pipefail
export PATH="$HOME/.local/bin:$PATH" TOKEN="$(cat /run/secrets/token)" PASSWORD="${PASSWORD:?}"
curl -fsS -H "Authorization: Bearer $TOKEN" "$URL/v1/items?limit=50&cursor=$NEXT" | jq -r '.items[].id'
read -rsp "Password: " PASSWORD; docker run --env-file .env -e API_KEY app:1.4.2 && git push origin HEAD
openssl req -new -key server.key -out server.csr -passin file:pass.txt; ssh-keygen -t ed25519 -C "me"
"""
    ),
    "Configuration": (
        """
apiVersion: v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - env:
            - name: DB_PASSWORD
              valueFrom: { secretKeyRef: { name: db, key: password } }
      imagePullSecrets: [{ name: regcred }]
password_policy: { min_length: 12, require_digit: true }
token_ttl_s: 3600
secret_name: app-secret
auth: { type: oauth2, token_url: https://auth.example.com/oauth/token, scopes: [read, write] }
"""
    ),
    "Tests": (
        """
def test_a_wrong_password_is_refused(client): assert client.post("/login", json={"user": "a"}).status_code == 401
FAILED tests/test_auth.py::test_token_expiry - AssertionError: assert 'expired' == 'valid'
PASS: tests/unit/session.test.ts (12.3 s)
PASS src/components/PasswordField.spec.tsx
--- PASS: TestTokenRefresh2 (0.01s)
"""
    ),
}


def _hashes(rng: random.Random) -> str:
    lines = [
        f"{rng.getrandbits(160):040x} refs/heads/feature-{rng.randrange(99)}" for _ in range(20)
    ]
    lines += [f"sha256:{rng.getrandbits(256):064x}  image-{at}" for at in range(10)]
    lines += [
        f"commit {rng.getrandbits(160):040x}\nAuthor: Jo Doe <jo@example.com>" for _ in range(10)
    ]
    lines += [f"{rng.getrandbits(128):032x}  ./dist/file-{at}.tar.gz" for at in range(10)]
    lines += [
        f'"integrity": "sha512-{base64.b64encode(rng.randbytes(64)).decode()}"' for _ in range(10)
    ]
    return "\n".join(
        (
            *lines,
            *(
                f"golang.org/x/net v0.{at}.0 h1:{base64.b64encode(rng.randbytes(32)).decode()}"
                for at in range(5)
            ),
        )
    )


def _identifiers(rng: random.Random) -> str:
    uuids = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(40)]
    calls = [
        f"call_{''.join(rng.choices(string.ascii_letters + string.digits, k=24))}"
        for _ in range(10)
    ]
    calls += [
        f"chatcmpl-{''.join(rng.choices(string.ascii_letters + string.digits, k=29))}"
        for _ in range(10)
    ]
    return "\n".join(
        (
            *(f"request_id={one} user={rng.randrange(10**6)}" for one in uuids),
            *calls,
            "trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
    )


def _paths(rng: random.Random) -> str:
    parts = (
        "src",
        "node_modules",
        "@babel",
        "plugin-transform-runtime",
        "site-packages",
        "__pycache__",
        "v2",
        "ChatCompletionMessageParam",
        "test_data_2024",
    )
    lines = [
        "/".join(
            (
                "",
                *rng.choices(parts, k=rng.randrange(3, 8)),
                f"{rng.choice(parts)}.{rng.choice(('py', 'js', 'tsx', 'rs'))}",
            )
        )
        for _ in range(60)
    ]
    return "\n".join(
        (
            *lines,
            r"C:\Users\Jo\AppData\Local\Programs\Python\Python311\Lib\site-packages\numpy\core\multiarray.py",
        )
    )


def _logs(rng: random.Random) -> str:
    forms: tuple[Callable[[], str], ...] = (
        lambda: (
            f"INFO  http.access 10.0.{rng.randrange(256)}.{rng.randrange(256)} GET"
            f" /api/v1/users/{rng.randrange(10**6)}?page={rng.randrange(99)} 200"
            f" {rng.randrange(999)}ms"
        ),
        lambda: (
            f"WARN  pool.exhausted size=20 waiting={rng.randrange(50)}"
            f" thread=worker-{rng.randrange(16)}"
        ),
        lambda: (
            f"DEBUG cache.hit key=user:{rng.randrange(10**6)}:profile ttl={rng.randrange(3600)}"
        ),
        lambda: (
            f"ERROR app.login user={rng.randrange(10**5)} reason=invalid_password"
            f" attempts={rng.randrange(5)}"
        ),
        lambda: (
            f"INFO  tokens prompt_tokens={rng.randrange(9999)}"
            f" completion_tokens={rng.randrange(999)} token_budget=8192"
        ),
    )
    return "\n".join(
        f"2026-11-15T{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}Z"
        f" {rng.choice(forms)()}"
        for _ in range(200)
    )


def _pictures(rng: random.Random) -> str:
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + rng.randbytes(3000)).decode()
    body = base64.b64encode(rng.randbytes(800)).decode()
    certificate = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    wrapped = "\n".join(picture[at : at + 76] for at in range(0, len(picture), 76))
    key = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + rng.randbytes(32)).decode()
    return (
        f'<img src="data:image/png;base64,{picture}">\nContent-Transfer-Encoding:'
        f" base64\n\n{wrapped}\n\n-----BEGIN CERTIFICATE-----\n{certificate}\n-----END"
        f" CERTIFICATE-----\nssh-ed25519 {key} jo@laptop\n"
    )


def standard_library(limit_chars: int) -> str:
    """The running interpreter's own library: code that somebody else wrote."""
    pieces: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        pieces.append(path.read_text("utf-8", "replace"))
        if sum(map(len, pieces)) > limit_chars:
            break
    return "\n".join(pieces)[:limit_chars]


def documentation() -> str:
    """The interpreter's own manual: plain English about code."""
    return "\n".join(topics.values())


def ordinary(seed: int, library_chars: int = 3_000_000) -> dict[str, str]:
    """Named texts without a secret in them."""
    rng = random.Random(seed)
    texts = {f"prose, {name}": text for name, text in PROSE.items()} | {
        f"code, {name}": text for name, text in CODE.items()
    }
    texts |= {
        "hashes": _hashes(rng),
        "identifiers": _identifiers(rng),
        "paths": _paths(rng),
        "logs": _logs(rng),
        "pictures": _pictures(rng),
    }
    if library_chars:
        texts |= {
            "code, standard library": standard_library(library_chars),
            "prose, documentation": documentation(),
        }
    return texts
