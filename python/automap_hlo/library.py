"""The shared library: where it is found, its errors and texts, and the handles that own its objects.

The library is, in this order: the file that the environment variable AUTOMAP_LIBRARY names, the one in
this package (of a wheel), and libautomap.so.0 where the system's loader finds it.
"""

import ctypes
import math
import os
import pathlib
import threading
import weakref
from ctypes import byref
from typing import Any

from . import declarations as c
from .errors import CLASSES, InternalError

__version__ = "0.1.0"

FOLDER = pathlib.Path(__file__).parent
SYSTEM_NAME = "libautomap.so.0"


def load() -> ctypes.CDLL:
    """Loads the library. ImportError: the library is missing, or it has another version."""
    packaged = FOLDER / "lib" / "libautomap.so"
    name = os.environ.get("AUTOMAP_LIBRARY") or (str(packaged) if packaged.exists() else SYSTEM_NAME)
    try:
        found = ctypes.CDLL(name)
        c.declare(found)
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{error} (expected the library of automap {__version__}; AUTOMAP_LIBRARY names its file)"
        ) from None
    version = found.am_version().decode()
    if version != __version__:
        raise ImportError(f"{name}: library of automap {version} (expected {__version__})")
    return found


lib = load()


def text_of(value: bytes | None) -> str:
    """A text of the library; file names may hold any bytes."""
    return (value or b"").decode("utf-8", "surrogateescape")


def bytes_of(value: str | bytes | os.PathLike[str]) -> bytes:
    """A text or a path for the library. ValueError: it has a byte 0."""
    data = os.fspath(value)
    data = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise ValueError(f"{data!r}: a byte 0 in a text")
    return data


def json_bytes(value: str | bytes) -> bytes:
    """The text of a file in memory. TypeError: it is an object, not its text."""
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"expected the text of a file, such as that of json.dumps, not {type(value).__name__}")
    return value.encode() if isinstance(value, str) else value


def known(value: float) -> float | None:
    """A number; None for NAN."""
    return None if math.isnan(value) else value


def check(status: int, error: c.AmError) -> None:
    """Raises the exception of a status that is not AM_OK."""
    if status != c.AM_OK:
        raise CLASSES.get(status, InternalError)(
            text_of(error.text), text_of(error.source), error.line, error.column, text_of(error.excerpt)
        )


def call(function: Any, *arguments: Any) -> None:
    """Calls a function of the library that returns a status and takes an error last."""
    error = c.AmError()
    check(function(*arguments, byref(error)), error)


def new_struct(kind: Any) -> Any:
    """An empty struct with its member `size`."""
    return kind(size=ctypes.sizeof(kind))


def take_text(function: Any, *arguments: Any) -> str:
    """The text of a function with the arguments (..., char **text, size_t *bytes, AmError *)."""
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    call(function, *arguments, byref(text), byref(size))
    try:
        return text_of(ctypes.string_at(text, size.value))
    finally:
        lib.am_free(text)


class Exclusive:
    """A lock that a thread cannot wait for twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        """Waits for other threads. RuntimeError: a callback of this thread's call uses the object of the call."""
        if self._owner == threading.get_ident():
            raise RuntimeError("a callback used a module or a plan of its own call")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *exception: object) -> None:
        self._owner = None
        self._lock.release()


class Handle:
    """An object of the library, and the lock of the calls that need it alone.

    The object is freed with the last reference to `pointer`. A call keeps one, so that `close` in another
    thread does not free what the call uses. `parents` are the handles that the object refers to.
    """

    def __init__(self, pointer: Any, free: Any, *parents: "Handle") -> None:
        self.pointer = pointer
        self.alone = Exclusive()
        address = type(pointer).from_buffer_copy(pointer)
        # At exit the memory goes with the process; a thread may still be in a call.
        weakref.finalize(pointer, Handle._release, free, address, [parent.pointer for parent in parents]).atexit = False

    @staticmethod
    def _release(free: Any, address: Any, parents: list[Any]) -> None:
        free(address)
        parents.clear()


class Owner:
    """Base of the classes with a handle: context manager and `close`."""

    _handle: Handle | None = None

    @property
    def handle(self) -> Handle:
        """The handle. ValueError: the object is closed."""
        handle = self._handle
        if handle is None:
            raise ValueError(f"{type(self).__name__}: closed")
        return handle

    def close(self) -> None:
        """Releases the memory once nothing uses it any more. Further use is a ValueError."""
        self._handle = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
