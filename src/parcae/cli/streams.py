"""The standard streams of a command whose caller closed them, or stopped to read them."""

from __future__ import annotations

import io
import os
import sys


def open_closed_streams() -> None:
    """Let standard streams that the caller closed (`2>&-`) lead nowhere.

    Python has None in their place, and the next files that are opened would get their numbers.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the smallest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "wb", closefd=False)
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), "utf-8"))
