"""An authority, and certificates of a server on the loopback interface and of a client."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_tls_files(folder: Path, names: str = "IP:127.0.0.1") -> None:
    """Writes ca.pem, server.pem, server.key, client.pem and client.key."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    # Keys of RSA take 25 times as long to make.
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem",
            "-subj", "/CN=ca", "-days", "1")  # fmt: skip
    (folder / "san").write_text(f"subjectAltName={names}")
    for name in ("server", "client"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out",
                f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-days", "1",
                "-extfile", "san")  # fmt: skip
