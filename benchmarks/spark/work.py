"""The work folder of a script: results are kept there, so that a stopped script goes on from it."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError, FormatError, ParcaeError
from parcae.base.files import write_text
from parcae.evaluation.kept_runs import files_in_names

#: The prefix of policies that plan in a service.
THROUGH_SERVICE = "service:"


class Work:
    """A folder of results by name, each a file of JSON that is written when it is complete."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if settings is not None:
            plain = json.loads(json.dumps(settings))
            check_same(plain, self.kept("settings", lambda: plain), f"this command and {folder}")

    def file(self, name: str) -> Path:
        """The file of a result."""
        return self.folder / f"{name}.json"

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """A result; it is made if it is not there yet."""
        file = self.file(name)
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            write_text(file, json.dumps(make(), indent=1) + "\n")
        try:
            return json.loads(file.read_text())
        except ValueError as error:
            raise FormatError(f"{file} is not JSON ({error}); remove it to run it again") from error


def check_same(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Refuse settings that differ."""
    for name in one:
        if one[name] != other.get(name):
            raise ConfigError(
                f"{where} differ in {name}: {one[name]} and {other.get(name)}; use another --work"
            )


def hash_of(*inputs: Any) -> str:
    """A short hash of what decides a result, for the name of its file; the inputs are JSON."""
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:10]


def content_of(policy: str) -> list[str]:
    """The hashes of the files that a policy's name mentions: a name does not say what is in it."""
    return [*files_in_names([policy.removeprefix(THROUGH_SERVICE)]).values()]


def file_name(policy: str) -> str:
    """A policy's name as a part of file names: "parcae+account" becomes "parcae_account"."""
    return re.sub(r"[^\w.-]", "_", policy)


def tell(text: str) -> None:
    """Print a line about the present step."""
    print(text, file=sys.stderr, flush=True)


def names(text: str) -> tuple[str, ...]:
    """The names that an option gives, separated by commas."""
    found = tuple(word.strip() for word in text.split(","))
    if not all(found) or len({*found}) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r}: write each name once, separated by commas")
    return found


def number(least: float, most: float = math.inf, kind: type = int) -> Callable[[str], Any]:
    """Reads a number of an option, from `least` to `most`; only whole ones have no kind."""

    def read(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most or math.isinf(value):
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least} to {most}")
        return value

    return read


def numbers(text: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    """The numbers that an option gives, separated by commas, each once."""
    return tuple(dict.fromkeys(read(word) for word in text.split(",")))


def run_script(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None]) -> None:
    """Run a script with the options of its command line; an error of Parcae is one line."""
    try:
        main(parser.parse_args())
    except ParcaeError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
