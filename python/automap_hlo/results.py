"""Plans, simulations, explanations and runs: the results of the library.

plan.step_seconds, plan.peak_bytes, plan.gap
for parameter in plan.parameters: print(parameter.path, parameter.sharding)
"""

import ctypes
import dataclasses
from ctypes import byref
from functools import cached_property
from typing import Any

from . import declarations as c
from .inputs import Module, PathLike, module_of
from .library import Handle, Owner, bytes_of, call, json_bytes, known, lib, new_struct, take_text, text_of


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage with its devices as a mesh: row-major, the last axis fastest."""

    devices: tuple[int, ...]  # numbers in the cluster
    mesh: dict[str, int]  # size of each axis, by name


@dataclasses.dataclass(frozen=True)
class Device:
    """The prediction of a device. Bytes of weights, gradients, optimizer and activations are those at the peak."""

    device: int  # number in the cluster
    stage: int
    peak_bytes: int  # with transfer slots
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    slot_bytes: int
    compute_seconds: float
    communication_seconds: float
    idle_seconds: float
    host_bytes: int


@dataclasses.dataclass(frozen=True)
class PlanParameter:
    """A parameter with its sharding.

    `sharding` is "[data,-,data+model]"; `axes` has the same by dimension: "data", "", "data+model".
    """

    number: int
    path: str
    type: str
    role: str
    shape: tuple[int, ...]  # of the whole tensor
    stage: int  # that holds it
    sharding: str
    axes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A baseline of a search. `seconds` of its step is None where it does not apply or fit, by `reason`."""

    name: str
    seconds: float | None
    reason: str | None


def device_of(function: Any, pointer: Any, k: int) -> Device:
    facts = new_struct(c.AmDevice)
    call(function, pointer, k, byref(facts))
    return Device(*(getattr(facts, field.name) for field in dataclasses.fields(Device)))


def check_plan(value: "Plan", name: str = "plan") -> "Plan":
    """The plan. TypeError: it is something else, such as the path of a plan file."""
    if not isinstance(value, Plan):
        raise TypeError(f"{name}: expected a Plan, such as Plan('plan.json', module), not {type(value).__name__}")
    return value


