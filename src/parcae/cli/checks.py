"""Checks of options while the command line is read: places of files, times and numbers."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from parcae.base.errors import ConfigError, PolicyError
from parcae.base.extensions import require
from parcae.base.files import check_folder, check_place, is_written_to
from parcae.base.texts import ms_from_text
from parcae.cli.process import outlive_readers
from parcae.evaluation.pictures import chart_format
from parcae.policies.checkpoint import BEST_FILE, SUFFIX, read_checkpoint
from parcae.policies.names import mentioned_files

#: Key of a context's dictionary of the files that the command's arguments and options name.
_FILES = "parcae.base.files"
#: What stands before the workload of a mixture, as in mixed:0.5:mine.parcae.
_MIXTURE = re.compile(r"^(mixed:[^:]*:)+")


def path_parser(name: str) -> Callable[[str], Path]:
    """What makes a path of the text that an option or argument gives."""

    # Typer shows the function's name as that of the type.
    def path(text: str) -> Path:
        check_path(name, text)
        return Path(text)

    return path


def check_path(name: str, text: str) -> None:
    """Refuse an empty path, which would be the current folder, and a sign for a stream."""
    if text == "":
        raise ConfigError(
            f"{name} is empty, perhaps an unset variable of the shell: give a path (. is the "
            "current folder)"
        )
    if text == "-":
        raise ConfigError(
            f"{name} -: no stream has this name here; standard output is /dev/stdout, and a file "
            "of this name ./-"
        )


class _Named(NamedTuple):
    """A file that an argument or option names: by what path, and whether the command writes it."""

    option: str
    path: Path
    is_written: bool


def _flag(option: typer.CallbackParam) -> str:
    return max(option.opts, key=len)


def names_in(text: str) -> list[str]:
    """The names that an option gives, separated by commas, and perhaps by spaces too.

    A comma in parentheses belongs to a formula.
    """
    words = list[str]()
    for word in text.split(","):
        if words and words[-1].count("(") > words[-1].count(")"):
            words[-1] += f",{word}"
        else:
            words.append(word)
    names = [word.strip() for word in words]
    if not all(names):
        raise ConfigError(
            f"{text!r} leaves a name empty: give at least one name, and separate names by single "
            "commas"
        )
    return names


def _refuse_replacing(
    context: typer.Context, option: typer.CallbackParam, path: Path, *, is_written: bool
) -> None:
    """Note that an option names a file; refuse a file that is read and written."""
    # Two outputs may well go to one device or pipe, one after the other.
    if is_written_to(path):
        return
    this = _Named(_flag(option), path, is_written)
    other = context.meta.setdefault(_FILES, {}).setdefault(path.resolve(), this)
    if other.option == this.option or not (this.is_written or other.is_written):
        return
    if this.is_written and other.is_written:
        raise ConfigError(f"{other.option} and {this.option} both write {path}: give two files")
    writer = this if this.is_written else other
    raise ConfigError(
        f"{writer.option} {writer.path} would replace what the command reads: give another file"
    )


def _reads(context: typer.Context, option: typer.CallbackParam, paths: Iterable[object]) -> None:
    for path in (Path(_MIXTURE.sub("", str(one))) for one in paths):
        if path.exists():
            _refuse_replacing(context, option, path, is_written=False)


def _read(context: typer.Context, option: typer.CallbackParam, given: Any) -> Any:
    """No option of the command replaces a file that it reads."""
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    for one in several:
        is_argument = option.param_type_name == "argument"
        check_path((option.metavar or _flag(option).upper()) if is_argument else _flag(option), one)
    _reads(context, option, several)
    return given


def _write(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
    """A file can be written."""
    if path is not None:
        outlive_readers()
        check_place(path)
        _refuse_replacing(context, option, path, is_written=True)
    return path


def _picture(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
    """A picture, or a page with some, can be drawn and written."""
    if _write(context, option, path) is not None:
        require("matplotlib")
    return path


def _chart(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
    """A Gantt chart, page or picture, can be drawn and written."""
    if path is not None:
        chart_format(path)
    return _picture(context, option, path)


def _folder(path: Path | None) -> Path | None:
    """Files can be written in a folder, which may not exist yet."""
    if path is not None:
        outlive_readers()
        check_folder(path)
    return path


@contextlib.contextmanager
def no_new_folders(values: Mapping[str, Any]) -> Iterator[None]:
    """A command that fails leaves no empty folder that it made for a path among its values."""
    paths = [path for path in values.values() if isinstance(path, Path)]
    new = [one for path in paths for one in (path, *path.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        for folder in new:
            # One with files in it, or that was not made, stays as it is.
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _checkpoint(context: typer.Context, option: typer.CallbackParam, path: Path) -> Path:
    """A checkpoint can be written, and then named as a policy."""
    _write(context, option, path)
    _check_named(path)
    return path


def _check_named(path: Path) -> None:
    # Imported here: the registry takes a second to import, and most commands write no policy.
    from parcae.evaluation.policies import check_named

    check_named(path)


def _learned(context: typer.Context, option: typer.CallbackParam, path: Path) -> Path:
    """Policies can be written in a folder, and then named."""
    _folder(path)
    _check_named(path / BEST_FILE)
    _refuse_replacing(context, option, path / BEST_FILE, is_written=True)
    return path


def _name(context: typer.Context, option: typer.CallbackParam, name: str | None) -> str | None:
    """No option replaces a file of a policy."""
    # A wrong name is refused where its policy is made, which knows the world.
    with contextlib.suppress(PolicyError):
        _reads(context, option, mentioned_files([name] if name else []))
    return name


def _names(context: typer.Context, option: typer.CallbackParam, text: str | None) -> str | None:
    """The same for policies that are separated by commas."""
    for name in names_in(text) if text is not None else ():
        _name(context, option, name)
    return text


def _start(context: typer.Context, option: typer.CallbackParam, name: str | None) -> str | None:
    """The same for what a search starts from, but it may go on in the file of a tuned rule."""
    path = Path(name or "")
    is_checkpoint = path.suffix == SUFFIX and path.is_file()
    if is_checkpoint and read_checkpoint(path).kind.endswith("rule"):
        return name
    return _name(context, option, name)


def _also(
    context: typer.Context, option: typer.CallbackParam, texts: list[str] | None
) -> list[str] | None:
    """No option replaces a workload of `--also`."""
    parts = [part.partition("=") for text in texts or [] for part in text.split()]
    _reads(context, option, [value for key, _, value in parts if key == "workload"])
    return texts


def _finite(option: typer.CallbackParam, number: float | None) -> float | None:
    """A number is finite."""
    if number is not None and not math.isfinite(number):
        raise ConfigError(
            f"{_flag(option)} {number:g} is no finite number: give a number, such as 1.5"
        )
    return number


def _ms(option: typer.CallbackParam, text: str | None) -> int | None:
    """A time such as "30s", in ms."""
    found_ms = ms_from_text(str(text))
    if found_ms is None:
        raise ConfigError(f"{_flag(option)} {text}: write a time in ms, s, m or h, as in 30s")
    return round(found_ms)


#: The checks that an option can name.
CHECKS: dict[str, Any] = {
    "": None,
    "read": _read,
    "write": _write,
    "folder": _folder,
    "picture": _picture,
    "chart": _chart,
    "checkpoint": _checkpoint,
    "learned": _learned,
    "policy": _name,
    "policies": _names,
    "start": _start,
    "also": _also,
    "finite": _finite,
    "ms": _ms,
}
