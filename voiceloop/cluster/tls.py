"""TLS between gateways and workers on other machines.

A worker draws its certificate. Nobody signs that: the proof of the shared key, which covers the
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

# Of a drawn certificate: it holds while its process does. Source: RFC 5280, 4.1.2.5.
NO_BEGIN, NO_END = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Seal:
    """A worker's end. channel: what names its certificate, as `channel_of` does at the other."""

    context: ssl.SSLContext
    channel: bytes


def channel_of(certificate: bytes | None) -> bytes:
    """Names the line by the worker's certificate, in DER; b"": the line is plain."""
    return hashlib.sha256(certificate).digest() if certificate else b""


def drawn_seal() -> Seal:
    """Return a seal with a certificate of its own, which ends with the process."""
    pem, der = draw_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory(prefix="voiceloop-") as folder:  # ssl loads from files alone
        place = Path(folder) / "worker.pem"
        place.write_bytes(pem)
        context.load_cert_chain(place)
    return Seal(context, channel_of(der))


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


def client_context() -> ssl.SSLContext:
    """A gateway's end: the key vouches for the worker's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
