"""Alarms by HTTP, with a signature by which a receiver knows the sender and the time.

    POST URL
    Content-Type: application/json
    Idempotency-Key: the alarm's id
    Fourpoint-Signature: t=SECONDS,v1=HEX,      HEX = HMAC-SHA256(secret, "SECONDS." + body)

The time is part of what is signed, so that a message cannot be sent again later by somebody else.
An alarm may arrive twice, when an answer was lost; its id is the same.
"""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from fourpoint.errors import UserError

SIGNATURE = "Fourpoint-Signature"
TIMEOUT = 10.0  # seconds for an answer
TOLERANCE = 300.0  # seconds for which a signature is valid


def sign(secret: bytes, body: bytes, seconds: int) -> str:
    """The signature of ``body`` sent at ``seconds`` since 1970.

    >>> sign(b"secret", b"{}", 1700000000)[:30]
    't=1700000000,v1=b8569b78799ff9'
    """
    found = hmac.new(secret, f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={found}"


def verify(
    secret: bytes,
    body: bytes,
    signature: str,
    *,
    now: float | None = None,
    tolerance: float = TOLERANCE,
) -> bool:
    """Whether ``signature`` is that of ``body`` under ``secret``, and not older than ``tolerance``
    seconds. Receivers call it with the bytes that came, before they parse them.

    >>> verify(b"secret", b"{}", sign(b"secret", b"{}", 1700000000), now=1700000010.0)
    True
    >>> verify(b"secret", b"[]", sign(b"secret", b"{}", 1700000000), now=1700000010.0)
    False
    """
    parts = dict(part.split("=", 1) for part in signature.split(",") if "=" in part)
    sent = parts.get("t", "")
    if not (sent.isascii() and sent.isdigit() and len(sent) < 16):
        return False
    is_fresh = abs((time.time() if now is None else now) - int(sent)) <= tolerance
    return hmac.compare_digest(sign(secret, body, int(sent)), signature) and is_fresh


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirection could send alarms to another machine, and is an error."""

    def redirect_request(self, *given: Any) -> None:
        return None


class Webhook:
    """Sends alarms to ``url``, signed with ``secret`` (None: without a signature)."""

    def __init__(self, url: str, secret: bytes | None, *, timeout: float = TIMEOUT) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UserError(
                "a webhook as http://HOST/PATH or https://HOST/PATH",
                f"{url!r}",
                "Type --alarms-to https://example.org/alarms, say.",
            )
        self._url, self._secret, self._timeout = url, secret, timeout
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, id: str, body: bytes) -> None:
        """Send one alarm; raises OSError where it did not arrive."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": id,
            "User-Agent": "fourpoint",
        }
        if self._secret is not None:
            headers[SIGNATURE] = sign(self._secret, body, int(time.time()))
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"HTTP status {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise OSError(f"{type(error).__name__}: {error}") from None

    def close(self) -> None:
        """Nothing is open between two alarms."""
