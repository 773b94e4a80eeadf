"""The three file formats, by name and by file name."""

from __future__ import annotations

import re

from monitor_core.formats.base import Format
from monitor_core.formats.csv_rows import CsvFormat
from monitor_core.formats.json_array import JsonFormat
from monitor_core.formats.protobuf import ProtobufFormat

#: Format's name, as ``export_format`` says it, to the format.
FORMATS: dict[str, Format] = {format_.name: format_ for format_ in (JsonFormat(), CsvFormat(), ProtobufFormat())}
_BY_SUFFIX = {format_.suffix: format_ for format_ in FORMATS.values()}
_FILE_NAME = re.compile(r"monitor_(\d{5,8})(\.[a-z]+)", re.ASCII)


def file_name(number: int, format_: Format) -> str:
    """``monitor_00001.json`` for 1 and json."""
    return f"monitor_{number:05d}{format_.suffix}"


def parse_file_name(name: str) -> tuple[int, Format] | None:
    """Number and format of a monitor file's name (without folder); None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    format_ = _BY_SUFFIX.get(match[2]) if match else None
    return None if match is None or format_ is None else (int(match[1]), format_)


def format_for(name: str) -> Format | None:
    """Format of a monitor file's name; None for any other name."""
    parsed = parse_file_name(name)
    return parsed[1] if parsed else None


def file_number(name: str) -> int | None:
    """Number of a monitor file's name, which orders the files of one format; None for any other name."""
    parsed = parse_file_name(name)
    return parsed[0] if parsed else None
