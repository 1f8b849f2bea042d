"""Who may speak to us: one key, compared in constant time, wherever a client can put it."""

import hmac
from collections.abc import Mapping

_CREDENTIALS = ("x-metaclaw-key", "x-api-key", "authorization")
_HOW = (
    "`metaclaw key` prints it: send it as `Authorization: Bearer`, `x-api-key` or `X-Metaclaw-Key`, "
    "or put it in the base URL as /k/<key>/v1"
)


class Gatekeeper:
    """Finds our key in a request and takes it out, so that it never travels on to a provider."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def admit(self, headers: Mapping[str, str], path_key: str | None) -> dict[str, str] | None:
        """The header fields that belong to the caller, everything but our key, if some credential of the request is our key; else
        None."""
        # Every credential is compared, so that the time taken does not tell which of them was right.
        found = path_key is not None and self.is_ours(path_key)
        kept = dict(headers)
        for name in _CREDENTIALS:
            value = kept.get(name)
            if value is None:
                continue
            if self.is_ours(_bare(value)):
                found = True
                del kept[name]
            elif name == "x-metaclaw-key":
                del kept[name]
        return kept if found else None

    def refusal(self, headers: Mapping[str, str], path_key: str | None) -> str:
        """What to tell a caller who is not admitted."""
        given = [name for name in _CREDENTIALS if _bare(headers.get(name, ""))] + (["/k/<key>"] if path_key else [])
        if given:
            return f"the key in this request ({', '.join(given)}) is not the MetaClaw key; {_HOW}"
        return f"this request carries no MetaClaw key; {_HOW}"

    def is_ours(self, value: str) -> bool:
        """Whether this credential is our key."""
        return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), self._key)


def _bare(value: str) -> str:
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value.strip()


def split_path_key(path: str) -> tuple[str, str | None]:
    """`/k/<key>/v1/…` is the path `/v1/…` with a key; any other path has none."""
    if not path.startswith("/k/"):
        return path, None
    key, slash, rest = path[3:].partition("/")
    return (slash + rest) or "/", key
