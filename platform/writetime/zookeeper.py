"""How ZooKeeper is reached: the options of its client, as the settings have them."""

import logging
from typing import Any

from kazoo.security import make_digest_acl

from writetime.config import Settings

# Below this level kazoo logs its requests, the login among them.
_log = logging.getLogger(f"{__name__}.client")
_log.setLevel(logging.INFO)


def client_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of a `KazooClient`.

    With a user name, the client authenticates by ZooKeeper's scheme `digest`, and what it creates is for that user
    alone. With a CA file it speaks TLS, and the server's certificate has to name the host of `zookeeper.hosts`.
    """
    zookeeper = settings.zookeeper
    options: dict[str, Any] = {"hosts": zookeeper.hosts, "logger": _log}
    if zookeeper.username is not None and zookeeper.password is not None:
        login = f"{zookeeper.username}:{zookeeper.password.get_secret_value()}"
        # Not for the client's certificate, too, as ACLs for whoever created a node would be.
        acl = [make_digest_acl(zookeeper.username, zookeeper.password.get_secret_value(), all=True)]
        options |= {"auth_data": [("digest", login)], "default_acl": acl}
    if zookeeper.tls_ca_file is not None:
        options |= {
            "use_ssl": True,
            "check_hostname": True,
            "ca": str(zookeeper.tls_ca_file),
            "certfile": zookeeper.tls_certificate_file and str(zookeeper.tls_certificate_file),
            "keyfile": zookeeper.tls_key_file and str(zookeeper.tls_key_file),
        }
    return options
