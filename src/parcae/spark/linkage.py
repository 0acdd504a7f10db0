"""Checks whether a jar of the plugin fits a Spark, by reading class files. It needs no Java.

Everything in Spark's jars that the plugin's classes use must exist: classes, fields, methods, and
the private members that the plugin accesses by reflection. No abstract method may lack a body. Java
checks the same, but only when it runs the code that uses a member.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parcae.base.errors import ConfigError, InputError
from parcae.base.loader import read_member
from parcae.spark.build import read_jar_note

#: The class that `spark.plugins` names. It and the classes that it uses are checked.
PLUGIN_CLASS = "parcae.spark.ParcaePlugin"

#: The first bytes of a class file, and access flags of classes and methods.
_MAGIC = 0xCAFEBABE
_ABSTRACT = 0x0400
_INTERFACE = 0x0200
_OBJECT = "java/lang/Object"
#: Classes that come with Java itself.
_JAVA = ("java/", "javax/", "jdk/", "sun/")
#: Methods of java.lang.Object, which every class inherits.
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
#: Tags of entries of the constant pool.
_UTF8 = 1
_LONG = 5
_DOUBLE = 6
_CLASS = 7
_FIELD = 9
_METHOD = 10
_INTERFACE_METHOD = 11
#: Bytes of an entry after its tag, by tag. An entry of tag 1 starts with its own length.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2}
_SIZES |= {17: 4, 18: 4, 19: 2, 20: 2}

_SETTING = re.compile(r"spark\.parcae(?:\.\w+)+")

#: A member: its class, its name and its descriptor.
Member = tuple[str, str, str]


@dataclass(frozen=True)
class ClassFile:
    """What a class file declares and uses. Class names are written as "java/lang/Object"."""

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
    """Reads a class file from its start to its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, size: int) -> int:
        """The next big-endian number of so many bytes."""
        return int.from_bytes(self.take(size), "big")

    def take(self, size: int) -> bytes:
        """The next so many bytes."""
        self._at += size
        if self._at > len(self._content):
            raise ConfigError("a class file ends too early")
        return self._content[self._at - size : self._at]


@dataclass
class _Pool:
    """The constant pool: texts, and other entries as (tag, content), by index."""

    texts: dict[int, str] = field(default_factory=dict)
    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    def class_name(self, index: int) -> str:
        (name,) = struct.unpack(">H", self.parts[index][1])
        return self.texts[name]

    def classes(self) -> Iterator[str]:
        """The names of all classes; for an array, that of its elements."""
        for index, (tag, _) in self.parts.items():
            if tag == _CLASS:
                name = self.class_name(index)
                if not name.startswith("["):
                    yield name
                elif name.endswith(";"):
                    yield name.lstrip("[")[1:-1]

    def members(self, *tags: int) -> Iterator[Member]:
        """The fields or methods of entries with these tags."""
        for tag, content in self.parts.values():
            if tag in tags:
                owner, pair = struct.unpack(">HH", content)
                name, descriptor = struct.unpack(">HH", self.parts[pair][1])
                if not self.class_name(owner).startswith("["):  # arrays only have Object's methods
                    yield self.class_name(owner), self.texts[name], self.texts[descriptor]


def read_class(content: bytes) -> ClassFile:
    """Read a class file."""
    reader = _Reader(content)
    if reader.number(4) != _MAGIC:
        raise ConfigError("not a class file: it does not begin with CAFEBABE")
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
        # A long or double takes two indices of the pool.
        index += 2 if tag in (_LONG, _DOUBLE) else 1
    return pool


def _read_members(reader: _Reader, pool: _Pool) -> dict[tuple[str, str], int]:
    """Access flags of fields or methods, by name and descriptor; attributes are skipped."""
    members = {}
    for _ in range(reader.number(2)):
        flags = reader.number(2)
        name = pool.texts[reader.number(2)]
        members[name, pool.texts[reader.number(2)]] = flags
        for _ in range(reader.number(2)):
            reader.take(2)
            reader.take(reader.number(4))
    return members