class Plan(Owner):
    """A plan of a module on a cluster: from `search`, or from a plan file.

    `is_interrupted`: the search was stopped, and the plan is the best so far.
    """

    is_interrupted = False

    def __init__(self, path: PathLike, module: Module | PathLike) -> None:
        """Reads a plan file and checks it against the module, which may be given by its path."""
        pointer = ctypes.POINTER(c.AmPlan)()
        module = module_of(module)
        handle = module.handle
        with handle.alone:
            call(lib.am_plan_read, byref(pointer), handle.pointer, bytes_of(path))
        self._set(pointer, module, handle)

    @classmethod
    def from_json(cls, text: str | bytes, module: Module | PathLike, name: str = "<memory>") -> "Plan":
        """A plan file in memory. `name` stands for the file in errors."""
        data = json_bytes(text)
        pointer = ctypes.POINTER(c.AmPlan)()
        module = module_of(module)
        handle = module.handle
        with handle.alone:
            call(lib.am_plan_parse, byref(pointer), handle.pointer, data, len(data), bytes_of(name))
        self = cls.__new__(cls)
        self._set(pointer, module, handle)
        return self

    @classmethod
    def _found(
        cls, pointer: "ctypes._Pointer[c.AmPlan]", module: Module, *parents: Handle, is_interrupted: bool
    ) -> "Plan":
        self = cls.__new__(cls)
        self._set(pointer, module, *parents)
        self.is_interrupted = is_interrupted
        return self

    def _set(self, pointer: "ctypes._Pointer[c.AmPlan]", module: Module, *parents: Handle) -> None:
        self._handle = Handle(pointer, lib.am_plan_free, *parents)
        self._module_handle = parents[0]
        self.module = module
        self.step_seconds: float = lib.am_plan_step_seconds(pointer)
        """Predicted time of a step."""
        self.bound_seconds: float | None = known(lib.am_plan_bound_seconds(pointer))
        """No plan of the search space takes less; None: unknown."""
        self.gap: float | None = known(lib.am_plan_gap(pointer))
        """Step over bound, minus 1; None: unknown."""
        self.peak_bytes: int = lib.am_plan_peak_bytes(pointer)
        """Memory of the fullest device, with transfer slots."""
        self.evaluations: int = lib.am_plan_evaluations(pointer)
        self.micro_batches: int = lib.am_plan_micro_batches(pointer)
        self.schedule: str = text_of(lib.am_plan_schedule(pointer))
        self.searcher: str = text_of(lib.am_plan_searcher(pointer))
        self.space: str = text_of(lib.am_plan_space(pointer))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages; a plan without a pipeline has one."""
        pointer, found = self.handle.pointer, []
        for k in range(lib.am_plan_stage_count(pointer)):
            facts = new_struct(c.AmStage)
            call(lib.am_plan_stage, pointer, k, byref(facts))
            names = (text_of(facts.axis_names[a]) for a in range(facts.axis_count))
            mesh = dict(zip(names, facts.axis_sizes[: facts.axis_count]))
            found.append(Stage(tuple(facts.devices[: facts.device_count]), mesh))
        return tuple(found)

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The prediction of each device, stage by stage."""
        pointer = self.handle.pointer
        return tuple(device_of(lib.am_plan_device, pointer, k) for k in range(lib.am_plan_device_count(pointer)))

    @cached_property
    def parameters(self) -> tuple[PlanParameter, ...]:
        """The parameters of the module with their shardings, by number."""
        pointer, found = self.handle.pointer, []
        for number in range(lib.am_plan_parameter_count(pointer)):
            facts = new_struct(c.AmPlanParameter)
            call(lib.am_plan_parameter, pointer, number, byref(facts))
            found.append(
                PlanParameter(
                    facts.number,
                    text_of(facts.path),
                    text_of(facts.type),
                    text_of(facts.role),
                    tuple(facts.dimensions[: facts.rank]),
                    facts.stage,
                    text_of(facts.sharding),
                    tuple(text_of(facts.axes[d]) for d in range(facts.rank)),
                )
            )
        return tuple(found)

    @cached_property
    def baselines(self) -> tuple[Baseline, ...]:
        """The baselines that the search compared the plan with; none for a plan from a file."""
        pointer, found = self.handle.pointer, []
        for k in range(lib.am_plan_baseline_count(pointer)):
            facts = new_struct(c.AmBaseline)
            call(lib.am_plan_baseline, pointer, k, byref(facts))
            reason = None if facts.reason is None else text_of(facts.reason)
            found.append(Baseline(text_of(facts.name), known(facts.seconds), reason))
        return tuple(found)

    def to_json(self) -> str:
        """The text of the plan file."""
        return take_text(lib.am_plan_to_json, self.handle.pointer)

    def write(self, path: PathLike) -> None:
        """Writes the plan file."""
        call(lib.am_plan_write, self.handle.pointer, bytes_of(path))

    def __repr__(self) -> str:
        stages = ", ".join(" ".join(f"{name}={size}" for name, size in stage.mesh.items()) for stage in self.stages)
        return f"<automap plan of {self.module.name!r}: {self.step_seconds:.4g} s a step, stages {stages}>"


class Simulation(Owner):
    """A predicted step of a plan. `fits`: in the memory of every device."""

    def __init__(self, pointer: "ctypes._Pointer[c.AmSimulation]", *parents: Handle) -> None:
        self._handle = Handle(pointer, lib.am_simulation_free, *parents)
        self.step_seconds: float = lib.am_simulation_step_seconds(pointer)
        self.fits: bool = bool(lib.am_simulation_fits(pointer))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The prediction of each device, stage by stage."""
        pointer = self.handle.pointer
        count = lib.am_simulation_device_count(pointer)
        return tuple(device_of(lib.am_simulation_device, pointer, k) for k in range(count))

    def to_text(self) -> str:
        """The report of `automap simulate`."""
        return take_text(lib.am_simulation_print, self.handle.pointer, c.AM_FORMAT_TEXT)

    def to_json(self) -> str:
        """The report of `automap simulate --json`."""
        return take_text(lib.am_simulation_print, self.handle.pointer, c.AM_FORMAT_JSON)


class Explanation(Owner):
    """The costs of the decisions of a plan."""

    def __init__(self, pointer: "ctypes._Pointer[c.AmExplanation]", *parents: Handle) -> None:
        self._handle = Handle(pointer, lib.am_explanation_free, *parents)

    def to_text(self) -> str:
        """The report of `automap explain`."""
        return take_text(lib.am_explanation_print, self.handle.pointer, c.AM_FORMAT_TEXT)

    def to_json(self) -> str:
        """The report of `automap explain --json`."""
        return take_text(lib.am_explanation_print, self.handle.pointer, c.AM_FORMAT_JSON)

    def to_html(self) -> str:
        """The page of `automap explain --html`."""
        return take_text(lib.am_explanation_print, self.handle.pointer, c.AM_FORMAT_HTML)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a run. Losses are NAN where the module has none.

    `is_interrupted`: the run was stopped after a step.
    """

    steps: int
    seconds_per_step: float  # mean without the first step
    first_loss: float
    last_loss: float
    peak_bytes: int  # of the device with most: allocation and scratch memory
    is_interrupted: bool
