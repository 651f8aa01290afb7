"""The commands of automap as functions.

Keyword arguments are the options of the command with '_' for '-' (`options` lists them): `even=True`,
`memory_fraction=0.8`, `pin=["tokens=data,-"]`. A '_' at the end is dropped. The library checks them. Messages
go to on_message(kind, text), kind "note" or "warning", else to the logger "automap_hlo". A callback runs in
the thread of the caller, except on_episode. It may not use the objects of its call. A true result of
on_progress or on_step stops the call.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any

from . import declarations as c
from .calls import COMMANDS, LOG, Call, OptionValue, Progress, Step
from .inputs import Cluster, Module, PathLike, cluster_of, module_of
from .library import Exclusive, bytes_of, call, lib, new_struct, text_of
from .results import Explanation, Plan, RunResult, Simulation, check_plan

OnMessage = Callable[[str, str], object]
OnProgress = Callable[[Progress], object]

REPORTS = "info", "groups", "propagate", "lower", "cluster", "published", "agent evaluate"
RUN = Exclusive()  # of the one run that a process may have


def search(
    module: Module | PathLike,
    cluster: Cluster | PathLike,
    *,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    on_episode: Callable[[dict[str, Any]], object] | None = None,
    **options: OptionValue,
) -> Plan:
    """Finds a plan of a module on a cluster; either may be given by its path or name.

    Ctrl-C and a true result of on_progress stop the search. The result is then the best plan so far, with
    `is_interrupted`. Without one, Ctrl-C raises KeyboardInterrupt and on_progress raises Interrupted.
    InfeasibleError: no plan fits the memory; its `report` has the nearest plan.
    """
    module, cluster = module_of(module), cluster_of(cluster)
    pointer = ctypes.POINTER(c.AmPlan)()
    parents = module.handle, cluster.handle
    with Call(
        c.AM_COMMAND_SEARCH, options, on_progress=on_progress, on_message=on_message, on_episode=on_episode
    ) as call, parents[0].alone:
        try:
            status = call.status(lib.am_search, byref(pointer), parents[0].pointer, parents[1].pointer)
            if not pointer:
                call.raise_interrupt()
        except BaseException:
            lib.am_plan_free(pointer)
            raise
    if call.is_interrupted:
        LOG.warning("interrupted: the plan is the best so far")
    return Plan._found(pointer, module, *parents, is_interrupted=status == c.AM_INTERRUPTED)


def simulate(
    plan: Plan,
    cluster: Cluster | PathLike | None = None,
    *,
    on_message: OnMessage | None = None,
    **options: OptionValue,
) -> Simulation:
    """Predicts a step of the plan, on its own cluster or another one. The plan need not fit the memory."""
    cluster = None if cluster is None else cluster_of(cluster)
    pointer = ctypes.POINTER(c.AmSimulation)()
    parents = (check_plan(plan).handle, *((cluster.handle,) if cluster else ()))
    with Call(c.AM_COMMAND_SIMULATE, options, on_message=on_message) as call, plan._module_handle.alone:
        other = cluster.handle.pointer if cluster else None
        try:
            if call.status(lib.am_simulate, byref(pointer), parents[0].pointer, other) != c.AM_OK:
                call.raise_interrupt()
        except BaseException:
            lib.am_simulation_free(pointer)
            raise
    return Simulation(pointer, *parents)


def explain(
    plan: Plan,
    *,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **options: OptionValue,
) -> Explanation:
    """Simulates the plan and single changes of it.

    There is no partial result: Ctrl-C raises KeyboardInterrupt, a true result of on_progress Interrupted.
    """
    pointer = ctypes.POINTER(c.AmExplanation)()
    parent = check_plan(plan).handle
    with Call(
        c.AM_COMMAND_EXPLAIN, options, on_progress=on_progress, on_message=on_message
    ) as call, plan._module_handle.alone:
        try:
            if call.status(lib.am_explain, byref(pointer), parent.pointer) != c.AM_OK:
                call.raise_interrupt()
        except BaseException:
            lib.am_explanation_free(pointer)
            raise
    return Explanation(pointer, parent)


def compare(
    plan: Plan,
    trace: PathLike,
    cluster: Cluster | PathLike | None = None,
    *,
    as_json: bool = False,
    on_message: OnMessage | None = None,
    **options: OptionValue,
) -> str:
    """The error of the predicted timeline beside the trace of a run, as a report or as JSON.

    It is predicted on the plan's own cluster or another one. InputError: the trace is of another plan.
    """
    cluster = None if cluster is None else cluster_of(cluster)
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    format = c.AM_FORMAT_JSON if as_json else c.AM_FORMAT_TEXT
    options["trace"] = str(trace)
    with Call(c.AM_COMMAND_COMPARE, options, on_message=on_message) as call, plan._module_handle.alone:
        handles = check_plan(plan).handle.pointer, cluster.handle.pointer if cluster else None
        try:
            if call.status(lib.am_compare, *handles, format, after=(byref(text), byref(size))) != c.AM_OK:
                call.raise_interrupt()
            return text_of(ctypes.string_at(text, size.value))
        finally:
            lib.am_free(text)


def diff(first: Plan, second: Plan, *, as_json: bool = False) -> str:
    """The differences of two plans of one Module, as a report or as JSON.

    It has predictions, decisions with the cost of each, parameters and collectives. Each plan is simulated on its
    cluster. UsageError: the plans are of different Module objects.
    """
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    format = c.AM_FORMAT_JSON if as_json else c.AM_FORMAT_TEXT
    check_plan(second, "second")
    with check_plan(first, "first")._module_handle.alone:
        try:
            plans = first.handle.pointer, second.handle.pointer
            call(lib.am_diff, *plans, format, None, byref(text), byref(size))
            return text_of(ctypes.string_at(text, size.value))
        finally:
            lib.am_free(text)


def export(plan: Plan, format: str, *, on_message: OnMessage | None = None, **options: OptionValue) -> str:
    """The plan for another system: "jax", "hlo", "shardy", "torch", "megatron",
    "torchtitan" or "automap", as text.

    InfeasibleError: the other system cannot hold the same plan.
    """
    parent = check_plan(plan).handle
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    with Call(c.AM_COMMAND_EXPORT, options, on_message=on_message) as call, plan._module_handle.alone:
        try:
            if (
                call.status(lib.am_export, parent.pointer, bytes_of(format), after=(byref(text), byref(size)))
                != c.AM_OK
            ):
                call.raise_interrupt()
            return text_of(ctypes.string_at(text, size.value))
        finally:
            lib.am_free(text)


def report(
    command: str,
    *files: PathLike,
    as_json: bool = False,
    on_message: OnMessage | None = None,
    **options: OptionValue,
) -> str:
    """The report of a command on files, as `automap COMMAND FILE...` prints it, as text or as JSON.

    Commands: "info", "groups", "propagate" and "lower" of a module, "cluster" (no file: the built-in clusters),
    "published" of measured runs, and "agent evaluate".
    """
    if command not in REPORTS:
        raise ValueError(f"{command!r}: no report (expected one of {', '.join(REPORTS)})")
    names = (ctypes.c_char_p * len(files))(*map(bytes_of, files))
    format = c.AM_FORMAT_JSON if as_json else c.AM_FORMAT_TEXT
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    given = COMMANDS[command], names, len(files), format
    with Call(COMMANDS[command], options, on_message=on_message) as call:
        try:
            if call.status(lib.am_report, *given, after=(byref(text), byref(size))) != c.AM_OK:
                call.raise_interrupt()
            return text_of(ctypes.string_at(text, size.value))
        finally:
            lib.am_free(text)


def convert(
    source: PathLike, target: PathLike, *, on_message: OnMessage | None = None, **options: OptionValue
) -> None:
    """Writes a module in another encoding, or a folder of checkpoints as one file of arrays: the suffix of the
    target selects it, as in `automap convert`. mixed_precision="bf16" rewrites the module."""
    with Call(c.AM_COMMAND_CONVERT, options, on_message=on_message) as call:
        if call.status(lib.am_convert, bytes_of(source), bytes_of(target)) != c.AM_OK:
            call.raise_interrupt()


def run(
    module: Module | PathLike,
    plan: Plan | None = None,
    *,
    on_step: Callable[[Step], object] | None = None,
    on_message: OnMessage | None = None,
    **options: OptionValue,
) -> RunResult:
    """Trains in this process: each device of the plan is a thread. Without a plan one device runs the module.

    Ctrl-C and a true result of on_step stop the run after a step; requested files are written.
    A process has one run at a time: a second call waits. RunError: a rank failed, or the loss was not finite.
    """
    module = module_of(module)
    handle = module.handle
    plan_pointer = None if plan is None else check_plan(plan).handle.pointer
    result = new_struct(c.AmRunResult)
    with Call(c.AM_COMMAND_RUN, options, on_step=on_step, on_message=on_message) as call, RUN, handle.alone:
        status = call.status(lib.am_run, handle.pointer, plan_pointer, after=(byref(result),))
    return RunResult(
        result.steps,
        result.seconds_per_step,
        result.first_loss,
        result.last_loss,
        result.peak_bytes,
        status == c.AM_INTERRUPTED,
    )
