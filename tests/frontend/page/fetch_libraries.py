"""`make page-libraries`: the libraries of the page, as their manifest names them, from npm."""

from __future__ import annotations

import hashlib
import io
import tarfile

import httpx
import msgspec

from frontend.page.page_libraries import FOLDER, Library, LibraryFile, Manifest, read_manifest

_REGISTRY = "https://registry.npmjs.org"
_IN_PACKAGE = "package/"  # where npm's archives have everything


def fetched(library: Library) -> Library:
    """Writes its files; returns it with their hashes as they are now."""
    base = library.package.rpartition("/")[2]
    url = f"{_REGISTRY}/{library.package}/-/{base}-{library.version}.tgz"
    answer = httpx.get(url, timeout=60).raise_for_status()
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        files = [_extracted(archive, file) for file in library.files]
    return msgspec.structs.replace(library, files=files)


def _extracted(archive: tarfile.TarFile, file: LibraryFile) -> LibraryFile:
    member = archive.extractfile(_IN_PACKAGE + file.source)
    assert member is not None, f"{file.source} is no file"
    content = member.read()
    (FOLDER / file.name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    print(f"{file.name}  {len(content):,} bytes  {'same' if digest == file.sha256 else 'CHANGED'}")
    return msgspec.structs.replace(file, sha256=digest)


def main() -> None:
    """Every library. To take another version, change it in the manifest first."""
    manifest = Manifest([fetched(library) for library in read_manifest().libraries])
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    (FOLDER / "manifest.json").write_bytes(text)


if __name__ == "__main__":
    main()
