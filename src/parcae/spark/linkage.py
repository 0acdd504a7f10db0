"""Whether a jar of the plugin fits a Spark, read from class files: no Java is needed.

All that the plugin's classes name in Spark's jars must be there: classes, fields, methods, the
private members that the plugin reaches by reflection; and no abstract method may lack a body. That
is what Java checks too, but only when it comes to the place.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parcae.errors import ConfigError
from parcae.spark.build import read_jar_note

#: The class that `spark.plugins` names: what is checked is what it leads to.
PLUGIN_CLASS = "parcae.spark.ParcaePlugin"

_MAGIC = 0xCAFEBABE
_ABSTRACT = 0x0400
_INTERFACE = 0x0200
_OBJECT = "java/lang/Object"
#: Classes that come with Java itself.
_JAVA = ("java/", "javax/", "jdk/", "sun/")
_OF_OBJECT = frozenset(
    [
        "<init>",
        "clone",
        "equals",
        "finalize",
        "getClass",
        "hashCode",
        "notify",
        "notifyAll",
        "toString",
        "wait",
    ]
)
#: Tags of the constant pool and how many bytes follow (the text of tag 1 and tags 5, 6 apart).
_UTF8 = 1
_LONG = 5
_DOUBLE = 6
_CLASS = 7
_FIELD = 9
_METHOD = 10
_INTERFACE_METHOD = 11
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2}
_SIZES |= {17: 4, 18: 4, 19: 2, 20: 2}

_SETTING = re.compile(r"spark\.parcae(?:\.\w+)+")

#: A member: its class, its name and its descriptor.
Member = tuple[str, str, str]


@dataclass(frozen=True)
class ClassFile:
    """What a class file declares and what it names. Class names are written as "java/lang/Object".

    Args:
        name: of the class.
        parents: its superclass and its interfaces.
        is_abstract: an abstract class or an interface.
        is_interface: an interface.
        fields: (name, descriptor) of every field.
        methods: flags of every method, by (name, descriptor).
        classes: classes that it names.
        used_fields: fields that its code uses.
        used_methods: methods that its code calls.
        texts: names, descriptors and the program's own texts.
    """

    name: str
    parents: tuple[str, ...]
    is_abstract: bool
    is_interface: bool
    fields: frozenset[tuple[str, str]]
    methods: Mapping[tuple[str, str], int]
    classes: frozenset[str]
    used_fields: frozenset[Member]
    used_methods: frozenset[Member]
    texts: frozenset[str]


class _Reader:
    """Numbers, one after the other, of a class file."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def take(self, size: int) -> bytes:
        self._at += size
        return self._content[self._at - size : self._at]


@dataclass
class _Pool:
    texts: dict[int, str] = field(default_factory=dict)
    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    def class_name(self, index: int) -> str:
        (name,) = struct.unpack(">H", self.parts[index][1])
        return self.texts[name]

    def classes(self) -> Iterator[str]:
        """Names of all classes; of an array, that of its elements."""
        for index, (tag, _) in self.parts.items():
            if tag == _CLASS:
                name = self.class_name(index)
                if not name.startswith("["):
                    yield name
                elif name.endswith(";"):
                    yield name.lstrip("[")[1:-1]

    def members(self, *tags: int) -> Iterator[Member]:
        for tag, content in self.parts.values():
            if tag in tags:
                owner, pair = struct.unpack(">HH", content)
                name, descriptor = struct.unpack(">HH", self.parts[pair][1])
                if not self.class_name(owner).startswith("["):  # arrays have Object's methods
                    yield self.class_name(owner), self.texts[name], self.texts[descriptor]


