"""Certificates for a test, in files as a user has them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import trustme

__all__ = ["Certificates", "make_certificates"]


@dataclass(frozen=True)
class Certificates:
    """The files of one authority.

    Attributes:
        authority: The certificate of the authority.
        server: Certificate and key of a server on this machine.
        server_chain: Its certificate alone.
        server_key: Its key alone.
        elsewhere: The same for a server of another name.
        client: Certificate and key of a client.
        key: The key of `client` alone.
        stranger: The certificate of another authority, which has signed nothing here.
    """

    authority: Path
    server: Path
    server_chain: Path
    server_key: Path
    elsewhere: Path
    client: Path
    key: Path
    stranger: Path


def make_certificates(directory: Path) -> Certificates:
    """Write them into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    ours = trustme.CA()
    names = (each.name for each in fields(Certificates))
    files = Certificates(**{name: directory / f"{name}.pem" for name in names})
    ours.cert_pem.write_to_path(files.authority)
    trustme.CA().cert_pem.write_to_path(files.stranger)
    for path, name in (
        (files.server, "127.0.0.1"),
        (files.elsewhere, "elsewhere.example.org"),
        (files.client, "desk-7@example.org"),
    ):
        issued = (
            ours.issue_cert(name, "localhost") if path == files.server else ours.issue_cert(name)
        )
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        if path == files.client:
            issued.private_key_pem.write_to_path(files.key)
        if path == files.server:
            issued.private_key_pem.write_to_path(files.server_key)
            for cert in issued.cert_chain_pems:
                cert.write_to_path(files.server_chain, append=True)
    return files
