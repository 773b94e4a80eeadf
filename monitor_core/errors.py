"""The exception tree, drawn once.

    MsmonError
    |-- ConfigError        a field of monitor_config is wrong (lists every problem)
    |-- MissingDependencyError  an optional package is needed and not installed
    |-- WriteError         bytes could not be written; says which records are not acknowledged
    |-- LogDirError        a log directory cannot be used
    `-- FormatError        a value cannot be encoded, or a caller broke a format's rules

Every message says what happened, where, what was expected and what to do.
Bad bytes in a file are not exceptions: decoders return them as ``Problem`` values.
"""

from __future__ import annotations


class MsmonError(Exception):
    """Root of everything msmon raises on purpose."""


class ConfigError(MsmonError, ValueError):
    """One or more fields of ``monitor_config`` are wrong; the message lists them all."""


class MissingDependencyError(MsmonError, ImportError):
    """An optional package is needed; the message names the exact install command."""


class WriteError(MsmonError, OSError):
    """A write or fsync failed; the records concerned are not acknowledged."""

    acknowledged: int = 0
    """How many records of the call, from the first on, are written all the same."""


class LogDirError(MsmonError, OSError):
    """A log directory is missing, not a directory, or not accessible."""


class FormatError(MsmonError, ValueError):
    """A record cannot be put into the format asked for."""

    acknowledged: int = 0
    """How many records of a ``write`` call, from the first on, are written all the same."""
