"""The opcodes of pickles that build data, each as a step of the machine in ``unpickling.py``.

Source: Python's ``pickletools``, protocols 0 to 5. What is missing here (INST, OBJ, NEWOBJ, PERSID,
EXT, sets, buffers outside
the file) makes objects of classes that a file names, or needs what no file of events has.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fourpoint.data.formats.pickled_arrays import MAKERS, PLAIN_NAMES, Array, Dtype, Refused

if TYPE_CHECKING:
    from fourpoint.data.formats.unpickling import Machine


class _Name:
    """A name that a pickle asked for; it stands for nothing but itself."""

    __slots__ = ("full",)

    def __init__(self, full: str) -> None:
        self.full = full


def _push(read: Callable[[Machine], Any]) -> Callable[[Machine], None]:
    """A step that pushes what ``read`` gives."""

    def step(machine: Machine) -> None:
        machine.stack.append(read(machine))

    return step


def unknown(m: Machine) -> None:
    raise Refused(f"uses opcode {m.data[m.at - 1 : m.at]!r}, which is not for data")


def _skip(size: int) -> Callable[[Machine], None]:
    def step(m: Machine) -> None:
        m.take(size)

    return step


def _drop_since_mark(m: Machine) -> None:
    m.since_mark()


def _gather(make: Callable[[list[Any]], Any]) -> Callable[[Machine], None]:
    """A step that replaces everything since the mark by what ``make`` makes of it."""

    def step(m: Machine) -> None:
        items = m.since_mark()
        m.stack.append(make(items))

    return step


def _last(count: int) -> Callable[[Machine], None]:
    """A step that makes a tuple of the last ``count`` things."""

    def step(m: Machine) -> None:
        if len(m.stack) < count:
            raise IndexError
        items = tuple(m.stack[-count:])
        m.stack[-count:] = [items]

    return step


def _append(m: Machine) -> None:
    _extend(m, [m.stack.pop()])


def _appends(m: Machine) -> None:
    _extend(m, m.since_mark())


def _extend(m: Machine, items: list[Any]) -> None:
    if type(m.stack[-1]) is not list:
        raise Refused("adds items to what is no list")
    m.stack[-1].extend(items)


def _set_item(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _update(m.stack[-1], [key, value])


def _update(target: Any, items: list[Any]) -> Any:
    check_keys(target, items[::2])
    target.update(zip(items[::2], items[1::2], strict=True))
    return target


def check_keys(target: Any, keys: list[Any]) -> None:
    if type(target) is not dict or not {*map(type, keys)} <= KEYS:
        raise Refused("has a dict with a key that is neither text nor a number")


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.since_mark()


def _remember(index: Callable[[Machine], int]) -> Callable[[Machine], None]:
    def step(m: Machine) -> None:
        m.memo[index(m)] = m.stack[-1]

    return step


def _recall(index: Callable[[Machine], int]) -> Callable[[Machine], None]:
    def step(m: Machine) -> None:
        m.stack.append(m.memo[index(m)])

    return step


def _global(m: Machine) -> None:
    _push_name(m, m.line().decode("utf-8"), m.line().decode("utf-8"))


def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise Refused("asks for a name that is no text")
    _push_name(m, module, name)


def _push_name(m: Machine, module: str, name: str) -> None:
    full = f"{module}.{name}"
    if full not in MAKERS and full not in PLAIN_NAMES:
        raise Refused(f"asks for {full[:100]}")
    m.stack.append(_Name(full))


def _reduce(m: Machine) -> None:
    arguments, maker = m.stack.pop(), m.stack.pop()
    if type(maker) is not _Name or maker.full not in MAKERS or type(arguments) is not tuple:
        raise Refused(f"calls {maker.full if type(maker) is _Name else 'what is no function'}")
    _count_copies(m, arguments)
    m.stack.append(MAKERS[maker.full](*arguments))


def _build(m: Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if not isinstance(target, Array | Dtype):
        raise Refused(f"sets the state of a {type(target).__name__}")
    _count_copies(m, state)
    target.fill(state)


def _count_copies(m: Machine, arguments: Any) -> None:
    """Count bytes, text and lists that are about to be copied: the memo may name one of them any
    number of times.
    """
    if type(arguments) is tuple:
        for one in arguments:
            if type(one) in (bytes, str):
                m.expansion.count(2 * len(one))
            elif type(one) is list:
                m.expansion.count(8 * len(one))


def _old_int(m: Machine) -> int | bool:
    text = m.line()
    return bool(int(text)) if text in (b"00", b"01") else int(text)


def _old_text(m: Machine) -> str:
    quoted = m.line().strip()
    if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b"'", b'"'):
        raise ValueError
    return codecs.escape_decode(quoted[1:-1])[0].decode("latin-1")


def _text(size: int) -> Callable[[Machine], None]:
    return _push(lambda m: m.take(m.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[Machine], None]:
    return _push(lambda m: m.take(m.number(size)))


def _python2_text(size: int) -> Callable[[Machine], None]:
    # Python 2 wrote text and raw bytes alike; latin-1 keeps both.
    return _push(lambda m: m.take(m.number(size)).decode("latin-1"))


KEYS = frozenset({str, int, float, bytes, bool})
STEPS: dict[int, Callable[[Machine], None]] = {
    0x80: _skip(1),  # the protocol's number
    0x95: _skip(8),  # the length of a frame: each length inside is checked on its own
    ord("0"): _pop,
    ord("1"): _drop_since_mark,
    ord("2"): _push(lambda m: m.stack[-1]),
    ord("N"): _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    ord("I"): _push(_old_int),
    ord("L"): _push(lambda m: int(m.line().rstrip(b"L"))),
    ord("J"): _push(lambda m: struct.unpack("<i", m.take(4))[0]),
    ord("M"): _push(lambda m: m.number(2)),
    0x8A: _push(lambda m: int.from_bytes(m.take(m.number(1)), "little", signed=True)),
    0x8B: _push(lambda m: int.from_bytes(m.take(m.number(4)), "little", signed=True)),
    ord("F"): _push(lambda m: float(m.line())),
    ord("S"): _push(_old_text),
    ord("T"): _python2_text(4),
    ord("U"): _python2_text(1),
    ord("V"): _push(lambda m: m.line().decode("raw-unicode-escape")),
    ord("X"): _text(4),
    0x8C: _text(1),
    0x8D: _text(8),
    ord("B"): _bytes(4),
    ord("C"): _bytes(1),
    0x8E: _bytes(8),
    0x96: _bytes(8),
    ord("]"): _push(lambda m: []),
    ord("a"): _append,
    ord("e"): _appends,
    ord("l"): _gather(list),
    ord(")"): _push(lambda m: ()),
    ord("t"): _gather(tuple),
    0x85: _last(1),
    0x86: _last(2),
    0x87: _last(3),
    ord("d"): _gather(lambda items: _update({}, items)),
    ord("s"): _set_item,
    ord("p"): _remember(lambda m: int(m.line())),
    ord("q"): _remember(lambda m: m.number(1)),
    ord("g"): _recall(lambda m: int(m.line())),
    ord("j"): _recall(lambda m: m.number(4)),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _reduce,
    ord("b"): _build,
}
