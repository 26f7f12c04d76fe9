"""TLS between gateways and workers: each end may ask for the other's certificate.

A worker that has none draws one. Nobody signs that: the proof of the shared key, which covers the
certificate (`handshake`), tells that it is this worker's and no relay's.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from voiceloop.errors import ConfigError

# Of a drawn certificate: it holds while its process does. Source: RFC 5280, 4.1.2.5.
NO_BEGIN, NO_END = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Seal:
    """A worker's end. channel: what names its certificate, as `channel_of` does at the other.

    is_own: somebody has given it its certificate, and it is used at loopback too.
    """

    context: ssl.SSLContext
    channel: bytes
    is_own: bool


def channel_of(certificate: bytes | None) -> bytes:
    """Names the line by the worker's certificate, in DER; b"": the line is plain."""
    return hashlib.sha256(certificate).digest() if certificate else b""


def given_seal(certfile: Path, keyfile: Path, client_ca: Path | None) -> Seal:
    """client_ca: who signs the certificates that gateways must show.

    Raises: ConfigError where a file cannot be used.
    """
    context = _server_context()
    _load(context, certfile, keyfile)
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    shown = x509.load_pem_x509_certificate(certfile.read_bytes())  # the first, as ssl shows it
    return Seal(context, channel_of(shown.public_bytes(Encoding.DER)), is_own=True)


def drawn_seal() -> Seal:
    """Return a seal with a certificate of its own, which ends with the process."""
    pem, der = draw_certificate()
    context = _server_context()
    with tempfile.TemporaryDirectory(prefix="voiceloop-") as folder:  # ssl loads from files alone
        place = Path(folder) / "worker.pem"
        place.write_bytes(pem)
        _load(context, place, place)
    return Seal(context, channel_of(der), is_own=False)


def draw_certificate() -> tuple[bytes, bytes]:
    """A key and a certificate that nobody else signs, in one PEM; and the certificate in DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "voiceloop worker")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NO_BEGIN)
        .not_valid_after(NO_END)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem = private + certificate.public_bytes(Encoding.PEM)
    return pem, certificate.public_bytes(Encoding.DER)


def client_context(
    ca: Path | None, certfile: Path | None = None, keyfile: Path | None = None
) -> ssl.SSLContext:
    """A gateway's end. ca: who signs the workers' certificates; None: the key vouches for them.

    Raises: ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca is not None:
        _trust(context, ca)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certfile is not None and keyfile is not None:
        _load(context, certfile, keyfile)
    return context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    try:
        context.load_cert_chain(certfile, keyfile)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"expected a certificate and its key in {certfile} and {keyfile}, found: {error}"
        ) from None


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise ConfigError(f"expected certificates in {ca}, found: {error}") from None