class ClassPath:
    """The classes of several jars. A class is read when it is needed for the first time.

    Raises:
        ConfigError: a file is not a jar.

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
                raise ConfigError(
                    f"{jar} is no jar ({error}): replace it by a complete one"
                ) from error
            for name in names:
                if name.endswith(".class"):
                    self._places.setdefault(name.removesuffix(".class"), jar)

    def find(self, name: str) -> ClassFile | None:
        """The class of that name; None if no jar has it."""
        if name not in self._read:
            place = self._places.get(name)
            self._read[name] = _read_from(place, name) if place else None
        return self._read[name]

    def names_in(self, jar: Path) -> set[str]:
        """The classes that come from one of the jars."""
        return {name for name, place in self._places.items() if place == jar}

    def family(self, name: str) -> Iterator[tuple[str, ClassFile | None]]:
        """A class, its superclasses, then all interfaces, with None for those that no jar has."""
        seen = set[str]()
        # Superclasses come before interfaces, since their methods have precedence in Java.
        superclasses = [name]
        interfaces = list[str]()
        while superclasses or interfaces:
            current = superclasses.pop() if superclasses else interfaces.pop(0)
            if current in seen:
                continue
            seen.add(current)
            declared = self.find(current)
            yield current, declared
            if declared is not None:
                is_class = not declared.is_interface
                superclasses += declared.parents[: 1 if is_class else 0]
                interfaces += declared.parents[1:]

    def has_method(self, owner: str, name: str, descriptor: str) -> bool:
        """Whether a class declares or inherits a method.

        Classes of Java itself are in no jar. They count as having every method.
        """
        for current, declared in self.family(owner):
            if declared is None:
                if name in _OF_OBJECT if current == _OBJECT else current.startswith(_JAVA):
                    return True
            elif (name, descriptor) in declared.methods:
                return True
        return False

    def has_field(self, owner: str, name: str, descriptor: str) -> bool:
        """Whether a class declares or inherits a field.

        Classes of Java itself are in no jar. They count as having every field.
        """
        for current, declared in self.family(owner):
            if declared is None:
                if current != _OBJECT and current.startswith(_JAVA):
                    return True
            elif (name, descriptor) in declared.fields:
                return True
        return False

    def bodiless(self, name: str) -> Iterator[str]:
        """Abstract methods that a class inherits without a body, as "Class.method"."""
        # A body may come after its abstract declaration, such as a default method's.
        bodies = set[tuple[str, str]]()
        wanted = dict[tuple[str, str], str]()
        for current, declared in self.family(name):
            for method, flags in declared.methods.items() if declared else ():
                if flags & _ABSTRACT:
                    wanted.setdefault(method, current)
                else:
                    bodies.add(method)
        for method, owner in wanted.items():
            if method not in bodies and method[0] not in _OF_OBJECT:
                yield f"{_dotted(owner)}.{method[0]}"


def _read_from(jar: Path, name: str) -> ClassFile:
    try:
        return read_class(read_member(jar, f"{name}.class"))
    except InputError as error:
        raise ConfigError(
            f"{jar}: {name}.class: {error}; replace the jar by a complete one"
        ) from error


@dataclass(frozen=True)
class Fit:
    """How a jar of the plugin fits a Spark."""

    num_checked: int
    missing: tuple[str, ...]


def check_fit(jar: Path, spark_jars: Path) -> Fit:
    """Look up everything that the plugin's classes use in the folder of Spark's jars."""
    # Reflective accesses are not in class files as members; the manifest lists them.
    private = read_jar_note(jar).private_members
    classes = ClassPath([jar, *sorted(spark_jars.glob("*.jar"))])
    checked = set[object]()
    missing = set[str]()
    for plugin_class in _reached(classes, classes.names_in(jar)):
        checked |= plugin_class.classes | plugin_class.used_methods | plugin_class.used_fields
        missing.update(_missing(classes, plugin_class))
    for member in private:
        owner, name = member.split("#")
        declared = classes.find(owner.replace(".", "/"))
        known = [*declared.fields, *declared.methods] if declared else []
        checked.add(member)
        if name not in {each for each, _ in known}:
            missing.add(f"the private member {owner}.{name}")
    return Fit(len(checked), tuple(sorted(missing)))


def known_settings(jar: Path) -> frozenset[str]:
    """The settings `spark.parcae...` that the classes of a jar read."""
    classes = ClassPath([jar])
    # The names of settings are string literals of the classes.
    read = [classes.find(name) for name in sorted(classes.names_in(jar))]
    texts = {text for each in read if each for text in each.texts}
    return frozenset(text for text in texts if _SETTING.fullmatch(text))


def _reached(classes: ClassPath, of_plugin: set[str]) -> Iterator[ClassFile]:
    """The plugin's classes that its entry class uses, directly or through others."""
    first = PLUGIN_CLASS.replace(".", "/")
    waiting = [first]
    seen = {first}
    while waiting:
        current = classes.find(waiting.pop())
        if current is None:
            raise ConfigError(
                f"the jar lacks a class of the plugin ({PLUGIN_CLASS} uses it): build it again"
            )
        yield current
        # Only the plugin's classes are followed; Spark's classes need no check.
        new = (current.classes & of_plugin) - seen
        seen |= new
        waiting += new


def _missing(classes: ClassPath, plugin_class: ClassFile) -> Iterator[str]:
    """Descriptions of what a class uses and what no jar has."""
    for name in plugin_class.classes:
        if not name.startswith(_JAVA) and classes.find(name) is None:
            yield f"the class {_dotted(name)}"
    for owner, name, descriptor in plugin_class.used_methods:
        if not _is_unknown(classes, owner) and not classes.has_method(owner, name, descriptor):
            yield f"the method {_dotted(owner)}.{name}{descriptor}"
    for owner, name, descriptor in plugin_class.used_fields:
        if not _is_unknown(classes, owner) and not classes.has_field(owner, name, descriptor):
            yield f"the field {_dotted(owner)}.{name}"
    if not plugin_class.is_abstract:
        for method in classes.bodiless(plugin_class.name):
            yield f"a body of {method} in {_dotted(plugin_class.name)}"


def _is_unknown(classes: ClassPath, owner: str) -> bool:
    """Whether a class cannot be checked: one of Java itself, or one that is missing itself."""
    return owner.startswith(_JAVA) or classes.find(owner) is None


def _dotted(name: str) -> str:
    return name.replace("/", ".")
