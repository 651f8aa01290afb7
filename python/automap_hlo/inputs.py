"""Modules and clusters: the inputs of a search.

module = Module("model.hlo.pb")
cluster = Cluster("h100:8")
"""

import ctypes
import dataclasses
import os
from ctypes import byref
from functools import cached_property

from . import declarations as c
from .library import Handle, Owner, bytes_of, call, json_bytes, lib, new_struct, text_of

PathLike = str | os.PathLike[str]


def module_of(value: "Module | PathLike") -> "Module":
    """The module, read from a file where `value` is a path."""
    return value if isinstance(value, Module) else Module(value)


def cluster_of(value: "Cluster | PathLike") -> "Cluster":
    """The cluster, found by its name or path where `value` is one."""
    return value if isinstance(value, Cluster) else Cluster(value)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a module. `output` is the index of the output that updates it, or None."""

    number: int
    path: str
    type: str
    role: str  # "weight", "optimizer", "state", "data" or "constant"
    shape: tuple[int, ...]
    output: int | None


class Module(Owner):
    """A training step as HLO: binary, JSON or text; files with gzip or zstd are opened.

    `roles` is the file of the parameters' roles; None: model.roles.json beside a file model.*.
    Threads may share a module; calls that need it alone wait for each other.
    """

    def __init__(self, path: PathLike, roles: PathLike | None = None) -> None:
        pointer = ctypes.POINTER(c.AmModule)()
        call(lib.am_module_read, byref(pointer), bytes_of(path), None if roles is None else bytes_of(roles))
        self._set(pointer)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "<memory>") -> "Module":
        """A module in memory, not compressed. `name` stands for the file in errors."""
        pointer = ctypes.POINTER(c.AmModule)()
        call(lib.am_module_parse, byref(pointer), data, len(data), bytes_of(name))
        self = cls.__new__(cls)
        self._set(pointer)
        return self

    def _set(self, pointer: "ctypes._Pointer[c.AmModule]") -> None:
        self._handle = Handle(pointer, lib.am_module_free)
        self.name: str = text_of(lib.am_module_name(pointer))
        self.sha256: str = text_of(lib.am_module_sha256(pointer))
        self.instruction_count: int = lib.am_module_instruction_count(pointer)
        self.output_count: int = lib.am_module_output_count(pointer)
        loss = lib.am_module_loss(pointer)
        self.loss: int | None = None if loss < 0 else loss
        """Index of the output that is the loss, or None."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the module."""
        with self.handle.alone:
            pointer = self.handle.pointer
            return tuple(
                text_of(lib.am_module_warning(pointer, k)) for k in range(lib.am_module_warning_count(pointer))
            )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters by number."""
        found = []
        with self.handle.alone:
            pointer = self.handle.pointer
            for number in range(lib.am_module_parameter_count(pointer)):
                facts = new_struct(c.AmParameter)
                call(lib.am_module_parameter, pointer, number, byref(facts))
                shape = tuple(facts.dimensions[: facts.rank])
                output = None if facts.output < 0 else facts.output
                found.append(
                    Parameter(
                        facts.number, text_of(facts.path), text_of(facts.type), text_of(facts.role), shape, output
                    )
                )
        return tuple(found)

    def __repr__(self) -> str:
        return f"<automap module {self.name!r} of {self.instruction_count} instructions>"


class Cluster(Owner):
    """A cluster file, or a built-in cluster by name ("C", "h100:8").

    "host:4" has nominal figures here; `automap cluster host:4 --json` writes the measured ones.
    """

    def __init__(self, name_or_path: PathLike) -> None:
        pointer = ctypes.POINTER(c.AmCluster)()
        call(lib.am_cluster_read, byref(pointer), bytes_of(name_or_path))
        self._set(pointer)

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "<memory>") -> "Cluster":
        """A cluster file in memory. `name` stands for the file in errors."""
        data = json_bytes(text)
        pointer = ctypes.POINTER(c.AmCluster)()
        call(lib.am_cluster_parse, byref(pointer), data, len(data), bytes_of(name))
        self = cls.__new__(cls)
        self._set(pointer)
        return self

    def _set(self, pointer: "ctypes._Pointer[c.AmCluster]") -> None:
        self._handle = Handle(pointer, lib.am_cluster_free)
        self.name: str = text_of(lib.am_cluster_name(pointer))
        self.device_count: int = lib.am_cluster_device_count(pointer)

    def __repr__(self) -> str:
        return f"<automap cluster {self.name!r} of {self.device_count} devices>"
