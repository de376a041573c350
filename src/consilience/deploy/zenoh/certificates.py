"""Keys and certificates of nodes: a test authority makes them, and no node starts without good ones."""

from __future__ import annotations

import datetime
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from consilience.errors import UserError

AUTHORITY = "authority"
WARNED = datetime.timedelta(days=7)
"""How long before its end a certificate is spoken of."""


def name_of(node: int) -> str:
    """What the certificate of a node calls it."""
    return f"node-{node}"


@dataclass(frozen=True)
class Credentials:
    """The files by which a node proves who it is, all read and found to be good."""

    authority: Path
    certificate: Path
    key: Path
    ends: datetime.datetime
    """When the certificate expires, or the authority's, whichever is first."""

    def warning(self) -> str | None:
        """A line where the certificate is about to expire, or has expired."""
        left = self.ends - now()
        if left < datetime.timedelta(0):
            return (
                f"{self.certificate} has expired ({self.ends:%Y-%m-%d %H:%M} UTC) and connections are "
                "closed; put another in its place, and the node goes on"
            )
        return f"{self.certificate} expires on {self.ends:%Y-%m-%d}" if left < WARNED else None

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What tells whether the files are other ones than before."""
        return tuple(map(_stamp, (self.authority, self.certificate, self.key)))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def make(folder: Path, nodes: int, *, days: float = 365.0) -> list[Path]:
    """Make an authority, and a key and a certificate for every node; return the certificates.

    The authority is for tests and trials: whoever has its key can be any node. An authority that is there
    already is used again, so that nodes can be added; nothing that is there is replaced. A key without a
    certificate gets one, which is how one that expires is renewed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    signer, issuer = _authority(folder, days)
    made = []
    for node in range(nodes):
        name, path = name_of(node), folder / f"{name_of(node)}.pem"
        if path.exists():
            continue
        secret = folder / f"{name}.key"
        key = _read_key(secret) if secret.exists() else ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        unsigned = (
            _blank(name, days)
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        )
        if not secret.exists():
            _write_key(secret, key)
        path.write_bytes(unsigned.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        made.append(path)
    return made


def _authority(folder: Path, days: float) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    path, secret = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    if path.exists():
        if not secret.exists():
            raise UserError(f"{secret} is missing: only who has it can add nodes to {path}")
        return _read_key(secret), _read(path)[0]
    key = ec.generate_private_key(ec.SECP256R1())
    unsigned = (
        _blank("consilience test authority", days)
        .issuer_name(_called("consilience test authority"))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    signed = unsigned.sign(key, hashes.SHA256())
    _write_key(secret, key)
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return key, signed


def _blank(name: str, days: float) -> x509.CertificateBuilder:
    begins = now() - datetime.timedelta(hours=1)  # clocks differ
    ends = now() + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_called(name))
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begins, ends - datetime.timedelta(hours=1)))
        .not_valid_after(ends)
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def now() -> datetime.datetime:
    """The time, with its zone."""
    return datetime.datetime.now(datetime.UTC)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    data = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def credentials(folder: Path, node: int) -> Credentials:
    """The credentials of a node; UserError says in one line what is wrong with them."""
    paths = (folder / f"{AUTHORITY}.pem", folder / f"{name_of(node)}.pem", folder / f"{name_of(node)}.key")
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is missing; a node does not start without (consilience certificates)")
    authorities, own, key = _read(paths[0]), _read(paths[1])[0], _read_key(paths[2])
    if stat.S_IMODE(paths[2].stat().st_mode) & 0o077:
        raise UserError(f"{paths[2]} can be read by others: chmod 600 {paths[2]}")
    if own.public_key() != key.public_key():
        raise UserError(f"{paths[2]} is not the key of {paths[1]}")
    issuer = next((one for one in authorities if _issued(own, one)), None)
    if issuer is None:
        raise UserError(f"{paths[1]} was not issued by {paths[0]}")
    for path, one in ((paths[0], issuer), (paths[1], own)):
        if not one.not_valid_before_utc <= now() <= one.not_valid_after_utc:
            span = (
                f"{one.not_valid_before_utc:%Y-%m-%d %H:%M} to {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            )
            raise UserError(f"{path} is valid from {span}, which is not now")
    names = names_in(own)
    if names != [name_of(node)]:
        raise UserError(f"{paths[1]} is of {', '.join(names) or 'nobody'}, not of {name_of(node)}")
    return Credentials(*paths, ends=min(own.not_valid_after_utc, issuer.not_valid_after_utc))


def names_in(certificate: x509.Certificate) -> list[str]:
    """What a certificate calls its owner."""
    return [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _issued(one: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _read(path: Path) -> list[x509.Certificate]:
    """The certificates in a file: an authority's has two while one takes the place of the other."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"{path} is not a certificate") from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} is not a private key without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not a key on an elliptic curve")
    return key
