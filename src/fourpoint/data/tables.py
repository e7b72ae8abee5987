"""Anything tabular, opened: a path to CSV, TSV, JSON Lines, Parquet or Arrow, a folder or URL of
Parquet files, or a table that is in memory already.

In memory are data frames of pandas and polars, Arrow tables and batches, a mapping from names to
columns, and whatever speaks the Arrow stream (``__arrow_c_stream__``) or the data frame interchange
protocol (``__dataframe__``). A file's kind follows from its ending, and from its first bytes where
the ending says nothing. Text files may be compressed (.gz, .zst, .bz2, .lz4). Whatever cannot be
read is an :class:`EventDataError` that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from fourpoint.data.date_time import with_joined_columns
from fourpoint.data.expansion import NUMBER, Expansion
from fourpoint.data.files import check_file
from fourpoint.data.opened import BEGINNING, FAULTS, HEAD, Table, progress, reason, row_number
from fourpoint.data.parquet_files import Store, are_files
from fourpoint.data.text_tables import open_delimited, open_json_lines
from fourpoint.data.unpacked_sizes import Chunk, page_sizes, unpacked_sizes
from fourpoint.events import EventDataError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".arrows": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
EXPECTED = {
    "parquet": "a Parquet file",
    "arrow": "an Arrow file",
    "csv": "a CSV file",
    "tsv": "a TSV file",
    "json": "a file of JSON Lines",
}
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"{": "json"}
SUSPECT = 50  # text and numbers shrink by less than this
FOREIGN = {  # first bytes of what looks like text by its ending, or has none that is known
    b"PK\x03\x04": "a ZIP archive, such as an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
}
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
}


def open_table(source: object) -> Table:
    """Open ``source`` without reading it, or say why it is no table.

    >>> table = open_table({"when": [1.5, 2.0], "what": ["a", "b"]})
    >>> table.schema.names, table.load(["when"]).num_rows
    (['when', 'what'], 2)
    """
    if are_files(source):
        return with_joined_columns(Store.open(str(source)).whole())
    if isinstance(source, str | os.PathLike):
        return with_joined_columns(_open_file(Path(source)))
    return with_joined_columns(_open_frame(source))


def _open_file(path: Path) -> Table:
    kind, codec = _kind(path)
    expected = EXPECTED.get(kind, "a file of events")
    if path.is_file() or path.is_dir() or not path.exists():  # what a pipe holds is not known yet
        check_file(path, expected, lambda other: _kind(other)[0])
    try:
        _check_foreign(path, kind)
        if not kind:
            kind, codec = _sniff(path)
        if kind in ("csv", "tsv"):
            return open_delimited(path, codec, tabs=kind == "tsv")
        if kind == "json":
            return open_json_lines(path, codec)
        return _open_parquet(path) if kind == "parquet" else _open_arrow(path)
    except EventDataError:
        raise
    except FAULTS as error:
        raise _unreadable(path, kind, error) from error


def _kind(path: Path) -> tuple[str, str | None]:
    """What the endings of a name say: the kind of file ("" where they say nothing) and how it is
    compressed.
    """
    endings = [ending.lower() for ending in path.suffixes]
    codec = CODECS.get(endings[-1]) if endings else None
    inner = endings[-2:-1] if codec else endings[-1:]
    return (KINDS.get(inner[0], "") if inner else ""), codec


def _check_foreign(path: Path, kind: str) -> None:
    """Refuse workbooks and archives that would be read as text."""
    if kind in ("parquet", "arrow") or not path.is_file():
        return
    with path.open("rb") as file:
        first = file.read(4)
    for magic, what in FOREIGN.items():
        if first.startswith(magic):
            raise EventDataError(
                "a file of CSV, TSV, JSON Lines, Parquet or Arrow",
                f"{path}, which is {what}",
                "Save the sheet of a workbook as CSV UTF-8, or pass the table that "
                "pandas.read_excel returns to fp.read; unpack an archive.",
            )


def _sniff(path: Path) -> tuple[str, str | None]:
    """What the first bytes of a file say: what is none of ours is taken for text in columns."""
    with path.open("rb") as file:
        first = file.read(16)
    codec = next((codec for magic, codec in COMPRESSED.items() if first.startswith(magic)), None)
    if codec:
        with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
            first = stream.read(16)
    plain = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next(
        (
            kind
            for magic, kind in MAGIC.items()
            if first.startswith(magic) or plain.startswith(magic)
        ),
        "csv",
    ), codec


def _unreadable(path: Path, kind: str, error: Exception) -> EventDataError:
    remedy = "Write or download it again."
    if kind == "parquet":
        remedy = (
            "Convert it, for example with pandas: "
            "pandas.read_csv(file).to_parquet('events.parquet')."
        )
    elif isinstance(error, UnicodeDecodeError):
        remedy = "Save the file as UTF-8."
    return EventDataError(
        EXPECTED.get(kind, "a file of events"),
        f"{path}, which cannot be read as one ({reason(error)})",
        remedy,
    )


def _open_parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
    # Words are left as they are stored, once each: written out they may take any amount of memory.
    words = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]

    def first(columns: list[str], rows: int) -> pa.Table:
        expansion = Expansion(path, EXPECTED["parquet"])
        try:
            with pq.ParquetFile(path, read_dictionary=words) as file:
                expansion.check(_parquet_size(file.metadata, columns, rows))
                for chunk in _chunks(file.metadata, columns, rows):
                    expansion.check(max(page_sizes(path, chunk), default=0))
                batch = next(file.iter_batches(rows, columns=columns), None)
        except EventDataError:
            raise
        except FAULTS as error:
            raise _unreadable(path, "parquet", error) from error
        if batch is not None:
            return pa.Table.from_batches([batch])
        return schema.empty_table().select(columns)

    def load(columns: list[str]) -> pa.Table:
        expansion = Expansion(path, EXPECTED["parquet"])
        try:
            with (
                pq.ParquetFile(path, read_dictionary=words) as file,
                progress(path.name, file.metadata.num_rows) as advance,
            ):
                expansion.check(_parquet_size(file.metadata, columns))
                expansion.check_rows(file.metadata.num_rows, len(columns))
                unpacked = 0
                for chunk in _chunks(file.metadata, columns):
                    for size in page_sizes(path, chunk):
                        unpacked += size
                        expansion.check(unpacked)
                groups = []
                for i in range(file.num_row_groups):
                    groups.append(file.read_row_group(i, columns=columns))
                    expansion.check_arrow()
                    if advance is not None:
                        advance(groups[-1].num_rows)
                return pa.concat_tables(groups) if groups else file.read(columns=columns)
        except EventDataError:
            raise
        except FAULTS as error:
            raise _unreadable(path, "parquet", error) from error

    return Table(
        str(path),
        path.stem,
        schema,
        partial(first, rows=HEAD),
        load,
        row_number,
        partial(first, rows=BEGINNING),
    )


def _parquet_size(metadata: pq.FileMetaData, columns: list[str], rows: int | None = None) -> int:
    """Bytes that columns take in memory by the file's own account: their pages once unpacked, and a
    number for each value.

    Runs and dictionaries make pages far smaller than the values they stand for. For the first
    ``rows`` only pages that are packed more than ``SUSPECT`` times are counted, since others are
    unpacked one by one.
    """
    total, seen = 0, 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        wanted = [
            j
            for j in range(group.num_columns)
            if group.column(j).path_in_schema.split(".")[0] in columns
        ]
        for chunk in map(group.column, wanted):
            pages = max(0, chunk.total_uncompressed_size)
            if rows is None:
                total += pages + NUMBER * max(0, chunk.num_values)
            elif pages > SUSPECT * max(1, chunk.total_compressed_size):
                total += pages
        seen += group.num_rows
        if rows is not None and seen >= rows:
            break
    return total


def _chunks(
    metadata: pq.FileMetaData, columns: list[str], rows: int | None = None
) -> Iterator[Chunk]:
    """Where the pages of columns are, of all row groups or of those with the first ``rows``."""
    seen = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.split(".")[0] in columns:
                places = (column.data_page_offset, column.dictionary_page_offset or 0)
                start = min((place for place in places if place > 0), default=0)
                yield Chunk(start, column.total_compressed_size, max(0, column.num_values))
        seen += group.num_rows
        if rows is not None and seen >= rows:
            return


def _open_arrow(path: Path) -> Table:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        raise EventDataError(
            "an Arrow file",
            f"{path}, which is Feather of version 1",
            "Write it again as version 2, or as Parquet.",
        )

    door = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream

    def read(columns: list[str], most: int | None = None) -> pa.Table:
        """The columns batch by batch, of a file or a stream, whichever it begins as; with ``most``
        at least so many rows.
        """
        expansion = Expansion(path, EXPECTED["arrow"])
        for size in unpacked_sizes(path):
            expansion.check(size)
        chosen = pa.ipc.IpcReadOptions(
            included_fields=[schema.get_field_index(name) for name in columns]
        )
        batches = []
        rows = 0
        with pa.OSFile(str(path)) as source:
            reader = door(source, options=chosen)
            for batch in _batches(reader):
                rows += batch.num_rows
                expansion.check_arrow()
                expansion.check_rows(rows, len(columns))
                batches.append(batch)
                if most is not None and rows >= most:
                    break
            table = pa.Table.from_batches(batches, reader.schema)
        # A damaged file may hold offsets that lead outside its buffers, which no later step would
        # notice.
        table.validate(full=True)
        return table

    def load(columns: list[str], most: int | None = None) -> pa.Table:
        try:
            return read(columns, most)
        except EventDataError:
            raise
        except FAULTS as error:
            raise _unreadable(path, "arrow", error) from error

    with pa.OSFile(str(path)) as source:
        schema = door(source).schema
    return Table(
        str(path),
        path.stem,
        schema,
        lambda columns: load(columns, HEAD).slice(0, HEAD),
        load,
        row_number,
    )


def _batches(
    reader: pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader,
) -> Iterator[pa.RecordBatch]:
    """The batches of a file, one at a time, or of a stream."""
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)


def _open_frame(source: object) -> Table:
    library = type(source).__module__.split(".")[0]
    if library not in ("builtins", "pyarrow"):
        label = f"the {library} {type(source).__name__}"
    else:
        label = "the table"
    try:
        if library == "pandas" and isinstance(source, PandasFrame):
            return _open_pandas(source, label)
        table = _arrow_of(source)
    except FAULTS as error:
        remedy = "Convert it to a pandas, polars or Arrow table, or write it to a file."
        raise EventDataError(
            "a table", f"{label}, which Arrow cannot take ({reason(error)})", remedy
        ) from error
    if table is None:
        remedy = (
            "Pass a path, a pandas or polars DataFrame, an Arrow table, or a mapping from names "
            "to columns."
        )
        if hasattr(source, "collect"):
            remedy = "Collect it first: fp.read(frame.collect())."
        raise EventDataError(
            "a path or a table", f"{type(source).__name__} {str(source)[:60]!r}", remedy
        )
    return Table(
        label,
        "",
        table.schema,
        lambda columns: table.select(columns).slice(0, HEAD),
        table.select,
        row_number,
    )


def _arrow_of(source: object) -> pa.Table | None:
    """The table in ``source``, if it has one of the methods by which libraries exchange tables
    (Arrow's C interface, or that of data frames); None otherwise.
    """
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, Mapping) or hasattr(source, "__arrow_c_stream__"):
        return pa.table(source)
    if hasattr(source, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(source)])
    if hasattr(source, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return from_dataframe(source)
    return None


@runtime_checkable
class PandasFrame(Protocol):
    """What is needed of a pandas frame; pandas itself is not imported."""

    columns: Iterable[object]
    index: object
    iloc: Any

    def reset_index(self) -> PandasFrame:
        """The same with its index as columns."""


def _open_pandas(frame: PandasFrame, label: str) -> Table:
    """A pandas frame: its columns one by one, since some that are not asked for may be of no Arrow
    type, and a named index.
    """
    if type(frame.index).__name__ != "RangeIndex":
        frame = frame.reset_index()
    names = [str(name) for name in frame.columns]

    def array(name: str, rows: int | None) -> pa.Array | pa.ChunkedArray:
        series = frame.iloc[:, names.index(name)]
        return pa.array(series if rows is None else series.iloc[:rows], from_pandas=True)

    def load(columns: list[str], rows: int | None = None) -> pa.Table:
        try:
            return pa.table({name: array(name, rows) for name in columns})
        except FAULTS as error:
            raise EventDataError(
                "columns of one type each",
                f"{label}: {reason(error)}",
                "Convert the column to one type.",
            ) from error

    def kind(name: str) -> pa.DataType:
        try:
            return array(name, HEAD).type
        except FAULTS:
            return pa.null()

    schema = pa.schema([(name, kind(name)) for name in names])
    return Table(label, "", schema, lambda columns: load(columns, HEAD), load, row_number)
