# Generated from specs/hlo.proto (sha256 a4f927192ec4cda0b3a9fd7f5df2dad1afd4c9410802cb159fa2aa976aaf4eda); do not edit.
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WireModule(_message.Message):
    __slots__ = ("format_version", "minimum_reader", "features", "name", "entry", "functions", "types", "strings", "constants", "origins", "origin_sets", "weights", "symbols", "signature_json", "attributes", "notes", "meshes", "size_constraints")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_READER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_SETS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_JSON_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    MESHES_FIELD_NUMBER: _ClassVar[int]
    SIZE_CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    format_version: str
    minimum_reader: str
    features: _containers.RepeatedCompositeFieldContainer[WireFeature]
    name: str
    entry: str
    functions: _containers.RepeatedCompositeFieldContainer[WireFunction]
    types: _containers.RepeatedCompositeFieldContainer[WireType]
    strings: _containers.RepeatedScalarFieldContainer[str]
    constants: _containers.RepeatedCompositeFieldContainer[WireConstant]
    origins: _containers.RepeatedCompositeFieldContainer[WireOrigin]
    origin_sets: _containers.RepeatedCompositeFieldContainer[OriginSet]
    weights: _containers.RepeatedCompositeFieldContainer[WireWeight]
    symbols: _containers.RepeatedCompositeFieldContainer[WireSymbol]
    signature_json: str
    attributes: _containers.RepeatedCompositeFieldContainer[WireAttribute]
    notes: _containers.RepeatedScalarFieldContainer[str]
    meshes: _containers.RepeatedCompositeFieldContainer[WireMesh]
    size_constraints: _containers.RepeatedCompositeFieldContainer[WireSizeConstraint]
    def __init__(self, format_version: _Optional[str] = ..., minimum_reader: _Optional[str] = ..., features: _Optional[_Iterable[_Union[WireFeature, _Mapping]]] = ..., name: _Optional[str] = ..., entry: _Optional[str] = ..., functions: _Optional[_Iterable[_Union[WireFunction, _Mapping]]] = ..., types: _Optional[_Iterable[_Union[WireType, _Mapping]]] = ..., strings: _Optional[_Iterable[str]] = ..., constants: _Optional[_Iterable[_Union[WireConstant, _Mapping]]] = ..., origins: _Optional[_Iterable[_Union[WireOrigin, _Mapping]]] = ..., origin_sets: _Optional[_Iterable[_Union[OriginSet, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WireWeight, _Mapping]]] = ..., symbols: _Optional[_Iterable[_Union[WireSymbol, _Mapping]]] = ..., signature_json: _Optional[str] = ..., attributes: _Optional[_Iterable[_Union[WireAttribute, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., meshes: _Optional[_Iterable[_Union[WireMesh, _Mapping]]] = ..., size_constraints: _Optional[_Iterable[_Union[WireSizeConstraint, _Mapping]]] = ...) -> None: ...

class WireMesh(_message.Message):
    __slots__ = ("name", "mesh")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    name: str
    mesh: str
    def __init__(self, name: _Optional[str] = ..., mesh: _Optional[str] = ...) -> None: ...

class WireFeature(_message.Message):
    __slots__ = ("name", "since")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    since: str
    def __init__(self, name: _Optional[str] = ..., since: _Optional[str] = ...) -> None: ...

class WireFunction(_message.Message):
    __slots__ = ("name", "body", "argument_attributes", "result_attributes", "attributes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    RESULT_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    body: WireRegion
    argument_attributes: _containers.RepeatedCompositeFieldContainer[AttributeMap]
    result_attributes: _containers.RepeatedCompositeFieldContainer[AttributeMap]
    attributes: _containers.RepeatedCompositeFieldContainer[WireAttribute]
    def __init__(self, name: _Optional[str] = ..., body: _Optional[_Union[WireRegion, _Mapping]] = ..., argument_attributes: _Optional[_Iterable[_Union[AttributeMap, _Mapping]]] = ..., result_attributes: _Optional[_Iterable[_Union[AttributeMap, _Mapping]]] = ..., attributes: _Optional[_Iterable[_Union[WireAttribute, _Mapping]]] = ...) -> None: ...

class WireRegion(_message.Message):
    __slots__ = ("argument_types", "ops", "results")
    ARGUMENT_TYPES_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    argument_types: _containers.RepeatedScalarFieldContainer[int]
    ops: _containers.RepeatedCompositeFieldContainer[WireOp]
    results: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, argument_types: _Optional[_Iterable[int]] = ..., ops: _Optional[_Iterable[_Union[WireOp, _Mapping]]] = ..., results: _Optional[_Iterable[int]] = ...) -> None: ...

class WireOp(_message.Message):
    __slots__ = ("name", "operands", "result_types", "attributes", "regions", "origins")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    RESULT_TYPES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    name: int
    operands: _containers.RepeatedScalarFieldContainer[int]
    result_types: _containers.RepeatedScalarFieldContainer[int]
    attributes: _containers.RepeatedCompositeFieldContainer[WireAttribute]
    regions: _containers.RepeatedCompositeFieldContainer[WireRegion]
    origins: int
    def __init__(self, name: _Optional[int] = ..., operands: _Optional[_Iterable[int]] = ..., result_types: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Iterable[_Union[WireAttribute, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[WireRegion, _Mapping]]] = ..., origins: _Optional[int] = ...) -> None: ...

class AttributeMap(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[WireAttribute]
    def __init__(self, entries: _Optional[_Iterable[_Union[WireAttribute, _Mapping]]] = ...) -> None: ...

class WireAttribute(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: int
    value: WireValue
    def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[WireValue, _Mapping]] = ...) -> None: ...

class WireValue(_message.Message):
    __slots__ = ("boolean", "integer", "real", "text", "data", "none", "integers", "tuple", "map", "type", "constant", "big_integer", "size")
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    BIG_INTEGER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    boolean: bool
    integer: int
    real: float
    text: int
    data: bytes
    none: bool
    integers: Integers
    tuple: WireValues
    map: AttributeMap
    type: int
    constant: int
    big_integer: str
    size: str
    def __init__(self, boolean: _Optional[bool] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., text: _Optional[int] = ..., data: _Optional[bytes] = ..., none: _Optional[bool] = ..., integers: _Optional[_Union[Integers, _Mapping]] = ..., tuple: _Optional[_Union[WireValues, _Mapping]] = ..., map: _Optional[_Union[AttributeMap, _Mapping]] = ..., type: _Optional[int] = ..., constant: _Optional[int] = ..., big_integer: _Optional[str] = ..., size: _Optional[str] = ...) -> None: ...

class Integers(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class WireValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[WireValue]
    def __init__(self, values: _Optional[_Iterable[_Union[WireValue, _Mapping]]] = ...) -> None: ...

class WireConstant(_message.Message):
    __slots__ = ("type", "data", "splat")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SPLAT_FIELD_NUMBER: _ClassVar[int]
    type: int
    data: bytes
    splat: bool
    def __init__(self, type: _Optional[int] = ..., data: _Optional[bytes] = ..., splat: _Optional[bool] = ...) -> None: ...

class WireOrigin(_message.Message):
    __slots__ = ("file", "line", "name")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    file: str
    line: int
    name: str
    def __init__(self, file: _Optional[str] = ..., line: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class OriginSet(_message.Message):
    __slots__ = ("origins",)
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    origins: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, origins: _Optional[_Iterable[int]] = ...) -> None: ...

class WireWeight(_message.Message):
    __slots__ = ("name", "type", "aliases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: int
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[int] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class WireSymbol(_message.Message):
    __slots__ = ("name", "minimum", "maximum", "modulus", "residue", "origin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    MODULUS_FIELD_NUMBER: _ClassVar[int]
    RESIDUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    minimum: int
    maximum: int
    modulus: int
    residue: int
    origin: str
    def __init__(self, name: _Optional[str] = ..., minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., modulus: _Optional[int] = ..., residue: _Optional[int] = ..., origin: _Optional[str] = ...) -> None: ...

class WireSizeConstraint(_message.Message):
    __slots__ = ("text", "origin")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    text: str
    origin: str
    def __init__(self, text: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class WireDim(_message.Message):
    __slots__ = ("size", "expression")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    size: int
    expression: str
    def __init__(self, size: _Optional[int] = ..., expression: _Optional[str] = ...) -> None: ...

class WireType(_message.Message):
    __slots__ = ("tensor", "token", "tuple", "future")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    FUTURE_FIELD_NUMBER: _ClassVar[int]
    tensor: WireTensor
    token: bool
    tuple: WireTuple
    future: WireTuple
    def __init__(self, tensor: _Optional[_Union[WireTensor, _Mapping]] = ..., token: _Optional[bool] = ..., tuple: _Optional[_Union[WireTuple, _Mapping]] = ..., future: _Optional[_Union[WireTuple, _Mapping]] = ...) -> None: ...

class WireTensor(_message.Message):
    __slots__ = ("dims", "element", "quantized", "sharding")
    DIMS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    QUANTIZED_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedCompositeFieldContainer[WireDim]
    element: str
    quantized: WireQuantized
    sharding: str
    def __init__(self, dims: _Optional[_Iterable[_Union[WireDim, _Mapping]]] = ..., element: _Optional[str] = ..., quantized: _Optional[_Union[WireQuantized, _Mapping]] = ..., sharding: _Optional[str] = ...) -> None: ...

class WireQuantized(_message.Message):
    __slots__ = ("storage", "expressed", "axis", "scales", "zero_points", "minimum", "maximum")
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    EXPRESSED_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    ZERO_POINTS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    storage: str
    expressed: str
    axis: int
    scales: _containers.RepeatedScalarFieldContainer[float]
    zero_points: _containers.RepeatedScalarFieldContainer[int]
    minimum: int
    maximum: int
    def __init__(self, storage: _Optional[str] = ..., expressed: _Optional[str] = ..., axis: _Optional[int] = ..., scales: _Optional[_Iterable[float]] = ..., zero_points: _Optional[_Iterable[int]] = ..., minimum: _Optional[int] = ..., maximum: _Optional[int] = ...) -> None: ...

class WireTuple(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, members: _Optional[_Iterable[int]] = ...) -> None: ...
