from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("header", "batch", "manifest")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    header: Header
    batch: Batch
    manifest: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("version", "run", "rank", "world_size", "attempt", "created", "host", "pid")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    rank: int
    world_size: int
    attempt: int
    created: float
    host: str
    pid: int
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., attempt: _Optional[int] = ..., created: _Optional[float] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("attempt", "seq", "step", "epoch", "timestamp", "columns", "nested")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NESTED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    seq: _containers.RepeatedScalarFieldContainer[int]
    step: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    timestamp: _containers.RepeatedScalarFieldContainer[float]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    nested: _containers.RepeatedCompositeFieldContainer[Nested]
    def __init__(self, attempt: _Optional[int] = ..., seq: _Optional[_Iterable[int]] = ..., step: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., timestamp: _Optional[_Iterable[float]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., nested: _Optional[_Iterable[_Union[Nested, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "values", "absent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[float]
    absent: bytes
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ..., absent: _Optional[bytes] = ...) -> None: ...

class Nested(_message.Message):
    __slots__ = ("row", "json")
    ROW_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    row: int
    json: str
    def __init__(self, row: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class FrameView(_message.Message):
    __slots__ = ("header", "batch", "manifest")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    header: Header
    batch: BatchView
    manifest: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., batch: _Optional[_Union[BatchView, _Mapping]] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class BatchView(_message.Message):
    __slots__ = ("attempt", "seq", "step", "epoch", "timestamp", "columns", "nested")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NESTED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    seq: bytes
    step: bytes
    epoch: bytes
    timestamp: bytes
    columns: _containers.RepeatedCompositeFieldContainer[ColumnView]
    nested: _containers.RepeatedCompositeFieldContainer[Nested]
    def __init__(self, attempt: _Optional[int] = ..., seq: _Optional[bytes] = ..., step: _Optional[bytes] = ..., epoch: _Optional[bytes] = ..., timestamp: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[ColumnView, _Mapping]]] = ..., nested: _Optional[_Iterable[_Union[Nested, _Mapping]]] = ...) -> None: ...

class ColumnView(_message.Message):
    __slots__ = ("name", "values", "absent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: bytes
    absent: bytes
    def __init__(self, name: _Optional[str] = ..., values: _Optional[bytes] = ..., absent: _Optional[bytes] = ...) -> None: ...
