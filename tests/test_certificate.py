"""The proxy's certificate: what is refused, what is trusted, and a change of its files."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from metaclaw.certificate import ServerCertificate, expiry, load_server, trusting
from metaclaw.clock import utc_now
from metaclaw.errors import ConfigError
from tests.support.certificates import make_certificate


def test_a_certificate_tells_when_it_expires(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    left = expiry(load_server(made.cert, made.key), made.cert) - utc_now()
    assert timedelta(days=29) < left < timedelta(days=31)


def test_files_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    good, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    expired = make_certificate(tmp_path, "expired", days=-1)
    broken, missing = tmp_path / "broken.pem", tmp_path / "missing.pem"
    broken.write_text("nothing\n")
    cases = [
        (missing, good.key, "tls_cert: .*missing.pem cannot be read"),
        (good.cert, missing, "tls_key: .*missing.pem cannot be read"),
        (good.cert, other.key, "the key in .*other.key is not that of the certificate"),
        (broken, good.key, "cannot be used"),
        (good.cert, broken, "cannot be used"),
        (expired.cert, expired.key, "clients would refuse .*certificate has expired"),
    ]
    for cert, key, message in cases:
        with pytest.raises(ConfigError, match=message):
            load_server(cert, key)


def test_one_file_may_hold_both(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(made.key.read_text() + made.cert.read_text())
    load_server(both, both)


def test_no_other_certificate_is_trusted(tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        expiry(load_server(made.cert, made.key), other.cert)


def test_a_changed_certificate_is_shown_and_an_unusable_one_is_not(tmp_path: Path) -> None:
    shown = make_certificate(tmp_path / "shown")
    first, second = tmp_path / "first.pem", make_certificate(tmp_path / "second")
    first.write_text(shown.cert.read_text())
    server = ServerCertificate(shown.cert, shown.key).context
    expiry(server, first)
    shown.cert.write_text("half written")
    expiry(server, first)
    shown.replace_by(second)
    expiry(server, second.cert)
    with pytest.raises(ssl.SSLCertVerificationError):
        expiry(server, first)
    assert trusting(second.cert).verify_mode is ssl.CERT_REQUIRED
