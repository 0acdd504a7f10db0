"""Files at addresses such as s3://bucket/logs, by fsspec and the libraries that it names."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from parcae.base.errors import ConfigError, FormatError, InputError
from parcae.base.extensions import require
from parcae.base.texts import BYTES_PER_MIB

#: A path keeps one of two slashes.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):(//?)(.+)")
_COPIES = "parcae-copies-"
#: Where a copy is, in its path: "s3:" is a folder.
_COPY = re.compile(rf"\S*{_COPIES}\w+/([a-z][a-z0-9+.-]+):/")
#: At most so many bytes are copied from one address.
MAX_COPIED_BYTES = 64 * 1024 * BYTES_PER_MIB
#: What fsspec needs beside itself, by scheme.
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "hdfs": "pyarrow"}
#: Hadoop's names of schemes, as fsspec calls them.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}


def address_of(path: str | Path) -> str | None:
    """The address that a path is, with its scheme as it is written; None for a local path."""
    found = _ADDRESS.fullmatch(str(path))
    if found is None or found[1] == "file" or (found[2] == "/" and Path(path).exists()):
        return None
    return f"{found[1]}://{found[3]}"


def shown(path: object) -> str:
    """A path in messages: of a copy, the address that it was copied from."""
    return _COPY.sub(r"\1://", str(path))


class Copies:
    """Copies of what addresses name, in a folder that is removed with this object."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def local(self, paths: Sequence[str | Path]) -> list[Path]:
        """The paths, with copies in the place of addresses."""
        addresses = [address_of(path) for path in paths]
        return [
            Path(path) if address is None else self._copy(address)
            for path, address in zip(paths, addresses, strict=True)
        ]

    def _copy(self, address: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=_COPIES))
            weakref.finalize(self, shutil.rmtree, self._folder, True)
        scheme, _, place = address.partition("://")
        target = self._folder / f"{scheme}:" / _safe(place)
        with _named(address):
            system, root = _system(address)
            # A folder of a web server is a page; other systems say what is a folder.
            is_web = scheme in ("http", "https")
            is_folder = root.endswith("/") if is_web else system.isdir(root)
            found = system.find(root, detail=True) if is_folder else {root: system.info(root)}
            if sum(info.get("size") or 0 for info in found.values()) > MAX_COPIED_BYTES:
                raise FormatError(f"{address}: more than 64 GiB; name fewer logs")
            base = str(system._strip_protocol(root)).rstrip("/")
            for name in found:
                below = str(system._strip_protocol(name)).removeprefix(base)
                one = target / _safe(below) if is_folder else target
                one.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(name, str(one))
        if not target.exists():
            raise FormatError(f"{address}: there is nothing here; check the address")
        return target


@contextmanager
def written(address: str) -> Iterator[BinaryIO]:
    """Yield a stream to a local file that is put at the address at the end of the context."""
    with tempfile.TemporaryDirectory(prefix=_COPIES) as folder:
        path = Path(folder) / "file"
        with path.open("wb") as stream:
            yield stream
        with _named(address):
            system, root = _system(address)
            system.put_file(str(path), root)


def _safe(place: str) -> PurePosixPath:
    """A place as a path below a folder, without the parameters of an address."""
    parts = PurePosixPath(place.partition("?")[0]).parts
    return PurePosixPath(*(part for part in parts if part not in ("/", "..")))


def _system(address: str) -> tuple[Any, str]:
    require("fsspec")
    # Imported here: most commands read local files.
    import fsspec

    scheme, _, place = address.partition("://")
    known = _SCHEMES.get(scheme, scheme)
    try:
        system, root = fsspec.url_to_fs(f"{known}://{place}")
    except ImportError as error:
        library = _LIBRARIES.get(known, "")
        what = f"pip install {library}" if library else str(error)
        raise ConfigError(
            f"{address}: {scheme}:// needs one more library: {what}; or use local files"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{address}: {scheme}:// is not known ({error}); use local files"
        ) from None
    return system, str(root)


@contextmanager
def _named(address: str) -> Iterator[None]:
    """Say which address cannot be read; every library of a store has errors of its own."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise FormatError(f"{address}: no such file or folder; check the address") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(
            f"{address}: cannot be reached ({reason}); check the address and your login"
        ) from error
