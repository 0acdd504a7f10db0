"""A folder of npy files that may be a folder within the given one, or in a zip archive."""

from __future__ import annotations

import re
from pathlib import Path

from parcae.errors import FormatError
from parcae.loader import members, read_file, read_member
from parcae.units import BYTES_PER_MIB

#: The folders of TPC-H profiles: one for each input size.
_SIZED_FILE = re.compile(r"(?:^|(.*)/)(\d+g/[\w-]+\.npy)$")
_DEEPEST = 6
#: The released profiles have files of less than 1 MiB.
_MAX_FILE_BYTES = 32 * BYTES_PER_MIB


class NpyFolder:
    """The files `2g/NAME.npy` and so on, wherever they are in a folder or a zip archive.

    Args:
        path: the folder that contains `2g`, a folder above it, or a zip archive of either.

    Raises:
        FormatError: several folders have such files.
        OSError: the path cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_zip = path.is_file()
        names = self._names()
        found = [(match[1] or "", name) for name in names if (match := _SIZED_FILE.search(name))]
        folders = sorted({folder for folder, _ in found})
        if len(folders) > 1:
            raise FormatError(
                f"{path}: several folders have profiles ({', '.join(folders[:3])}); give one"
            )
        self._prefix = f"{folders[0]}/" if folders and folders[0] else ""
        self._files = {name.removeprefix(self._prefix) for _, name in found}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> tuple[bytes, str]:
        """The content of a file, and what it is called in messages.

        Raises:
            FormatError: the file is not there, damaged, or larger than 32 MiB.
        """
        label = f"{self.path}{'!' if self._is_zip else '/'}{self._prefix}{name}"
        if name not in self:
            raise FormatError(f"{label}: no such file")
        if not self._is_zip:
            return read_file(self.path / f"{self._prefix}{name}", _MAX_FILE_BYTES), label
        return read_member(self.path, self._prefix + name, _MAX_FILE_BYTES), label

    def _names(self) -> list[str]:
        """The npy files, relative to the path."""
        if not self._is_zip:
            patterns = ("*/" * depth + "*.npy" for depth in range(1, _DEEPEST))
            found = [file for pattern in patterns for file in self.path.glob(pattern)]
            return [file.relative_to(self.path).as_posix() for file in found]
        return [info.filename for info in members(self.path)]
