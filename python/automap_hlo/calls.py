"""Options and callbacks of one call, and its end by Ctrl-C.

    with Call(AM_COMMAND_SEARCH, {"even": True}, on_progress=print) as call:
        status = call.status(lib.am_search, byref(pointer), module, cluster)

The library calls callbacks of progress about five times a second, in the thread of the caller, so that
Python runs its signal handlers there. An exception in a callback stops the call and is raised after it.
"""

import ctypes
import dataclasses
import json
import logging
import operator
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from typing import Any, Union

from . import declarations as c
from .errors import InfeasibleError
from .library import bytes_of, call, check, known, lib, new_struct, text_of

Scalar = Union[str, int, float, bool, os.PathLike[str]]
OptionValue = Union[Scalar, Sequence[Scalar], None]
"""True and False set a switch, a list the values of a repeatable option; None is the default."""

LOG = logging.getLogger("automap_hlo")
COMMANDS = {
    "search": c.AM_COMMAND_SEARCH,
    "simulate": c.AM_COMMAND_SIMULATE,
    "explain": c.AM_COMMAND_EXPLAIN,
    "compare": c.AM_COMMAND_COMPARE,
    "export": c.AM_COMMAND_EXPORT,
    "run": c.AM_COMMAND_RUN,
    "info": c.AM_COMMAND_INFO,
    "groups": c.AM_COMMAND_GROUPS,
    "propagate": c.AM_COMMAND_PROPAGATE,
    "lower": c.AM_COMMAND_LOWER,
    "cluster": c.AM_COMMAND_CLUSTER,
    "published": c.AM_COMMAND_PUBLISHED,
    "convert": c.AM_COMMAND_CONVERT,
    "agent evaluate": c.AM_COMMAND_AGENT_EVALUATE,
}


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a command. `value` names its argument; None for a switch."""

    key: str
    value: str | None
    help: str
    is_repeatable: bool


@dataclasses.dataclass(frozen=True)
class Progress:
    """The state of a search or of an explanation. Unknown numbers are None, an unknown limit is 0."""

    is_last: bool
    elapsed_seconds: float
    phase: str
    evaluations: int
    limit: int
    best_seconds: float | None
    bound_seconds: float | None
    seconds_left: float | None


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a run, from 0. `loss` is NAN where the module has none; counts of 0 are unknown."""

    step: int
    loss: float
    seconds: float
    examples: int
    tokens: int


def options(command: str) -> tuple[Option, ...]:
    """The options of a command, which are keyword arguments with '_' in place of '-': of the function "search",
    "simulate", "explain", "compare", "export" or "run", or of report() for the other commands."""
    if command not in COMMANDS:
        raise ValueError(f"{command!r}: unknown command (expected one of {', '.join(COMMANDS)})")
    number, found = COMMANDS[command], []
    for k in range(lib.am_option_count(number)):
        facts = new_struct(c.AmOptionFacts)
        call(lib.am_option, number, k, byref(facts))
        value = None if facts.value is None else text_of(facts.value)
        found.append(Option(text_of(facts.key), value, text_of(facts.help), bool(facts.is_repeatable)))
    return tuple(found)


