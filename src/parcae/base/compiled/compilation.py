"""How Numba compiles Parcae's kernels; `kernels` has the decorators that use this.

Numba compiles every function to optimized machine code, with a wrapper for Python, and optimizes
the code of its callees again in each of its callers. Parcae's kernels call each other through ten
levels, so almost all of that work is thrown away. Here a kernel is compiled in one of two ways:

- **A part**: a kernel that another kernel calls. It is compiled to LLVM's intermediate code only,
  which is neither optimized nor translated.
- **A whole**: a kernel that Python calls, or a deferred kernel. It is linked with all its parts,
  optimized once, and translated.

A *deferred* kernel is called by its address and is compiled at the first call. So callers do not
contain its code, and a kernel that a command never reaches is never compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import llvmlite.binding
from llvmlite import ir
from numba.core import (
    caching,
    cgutils,
    compiler,
    config,
    funcdesc,
    itanium_mangler,
    sigutils,
    typing,
)
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import CPUDispatcher
from numba.core.types import unliteral  # type: ignore[attr-defined]

from parcae.base.compiled.by_reference import mark_tables
from parcae.base.compiled.by_type import KeyedByContent, digest_of, place_of
from parcae.base.files import interruptions_wait

try:
    import fcntl
except ImportError:  # Windows: processes may compile the same kernel side by side
    fcntl = None  # type: ignore[assignment]

#: Set to 1 by the command line: the first compilation of a command is announced on standard error.
#: Another value silences it.
ANNOUNCE = "PARCAE_ANNOUNCE_COMPILATION"
_ANNOUNCEMENT = "parcae: compiling kernels (once after an installation, for up to a minute)"
_NO_CACHE = "parcae: compiling in every command, as {} cannot be written ({}): set NUMBA_CACHE_DIR"

_LOADER = "parcae_address_of_kernel"
_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)

#: All kernels, by module and name.
_kernels: dict[tuple[str, str], Kernel] = {}
#: The deferred kernels that compiled code may ask for, by the number that it asks with.
_deferred: dict[int, tuple[Kernel, tuple[Any, ...]]] = {}


#: What ended the compilation of a deferred kernel from outside (Ctrl-C, SIGTERM); at most one.
_interruptions: list[KeyboardInterrupt | SystemExit] = []


class CompilationError(RuntimeError):
    """A deferred kernel could not be compiled.

    Compiled code makes this exception when it gets no address. If the compilation was interrupted,
    the interruption is raised in its place.
    """

    def __new__(cls, *args: object) -> CompilationError:
        if _interruptions:
            raise _interruptions.pop()
        return super().__new__(cls, *args)


class _Library(JITCodeLibrary):
    """Compiled code whose optimization is left to the whole that contains it."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _finalize_specific(self) -> None:
        # LLVM calls Python meanwhile, and what such a call raises is lost.
        with interruptions_wait():
            super()._finalize_specific()


class _WithoutEnvironment:
    """A code generator that does not write a function's environment into its machine code."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Write nothing: a whole sets the environments of its parts."""