def read_class(content: bytes) -> ClassFile:
    """Read a class file.

    Raises:
        ConfigError: it is none.
    """
    reader = _Reader(content)
    if reader.number(4) != _MAGIC:
        raise ConfigError("no class file: it does not begin with CAFEBABE")
    reader.take(4)  # version
    pool = _read_pool(reader)
    flags = reader.number(2)
    name = pool.class_name(reader.number(2))
    above = [reader.number(2)]
    above += [reader.number(2) for _ in range(reader.number(2))]
    fields = _read_members(reader, pool)
    methods = _read_members(reader, pool)
    return ClassFile(
        name=name,
        parents=tuple(pool.class_name(index) for index in above if index),
        is_abstract=bool(flags & _ABSTRACT),
        is_interface=bool(flags & _INTERFACE),
        fields=frozenset(fields),
        methods=methods,
        classes=frozenset(pool.classes()),
        used_fields=frozenset(pool.members(_FIELD)),
        used_methods=frozenset(pool.members(_METHOD, _INTERFACE_METHOD)),
        texts=frozenset(pool.texts.values()),
    )


def _read_pool(reader: _Reader) -> _Pool:
    pool = _Pool()
    count = reader.number(2)
    index = 1
    while index < count:
        tag = reader.number(1)
        if tag == _UTF8:
            pool.texts[index] = reader.take(reader.number(2)).decode("utf-8", "replace")
        else:
            pool.parts[index] = (tag, reader.take(_SIZES[tag]))
        index += 2 if tag in (_LONG, _DOUBLE) else 1
    return pool


def _read_members(reader: _Reader, pool: _Pool) -> dict[tuple[str, str], int]:
    """Flags of fields or methods by name and descriptor; their attributes are passed over."""
    found = {}
    for _ in range(reader.number(2)):
        flags = reader.number(2)
        name = pool.texts[reader.number(2)]
        found[name, pool.texts[reader.number(2)]] = flags
        for _ in range(reader.number(2)):
            reader.take(2)
            reader.take(reader.number(4))
    return found


class ClassPath:
    """The classes of jars, read when they are asked for.

    Args:
        jars: where two have the same class, the first one's counts.

    Raises:
        ConfigError: one is no jar.

    Example: `ClassPath([jar, *spark.jars.glob("*.jar")]).find("org/apache/spark/SparkConf")`.
    """

    def __init__(self, jars: Iterable[Path]) -> None:
        self._places = dict[str, Path]()
        self._read = dict[str, ClassFile | None]()
        for jar in jars:
            try:
                with zipfile.ZipFile(jar) as archive:
                    names = archive.namelist()
            except (OSError, zipfile.BadZipFile) as error:
                raise ConfigError(f"{jar} is no jar ({error}): put a whole one there") from error
            for name in names:
                if name.endswith(".class"):
                    self._places.setdefault(name.removesuffix(".class"), jar)

    def find(self, name: str) -> ClassFile | None:
        """A class, or None where no jar has it."""
        if name not in self._read:
            place = self._places.get(name)
            self._read[name] = _read_from(place, name) if place else None
        return self._read[name]

    def names_in(self, jar: Path) -> set[str]:
        """The classes that come from one of the jars."""
        return {name for name, place in self._places.items() if place == jar}

    def family(self, name: str) -> Iterator[tuple[str, ClassFile | None]]:
        """A class, its superclasses, then all interfaces; None for those that no jar has."""
        seen = set[str]()
        superclasses = [name]
        interfaces = list[str]()
        while superclasses or interfaces:
            current = superclasses.pop() if superclasses else interfaces.pop(0)
            if current in seen:
                continue
            seen.add(current)
            found = self.find(current)
            yield current, found
            if found is not None:
                is_class = not found.is_interface
                superclasses += found.parents[: 1 if is_class else 0]
                interfaces += found.parents[1:]

    def has_method(self, owner: str, name: str, descriptor: str) -> bool:
        """Whether a class has a method, its own or inherited; a class of Java itself has any."""
        for current, found in self.family(owner):
            if found is None:
                if name in _OF_OBJECT if current == _OBJECT else current.startswith(_JAVA):
                    return True
            elif (name, descriptor) in found.methods:
                return True
        return False

    def has_field(self, owner: str, name: str, descriptor: str) -> bool:
        """Whether a class has a field, its own or inherited; a class of Java itself has any."""
        for current, found in self.family(owner):
            if found is None:
                if current != _OBJECT and current.startswith(_JAVA):
                    return True
            elif (name, descriptor) in found.fields:
                return True
        return False

    def bodiless(self, name: str) -> Iterator[str]:
        """Abstract methods of a class's family that have no body in it, as "Class.method"."""
        bodies = set[tuple[str, str]]()
        wanted = dict[tuple[str, str], str]()
        for current, found in self.family(name):
            for method, flags in found.methods.items() if found else ():
                if flags & _ABSTRACT:
                    wanted.setdefault(method, current)
                else:
                    bodies.add(method)
        for method, owner in wanted.items():
            if method not in bodies and method[0] not in _OF_OBJECT:
                yield f"{_dotted(owner)}.{method[0]}"


