"""Anything tabular, opened: a path to CSV, TSV, JSON Lines, Parquet or Arrow, or a table that is in memory already.

In memory are data frames of pandas and polars, Arrow tables and batches, a mapping from names to columns, and whatever
speaks the Arrow stream (``__arrow_c_stream__``) or the data frame interchange protocol (``__dataframe__``). A file's
kind follows from its ending, and from its first bytes where the ending says nothing. Text files may be compressed
(.gz, .zst, .bz2, .lz4). Whatever cannot be read is an :class:`EventDataError` that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from fourpoint.data.delimited import open_delimited
from fourpoint.data.files import check_file
from fourpoint.data.json_lines import open_json_lines
from fourpoint.data.lines import memory
from fourpoint.data.opened import FAULTS, HEAD, Table, progress, reason, row_number
from fourpoint.events import EventDataError

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
EXPECTED = {"parquet": "a Parquet file", "arrow": "an Arrow file", "csv": "a CSV file", "tsv": "a TSV file", "json": "a file of JSON Lines"}
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"{": "json"}
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}


def open_table(source: object) -> Table:
    """Open ``source`` without reading it, or say why it is no table.

    >>> table = open_table({"when": [1.5, 2.0], "what": ["a", "b"]})
    >>> table.schema.names, table.load(["when"]).num_rows
    (['when', 'what'], 2)
    """
    if isinstance(source, str | os.PathLike):
        return _open_file(Path(source))
    return _open_frame(source)


def _open_file(path: Path) -> Table:
    kind, codec = _kind(path)
    expected = EXPECTED.get(kind, "a file of events")
    if path.is_file() or path.is_dir() or not path.exists():  # what a pipe holds is not known yet
        check_file(path, expected, lambda other: _kind(other)[0])
    try:
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
    """What the endings of a name say: the kind of file ("" where they say nothing) and how it is compressed."""
    endings = [ending.lower() for ending in path.suffixes]
    codec = CODECS.get(endings[-1]) if endings else None
    inner = endings[-2:-1] if codec else endings[-1:]
    return (KINDS.get(inner[0], "") if inner else ""), codec


def _sniff(path: Path) -> tuple[str, str | None]:
    """What the first bytes of a file say: what is none of ours is taken for text in columns."""
    with open(path, "rb") as file:
        first = file.read(16)
    codec = next((codec for magic, codec in COMPRESSED.items() if first.startswith(magic)), None)
    if codec:
        with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
            first = stream.read(16)
    plain = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((kind for magic, kind in MAGIC.items() if first.startswith(magic) or plain.startswith(magic)), "csv"), codec


def _unreadable(path: Path, kind: str, error: Exception) -> EventDataError:
    remedy = "Write or download it again."
    if kind == "parquet":
        remedy = "Convert it, for example with pandas: pandas.read_csv(file).to_parquet('events.parquet')."
    return EventDataError(EXPECTED[kind], f"{path}, which cannot be read as one ({reason(error)})", remedy)


def _open_parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
    # Words are left as they are stored, once each: written out they may take any amount of memory.
    words = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]

    def head(columns: list[str]) -> pa.Table:
        with pq.ParquetFile(path, read_dictionary=words) as file:
            batch = next(file.iter_batches(HEAD, columns=columns), None)
        return pa.Table.from_batches([batch]) if batch is not None else schema.empty_table().select(columns)

    def load(columns: list[str]) -> pa.Table:
        try:
            with pq.ParquetFile(path, read_dictionary=words) as file, progress(path.name, file.metadata.num_rows) as advance:
                _check_room(path, file.metadata.num_rows, len(columns))
                if advance is None or file.num_row_groups < 2:
                    return file.read(columns=columns)
                groups = []
                for i in range(file.num_row_groups):
                    groups.append(file.read_row_group(i, columns=columns))
                    advance(groups[-1].num_rows)
                return pa.concat_tables(groups)
        except EventDataError:
            raise
        except FAULTS as error:
            raise _unreadable(path, "parquet", error) from error

    return Table(str(path), path.stem, schema, head, load, row_number)


def _check_room(path: Path, rows: int, columns: int) -> None:
    """A small file may claim any number of rows."""
    if 8 * rows * columns > memory():
        received = f"{path}, whose {rows:,} rows take more than the {memory() / 1e9:.1f} GB of this machine's memory"
        raise EventDataError("a file that fits into memory", received, "Split it, or read it on a larger machine.")


def _open_arrow(path: Path) -> Table:
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        raise EventDataError("an Arrow file", f"{path}, which is Feather of version 1", "Write it again as version 2, or as Parquet.")

    def read(columns: list[str] | None) -> pa.Table:
        """The columns, whole, or the schema alone: a file or a stream, whichever it begins as."""
        with pa.OSFile(str(path)) as source:
            door = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
            schema = door(source).schema
            if columns is None:
                return schema.empty_table()
            source.seek(0)
            chosen = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])
            table = door(source, options=chosen).read_all()
        # A damaged file may hold offsets that lead outside its buffers, which no later step would notice.
        table.validate(full=True)
        return table

    def load(columns: list[str]) -> pa.Table:
        try:
            return read(columns)
        except FAULTS as error:
            raise _unreadable(path, "arrow", error) from error

    return Table(str(path), path.stem, read(None).schema, lambda columns: load(columns).slice(0, HEAD), load, row_number)


def _open_frame(source: Any) -> Table:
    library = type(source).__module__.split(".")[0]
    label = f"the {library} {type(source).__name__}" if library not in ("builtins", "pyarrow") else "the table"
    try:
        if library == "pandas" and hasattr(source, "columns"):
            return _open_pandas(source, label)
        table = _arrow_of(source)
    except FAULTS as error:
        remedy = "Convert it to a pandas, polars or Arrow table, or write it to a file."
        raise EventDataError("a table", f"{label}, which Arrow cannot take ({reason(error)})", remedy) from error
    if table is None:
        remedy = "Pass a path, a pandas or polars DataFrame, an Arrow table, or a mapping from names to columns."
        if hasattr(source, "collect"):
            remedy = "Collect it first: fp.read(frame.collect())."
        raise EventDataError("a path or a table", f"{type(source).__name__} {str(source)[:60]!r}", remedy)
    return Table(label, "", table.schema, lambda columns: table.select(columns).slice(0, HEAD), table.select, row_number)


def _arrow_of(source: Any) -> pa.Table | None:
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


def _open_pandas(frame: Any, label: str) -> Table:
    """A pandas frame: its columns one by one, since some that are not asked for may be of no Arrow type, and a named index."""
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
            raise EventDataError("columns of one type each", f"{label}: {reason(error)}", "Convert the column to one type.") from error

    def kind(name: str) -> pa.DataType:
        try:
            return array(name, HEAD).type
        except FAULTS:
            return pa.null()

    schema = pa.schema([(name, kind(name)) for name in names])
    return Table(label, "", schema, lambda columns: load(columns, HEAD), load, row_number)
