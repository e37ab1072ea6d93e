"""The errors that reach a user: what, where and a hint. May import the standard library only."""

from __future__ import annotations


class LynxError(Exception):
    """A user's mistake or an outside failure: Lynx could not answer (exit code 2).

    `message` says what is wrong and why, `where` locates it (JSON pointer, `file:line`, option name),
    `hint` says what to do next. One place prints it: `cli/main.py`.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class AnswerNo(LynxError):
    """Lynx could answer, and the answer is no (exit code 1): infeasible, invalid, stale, not verified."""

    exit_code = 1


class Infeasible(AnswerNo):
    """No plan fits the budget; `minimum_budget_bytes` is the smallest budget for which one was found.

    `details`: what binds and what fills memory there, as a document of `--json` holds it.
    """

    def __init__(
        self,
        message: str,
        *,
        minimum_budget_bytes: int,
        hint: str = "",
        where: str = "",
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.minimum_budget_bytes = minimum_budget_bytes
        self.details = details or {}