class _Part(_Library):
    """The intermediate code of one kernel, to be linked into wholes."""

    #: (module, name, argument types) of the kernel.
    identity: tuple[str, str, tuple[Any, ...]]

    def add_llvm_module(self, ll_module: Any) -> None:
        super().add_llvm_module(ll_module)
        for function in self._final_module.functions:
            if not function.is_declaration:
                # Several parts may contain the function; a whole drops it where it is not called.
                function.linkage = "linkonce_odr"

    def finalize(self) -> None:
        self._raise_if_finalized()
        # Numba's own functions belong to no kernel, so they become a fixed piece of this part.
        for library in self._linking_libraries:
            if not isinstance(library, _Part):
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """Numba's code generator, except that a part has no environment in memory."""
        return _WithoutEnvironment(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        """Say that there is no machine code."""
        del name
        return 0

    def parts(self) -> list[_Part]:
        """The parts that this one calls."""
        return [library for library in self._linking_libraries if isinstance(library, _Part)]

    def _get_module_for_linking(self) -> Any:
        """Return this part with all that it calls, for callers that are no kernels."""
        # Numba's own function, such as an `overload`, would link this part alone.
        module = self._final_module.clone()
        pending, seen = self.parts(), {self}
        while pending:
            part = pending.pop()
            if part not in seen:
                seen.add(part)
                module.link_in(part._final_module, preserve=True)
                pending.extend(part.parts())
        return module


class _Whole(_Library):
    """Machine code of one kernel and of all its parts."""

    def finalize(self) -> None:
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        pending = list(self._linking_libraries)
        seen = set()
        while pending:
            library = pending.pop()
            if library in seen:
                continue
            seen.add(library)
            self._reload_init.update(library._reload_init)
            if isinstance(library, _Part):
                self._final_module.link_in(library._final_module, preserve=True)
                pending.extend(library.parts())
            else:
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        # Numba's own first pass is for the counting of references, which kernels do without.
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)
        self._final_module.verify()
        self._finalize_final_module()
        for variable in self._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None and not variable.is_declaration:
                self._codegen.set_env(variable.name, environment)


@contextlib.contextmanager
def _alone_with(cache: Any) -> Iterator[None]:
    """Keep other processes from compiling the same kernel: they wait and find it in the cache.

    Kernels do not call each other in circles, so no two processes wait for each other.
    """
    lock = _lock_file(cache)
    if lock is None:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _lock_file(cache: Any) -> int | None:
    """Open the lock beside a kernel's place in the cache; None where there can be none."""
    if fcntl is None or not hasattr(cache, "cache_path"):
        return None
    try:
        cache._impl.locator.ensure_cache_path()
        path = Path(cache.cache_path) / f"{cache._impl.filename_base}.lock"
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # a folder that cannot be written
        return None


@functools.cache
def _announce() -> None:
    """Say that compilation begins, if this process is the first of a command that compiles."""
    if os.environ.get(ANNOUNCE) != "1":
        return
    text = _ANNOUNCEMENT
    # The line is written by the process that gets this lock. It keeps the lock until it ends.
    if fcntl is not None:
        folder = Path(config.CACHE_DIR)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "announcement.lock", os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            text = _NO_CACHE.format(folder, error.strerror)
    print(text, file=sys.stderr, flush=True)


class _ContentLocator(caching._CacheLocator):
    """A place in the cache that depends on what is compiled, not on where its file is.

    So another copy of the package, or a file that was written again, finds the compiled kernels.
    """

    def __init__(self, py_func: Any, path: Path) -> None:
        self._line = py_func.__code__.co_firstlineno
        name = re.sub("[^A-Za-z0-9]", "_", place_of(path))[-60:]
        self._folder = f"{name}-{digest_of(path)}"

    def get_cache_path(self) -> str:
        return str(Path(config.CACHE_DIR) / self._folder)

    def get_source_stamp(self) -> str:
        return self._folder

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _ContentLocator | None:
        path = Path(py_file)
        return cls(py_func, path) if path.is_file() else None


class _Compiler(compiler.Compiler):
    library_class: type[_Library]
    # Part of the names of compiled functions. Numba numbers them instead, differently in every
    # process, so that a part from the cache would not fit one that was compiled now.
    name_tag: str

    def define_pipelines(self) -> Any:
        _announce()
        state = self.state
        function = state.func_id
        function.unique_id = self.name_tag
        state.library = self.library_class(state.targetctx.codegen(), function.func_qualname)
        if isinstance(state.library, _Part):
            state.library.identity = (function.modname, function.func_qualname, state.args)
        state.library.enable_object_caching()
        return super().define_pipelines()


class _PartCompiler(_Compiler):
    library_class = _Part
    name_tag = "part"


