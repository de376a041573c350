"""Flower's processes and sites on this machine, for tests and measurements."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from consilience.deploy.journal import read_status

BIN = Path(sys.executable).parent


@dataclass
class Place:
    """A folder in which processes run; all end with it."""

    folder: Path
    secure: bool = False
    """Whether there is TLS, and SuperNodes have registered keys."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = 0

    def environment(self) -> dict[str, str]:
        """What processes are started with: one thread, as in this process, and quick looks for work."""
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path])),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "FLWR_TELEMETRY_ENABLED": "0",
        }

    def start(self, name: str, *command: str) -> None:
        """Start a process in the folder; what it says is in NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self, name: str) -> str:
        """What a process said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a process and those that it started, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)
        self.running.pop(name).wait()

    def found(self, program: str = "") -> list[int]:
        """The processes of a program that were started here, also by those that we started."""
        home = f"FLWR_HOME={self.folder}/home".encode()
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(ValueError, OSError):
                number = int(folder.name)
                if home in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes()
                    found += [number] if command and program.encode() in command else []
        return found

    def close(self) -> None:
        """End everything; Flower's processes start others in sessions of their own."""
        for name in list(self.running)[::-1]:
            self.kill(name)
        for number in self.found():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    # What there is to start.

    def superlink(self) -> None:
        """Start a SuperLink, and tell `flwr` where it is."""
        self.port = self.port or free_port()
        (self.folder / "home").mkdir(exist_ok=True)
        trust = f'root-certificates = "{self.folder}/ca.crt"' if self.secure else "insecure = true"
        (self.folder / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "trial"\n\n[superlink.trial]\n'
            f'address = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        options = ["--insecure"]
        if self.secure:
            files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "link.crt", "--ssl-keyfile": "link.key"}
            options = [word for pair in files.items() for word in pair] + ["--enable-supernode-auth"]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start(
            "link", f"{BIN}/flower-superlink", *options, *where, "--disable-runtime-dependency-installation"
        )
        until(lambda: answers(self.port), "the SuperLink listens", lambda: self.said("link"), 60.0)

    def supernode(self, name: str, configuration: str, *options: str) -> None:
        """Start a SuperNode."""
        trust = ["--root-certificates", "ca.crt"] if self.secure else ["--insecure"]
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        self.start(name, f"{BIN}/flower-supernode", *trust, *where, "--node-config", configuration, *options)

    def flwr(self, *words: str) -> str:
        """What a command of `flwr` says; it must succeed."""
        done = subprocess.run(
            [f"{BIN}/flwr", *words],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def consilience(self, *words: str) -> str:
        """What a command of ours says; it must succeed."""
        command = [sys.executable, "-m", "consilience", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def until(condition: object, what: str, said: object = str, seconds: float = 240.0) -> None:
    """Wait for a condition, which is to become true; how long it takes is not measured."""
    assert callable(condition)
    assert callable(said)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}\n{said()[-4000:]}"
        time.sleep(0.1)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def status(folder: Path) -> Mapping[str, object]:
    """How things stand at a member."""
    return read_status(folder) or {}


@contextlib.contextmanager
def opened(folder: Path, *, secure: bool = False) -> Iterator[Place]:
    """A place with a SuperLink; everything ends with it."""
    place = Place(folder, secure)
    try:
        yield place
    finally:
        place.close()


def certify(folder: Path, keys: Sequence[str]) -> None:
    """Write a test authority, a certificate of 127.0.0.1 for a SuperLink, and keys for SuperNodes."""
    authority, link = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root = _certificate("test authority", authority, "test authority", authority)
    own = _certificate("127.0.0.1", link, "test authority", authority)
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "link.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "link.key").write_bytes(link.private_bytes(pem, pkcs8, plain))
    for name in keys:
        key = ec.generate_private_key(ec.SECP384R1())
        (folder / name).write_bytes(key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain))
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (folder / f"{name}.pub").write_bytes(public)


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, authority: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """A certificate for a name, by an authority, for a day."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=subject == issuer, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )
    usage = dict.fromkeys(
        [
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    ca = subject == issuer
    made = made.add_extension(
        x509.KeyUsage(digital_signature=True, key_cert_sign=ca, crl_sign=ca, **usage), critical=True
    )
    if not ca:
        address = x509.IPAddress(ipaddress.ip_address(subject))
        made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return made.sign(authority, hashes.SHA384())
