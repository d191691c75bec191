"""What an object store says when it refuses or does not answer, in words with the way out; needs no client of any.

Knows S3's codes and those that Google's and others' clients raise, by name; nothing about checkpoints.
"""

import errno
import sys
from collections.abc import Iterator
from typing import Any, Final

from zrun.core.errors import StoreError
from zrun.core.place import ObjectPath

EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Scheme -> the extra of zrun that serves it."""
_ENDPOINT: Final = {
    "s3": "AWS_ENDPOINT_URL and AWS_REGION", "s3a": "AWS_ENDPOINT_URL and AWS_REGION",
    "gs": "STORAGE_EMULATOR_HOST, if it is set", "gcs": "STORAGE_EMULATOR_HOST, if it is set",
}  # fmt: skip
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (names under `secrets`), AWS_PROFILE in `env`, or a role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS in `env`, `gcloud auth application-default login`, or a service account",
}
_NO_BUCKET: Final = {"NoSuchBucket"}
_WRONG_KEYS: Final = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired",
    "AuthFailure", "InvalidClientTokenId", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
}  # fmt: skip
_NO_KEYS: Final = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError",
    "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError", "ProfileNotFound", "RefreshError",
}  # fmt: skip
_NOT_ALLOWED: Final = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403"}
_PLAIN: Final = (object, BaseException, Exception, OSError)
NOT_KNOWN: Final = {"NotImplemented", "MethodNotAllowed", "501"}
"""The store does not know what was asked of it."""
_PASSING: Final = {
    "SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "500", "502", "503", "504",
    "Throttling", "ThrottlingException", "RequestTimeTooSlow", "429",
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "ConnectionError",
    "HTTPClientError", "FSTimeoutError", "ClientConnectorError", "ClientOSError", "ServerDisconnectedError",
    "ClientPayloadError", "IncompleteRead", "IncompleteReadError", "ServerTimeoutError", "SSLError",
}  # fmt: skip


class RefusedError(StoreError):
    """`codes`: everything by which it can be told what it was. `passing`: later it may go well."""

    def __init__(self, message: str, hint: str, codes: frozenset[str], *, passing: bool) -> None:
        super().__init__(message, hint)
        self.codes = codes
        self.passing = passing


def refused(error: BaseException, place: ObjectPath) -> OSError:
    """What to raise in place of what a client raised: FileNotFoundError and FileExistsError stay what they are."""
    codes = frozenset(_codes(error))
    here, scheme = f"s3://{place.bucket}" if place.scheme == "s3a" else f"{place.scheme}://{place.bucket}", place.scheme
    if codes & _NO_BUCKET:
        return RefusedError(f"there is no bucket {here}", "make it, or mend checkpoint.dir", codes, passing=False)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such object", str(place))
    if isinstance(error, FileExistsError) or "PreconditionFailed" in codes:
        return FileExistsError(errno.EEXIST, "such an object is there", str(place))
    said = _said(error)
    keys = _CREDENTIALS.get("s3" if scheme == "s3a" else "gs" if scheme == "gcs" else scheme, "see its client's manual")
    if codes & _NO_KEYS:
        return RefusedError(f"no credentials for {here}: {said}", keys, codes, passing=False)
    if codes & _WRONG_KEYS:
        return RefusedError(f"{here} does not take these credentials: {said}", keys, codes, passing=False)
    if codes & _NOT_ALLOWED or isinstance(error, PermissionError):
        way_out = "these credentials need to list, read, write and delete objects there"
        return RefusedError(f"not allowed at {place}: {said}", way_out, codes, passing=False)
    passing = bool(codes & _PASSING) or isinstance(error, TimeoutError | ConnectionError)
    way_out = _ENDPOINT.get(scheme, "its address")
    told = f"{place} does not answer as it should: {said}"
    return RefusedError(told, f"check the network, {way_out}", codes, passing=passing)


def missing(scheme: str, module: str) -> StoreError:
    """The client of such a store is not installed in the python that wants to use it."""
    extra = EXTRAS.get(scheme)
    way_out = f"pip install 'zrun[{extra}]', or {module} alone into the job's own python" if extra else ""
    told = f"{scheme}:// needs {module}, which {sys.executable} does not have"
    return StoreError(told, way_out or f"pip install {module}")


def _codes(error: BaseException) -> Iterator[str]:
    """Names of the error's classes and whatever it calls itself, along the chain of its causes."""
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        yield from (kind.__name__ for kind in type(step).__mro__ if kind not in _PLAIN)
        answer: Any = getattr(step, "response", None)
        if isinstance(answer, dict):
            yield str(answer.get("Error", {}).get("Code"))
            yield str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        for name in ("code", "status"):
            value = getattr(step, name, None)
            if isinstance(value, int | str):
                yield str(value)
        step = step.__cause__ or step.__context__


def _said(error: BaseException) -> str:
    """In one line, without a word that a client repeats of what it was sent."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