class _WholeCompiler(_Compiler):
    library_class = _Whole
    name_tag = "whole"


class _WholeCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: ClassVar[list[type]] = [_ContentLocator]


class _PartCacheImpl(_WholeCacheImpl):
    """Stores a part as intermediate code and the names of the parts that it calls."""

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return "part-" + str(super().get_filename_base(fullname, abiflags))

    def reduce(self, cres: Any) -> Any:
        library = cres.library
        parts = [part.identity for part in library.parts()]
        code = (library.name, library._final_module.as_bitcode(), library.identity, parts)
        description = cres.fndesc
        description.typemap = description.calltypes = None  # not needed, and large
        return code, description, cres.environment, cres.signature, cres.reload_init

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        (name, code, identity, parts), description, environment, signature, reload_init = payload
        for register in reload_init:
            register()
        library = _Part(target_context.codegen(), name)
        library._final_module = llvmlite.binding.parse_bitcode(code)
        library.identity = identity
        library._reload_init.update(reload_init)
        library._linking_libraries.extend(_part(*part).library for part in parts)
        library._finalized = True
        return compiler.compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=environment,
            entry_point=target_context.get_executable(library, description, environment),
            fndesc=description,
            type_annotation="",
            signature=signature,
            objectmode=False,
            lifted=(),
            reload_init=reload_init,
        )


class _Cache(KeyedByContent, caching.FunctionCache):
    """A cache that no command depends on: without it, kernels are compiled."""

    _impl_class = _WholeCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel; None if it is not in the cache, or a file is damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # what a damaged file raises, such as EOFError
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled kernel, unless the disk is full."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


class _PartCache(_Cache):
    _impl_class = _PartCacheImpl


class _Dispatcher(CPUDispatcher):
    def compile(self, sig: Any) -> Any:
        """Compile the kernel, or load it from the cache, unless that has been done."""
        args, _ = sigutils.normalize_signature(sig)
        if tuple(args) in self.overloads or self.is_compiling:
            return super().compile(sig)
        # In this order: another thread of this process may hold the file while it compiles.
        with global_compiler_lock, _alone_with(self._cache):
            return super().compile(sig)


class _PartDispatcher(_Dispatcher):
    def enable_caching(self) -> None:
        self._cache = _PartCache(self.py_func)


def _part(module: str, name: str, args: tuple[Any, ...]) -> Any:
    """Return the compile result of a kernel as a part, from memory, cache or source."""
    importlib.import_module(module)
    part = _kernels[module, name].part
    part.compile(args)
    return part.overloads[args]


