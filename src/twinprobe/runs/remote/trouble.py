"""What the libraries behind fsspec raise, in words. They share no base class: exceptions are known by their names."""

from __future__ import annotations

import errno
import os

from twinprobe.errors import BadInput

_NO_CREDENTIALS = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError",
    "DefaultCredentialsError", "RefreshError", "ProfileNotFound", "NoAuthTokenError", "UnauthorizedSSOTokenError",
    "SSOTokenLoadError", "ClientAuthenticationError",
})  # fmt: skip
_NO_ANSWER = frozenset({
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "ConnectionError",
    "ProxyConnectionError", "HTTPClientError", "SSLError", "ClientConnectorError", "ClientConnectorDNSError",
    "ServerDisconnectedError", "ServerTimeoutError", "FSTimeoutError", "TimeoutError", "MaxRetryError",
    "NewConnectionError", "TransportError", "RequestError", "ServiceRequestError",
})  # fmt: skip
_NO_ANSWER_NUMBERS = frozenset({
    errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
})  # fmt: skip
_LONGEST = 300

CREDENTIALS_HINT = "see docs/remote.md on credentials, e.g. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"


class NoAnswer(OSError):
    """The other end could not be reached, or fell silent."""


def understood(error: BaseException, where: str) -> OSError | BadInput:
    """An OSError with words in it, or BadInput where nothing can be had without other credentials."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = _one_line(error)
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        hint = f"pip install {package}" if package else "install it with pip"
        return BadInput(f"needs a package that is missing: {text}", where=where, hint=hint)
    if names & _NO_CREDENTIALS:
        return BadInput(f"no credentials for this storage: {text}", where=where, hint=CREDENTIALS_HINT)
    if names & _NO_ANSWER or (isinstance(error, OSError) and error.errno in _NO_ANSWER_NUMBERS):
        return NoAnswer(errno.ETIMEDOUT, f"the storage does not answer: {text}")
    return _plain(error, text, where)


def _plain(error: BaseException, text: str, where: str) -> OSError:
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if isinstance(error, NotADirectoryError):
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where)
    if isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, f"access is denied: {text}")
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    return OSError(number, text)


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:_LONGEST]
