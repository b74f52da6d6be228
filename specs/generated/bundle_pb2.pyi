# Generated from specs/bundle.proto (sha256 99d4935a032f46debc38076d23dc3440f480117f41e95feb73e6632ebc7a22db); do not edit.
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Manifest(_message.Message):
    __slots__ = ("format", "version", "features", "members", "weights", "variants", "checks", "entries")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    format: str
    version: str
    features: _containers.RepeatedCompositeFieldContainer[Feature]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    weights: WeightFile
    variants: _containers.RepeatedCompositeFieldContainer[BundleVariant]
    checks: str
    entries: _containers.RepeatedCompositeFieldContainer[BundleEntry]
    def __init__(self, format: _Optional[str] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., weights: _Optional[_Union[WeightFile, _Mapping]] = ..., variants: _Optional[_Iterable[_Union[BundleVariant, _Mapping]]] = ..., checks: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[BundleEntry, _Mapping]]] = ...) -> None: ...

class BundleEntry(_message.Message):
    __slots__ = ("name", "program")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    name: str
    program: str
    def __init__(self, name: _Optional[str] = ..., program: _Optional[str] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("name", "minimum_runtime")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_RUNTIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    minimum_runtime: str
    def __init__(self, name: _Optional[str] = ..., minimum_runtime: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class WeightFile(_message.Message):
    __slots__ = ("member", "aliases")
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    member: str
    aliases: _containers.ScalarMap[str, str]
    def __init__(self, member: _Optional[str] = ..., aliases: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("algorithm", "key", "mac")
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    algorithm: str
    key: str
    mac: str
    def __init__(self, algorithm: _Optional[str] = ..., key: _Optional[str] = ..., mac: _Optional[str] = ...) -> None: ...

class BundleVariant(_message.Message):
    __slots__ = ("target", "plan", "image", "native", "triple", "features", "weights", "cubins", "layout", "further")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    TRIPLE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CUBINS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    target: str
    plan: str
    image: str
    native: bool
    triple: str
    features: _containers.RepeatedScalarFieldContainer[str]
    weights: WeightFile
    cubins: _containers.RepeatedCompositeFieldContainer[BundleCubin]
    layout: BundleLayout
    further: _containers.RepeatedCompositeFieldContainer[BundlePlan]
    def __init__(self, target: _Optional[str] = ..., plan: _Optional[str] = ..., image: _Optional[str] = ..., native: _Optional[bool] = ..., triple: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., weights: _Optional[_Union[WeightFile, _Mapping]] = ..., cubins: _Optional[_Iterable[_Union[BundleCubin, _Mapping]]] = ..., layout: _Optional[_Union[BundleLayout, _Mapping]] = ..., further: _Optional[_Iterable[_Union[BundlePlan, _Mapping]]] = ...) -> None: ...

class BundlePlan(_message.Message):
    __slots__ = ("entry", "plan")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    entry: str
    plan: str
    def __init__(self, entry: _Optional[str] = ..., plan: _Optional[str] = ...) -> None: ...

class BundleLayout(_message.Message):
    __slots__ = ("mesh", "arguments", "results", "weights")
    MESH_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    mesh: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    results: _containers.RepeatedScalarFieldContainer[str]
    weights: _containers.RepeatedCompositeFieldContainer[BundleBlock]
    def __init__(self, mesh: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., results: _Optional[_Iterable[str]] = ..., weights: _Optional[_Iterable[_Union[BundleBlock, _Mapping]]] = ...) -> None: ...

class BundleBlock(_message.Message):
    __slots__ = ("name", "weight", "sharding")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: str
    sharding: str
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[str] = ..., sharding: _Optional[str] = ...) -> None: ...

class BundleCubin(_message.Message):
    __slots__ = ("architecture", "member")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    member: str
    def __init__(self, architecture: _Optional[str] = ..., member: _Optional[str] = ...) -> None: ...

class Signatures(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: BundleSignature
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[BundleSignature, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, BundleSignature]
    def __init__(self, entries: _Optional[_Mapping[str, BundleSignature]] = ...) -> None: ...

class BundleSignature(_message.Message):
    __slots__ = ("inputs", "outputs", "arguments", "results", "keywords", "names", "symbols", "constraints", "measured")
    class SymbolsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: BundleSymbol
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[BundleSymbol, _Mapping]] = ...) -> None: ...
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    KEYWORDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    inputs: BundleTree
    outputs: BundleTree
    arguments: _containers.RepeatedCompositeFieldContainer[BundleArgument]
    results: _containers.RepeatedCompositeFieldContainer[BundleResult]
    keywords: BundleTree
    names: _containers.RepeatedScalarFieldContainer[str]
    symbols: _containers.MessageMap[str, BundleSymbol]
    constraints: _containers.RepeatedCompositeFieldContainer[BundleSizeConstraint]
    measured: _containers.RepeatedCompositeFieldContainer[BundleMeasured]
    def __init__(self, inputs: _Optional[_Union[BundleTree, _Mapping]] = ..., outputs: _Optional[_Union[BundleTree, _Mapping]] = ..., arguments: _Optional[_Iterable[_Union[BundleArgument, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[BundleResult, _Mapping]]] = ..., keywords: _Optional[_Union[BundleTree, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., symbols: _Optional[_Mapping[str, BundleSymbol]] = ..., constraints: _Optional[_Iterable[_Union[BundleSizeConstraint, _Mapping]]] = ..., measured: _Optional[_Iterable[_Union[BundleMeasured, _Mapping]]] = ...) -> None: ...

class BundleMeasured(_message.Message):
    __slots__ = ("size", "bound", "message")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    size: str
    bound: _struct_pb2.Value
    message: str
    def __init__(self, size: _Optional[str] = ..., bound: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class BundleSymbol(_message.Message):
    __slots__ = ("minimum", "maximum", "modulus", "residue", "origin")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    MODULUS_FIELD_NUMBER: _ClassVar[int]
    RESIDUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    maximum: int
    modulus: int
    residue: int
    origin: str
    def __init__(self, minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., modulus: _Optional[int] = ..., residue: _Optional[int] = ..., origin: _Optional[str] = ...) -> None: ...

class BundleSizeConstraint(_message.Message):
    __slots__ = ("text", "origin")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    text: str
    origin: str
    def __init__(self, text: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class BundleTree(_message.Message):
    __slots__ = ("kind", "children", "keys", "type_name", "value", "context")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    children: _containers.RepeatedCompositeFieldContainer[BundleTree]
    keys: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    type_name: str
    value: _struct_pb2.Value
    context: str
    def __init__(self, kind: _Optional[str] = ..., children: _Optional[_Iterable[_Union[BundleTree, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., type_name: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., context: _Optional[str] = ...) -> None: ...

class BundleArgument(_message.Message):
    __slots__ = ("path", "dims", "element", "donated", "aliases", "default", "quantization", "state", "given", "key")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    DONATED_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    path: str
    dims: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    element: str
    donated: bool
    aliases: int
    default: str
    quantization: str
    state: str
    given: str
    key: str
    def __init__(self, path: _Optional[str] = ..., dims: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., element: _Optional[str] = ..., donated: _Optional[bool] = ..., aliases: _Optional[int] = ..., default: _Optional[str] = ..., quantization: _Optional[str] = ..., state: _Optional[str] = ..., given: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class BundleResult(_message.Message):
    __slots__ = ("path", "dims", "element", "state", "quantization", "key")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    path: str
    dims: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Value]
    element: str
    state: str
    quantization: str
    key: str
    def __init__(self, path: _Optional[str] = ..., dims: _Optional[_Iterable[_Union[_struct_pb2.Value, _Mapping]]] = ..., element: _Optional[str] = ..., state: _Optional[str] = ..., quantization: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class Tuning(_message.Message):
    __slots__ = ("schema", "version", "kernels")
    class KernelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TunedKernel
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TunedKernel, _Mapping]] = ...) -> None: ...
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    schema: str
    version: int
    kernels: _containers.MessageMap[str, TunedKernel]
    def __init__(self, schema: _Optional[str] = ..., version: _Optional[int] = ..., kernels: _Optional[_Mapping[str, TunedKernel]] = ...) -> None: ...

class TunedKernel(_message.Message):
    __slots__ = ("kernel", "choice", "predicted", "measured", "machine")
    class ChoiceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    kernel: str
    choice: _containers.MessageMap[str, _struct_pb2.Value]
    predicted: float
    measured: float
    machine: str
    def __init__(self, kernel: _Optional[str] = ..., choice: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., predicted: _Optional[float] = ..., measured: _Optional[float] = ..., machine: _Optional[str] = ...) -> None: ...

class Rewrites(_message.Message):
    __slots__ = ("licences", "rules")
    class RulesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Rewrite
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Rewrite, _Mapping]] = ...) -> None: ...
    LICENCES_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    licences: str
    rules: _containers.MessageMap[str, Rewrite]
    def __init__(self, licences: _Optional[str] = ..., rules: _Optional[_Mapping[str, Rewrite]] = ...) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ("hits", "lines")
    HITS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    hits: int
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hits: _Optional[int] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("producer", "frontend", "versions", "options", "notes", "rewrites")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    producer: str
    frontend: str
    versions: _containers.ScalarMap[str, str]
    options: _containers.MessageMap[str, _struct_pb2.Value]
    notes: _containers.RepeatedScalarFieldContainer[str]
    rewrites: Rewrites
    def __init__(self, producer: _Optional[str] = ..., frontend: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., options: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., notes: _Optional[_Iterable[str]] = ..., rewrites: _Optional[_Union[Rewrites, _Mapping]] = ...) -> None: ...