class Kernel(_Dispatcher):
    """A function that is compiled as a part where kernels call it and as a whole elsewhere."""

    def __init__(
        self,
        py_func: Callable[..., Any],
        locals: dict[str, Any] | None = None,
        targetoptions: dict[str, Any] | None = None,
        pipeline_class: type = _WholeCompiler,
    ) -> None:
        super().__init__(py_func, locals, targetoptions, pipeline_class)
        #: The type that a deferred kernel returns; None: the kernel is not deferred.
        self.returns: Any = None
        options = {**self.targetoptions, "no_cpython_wrapper": True}
        self.part = _PartDispatcher(py_func, locals, options, _PartCompiler)
        _kernels[py_func.__module__, py_func.__qualname__] = self

    def enable_caching(self) -> None:
        self._cache = _Cache(self.py_func)
        self.part.enable_caching()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the type of a call from another kernel."""
        # Numba would compile a function again for every constant that it is called with.
        args = tuple(unliteral(type_) for type_ in args)
        kws = {name: unliteral(type_) for name, type_ in kws.items()}
        if self.returns is None:
            return self.part.get_call_template(args, kws)
        pysig, folded = self._compiler.fold_argument_types(args, kws)
        signature = typing.signature(self.returns, *folded)
        name = self.py_func.__name__
        template = typing.make_concrete_template(name, key=name, signatures=[signature])
        return template, pysig, folded, {}

    def get_overload(self, sig: Any) -> Any:
        """Return what stands for the code of a call from another kernel."""
        args = tuple(getattr(sig, "args", sig))
        if self.returns is None:
            return self.part.get_overload(args)
        key = (self, args)
        if key not in _defined:
            _defined.add(key)
            self.targetctx.insert_func_defn([(functools.partial(_call_deferred, self), key, args)])
        return key

    def compile(self, sig: Any) -> Any:
        """Compile the kernel; a deferred one returns the type that its callers expect."""
        args, _ = sigutils.normalize_signature(sig)
        return super().compile(sig if self.returns is None else self.returns(*args))

    def address(self, args: tuple[Any, ...]) -> int:
        """Return the address of the machine code for arguments of these types."""
        self.compile(args)
        compiled = self.overloads[args]
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


#: The deferred kernels, with types of arguments, that Numba knows how to call.
_defined: set[tuple[Kernel, tuple[Any, ...]]] = set()


def _register(module: str, name: str, args: tuple[Any, ...]) -> int:
    """Note that compiled code may ask for a deferred kernel; return the number it asks with."""
    importlib.import_module(module)
    names = funcdesc.qualifying_prefix(module, name)
    digest = hashlib.sha256(itanium_mangler.mangle(names, args).encode()).digest()
    number = int.from_bytes(digest[:8], "little")
    _deferred[number] = (_kernels[module, name], args)
    return number


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64)
def _address_of(number: int) -> int | None:
    """Compile the deferred kernel that compiled code asks for; None if that fails."""
    # Compiled code called this function, so no exception can pass through it.
    try:
        kernel, args = _deferred[number]
        return kernel.address(args)
    except (KeyboardInterrupt, SystemExit) as interruption:
        _interruptions.append(interruption)
    except BaseException:
        traceback.print_exc()
    return None


llvmlite.binding.add_symbol(_LOADER, ctypes.cast(_address_of, ctypes.c_void_p).value)


def _call_deferred(kernel: Kernel, context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Write the call of a deferred kernel: its address is in a variable, null before the first."""
    identity = (kernel.py_func.__module__, kernel.py_func.__qualname__, tuple(sig.args))
    number = _register(*identity)
    context.active_code_library._reload_init.add(functools.partial(_register, *identity))
    variable = _address_variable(builder.module, number)
    known = builder.load_atomic(variable, "monotonic", 8)
    address = cgutils.alloca_once_value(builder, known)
    with cgutils.if_unlikely(builder, cgutils.is_null(builder, known)):
        loader_type = ir.FunctionType(_POINTER, [_WORD])
        loader = cgutils.get_or_insert_function(builder.module, loader_type, _LOADER)
        found = builder.call(loader, [ir.Constant(_WORD, number)])
        with cgutils.if_unlikely(builder, cgutils.is_null(builder, found)):
            message = f"the kernel {kernel.__name__} could not be compiled"
            context.call_conv.return_user_exc(builder, CompilationError, (message,))
        builder.store_atomic(found, variable, "monotonic", 8)
        builder.store(found, address)
    function_type = context.call_conv.get_function_type(sig.return_type, sig.args)
    callee = builder.bitcast(builder.load(address), function_type.as_pointer())
    status, value = context.call_conv.call_function(
        builder, callee, sig.return_type, sig.args, args
    )
    mark_tables(context, builder, callee, sig.args)
    with cgutils.if_unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return value


def _address_variable(module: Any, number: int) -> Any:
    """Return the variable of a module that keeps a deferred kernel's address."""
    name = f"parcae_kernel_{number:x}"
    if name in module.globals:
        return module.globals[name]
    variable = cgutils.add_global_variable(module, _POINTER, name)
    variable.linkage = "internal"
    variable.initializer = ir.Constant(_POINTER, None)
    variable.align = 8
    return variable
