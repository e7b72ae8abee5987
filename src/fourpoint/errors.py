"""Errors that a user can correct, in three clauses: what was expected, what was received and
where, and what to do.

Users catch them as ``fourpoint.events.UserError`` and ``fourpoint.events.EventDataError``.
"""

from __future__ import annotations

from fourpoint.sanitising import console_text


class UserError(ValueError):
    """An error that a user can correct: what was expected, what was received and where, and what
    to do.

    >>> str(UserError("a positive horizon", "-1.0", "Pass horizon=2.0, say."))
    'expected a positive horizon; received -1.0. Pass horizon=2.0, say.'
    """

    __module__ = "fourpoint.events"  # Where it is imported from, and so what a traceback calls it.

    def __init__(self, expected: str, received: str, remedy: str) -> None:
        super().__init__(console_text(f"expected {expected}; received {received}. {remedy}"))
        self.expected = expected
        self.received = received
        self.remedy = remedy


class EventDataError(UserError):
    """Data that are not valid sequences of events. The message names the sequence, the
    event and the value.

    >>> import fourpoint as fp
    >>> try:
    ...     fp.Sequence([2.0, 1.0], start=0.0, stop=3.0)
    ... except EventDataError as error:
    ...     print("refused")
    refused
    """

    __module__ = "fourpoint.events"
