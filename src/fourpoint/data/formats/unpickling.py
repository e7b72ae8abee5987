"""Pickles read as data, never run.

A pickle is a program for a small stack machine, and Python's own loader lets it import and call
anything. This machine knows the opcodes that build containers, numbers and text. It cannot import:
a name is only a name, and the few that stand for numpy's arrays, dtypes and scalars
(``pickled_arrays.py``) are built by functions of ours that call no code of the file's choosing. All
else is refused, with the name that was asked for.

Nor can a pickle exhaust memory or time: lengths are compared with the bytes that are there before
anything is made, opcodes
and copies of what is named again are counted against the limit of :mod:`fourpoint.data.expansion`,
the memo is a dict (a huge index costs nothing), and keys of dicts are plain (a key nested a million
deep would overflow the stack when hashed).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import contents
from fourpoint.data.formats.pickle_steps import STEPS, check_keys, unknown
from fourpoint.data.formats.pickled_arrays import Refused
from fourpoint.events import EventDataError

WHAT = "a pickle of containers, numbers, text and numpy arrays"
STOP = 0x2E
FLOAT = struct.Struct(">d").unpack_from
MOST_OPCODES = 60_000_000  # about five million events, a dict each
# bytes that an opcode of one byte takes at most on average: an empty dict and its place on the
# stack
OPCODE = 72


def load(path: Path) -> tuple[Any, int]:
    """What a pickle file holds, and how many bytes it took. Arrays come as :class:`Array`, whose
    ``value`` is a numpy array.

    A pickle may name one list a million times at two bytes each, so that who walks through it must
    stop somewhere: after as many things as there are bytes. Fails with :class:`EventDataError`,
    naming the file and the byte, on anything but data; nothing of the file is run.
    """
    data = contents(path, WHAT)
    return loads(data, path), len(data)


def loads(data: bytes, source: Path) -> Any:
    """The same for bytes; ``source`` is named in errors.

    >>> import pickle
    >>> loads(pickle.dumps({"train": [[1, 2.5, "a"]]}), Path("x.pkl"))
    {'train': [[1, 2.5, 'a']]}
    >>> loads(pickle.dumps(print), Path("x.pkl"))
    Traceback (most recent call last):
      ...
    fourpoint.events.EventDataError: expected a pickle of ... which asks for builtins.print (at byte 31). Nothing of it was run. ...
    """
    machine = Machine(data, Expansion(source, WHAT))
    try:
        return machine.run()
    except EventDataError:
        raise
    except Refused as error:
        fault = str(error)
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as error:
        # What a broken or cut file does to the machine: an empty stack, an unknown memo, text that
        # is not text.
        fault = f"is damaged or cut short ({type(error).__name__})"
    remedy = (
        "Nothing of it was run. If you trust it, load it with Python and write the events as "
        "Parquet or JSON."
    )
    raise EventDataError(
        WHAT, f"{source}, which {fault} (at byte {machine.at:,})", remedy
    ) from None


class Machine:
    """The state of a run: ``at`` is the next byte; ``stack`` is what was built since the last mark,
    ``below`` the rest.
    """

    def __init__(self, data: bytes, expansion: Expansion) -> None:
        self.data, self.at = data, 0
        self.expansion = expansion
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Follow the opcodes to the end. Those that lists of event dicts are made of are taken
        here, the others by ``STEPS``.

        A call per opcode would cost more than the opcode does: with these eight in the loop a file
        of events reads four times faster.
        """
        data, memo, stack, at = self.data, self.memo, self.stack, self.at
        known: list[Any] = []  # keys that were found fit: those of one event are those of the next
        most = min(MOST_OPCODES, self.expansion.limit // OPCODE)
        try:
            for _ in range(most):
                code = data[at]
                at += 1
                if code == 0x47:  # a float
                    stack.append(FLOAT(data, at)[0])
                    at += 8
                elif code == 0x68:  # recall, as keys are
                    stack.append(memo[data[at]])
                    at += 1
                elif code == 0x4B:  # a small integer
                    stack.append(data[at])
                    at += 1
                elif code == 0x94:  # remember
                    memo[len(memo)] = stack[-1]
                elif code == 0x72:  # remember at an index
                    memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                    at += 4
                elif code == 0x7D:  # a dict
                    stack.append({})
                elif code == 0x28:  # mark
                    self.below.append(stack)
                    stack = []
                elif code == 0x75:  # set items
                    items, stack = stack, self.below.pop()
                    keys = items[::2]
                    if keys != known or type(stack[-1]) is not dict:
                        check_keys(stack[-1], keys)
                        known = keys
                    stack[-1].update(zip(keys, items[1::2], strict=True))
                elif code == STOP:
                    return stack[-1]
                else:
                    self.at, self.stack = at, stack
                    STEPS.get(code, unknown)(self)
                    at, stack = self.at, self.stack
        finally:
            self.at = at
        if most < MOST_OPCODES:
            raise self.expansion.error(OPCODE * most)
        raise Refused(f"has more than {MOST_OPCODES:,} opcodes")

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes, which must be there: nothing is set aside on a length's word
        alone.
        """
        if not 0 <= size <= len(self.data) - self.at:
            raise Refused(
                f"ends before it is complete: {size:,} bytes were announced, "
                f"{len(self.data) - self.at:,} are left"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        """The bytes up to the next newline, as protocol 0 writes its arguments."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Refused("ends before it is complete")
        return self.take(end + 1 - self.at)[:-1]

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items
