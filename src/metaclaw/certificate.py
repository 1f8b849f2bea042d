"""The certificate that the proxy shows: loaded, taken up again when its files change, and trusted by
commands.
"""

import logging
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from metaclaw.errors import ConfigError

log = logging.getLogger(__name__)

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class ServerCertificate:
    """The certificate of a server. Files that have changed are loaded at the next connection; if
    they cannot be used, the certificate before is shown."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises ConfigError if the files cannot be used."""
        self._cert, self._key = cert, key
        self._state = _state_of((cert, key))
        self._newest = self.context = load_server(cert, key)
        self._warn()
        # A context that is changed in place would show a half-replaced pair of files.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str, _first: ssl.SSLContext) -> None:
        state = _state_of((self._cert, self._key))
        if state != self._state:
            self._state = state
            try:
                self._newest = load_server(self._cert, self._key)
            except ConfigError as error:
                log.warning("certificate_refused reason=%s; the one before is shown", error)
            else:
                log.info("certificate_loaded expires=%s", expiry(self._newest, self._cert))
                self._warn()
        connection.context = self._newest

    def _warn(self) -> None:
        if is_readable_by_all(self._key):
            log.warning("tls_key_readable path=%s; every user can read it: chmod 600", self._key)


def is_readable_by_all(key: Path) -> bool:
    """Whether every user of this machine may read the file; a group may."""
    return bool(key.stat().st_mode & stat.S_IROTH)


def _state_of(paths: Sequence[Path]) -> object:
    """What changes when a file is written or replaced."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return None
    return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in found]


def load_server(cert: Path, key: Path) -> ssl.SSLContext:
    """A server's TLS context. Raises ConfigError if a client would refuse the certificate whoever
    had issued it, such as one that has expired."""
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"proxy.{name}: {path} cannot be read ({error.strerror}); make it a file that you"
                " may read"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password given here, a terminal would be asked for one.
        context.load_cert_chain(cert, key, password="")
        expiry(context, cert)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"proxy.tls_cert: clients would refuse {cert} ({error.verify_message}); put a valid"
            " certificate there"
        ) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"the key in {key} is not that of the certificate in {cert}"
        else:
            what = f"{cert} and {key} cannot be used ({error.reason or error})"
        raise ConfigError(
            f"proxy.tls_key: {what}; both must be PEM files, the key without a password"
        ) from error
    return context


def expiry(server: ssl.SSLContext, cert: Path) -> datetime:
    """When the certificate expires, as a client sees it. Raises ssl.SSLError if the client refuses
    it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = trusting(cert).wrap_bio(to_client, to_server)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client_end, server_end, client_end):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    shown = client_end.getpeercert()
    assert shown is not None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)


def trusting(cert: Path) -> ssl.SSLContext:
    """A client's TLS context that trusts the first certificate of a file and no other, by whatever
    name its server is reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _, _, rest = cert.read_text("ascii", "replace").partition(_BEGIN)
    context.load_verify_locations(cadata=f"{_BEGIN}{rest.partition(_END)[0]}{_END}")
    return context
