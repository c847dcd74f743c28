"""A store whose addresses have a password, like those of sftp: `vault://user:password@host/a/local/path`."""

import fsspec
from fsspec.implementations.local import LocalFileSystem


class _Vault(LocalFileSystem):
    protocol = ("vault",)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.partition("://")[2].partition("/")[2] if "://" in path else path


fsspec.register_implementation("vault", _Vault)


def vault(path: object, password: str = "secret") -> str:
    """Return the address of a local path."""
    return f"vault://user:{password}@host{path}"
