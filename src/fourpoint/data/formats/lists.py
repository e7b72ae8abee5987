"""Tables with one row per sequence and lists in their cells, as flat arrays: no Python object per
event.

EasyTPP's Hugging Face rows and HoTPP's Parquet files are such tables. A column of lists in Arrow is
already flat: the values end to end, and the lengths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.data.expansion import Expansion
from fourpoint.data.files import check_file, unreadable
from fourpoint.data.unpacked_sizes import expanded_size
from fourpoint.events import EventDataError
from fourpoint.events.batching import offsets_of


def read_lists(path: Path, what: str, wanted: tuple[str, ...]) -> pa.Table:
    """The wanted columns that a Parquet file has, with its metadata; refused before it is read if
    it unfolds without end.
    """
    check_file(path, what)
    try:
        expansion = Expansion(path, what)
        expansion.check(expanded_size(path, wanted))
        with pq.ParquetFile(path) as file:
            names = [name for name in wanted if name in file.schema_arrow.names]
            groups = []
            for i in range(file.num_row_groups):
                groups.append(file.read_row_group(i, columns=names))
                expansion.check_arrow()
            table = pa.concat_tables(groups) if groups else file.read(columns=names)
            table.validate(full=True)  # text that is no UTF-8, offsets that point nowhere
            return table
    except EventDataError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise unreadable(path, what, error) from error


def flat(table: pa.Table, name: str, source: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values of a column of lists of numbers, end to end, and the offsets of its rows.

    >>> values, offsets = flat(pa.table({"t": [[1.0, 2.0], [], [3.0]]}), "t", Path("x"))
    >>> values.tolist(), offsets.tolist()
    ([1.0, 2.0, 3.0], [0, 2, 2, 3])
    """
    kind = table[name].type
    lists = any(
        test(kind)
        for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )
    if not lists and not (pa.types.is_null(kind) and not len(table)):
        raise _error(
            source,
            f"a list of numbers in every row of column {name!r}",
            f"values of type {kind}",
            "Gather each sequence in a row.",
        )
    if table[name].null_count:
        row = int(np.flatnonzero(table[name].is_null().to_numpy())[0])
        raise _error(
            source,
            f"a list in every row of column {name!r}",
            f"none at row {row}",
            "Remove or fill the row.",
        )
    lengths = [np.asarray(pc.list_value_length(chunk)) for chunk in table[name].chunks]
    offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *lengths]))
    chunks = [_numbers(chunk.flatten(), name, source) for chunk in table[name].chunks]
    if len(chunks) == 1:
        return chunks[0], offsets
    return np.concatenate([np.zeros(0), *chunks]), offsets


def _numbers(values: pa.Array, name: str, source: Path) -> NDArray[Any]:
    if pa.types.is_null(values.type) and not len(values):
        return np.zeros(0)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise _error(
            source,
            f"lists of numbers in column {name!r}",
            f"lists of {values.type}",
            "Convert the values to numbers.",
        )
    if values.null_count:
        raise _error(
            source,
            f"lists without holes in column {name!r}",
            f"{values.null_count:,} null",
            "Remove or fill them.",
        )
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _error(source: Path, expected: str, received: str, remedy: str) -> EventDataError:
    return EventDataError(expected, f"{source}: {received}", remedy)
