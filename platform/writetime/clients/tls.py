"""Certificates: the files that the settings name, and the remedy for a rejected certificate."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra, SettingsSection, ZooKeeper

# OpenSSL's reports if it verifies strictly by RFC 5280 only (X509_V_FLAG_X509_STRICT), as `ssl.create_default_context`
# does from Python 3.13 on: `check_extensions` in crypto/x509/x509_vfy.c, texts in crypto/x509/x509_txt.c.
_STRICT = (
    "Missing Authority Key Identifier",
    "Missing Subject Key Identifier",
    "Authority Key Identifier marked critical",
    "Subject Key Identifier marked critical",
    "Basic Constraints of CA cert not marked critical",
    "CA cert does not include key usage extension",
    "Key usage keyCertSign invalid for non-CA cert",
    "Path length given without key usage keyCertSign",
    "Path length invalid for non-CA cert",
    "Issuer name empty",
    "Subject name empty",
    "Empty Subject Alternative Name extension",
    "Using cert extension requires at least X509v3",
)


def remedy(reason: str, section: str) -> str | None:
    """Return the remedy for a failed connection, by the text of the client's error; None if it is not about a
    certificate. The section of the settings names the authority, as `tls_ca_file`.
    """
    if "CERTIFICATE_REQUIRED" in reason:
        return f"the server requires a certificate of its clients: set {section}.tls_certificate_file and tls_key_file"
    if "CERTIFICATE_VERIFY_FAILED" not in reason:
        return None
    if any(text in reason for text in _STRICT):
        return (
            "Python 3.13 and later require the extensions of RFC 5280 in certificates; issue them again: the "
            "authority's with basicConstraints (critical), keyUsage with keyCertSign and subjectKeyIdentifier, the "
            "server's with authorityKeyIdentifier"
        )
    return (
        f"the server's certificate must be valid, come from the authority in {section}.tls_ca_file, and name the "
        "server's address"
    )


def files_of(section: str, settings: SettingsSection) -> dict[str, Path]:
    """Return the files of certificates and keys that a section of the settings names, by the names of the settings."""
    # Some sections have no authority, others no certificate.
    names = [name for name in type(settings).model_fields if name.startswith("tls_") and name.endswith("_file")]
    found = {f"{section}.{name}": getattr(settings, name) for name in names}
    return {setting: file for setting, file in found.items() if file is not None}


def require_readable(files: Mapping[str, Path]) -> None:
    """Open files, by the names of their settings. OpenSSL's errors do not name the file. Raises WritetimeError: one
    cannot be read; with the setting, the file and the reason.
    """
    for setting, file in files.items():
        try:
            file.read_bytes()
        except OSError as e:
            raise WritetimeError(f"{setting}: {file} cannot be read: {e.strerror}") from None


def client_context(section: str, settings: Cassandra | ZooKeeper) -> ssl.SSLContext | None:
    """Return the context of a client that trusts the authority of its section, and has its certificate, if there is
    one; None without an authority. Raises WritetimeError: a file cannot be read, or is not what its setting says.
    """
    authority, certificate, key = settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file
    if authority is None:
        return None
    require_readable(files_of(section, settings))
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except ssl.SSLError as e:
        raise WritetimeError(
            f"{section}.tls_ca_file: {authority} has no certificates in PEM ({e.reason or e})"
        ) from None
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as e:
        raise WritetimeError(
            f"{section}.tls_certificate_file: {certificate} and {key or 'the key in it'} are not a certificate in PEM "
            f"with its key, without a passphrase ({e.reason or e})"
        ) from None
    return context