def option_text(key: str, value: Scalar) -> bytes:
    """The text of one value. Numbers may be those of other packages, such as NumPy's. TypeError names the option."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return bytes_of(value)
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return b"true" if value else b"false"
    try:
        return str(operator.index(value)).encode()  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return repr(float(value)).encode()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"option {key}: expected a number, a text or a path, not {type(value).__name__}") from None


class Call:
    """One call of the library: its options, callbacks and cancellation."""

    def __init__(
        self,
        command: int,
        values: Mapping[str, OptionValue],
        on_progress: Callable[[Progress], object] | None = None,
        on_step: Callable[[Step], object] | None = None,
        on_message: Callable[[str, str], object] | None = None,
        on_episode: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self.options = ctypes.POINTER(c.AmOptions)()
        self._command = command
        call(lib.am_options_new, byref(self.options), command)
        try:
            for key, value in values.items():
                self._set(key.rstrip("_"), value)
        except BaseException:
            lib.am_options_free(self.options)
            raise
        self.is_interrupted = False  # by Ctrl-C
        self._cancel = ctypes.c_int(0)
        self._exception: BaseException | None = None
        self._report: dict[str, Any] | None = None
        self._functions = (on_progress, on_step, on_message, on_episode)
        self.callbacks = new_struct(c.AmCallbacks)
        self.callbacks.on_progress = c.OnProgress(self._progress)
        self.callbacks.on_step = c.OnStep(self._step)
        self.callbacks.on_message = c.OnMessage(self._message)
        if on_episode:
            self.callbacks.on_episode = c.OnJson(self._episode)
        self.callbacks.on_infeasible = c.OnJson(self._infeasible)
        self.callbacks.cancel = ctypes.pointer(self._cancel)

    def _set(self, key: str, value: OptionValue) -> None:
        is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        if is_list and len(value) > 1 and self._is_single(key):  # type: ignore[arg-type]
            raise ValueError(f"option {key}: expected one value, got {len(value)}")  # type: ignore[arg-type]
        for single in value if is_list else () if value is None else (value,):  # type: ignore[union-attr]
            call(lib.am_options_set, self.options, bytes_of(key), option_text(key, single))  # type: ignore[arg-type]

    def _is_single(self, key: str) -> bool:
        """Returns whether the option may be given once only; False for an unknown one, which the library reports."""
        command = next(name for name, number in COMMANDS.items() if number == self._command)
        return any(row.key == key.replace("_", "-") and not row.is_repeatable for row in options(command))

    def _guard(self, function: Callable[..., object] | None, *arguments: Any) -> int:
        """Calls a function of the user; returns whether the call has to stop."""
        try:
            if function and self._exception is None and function(*arguments):
                return 1
        except BaseException as error:
            self._exception = error
        return int(self._exception is not None)

    def _progress(self, _: Any, facts: Any) -> int:
        now = facts.contents
        return self._guard(
            self._functions[0],
            Progress(
                bool(now.is_last),
                now.elapsed_seconds,
                text_of(now.phase),
                now.evaluations,
                now.limit,
                known(now.best_seconds),
                known(now.bound_seconds),
                known(now.seconds_left),
            ),
        )

    def _step(self, _: Any, facts: Any) -> int:
        now = facts.contents
        return self._guard(self._functions[1], Step(now.step, now.loss, now.seconds, now.examples, now.tokens))

    def _message(self, _: Any, kind: int, text: bytes) -> None:
        if self._functions[2]:
            self._cancel_if(
                self._guard(self._functions[2], "warning" if kind == c.AM_WARNING else "note", text_of(text))
            )
        else:
            LOG.log(logging.WARNING if kind == c.AM_WARNING else logging.INFO, "%s", text_of(text))

    def _episode(self, _: Any, text: bytes) -> None:
        self._cancel_if(self._guard(self._functions[3], json.loads(text)))

    def _infeasible(self, _: Any, text: bytes) -> None:
        self._report = json.loads(text)

    def _cancel_if(self, is_raised: int) -> None:
        if is_raised and self._exception is not None:
            self._cancel.value = 1

    def _on_signal(self, number: int, frame: Any) -> None:
        self.is_interrupted = True
        self._cancel.value = 1

    def status(self, function: Any, *arguments: Any, after: tuple[Any, ...] = ()) -> int:
        """Calls function(*arguments, options, callbacks, *after, error) and returns AM_OK or AM_INTERRUPTED.

        Ctrl-C stops the call if its handler is Python's own; AM_INTERRUPTED also where the call was over
        before. Raises the error of the call, or the exception of a callback.
        """
        is_handled = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        error = c.AmError()
        if is_handled:
            signal.signal(signal.SIGINT, self._on_signal)
        try:
            status: int = function(*arguments, self.options, byref(self.callbacks), *after, byref(error))
        finally:
            if is_handled:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._exception is not None:
            raise self._exception
        if status != c.AM_INTERRUPTED:
            try:
                check(status, error)
            except InfeasibleError as infeasible:
                infeasible.report = self._report
                raise
        self._error = error
        return c.AM_INTERRUPTED if self.is_interrupted else status

    def raise_interrupt(self) -> None:
        """Raises for a call that was stopped before it had a result: KeyboardInterrupt for Ctrl-C."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        check(c.AM_INTERRUPTED, self._error)

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *exception: object) -> None:
        lib.am_options_free(self.options)
        self.callbacks = None  # ends the cycle of references through the callbacks
