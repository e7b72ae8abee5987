"""Bearer tokens with scopes, of which only hashes are stored.

    # name scopes hash
    dashboard read sha256:9f86d081884c7d65...
    ingest read,write sha256:60303ae22b998861...

A token has 256 random bits, so that a plain SHA-256 of it tells nothing; every entry is compared in
constant time, also after one has matched. The scope "admin" includes "write", which includes
"read".
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from fourpoint.atomic import write_atomic
from fourpoint.errors import UserError

SCOPES = ("read", "write", "admin")
PREFIX = "fp_"
ENTRY = re.compile(r"(?P<name>\S{1,64})\s+(?P<scopes>[a-z,]+)\s+sha256:(?P<hash>[0-9a-f]{64})")
REMEDY = "Make one with: fourpoint token FILE --name NAME --scope read."


@dataclass(frozen=True)
class Token:
    """Who may do what, known by the hash of a token."""

    name: str
    scopes: frozenset[str]
    hash: bytes

    def allows(self, scope: str) -> bool:
        """Whether the token includes ``scope``.

        >>> Token("x", frozenset({"write"}), b"").allows("read")
        True
        """
        return any(SCOPES.index(own) >= SCOPES.index(scope) for own in self.scopes)


class Tokens:
    """The tokens of a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     secret = add_token(Path(folder, "tokens"), "ingest", "write")
    ...     tokens = Tokens.read(Path(folder, "tokens"))
    >>> tokens.find(secret).name, tokens.find("fp_guess")
    ('ingest', None)
    """

    def __init__(self, entries: list[Token]) -> None:
        self.entries = entries

    @staticmethod
    def read(path: Path) -> Tokens:
        """The tokens in ``path``; raises :class:`UserError` for a file that holds anything else,
        and for one that others may write.
        """
        try:
            text = path.read_text(encoding="utf-8")
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"a file of tokens in {path}", f"{error}", REMEDY) from None
        if os.name == "posix" and mode & 0o022:
            raise UserError(
                f"{path}, which only its owner may write", "one that others may write", "chmod 600."
            )
        entries = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            found = ENTRY.fullmatch(line.strip())
            scopes = frozenset(found["scopes"].split(",")) if found else frozenset()
            if found is None or not scopes or not scopes <= set(SCOPES):
                # The line itself is not shown: it may hold a token instead of its hash.
                raise UserError(
                    "lines of a name, scopes and sha256:HASH",
                    f"another one in line {number} of {path}",
                    REMEDY,
                )
            entries.append(Token(found["name"], scopes, bytes.fromhex(found["hash"])))
        if not entries:
            raise UserError(f"tokens in {path}", "none", REMEDY)
        return Tokens(entries)

    def find(self, secret: str) -> Token | None:
        """The entry of a token, or None."""
        digest = hash_of(secret)
        found: Token | None = None
        for entry in self.entries:
            if hmac.compare_digest(entry.hash, digest):
                found = entry
        return found


def hash_of(secret: str) -> bytes:
    """The hash by which a token is known."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def add_token(path: Path, name: str, scopes: str) -> str:
    """Add a new token to ``path``, which is made where it is missing; the token itself, which is
    not stored.
    """
    wanted = [scope.strip() for scope in scopes.split(",")]
    if not wanted or not set(wanted) <= set(SCOPES):
        raise UserError(
            f"scopes among {', '.join(SCOPES)}", f"{scopes!r}", "Type --scope read,write, say."
        )
    if not re.fullmatch(r"[A-Za-z0-9_.@-]{1,64}", name):
        raise UserError("a name of letters, digits, _ . @ -", f"{name!r:.80}", "Shorten it.")
    before = ""
    if path.exists():
        if any(entry.name == name for entry in Tokens.read(path).entries):
            raise UserError(
                f"a name that {path} does not have",
                f"{name!r}",
                "Remove its line, or take another.",
            )
        before = path.read_text(encoding="utf-8")
    secret = PREFIX + secrets.token_urlsafe(32)
    line = f"{name} {','.join(wanted)} sha256:{hash_of(secret).hex()}\n"
    if before and not before.endswith("\n"):
        before += "\n"
    write_atomic(path, before + line)
    path.chmod(0o600)
    return secret
