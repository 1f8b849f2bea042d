"""Whether a provider answers: one time-limited `GET models`, told in words."""

import http.client
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from metaclaw.config import ProviderConfig, without_password
from metaclaw.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    was_reached: bool
    is_good: bool
    what: str
    remedy: str | None = None


def reach(provider: ProviderConfig, timeout_s: float) -> Answer:
    """Ask a provider for its models."""
    assert provider.base_url is not None
    shown = without_password(provider.base_url)
    try:
        status = _status(provider, provider.base_url, timeout_s)
    except ConfigError as error:
        return Answer(False, False, "was not asked: its key cannot be had", str(error))
    except ssl.SSLError as error:
        return Answer(False, False, f"{shown} has no valid certificate ({error.reason})", "correct its base_url or its certificate")
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return Answer(False, False, f"{shown} does not answer ({reason})", "start it, or correct its base_url")
    return _judge(provider, shown, status)


def _judge(provider: ProviderConfig, shown: str, status: int) -> Answer:
    if status in (401, 403):
        if provider.api_key is not None and provider.api_key.is_passthrough:
            return Answer(True, True, f"{shown} answers; it wants the callers' own credentials, which are forwarded")
        return Answer(True, False, f"{shown} answers {status}: it refuses the key", "correct its api_key")
    if 300 <= status < 400:
        return Answer(True, False, f"{shown} answers {status}, a redirect, which is not followed", "correct its base_url")
    if status == 404:
        return Answer(
            True, False, f"{shown} answers 404 to GET models", "correct its base_url: with /v1 for openai, without for anthropic"
        )
    if status >= 400:
        return Answer(True, False, f"{shown} answers {status} to GET models", "look at the provider")
    return Answer(True, True, f"{shown} answers {status}")


def _status(provider: ProviderConfig, base_url: str, timeout_s: float) -> int:
    parts = urlsplit(base_url)
    is_secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port or (443 if is_secure else 80), timeout=timeout_s)
    path = parts.path + ("/v1/models" if provider.kind == "anthropic" else "/models")
    try:
        connection.request("GET", path, headers=_headers(provider))
        return connection.getresponse().status
    finally:
        connection.close()


def _headers(provider: ProviderConfig) -> dict[str, str]:
    headers = {"Accept": "application/json"}
    if provider.kind == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    if provider.api_key is None or provider.api_key.is_passthrough:
        return headers
    key = provider.api_key.resolve()
    return headers | ({"x-api-key": key} if provider.kind == "anthropic" else {"Authorization": f"Bearer {key}"})
