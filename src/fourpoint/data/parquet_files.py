"""Parquet files of a folder or of a URL, as one table of which rows are read on demand.

The URL is one that pyarrow (``s3://``, ``gs://``, ``hdfs://``, ``file://``) or fsspec knows. Row
groups of all files are numbered through, and rows too. Folders that are named ``column=value`` are
columns.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fourpoint.data.opened import FAULTS, HEAD, Table, reason, row_number
from fourpoint.events import EventDataError
from fourpoint.events.batching import offsets_of
from fourpoint.memory import require_memory

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

LARGEST_GROUP = 2**22  # rows of a row group
HELD_GROUPS = 2  # row groups that are kept for the next chunk, which may begin inside
ENDINGS = (".parquet", ".pq")


def are_files(source: object) -> bool:
    """Whether a source is a folder, or a URL, of which there may be many files.

    >>> are_files("s3://bucket/events"), are_files("events.csv")
    (True, False)
    """
    return isinstance(source, str | Path) and (is_url(str(source)) or Path(source).is_dir())


@dataclass(eq=False)
class Store:
    """Parquet files in order, with the row groups of all of them numbered through."""

    source: str
    filesystem: FileSystem
    paths: tuple[str, ...]
    schema: pa.Schema  # of the first file, with the columns that folders are named after
    groups: list[tuple[int, int]] = field(default_factory=list)  # file and row group
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    held: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = field(default_factory=OrderedDict)

    @staticmethod
    def open(source: str) -> Store:
        filesystem, paths = _listed(source)
        schema: pa.Schema | None = None
        groups: list[tuple[int, int]] = []
        rows: list[int] = []
        for number, path in enumerate(paths):
            try:
                with pq.ParquetFile(filesystem.open_input_file(path)) as file:
                    own, metadata = file.schema_arrow, file.metadata
            except FAULTS as error:
                raise _unreadable(path, error) from error
            if schema is None:
                schema = own
            for group in range(metadata.num_row_groups):
                count = metadata.row_group(group).num_rows
                if count > LARGEST_GROUP:
                    raise EventDataError(
                        f"row groups of at most {LARGEST_GROUP:,} rows",
                        f"{path}, whose row group {group} has {count:,}",
                        "Write it with smaller ones, as pyarrow.parquet.write_table does with "
                        "row_group_size=1_000_000.",
                    )
                size = metadata.row_group(group).total_byte_size
                require_memory(size, f"a row group of {path}", "Write it with smaller ones.")
                groups.append((number, group))
                rows.append(count)
        assert schema is not None  # `_listed` finds at least one
        for name, value in _keys(paths[0]).items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.array([value]).type))
        return Store(source, filesystem, paths, schema, groups, offsets_of(rows))

    @property
    def rows(self) -> int:
        return int(self.offsets[-1])

    def path_of(self, row: int) -> str:
        """The file that holds a row."""
        group = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return self.paths[self.groups[min(group, len(self.groups) - 1)][0]]

    def metadata(self, number: int) -> dict[bytes, bytes]:
        """What else a file says."""
        with pq.ParquetFile(self.filesystem.open_input_file(self.paths[number])) as file:
            return file.schema_arrow.metadata or {}

    def group(self, number: int, columns: list[str]) -> pa.Table:
        """The columns of one row group, of which the last few are kept."""
        key = (number, tuple(columns))
        if key in self.held:
            self.held.move_to_end(key)
            return self.held[key]
        file_number, group = self.groups[number]
        path = self.paths[file_number]
        try:
            with pq.ParquetFile(self.filesystem.open_input_file(path)) as file:
                lost = [name for name in columns if name not in file.schema_arrow.names]
                keys = _keys(path)
                absent = [name for name in lost if name not in keys]
                if absent:
                    raise EventDataError(
                        f"the columns {', '.join(columns)} in every file",
                        f"{path} without {', '.join(absent)}",
                        "Move files of another kind elsewhere.",
                    )
                stored = [name for name in columns if name not in lost]
                table = file.read_row_group(group, columns=stored)
        except EventDataError:
            raise
        except FAULTS as error:
            raise _unreadable(path, error) from error
        for name in lost:
            table = table.append_column(name, pa.array([keys[name]] * table.num_rows))
        self.held[key] = table.select(columns)
        while len(self.held) > HELD_GROUPS:
            self.held.popitem(last=False)
        return self.held[key]

    def table(self, first: int, last: int, columns: list[str]) -> pa.Table:
        """Rows ``first`` to ``last`` of all files."""
        begin = int(np.searchsorted(self.offsets, first, side="right")) - 1
        parts = []
        for number in range(max(0, begin), len(self.groups)):
            low = max(first, int(self.offsets[number]))
            high = min(last, int(self.offsets[number + 1]))
            if low >= last:
                break
            if high > low:
                part = self.group(number, columns)
                parts.append(part.slice(low - int(self.offsets[number]), high - low))
        return _one_type(parts) if parts else self.schema.empty_table().select(columns)

    def opened(self, first: int, last: int, label: str) -> Table:
        """Rows ``first`` to ``last`` as a table that is not read yet."""
        schema = self.schema.with_metadata(None)
        number = self._whole_file(first, last)
        if number is not None:
            schema = self.schema.with_metadata(self.metadata(number))

        def load(columns: list[str]) -> pa.Table:
            return self.table(first, last, columns).replace_schema_metadata(schema.metadata)

        def head(columns: list[str]) -> pa.Table:
            return self.table(first, min(last, first + HEAD), columns)

        return Table(label, Path(self.source.rstrip("/")).stem, schema, head, load, row_number)

    def _whole_file(self, first: int, last: int) -> int | None:
        """The number of the file of which these are all rows; None where they are not."""
        for number, (begin, end) in enumerate(self.bounds()):
            if (begin, end) == (first, last):
                return number
        return None

    def whole(self) -> Table:
        """All rows as a table that is not read yet."""
        return self.opened(0, self.rows, self.source)

    def bounds(self) -> list[tuple[int, int]]:
        """The rows of each file."""
        found = [(0, 0)] * len(self.paths)
        for place, (number, group) in enumerate(self.groups):
            low, high = int(self.offsets[place]), int(self.offsets[place + 1])
            found[number] = (low if group == 0 else found[number][0], high)
        return found


def _one_type(parts: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise EventDataError(
            "columns of one type in all files",
            f"different ones ({reason(error)})",
            "Convert them to one type.",
        ) from error


def is_url(source: str) -> bool:
    """Whether a source is a URL.

    >>> is_url("s3://bucket/events"), is_url("events/2024")
    (True, False)
    """
    return "://" in source


def _listed(source: str) -> tuple[FileSystem, tuple[str, ...]]:
    """The file system of a source, and its Parquet files in order of their names."""
    from pyarrow import fs

    filesystem, root = _file_system(source)
    try:
        info = filesystem.get_file_info(root)
        if info.type == fs.FileType.File:
            return filesystem, (root,)
        if info.type == fs.FileType.NotFound:
            raise EventDataError(
                "a folder of Parquet files", f"{source}, which does not exist", "Check the path."
            )
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    except FAULTS as error:
        if isinstance(error, EventDataError):
            raise
        raise _unreadable(source, error) from error
    paths = sorted(
        one.path
        for one in found
        if one.type == fs.FileType.File
        and one.path.lower().endswith(ENDINGS)
        and not one.base_name.startswith((".", "_"))
    )
    if not paths:
        raise EventDataError(
            "a folder with files that end in .parquet",
            f"{source}, which is a folder without any",
            "Name one file in it, or write the events as Parquet.",
        )
    return filesystem, tuple(paths)


def _file_system(source: str) -> tuple[FileSystem, str]:
    from pyarrow import fs

    if not is_url(source):
        return fs.LocalFileSystem(), str(Path(source).absolute())
    try:
        return fs.FileSystem.from_uri(source)
    except (pa.ArrowException, OSError, ValueError):
        pass
    try:
        import fsspec

        opened, path = fsspec.core.url_to_fs(source)
        return fs.PyFileSystem(fs.FSSpecHandler(opened)), path
    except (ImportError, OSError, ValueError) as error:
        raise EventDataError(
            "a URL that pyarrow or fsspec can open",
            f"{source} ({reason(error)})",
            "Check the URL, and install the package of its file system (s3fs, gcsfs, adlfs).",
        ) from error


def _keys(path: str) -> dict[str, str | int]:
    """Columns that folders are named after, as in ``user=17/part-0.parquet``."""
    pairs = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def _unreadable(path: str, error: Exception) -> EventDataError:
    return EventDataError(
        "a Parquet file",
        f"{path}, which cannot be read as one ({reason(error)})",
        "Write or download it again.",
    )
