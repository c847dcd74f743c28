"""Bearer tokens of callers of the ingress (RFC 6750, section 2.1: the header `Authorization: Bearer <token>`)."""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from pydantic import SecretStr


class Tokens:
    """The tokens that admit callers; without any, all callers are admitted."""

    def __init__(self, tokens: Iterable[SecretStr]) -> None:
        # Digests have one length, so comparing them reveals nothing about the tokens.
        self._digests = [sha256(token.get_secret_value().encode()).digest() for token in tokens]

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether the headers of a call have one of the tokens. It takes the same time for any wrong one."""
        if not self._digests:
            return True
        for name, value in headers:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                digest = sha256(token.strip()).digest()
                found = [hmac.compare_digest(digest, known) for known in self._digests]
                return scheme.lower() == b"bearer" and any(found)
        return False
