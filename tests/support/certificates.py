"""Certificates for tests, made by the command openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """The PEM files of a certificate that signs itself, for 127.0.0.1 and localhost."""

    cert: Path
    key: Path

    @property
    def config(self) -> str:
        """The settings of `[proxy]`."""
        return f'tls_cert = "{self.cert}"\ntls_key = "{self.key}"'

    def replace_by(self, other: "Certificate") -> None:
        """Put another certificate in its place, as a tool that renews it does."""
        for new, old in ((other.cert, self.cert), (other.key, self.key)):
            copy = old.with_suffix(".new")
            shutil.copy(new, copy)
            copy.replace(old)


def make_certificate(folder: Path, name: str = "proxy", *, days: int = 30) -> Certificate:
    """A new certificate; one of negative `days` has expired."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl to make a certificate: apt-get install openssl")
    folder.mkdir(exist_ok=True)
    cert, key, request = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
    names = folder / "names.cnf"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new = f"req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name}"
    for command in (
        f"{new} -keyout {key} -out {request}",
        f"x509 -req -in {request} -signkey {key} -days {days} -extfile {names} -out {cert}",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True)
    return Certificate(cert, key)