def _read_from(jar: Path, name: str) -> ClassFile:
    with zipfile.ZipFile(jar) as archive:
        return read_class(archive.read(f"{name}.class"))


@dataclass(frozen=True)
class Fit:
    """How a jar of the plugin fits a Spark.

    Args:
        num_checked: classes and members that were looked for.
        missing: those that are not there, each in words.
    """

    num_checked: int
    missing: tuple[str, ...]


def check_fit(jar: Path, spark_jars: Path) -> Fit:
    """Look for all that the plugin's classes name in Spark's jars.

    Args:
        jar: of the plugin.
        spark_jars: the folder of Spark's jars.

    Raises:
        ConfigError: a jar cannot be read, or `jar` is none of the plugin.
    """
    private = read_jar_note(jar).private_members
    classes = ClassPath([jar, *sorted(spark_jars.glob("*.jar"))])
    checked = set[object]()
    missing = set[str]()
    for found in _reached(classes, classes.names_in(jar)):
        checked |= found.classes | found.used_methods | found.used_fields
        missing.update(_missing(classes, found))
    for member in private:
        owner, name = member.split("#")
        declared = classes.find(owner.replace(".", "/"))
        known = [*declared.fields, *declared.methods] if declared else []
        checked.add(member)
        if name not in {each for each, _ in known}:
            missing.add(f"the private member {owner}.{name}")
    return Fit(len(checked), tuple(sorted(missing)))


def known_settings(jar: Path) -> frozenset[str]:
    """The settings `spark.parcae...` that a jar's classes ask for.

    Raises:
        ConfigError: it is no jar.
    """
    classes = ClassPath([jar])
    read = [classes.find(name) for name in sorted(classes.names_in(jar))]
    texts = {text for each in read if each for text in each.texts}
    return frozenset(text for text in texts if _SETTING.fullmatch(text))


def _reached(classes: ClassPath, own: set[str]) -> Iterator[ClassFile]:
    """The plugin's classes that its entry leads to."""
    first = PLUGIN_CLASS.replace(".", "/")
    waiting = [first]
    seen = {first}
    while waiting:
        found = classes.find(waiting.pop())
        if found is None:
            raise ConfigError(f"the jar lacks a class of its own, {PLUGIN_CLASS}: build it again")
        yield found
        new = (found.classes & own) - seen
        seen |= new
        waiting += new


def _missing(classes: ClassPath, found: ClassFile) -> Iterator[str]:
    for name in found.classes:
        if not name.startswith(_JAVA) and classes.find(name) is None:
            yield f"the class {_dotted(name)}"
    for owner, name, descriptor in found.used_methods:
        if not _is_unknown(classes, owner) and not classes.has_method(owner, name, descriptor):
            yield f"the method {_dotted(owner)}.{name}{descriptor}"
    for owner, name, descriptor in found.used_fields:
        if not _is_unknown(classes, owner) and not classes.has_field(owner, name, descriptor):
            yield f"the field {_dotted(owner)}.{name}"
    if not found.is_abstract:
        for method in classes.bodiless(found.name):
            yield f"a body of {method} in {_dotted(found.name)}"


def _is_unknown(classes: ClassPath, owner: str) -> bool:
    """A class of Java itself, or one that is reported as missing already."""
    return owner.startswith(_JAVA) or classes.find(owner) is None


def _dotted(name: str) -> str:
    return name.replace("/", ".")
