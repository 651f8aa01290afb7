"""Exceptions, one class for each status of the library.

Every `Error` has `code` (the status, which is also the exit code of the program), `source` (the file),
`line` and `column` (from 1; 0 without a text), `text` (the problem and the expectation) and `excerpt`.
"""

from typing import Any, ClassVar

from . import declarations as c


class Error(Exception):
    """An error that the library reported."""

    code: ClassVar[int] = c.AM_ERROR_INTERNAL

    def __init__(self, text: str, source: str = "", line: int = 0, column: int = 0, excerpt: str = "") -> None:
        super().__init__(text, source, line, column, excerpt)
        self.text = text
        self.source = source
        self.line = line
        self.column = column
        self.excerpt = excerpt

    def __str__(self) -> str:
        place = ":".join([self.source, *(str(number) for number in (self.line, self.column) if number)])
        return f"{place}: {self.text}" if self.source else self.text


class InternalError(Error):
    """A bug of automap, or no memory left."""


class UsageError(Error, ValueError):
    """An argument or an option without meaning."""

    code = c.AM_ERROR_USAGE


class InputError(Error, ValueError):
    """A bad input file."""

    code = c.AM_ERROR_INPUT


class InfeasibleError(Error):
    """No plan fits the memory, or an export would not be the same plan.

    `report` is the nearest plan of a search with changes that would fit, as a dictionary; or None.
    """

    code = c.AM_ERROR_INFEASIBLE
    report: dict[str, Any] | None = None


class RunError(Error, RuntimeError):
    """A rank failed while running, or the loss was not finite."""

    code = c.AM_ERROR_RUNTIME


class Interrupted(Error):
    """A callback stopped the call before it had a result."""

    code = c.AM_INTERRUPTED


CLASSES: dict[int, type[Error]] = {
    kind.code: kind for kind in (InternalError, UsageError, InputError, InfeasibleError, RunError, Interrupted)
}
