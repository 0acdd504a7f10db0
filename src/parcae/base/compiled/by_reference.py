"""Named tuples of arrays, as compiled code passes them: by reference.

Numba passes each array of a tuple as seven arguments, and takes a tuple apart and puts it together
again wherever it is used. The tables of a simulated cluster have some sixty arrays, and almost
every kernel takes them, so that this would be half of all code. Here a table is written into memory
once, where it is made; kernels get its address, and a table within a table is a place in it. The
tables do not change: what changes is in their arrays.

A table stays in memory of the kernel that made it, for one place in its code: what a loop makes in
one turn must not be used in the next one. A kernel that returns a table returns a copy.
"""

from __future__ import annotations

import hashlib
from typing import Any

from llvmlite import ir
from numba.core import cgutils, imputils, types
from numba.core.base import BaseContext
from numba.core.datamodel import models
from numba.core.types.containers import BaseTuple

_PACKAGE = __name__.partition(".")[0]
_INDEX = ir.IntType(32)


class TableType(types.NamedTuple):  # type: ignore[misc,name-defined]
    """The type of a named tuple of Parcae that contains arrays."""

    def __init__(self, kinds: tuple[Any, ...], owner: type) -> None:
        super().__init__(kinds, owner)
        # Numba would go through all arrays of all tables within each time.
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has another hash.
        return TableType, (self.types, self.instance_class)

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """The type's part in the names of compiled functions; Numba's has all fields of records."""
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:8]
        return f"{self.instance_class.__name__}{digest}", ()


def _from_types(cls: Any, kinds: Any, pyclass: type | None = None) -> Any:
    found = _plain_from_types(cls, kinds, pyclass)
    if (
        pyclass is not None
        and pyclass.__module__.partition(".")[0] == _PACKAGE
        and any(isinstance(kind, (types.Array, TableType)) for kind in found.types)
    ):
        return TableType(tuple(found.types), pyclass)
    return found


_plain_from_types = BaseTuple.from_types.__func__
BaseTuple.from_types = classmethod(_from_types)


@models.register_default(TableType)
class _TableModel(models.DataModel):  # type: ignore[misc]
    """A pointer to a structure of the fields; as a result of a function, the structure itself."""

    def __init__(self, manager: Any, kind: TableType) -> None:
        super().__init__(manager, kind)
        self._members = [manager.lookup(field) for field in kind.types]
        self._structure = ir.LiteralStructType(
            [
                member.get_return_type()
                if isinstance(member, _TableModel)
                else member.get_value_type()
                for member in self._members
            ]
        )

    def get_value_type(self) -> Any:
        return self._structure.as_pointer()

    def get_return_type(self) -> Any:
        return self._structure

    # A plain tuple that is returned has its members as data.
    get_data_type = get_return_type

    def as_argument(self, builder: Any, value: Any) -> Any:
        return value

    def from_argument(self, builder: Any, value: Any) -> Any:
        self.mark(value.attributes)
        return value

    def mark(self, attributes: Any) -> None:
        """Say that nothing writes to a table: a stored number cannot change where an array is."""
        for attribute in ("noalias", "captures(none)", "nonnull", "readonly"):
            set.add(attributes, attribute)  # llvmlite does not know all of them
        attributes.dereferenceable = _num_bytes(self._structure)

    def as_return(self, builder: Any, value: Any) -> Any:
        return builder.load(value)

    def from_return(self, builder: Any, value: Any) -> Any:
        made = self._room(builder)
        builder.store(value, made)
        return made

    as_data = as_return
    from_data = from_return

    def inner_models(self) -> Any:
        return self._members

    def _room(self, builder: Any) -> Any:
        with builder.goto_entry_block():
            return builder.alloca(self._structure)

    def place(self, builder: Any, value: Any, field: int) -> Any:
        """Return the address of a field."""
        zero = ir.Constant(_INDEX, 0)
        return builder.gep(value, [zero, ir.Constant(_INDEX, field)], inbounds=True)

    def read(self, builder: Any, value: Any, field: int) -> Any:
        """Return the value of a field."""
        place = self.place(builder, value, field)
        return place if isinstance(self._members[field], _TableModel) else builder.load(place)

    def make(self, context: Any, builder: Any, values: Any) -> Any:
        """Write a table into memory. Returns its address."""
        made = self._room(builder)
        one = context.get_constant(types.intp, 1)
        for field, value in enumerate(values):
            place = self.place(builder, made, field)
            if isinstance(self._members[field], _TableModel):
                size = context.get_abi_sizeof(self._members[field].get_return_type())
                cgutils.raw_memcpy(builder, place, value, one, size)
            else:
                builder.store(value, place)
        return made


def _num_bytes(kind: Any) -> int:
    """The least size of a value in memory."""
    if isinstance(kind, ir.ArrayType):
        return int(kind.count * _num_bytes(kind.element))
    if isinstance(kind, ir.LiteralStructType):
        return sum(_num_bytes(element) for element in kind.elements)
    return kind.width // 8 if isinstance(kind, ir.IntType) else 8


def mark_tables(context: Any, builder: Any, callee: Any, kinds: Any) -> None:
    """Say of a call by address what the function itself says of its arguments."""
    call = next(
        instruction
        for instruction in reversed(builder.block.instructions)
        if getattr(instruction, "callee", None) is callee
    )
    place = len(call.args) - len(context.get_arg_packer(kinds).argument_types)
    for kind in kinds:
        if isinstance(kind, TableType):
            attributes = call.arg_attributes.setdefault(place, ir.values.ArgumentAttributes())
            context.data_model_manager.lookup(kind).mark(attributes)
        place += len(context.get_arg_packer([kind]).argument_types)


def _make_tuple(context: Any, builder: Any, kind: Any, values: Any) -> Any:
    if isinstance(kind, TableType):
        return context.data_model_manager.lookup(kind).make(context, builder, values)
    return _plain_make_tuple(context, builder, kind, values)


_plain_make_tuple = BaseContext.make_tuple
BaseContext.make_tuple = _make_tuple


@imputils.lower_getattr_generic(TableType)  # type: ignore[untyped-decorator]
def _getattr(context: Any, builder: Any, kind: TableType, value: Any, name: str) -> Any:
    model = context.data_model_manager.lookup(kind)
    return model.read(builder, value, kind.fields.index(name))


@imputils.lower_builtin("static_getitem", TableType, types.IntegerLiteral)  # type: ignore[untyped-decorator]
def _getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index = sig.args
    model = context.data_model_manager.lookup(kind)
    return model.read(builder, args[0], range(len(kind))[index.literal_value])
