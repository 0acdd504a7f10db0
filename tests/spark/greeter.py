"""A service that greets and does nothing else, for the doctor's tests."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import struct
import threading
from typing import Any

_PATIENCE_S = 60.0


class Door:
    """A service that only exchanges the greeting of the protocol, and keeps what it receives.

    Args:
        secret: the secret that it asks for; None for none.
        protocol: the version that it speaks.
        says: raw bytes to send instead of a greeting.
        is_impostor: it asks for the secret, but sends the client's proof back as its own.
    """

    def __init__(
        self,
        *,
        secret: bytes | None = None,
        protocol: int = 2,
        says: bytes = b"",
        is_impostor: bool = False,
    ) -> None:
        self._secret = secret
        self._protocol = protocol
        self._says = says
        self._is_impostor = is_impostor
        self.received = list[dict[str, Any]]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(_PATIENCE_S)
        self._listener.close()

    def _serve(self) -> None:
        self._listener.settimeout(_PATIENCE_S)
        with self._listener.accept()[0] as stream, contextlib.suppress(struct.error):
            stream.settimeout(_PATIENCE_S)
            hello = self._take(stream)  # raises struct.error if the client is gone
            if self._says:
                stream.sendall(self._says)
            elif hello["protocol"] != self._protocol:
                message = f"version {hello['protocol']} is not spoken: {self._protocol} is"
                self._send(stream, type="error", code="bad_protocol", message=message, then="close")
            else:
                self._welcome(stream, hello)

    def _welcome(self, stream: socket.socket, hello: dict[str, Any]) -> None:
        mac = None
        if self._secret:
            names = (hello["nonce"], "n" * 32, hello["application_id"])
            self._send(stream, type="challenge", nonce=names[1])
            proof = self._take(stream)
            if proof != {"type": "proof", "mac": self._mac("client", *names)}:
                self._send(
                    stream, type="error", code="denied", message="the proof is wrong", then="close"
                )
                return
            mac = proof["mac"] if self._is_impostor else self._mac("service", *names)
        self._send(stream, type="welcome", protocol=2, session="s", policy="srpt", mac=mac)
        self._take(stream)

    def _mac(self, side: str, *names: str) -> str:
        text = "".join(f"{part}\0" for part in ("parcae 2", side, *names))
        return hmac.new(self._secret or b"", text.encode(), "sha256").hexdigest()

    def _take(self, stream: socket.socket) -> dict[str, Any]:
        (length,) = struct.unpack(">I", stream.recv(4, socket.MSG_WAITALL))
        self.received.append(json.loads(stream.recv(length, socket.MSG_WAITALL)))
        return self.received[-1]

    def _send(self, stream: socket.socket, **message: object) -> None:
        content = json.dumps(message).encode()
        stream.sendall(struct.pack(">I", len(content)) + content)
