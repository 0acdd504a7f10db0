"""Opens Parquet files in a process of their own.

A damaged file can make polars ask for more memory than there is, which ends its process. In a child
process that is an error like any other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from parcae.errors import FormatError

if TYPE_CHECKING:
    import polars as pl

MAX_ROWS = 20_000_000
#: The child's program: it copies a table into a file that polars wrote itself.
_COPY = """
import sys
import polars as pl
source, copy, most_rows = sys.argv[1:]
try:
    rows = pl.scan_parquet(source, glob=False).select(pl.len()).collect().item()
    if rows > int(most_rows):
        sys.exit(f"{rows:,} rows, and at most {int(most_rows):,} are read")
    pl.read_parquet(source, glob=False).write_ipc(copy)
except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
    sys.exit(str(error))
"""


def read_parquet_frame(path: Path) -> pl.DataFrame:
    """The table of a Parquet file.

    Raises:
        FormatError: the file is none, damaged, has more than `MAX_ROWS` rows, or its name is not
            UTF-8, which polars cannot open.
        FileNotFoundError: no such file.
    """
    import polars as pl

    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FormatError(f"{path}: the name is not in UTF-8; rename the file") from None
    # The child finds polars where this process found it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RUST_BACKTRACE": "0"}
    with tempfile.TemporaryDirectory(prefix="parcae-parquet-") as folder:
        copy = Path(folder) / "table.arrow"
        command = [sys.executable, "-c", _COPY, str(path), str(copy), str(MAX_ROWS)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[0][:120] if lines else f"exit status {done.returncode}"
            raise FormatError(f"{path}: no Parquet file, or a damaged one ({reason})")
        # In memory, because the file is deleted now.
        return pl.read_ipc(copy.read_bytes())
