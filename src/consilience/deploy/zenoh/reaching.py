"""Why a neighbour is not reached: Zenoh tries again for ever and says nothing, so a node looks itself."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence

from cryptography import x509

from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.certificates import Credentials, names_in

PATIENCE = 3.0
"""Seconds for which an answer is waited for."""
ALERT = 0.5
"""Seconds in which the other side says that it does not accept a certificate; else it does."""


def trouble(endpoint: str, keys: Credentials, names: Sequence[str]) -> str | None:
    """Why no neighbour is reached at an endpoint, in a few words; None where one is.

    RefusedError: somebody is there, and either side does not accept the other.

    Args:
        endpoint: Where, as Zenoh writes it.
        keys: How this node proves who it is.
        names: What the certificates of neighbours call them.
    """
    host, _, port = endpoint.partition("/")[2].partition("?")[0].partition("#")[0].rpartition(":")
    try:
        if not host:
            raise ValueError
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as plain:
            return _greeted(plain, keys, names)
    except ValueError:
        return "it is no address like tls/10.0.0.7:7447"
    except socket.gaierror:
        return f"the name {host!r} is not known"
    except ConnectionRefusedError:
        return "nobody listens there"
    except TimeoutError:
        return "no answer; a firewall, or another address?"
    except OSError as error:
        return f"{error.strerror or error}"


def _greeted(plain: socket.socket, keys: Credentials, names: Sequence[str]) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate's name counts, not the host's
    try:
        context.load_verify_locations(keys.authority)
        context.load_cert_chain(keys.certificate, keys.key)
        with context.wrap_socket(plain) as line:
            shown = names_in(x509.load_der_x509_certificate(line.getpeercert(binary_form=True) or b""))
            if not set(shown) & set(names):
                raise RefusedError(f"{', '.join(shown) or 'nobody'} is there, which is no neighbour")
            line.settimeout(ALERT)
            return None if line.recv(1) else "it hangs up"
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(f"its certificate is not accepted: {error.verify_message}") from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if "alert" in reason:
            said = reason.rpartition("alert ")[2]
            raise RefusedError(f"it does not accept this node's certificate: {said}") from None
        return f"it does not speak TLS: {reason}"
    except TimeoutError:
        return None  # it has nothing against this node, and waits for what Zenoh would say


class Scout:
    """Looks, in a thread of its own, why neighbours are not reached.

    Args:
        endpoints: Where this node tries to reach some.
        say: Called with each line that is new, and whether somebody was refused.
    """

    def __init__(self, endpoints: Sequence[str], say: Callable[[str, bool], None]) -> None:
        self._endpoints, self._say = endpoints, say
        self._thread: threading.Thread | None = None
        self.lines: tuple[str, ...] = ()
        """What was found the last time."""

    @property
    def idle(self) -> bool:
        """Whether no look is under way."""
        return self._thread is None or not self._thread.is_alive()

    def look(self, keys: Credentials, names: Sequence[str], missing: Sequence[str]) -> None:
        """Begin to look, unless a look is under way.

        Args:
            keys: How this node proves who it is.
            names: What all neighbours are called.
            missing: What those are called who are not there.
        """
        if self.idle:
            self._thread = threading.Thread(target=self._work, args=(keys, names, missing), daemon=True)
            self._thread.start()

    def _work(self, keys: Credentials, names: Sequence[str], missing: Sequence[str]) -> None:
        found = {f"not connected: {', '.join(missing)}": False}
        for endpoint in self._endpoints:
            try:
                why, refused = trouble(endpoint, keys, names), False
            except RefusedError as error:
                why, refused = str(error), True
            if why is not None:
                found[f"{endpoint}: {why}"] = refused
        before, self.lines = self.lines, tuple(found)
        for line, refused in found.items():
            if line not in before:
                self._say(line, refused)

    def rest(self) -> None:
        """Forget what was found: everybody is there."""
        self.lines = ()
