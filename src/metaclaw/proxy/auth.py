"""Who may speak to us: one key, compared in constant time, wherever a client can put it."""

import hmac
from collections.abc import Mapping

_CREDENTIALS = ("x-metaclaw-key", "x-api-key", "authorization")


class Gatekeeper:
    """Finds our key in a request and takes it out, so that it never travels on to a provider."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def admits(self, headers: Mapping[str, str], path_key: str | None) -> bool:
        """Whether any credential of the request is our key."""
        # Every credential is compared, so that the time taken does not tell which of them was right.
        found = path_key is not None and self.is_ours(path_key)
        for name in _CREDENTIALS:
            value = headers.get(name)
            if value and self.is_ours(_bare(value) if name == "authorization" else value.strip()):
                found = True
        return found

    def is_ours(self, value: str) -> bool:
        """Whether this credential is our key."""
        return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), self._key)

    def callers_own(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The header fields that belong to the caller: everything but our key."""
        kept = dict(headers)
        for name in _CREDENTIALS:
            value = kept.get(name)
            if value is not None and (name == "x-metaclaw-key" or self.is_ours(_bare(value))):
                del kept[name]
        return kept


def _bare(value: str) -> str:
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value.strip()


def split_path_key(path: str) -> tuple[str, str | None]:
    """`/k/<key>/v1/…` is the path `/v1/…` with a key; any other path has none."""
    if not path.startswith("/k/"):
        return path, None
    key, slash, rest = path[3:].partition("/")
    return (slash + rest) or "/", key
