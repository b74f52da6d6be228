# Generated from specs/plan.proto (sha256 ca9fb0d95ada82527ff1e786e2380313b823d54b37946ee54dc9fe1eb6464b56); do not edit.
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Place(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACE_UNSPECIFIED: _ClassVar[Place]
    ARENA: _ClassVar[Place]
    INPUT: _ClassVar[Place]
    OUTPUT: _ClassVar[Place]
    WEIGHT: _ClassVar[Place]
    WORKER: _ClassVar[Place]
PLACE_UNSPECIFIED: Place
ARENA: Place
INPUT: Place
OUTPUT: Place
WEIGHT: Place
WORKER: Place

class PlanOrigin(_message.Message):
    __slots__ = ("file", "line", "name")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    file: str
    line: int
    name: str
    def __init__(self, file: _Optional[str] = ..., line: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Buffer(_message.Message):
    __slots__ = ("place", "offset", "bytes", "index", "weight", "element_type", "dims", "first_step", "last_step", "replaces", "bytes_formula", "dim_formulas", "above")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FORMULA_FIELD_NUMBER: _ClassVar[int]
    DIM_FORMULAS_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    place: Place
    offset: int
    bytes: int
    index: int
    weight: str
    element_type: str
    dims: _containers.RepeatedScalarFieldContainer[int]
    first_step: int
    last_step: int
    replaces: int
    bytes_formula: int
    dim_formulas: _containers.RepeatedScalarFieldContainer[int]
    above: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, place: _Optional[_Union[Place, str]] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ..., index: _Optional[int] = ..., weight: _Optional[str] = ..., element_type: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., replaces: _Optional[int] = ..., bytes_formula: _Optional[int] = ..., dim_formulas: _Optional[_Iterable[int]] = ..., above: _Optional[_Iterable[int]] = ...) -> None: ...

class SizeRelation(_message.Message):
    __slots__ = ("text", "origin")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    text: str
    origin: str
    def __init__(self, text: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class LaunchMemory(_message.Message):
    __slots__ = ("slot", "scratch", "offset", "offset_formula")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FORMULA_FIELD_NUMBER: _ClassVar[int]
    slot: int
    scratch: bool
    offset: int
    offset_formula: int
    def __init__(self, slot: _Optional[int] = ..., scratch: _Optional[bool] = ..., offset: _Optional[int] = ..., offset_formula: _Optional[int] = ...) -> None: ...

class LaunchTensorMap(_message.Message):
    __slots__ = ("memory", "element_type", "dims", "strides", "box", "swizzle", "steps", "dim_formulas", "stride_formulas")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    SWIZZLE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DIM_FORMULAS_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FORMULAS_FIELD_NUMBER: _ClassVar[int]
    memory: LaunchMemory
    element_type: str
    dims: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    box: _containers.RepeatedScalarFieldContainer[int]
    swizzle: int
    steps: _containers.RepeatedScalarFieldContainer[int]
    dim_formulas: _containers.RepeatedScalarFieldContainer[int]
    stride_formulas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, memory: _Optional[_Union[LaunchMemory, _Mapping]] = ..., element_type: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., box: _Optional[_Iterable[int]] = ..., swizzle: _Optional[int] = ..., steps: _Optional[_Iterable[int]] = ..., dim_formulas: _Optional[_Iterable[int]] = ..., stride_formulas: _Optional[_Iterable[int]] = ...) -> None: ...

class LaunchArgument(_message.Message):
    __slots__ = ("memory", "tensor_map", "immediate", "size")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TENSOR_MAP_FIELD_NUMBER: _ClassVar[int]
    IMMEDIATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    memory: LaunchMemory
    tensor_map: LaunchTensorMap
    immediate: bytes
    size: int
    def __init__(self, memory: _Optional[_Union[LaunchMemory, _Mapping]] = ..., tensor_map: _Optional[_Union[LaunchTensorMap, _Mapping]] = ..., immediate: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("entry", "grid", "block", "cluster", "shared_bytes", "arguments", "persistent", "grid_formulas")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    PERSISTENT_FIELD_NUMBER: _ClassVar[int]
    GRID_FORMULAS_FIELD_NUMBER: _ClassVar[int]
    entry: str
    grid: _containers.RepeatedScalarFieldContainer[int]
    block: _containers.RepeatedScalarFieldContainer[int]
    cluster: _containers.RepeatedScalarFieldContainer[int]
    shared_bytes: int
    arguments: _containers.RepeatedCompositeFieldContainer[LaunchArgument]
    persistent: bool
    grid_formulas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, entry: _Optional[str] = ..., grid: _Optional[_Iterable[int]] = ..., block: _Optional[_Iterable[int]] = ..., cluster: _Optional[_Iterable[int]] = ..., shared_bytes: _Optional[int] = ..., arguments: _Optional[_Iterable[_Union[LaunchArgument, _Mapping]]] = ..., persistent: _Optional[bool] = ..., grid_formulas: _Optional[_Iterable[int]] = ...) -> None: ...

class Kernel(_message.Message):
    __slots__ = ("name", "kind", "entry", "scratch_bytes", "ops", "origins", "engine", "notes", "functions", "launches", "approximate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    entry: int
    scratch_bytes: int
    ops: _containers.RepeatedScalarFieldContainer[str]
    origins: _containers.RepeatedCompositeFieldContainer[PlanOrigin]
    engine: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    functions: _containers.RepeatedScalarFieldContainer[str]
    launches: _containers.RepeatedCompositeFieldContainer[Launch]
    approximate: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., entry: _Optional[int] = ..., scratch_bytes: _Optional[int] = ..., ops: _Optional[_Iterable[str]] = ..., origins: _Optional[_Iterable[_Union[PlanOrigin, _Mapping]]] = ..., engine: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., functions: _Optional[_Iterable[str]] = ..., launches: _Optional[_Iterable[_Union[Launch, _Mapping]]] = ..., approximate: _Optional[_Iterable[str]] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("buffer", "offset")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("counter", "threshold")
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    counter: int
    threshold: int
    def __init__(self, counter: _Optional[int] = ..., threshold: _Optional[int] = ...) -> None: ...

class TaskRange(_message.Message):
    __slots__ = ("first", "steps")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    first: int
    steps: int
    def __init__(self, first: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("kernel", "arguments", "tiles", "parallel", "flops", "bytes", "wait", "operands", "origin", "scratch", "tiles_formula", "sizes", "waits", "signal", "each")
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_FIELD_NUMBER: _ClassVar[int]
    TILES_FORMULA_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    kernel: int
    arguments: _containers.RepeatedCompositeFieldContainer[Argument]
    tiles: int
    parallel: bool
    flops: float
    bytes: float
    wait: bool
    operands: int
    origin: PlanOrigin
    scratch: Argument
    tiles_formula: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    signal: int
    each: bool
    def __init__(self, kernel: _Optional[int] = ..., arguments: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ..., tiles: _Optional[int] = ..., parallel: _Optional[bool] = ..., flops: _Optional[float] = ..., bytes: _Optional[float] = ..., wait: _Optional[bool] = ..., operands: _Optional[int] = ..., origin: _Optional[_Union[PlanOrigin, _Mapping]] = ..., scratch: _Optional[_Union[Argument, _Mapping]] = ..., tiles_formula: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., signal: _Optional[int] = ..., each: _Optional[bool] = ...) -> None: ...

class KnownTurns(_message.Message):
    __slots__ = ("turns", "here")
    TURNS_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    turns: int
    here: bool
    def __init__(self, turns: _Optional[int] = ..., here: _Optional[bool] = ...) -> None: ...

class BranchIfFalse(_message.Message):
    __slots__ = ("condition", "target", "wait", "waits", "each", "known")
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    condition: Argument
    target: int
    wait: bool
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    each: bool
    known: KnownTurns
    def __init__(self, condition: _Optional[_Union[Argument, _Mapping]] = ..., target: _Optional[int] = ..., wait: _Optional[bool] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., each: _Optional[bool] = ..., known: _Optional[_Union[KnownTurns, _Mapping]] = ...) -> None: ...

class Jump(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: int
    def __init__(self, target: _Optional[int] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("index", "targets", "wait", "waits", "each")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    index: Argument
    targets: _containers.RepeatedScalarFieldContainer[int]
    wait: bool
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    each: bool
    def __init__(self, index: _Optional[_Union[Argument, _Mapping]] = ..., targets: _Optional[_Iterable[int]] = ..., wait: _Optional[bool] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., each: _Optional[bool] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("source", "target", "source_start", "target_start", "sizes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_START_FIELD_NUMBER: _ClassVar[int]
    TARGET_START_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    source: int
    target: int
    source_start: _containers.RepeatedScalarFieldContainer[int]
    target_start: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[int] = ..., target: _Optional[int] = ..., source_start: _Optional[_Iterable[int]] = ..., target_start: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Exchange(_message.Message):
    __slots__ = ("operand", "result", "transfers", "origin", "operand_dims", "result_dims", "element_bytes", "part_of", "copy", "scratch")
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    OPERAND_DIMS_FIELD_NUMBER: _ClassVar[int]
    RESULT_DIMS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_OF_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_FIELD_NUMBER: _ClassVar[int]
    operand: Argument
    result: Argument
    transfers: _containers.RepeatedCompositeFieldContainer[Transfer]
    origin: PlanOrigin
    operand_dims: _containers.RepeatedScalarFieldContainer[int]
    result_dims: _containers.RepeatedScalarFieldContainer[int]
    element_bytes: int
    part_of: str
    copy: str
    scratch: Argument
    def __init__(self, operand: _Optional[_Union[Argument, _Mapping]] = ..., result: _Optional[_Union[Argument, _Mapping]] = ..., transfers: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ..., origin: _Optional[_Union[PlanOrigin, _Mapping]] = ..., operand_dims: _Optional[_Iterable[int]] = ..., result_dims: _Optional[_Iterable[int]] = ..., element_bytes: _Optional[int] = ..., part_of: _Optional[str] = ..., copy: _Optional[str] = ..., scratch: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, processes: _Optional[_Iterable[int]] = ...) -> None: ...

class Collective(_message.Message):
    __slots__ = ("kind", "operand", "result", "groups", "element_type", "elements", "origin")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    kind: str
    operand: Argument
    result: Argument
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    element_type: str
    elements: int
    origin: PlanOrigin
    def __init__(self, kind: _Optional[str] = ..., operand: _Optional[_Union[Argument, _Mapping]] = ..., result: _Optional[_Union[Argument, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., element_type: _Optional[str] = ..., elements: _Optional[int] = ..., origin: _Optional[_Union[PlanOrigin, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("run", "branch_if_false", "jump", "switch", "exchange", "collective")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BRANCH_IF_FALSE_FIELD_NUMBER: _ClassVar[int]
    JUMP_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    run: Run
    branch_if_false: BranchIfFalse
    jump: Jump
    switch: Switch
    exchange: Exchange
    collective: Collective
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., branch_if_false: _Optional[_Union[BranchIfFalse, _Mapping]] = ..., jump: _Optional[_Union[Jump, _Mapping]] = ..., switch: _Optional[_Union[Switch, _Mapping]] = ..., exchange: _Optional[_Union[Exchange, _Mapping]] = ..., collective: _Optional[_Union[Collective, _Mapping]] = ...) -> None: ...

class MergedStep(_message.Message):
    __slots__ = ("step", "first_block", "blocks", "places")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    step: int
    first_block: int
    blocks: int
    places: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[int] = ..., first_block: _Optional[int] = ..., blocks: _Optional[int] = ..., places: _Optional[_Iterable[int]] = ...) -> None: ...

class Merge(_message.Message):
    __slots__ = ("entry", "steps", "threads", "shared_bytes", "cluster", "table_bytes", "resident", "busy", "seconds", "seconds_of_branches", "seconds_in_turn")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_OF_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_IN_TURN_FIELD_NUMBER: _ClassVar[int]
    entry: str
    steps: _containers.RepeatedCompositeFieldContainer[MergedStep]
    threads: int
    shared_bytes: int
    cluster: int
    table_bytes: int
    resident: int
    busy: float
    seconds: float
    seconds_of_branches: float
    seconds_in_turn: float
    def __init__(self, entry: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[MergedStep, _Mapping]]] = ..., threads: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., cluster: _Optional[int] = ..., table_bytes: _Optional[int] = ..., resident: _Optional[int] = ..., busy: _Optional[float] = ..., seconds: _Optional[float] = ..., seconds_of_branches: _Optional[float] = ..., seconds_in_turn: _Optional[float] = ...) -> None: ...

class PersistentStep(_message.Message):
    __slots__ = ("places",)
    PLACES_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, places: _Optional[_Iterable[int]] = ...) -> None: ...

class Persistent(_message.Message):
    __slots__ = ("entry", "threads", "shared_bytes", "blocks", "table_bytes", "steps", "barriers")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    entry: str
    threads: int
    shared_bytes: int
    blocks: int
    table_bytes: int
    steps: _containers.RepeatedCompositeFieldContainer[PersistentStep]
    barriers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, entry: _Optional[str] = ..., threads: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., table_bytes: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[PersistentStep, _Mapping]]] = ..., barriers: _Optional[_Iterable[int]] = ...) -> None: ...

class SchedulePrice(_message.Message):
    __slots__ = ("schedule", "seconds")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    seconds: float
    def __init__(self, schedule: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class MemorySummary(_message.Message):
    __slots__ = ("argument_bytes", "output_bytes", "constant_bytes", "temporary_bytes", "arena_bytes", "lower_bound_bytes", "scratch_bytes", "placement_proof", "peak_step", "order_bound_bytes", "order_proof")
    ARGUMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOWER_BOUND_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_PROOF_FIELD_NUMBER: _ClassVar[int]
    PEAK_STEP_FIELD_NUMBER: _ClassVar[int]
    ORDER_BOUND_BYTES_FIELD_NUMBER: _ClassVar[int]
    ORDER_PROOF_FIELD_NUMBER: _ClassVar[int]
    argument_bytes: int
    output_bytes: int
    constant_bytes: int
    temporary_bytes: int
    arena_bytes: int
    lower_bound_bytes: int
    scratch_bytes: int
    placement_proof: str
    peak_step: int
    order_bound_bytes: int
    order_proof: str
    def __init__(self, argument_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., constant_bytes: _Optional[int] = ..., temporary_bytes: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., lower_bound_bytes: _Optional[int] = ..., scratch_bytes: _Optional[int] = ..., placement_proof: _Optional[str] = ..., peak_step: _Optional[int] = ..., order_bound_bytes: _Optional[int] = ..., order_proof: _Optional[str] = ...) -> None: ...

class Undo(_message.Message):
    __slots__ = ("argument", "rows", "saved", "starts", "dims", "base")
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    argument: int
    rows: int
    saved: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    base: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, argument: _Optional[int] = ..., rows: _Optional[int] = ..., saved: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ..., dims: _Optional[_Iterable[int]] = ..., base: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("format_version", "target", "triple", "features", "buffers", "kernels", "steps", "inputs", "outputs", "arena_alignment", "memory", "executor_entry", "worker_entry", "formulas", "guards", "others", "undo", "ranges", "worker_bytes", "schedule", "schedule_required", "merges", "persistent", "prices", "processes", "notes")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TRIPLE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ARENA_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ENTRY_FIELD_NUMBER: _ClassVar[int]
    WORKER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    FORMULAS_FIELD_NUMBER: _ClassVar[int]
    GUARDS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    WORKER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    MERGES_FIELD_NUMBER: _ClassVar[int]
    PERSISTENT_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    format_version: str
    target: str
    triple: str
    features: _containers.RepeatedScalarFieldContainer[str]
    buffers: _containers.RepeatedCompositeFieldContainer[Buffer]
    kernels: _containers.RepeatedCompositeFieldContainer[Kernel]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    inputs: _containers.RepeatedScalarFieldContainer[int]
    outputs: _containers.RepeatedScalarFieldContainer[int]
    arena_alignment: int
    memory: MemorySummary
    executor_entry: int
    worker_entry: int
    formulas: _containers.RepeatedScalarFieldContainer[str]
    guards: _containers.RepeatedCompositeFieldContainer[SizeRelation]
    others: _containers.RepeatedCompositeFieldContainer[Plan]
    undo: _containers.RepeatedCompositeFieldContainer[Undo]
    ranges: _containers.RepeatedCompositeFieldContainer[TaskRange]
    worker_bytes: int
    schedule: str
    schedule_required: bool
    merges: _containers.RepeatedCompositeFieldContainer[Merge]
    persistent: Persistent
    prices: _containers.RepeatedCompositeFieldContainer[SchedulePrice]
    processes: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, format_version: _Optional[str] = ..., target: _Optional[str] = ..., triple: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., buffers: _Optional[_Iterable[_Union[Buffer, _Mapping]]] = ..., kernels: _Optional[_Iterable[_Union[Kernel, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., inputs: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[int]] = ..., arena_alignment: _Optional[int] = ..., memory: _Optional[_Union[MemorySummary, _Mapping]] = ..., executor_entry: _Optional[int] = ..., worker_entry: _Optional[int] = ..., formulas: _Optional[_Iterable[str]] = ..., guards: _Optional[_Iterable[_Union[SizeRelation, _Mapping]]] = ..., others: _Optional[_Iterable[_Union[Plan, _Mapping]]] = ..., undo: _Optional[_Iterable[_Union[Undo, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[TaskRange, _Mapping]]] = ..., worker_bytes: _Optional[int] = ..., schedule: _Optional[str] = ..., schedule_required: _Optional[bool] = ..., merges: _Optional[_Iterable[_Union[Merge, _Mapping]]] = ..., persistent: _Optional[_Union[Persistent, _Mapping]] = ..., prices: _Optional[_Iterable[_Union[SchedulePrice, _Mapping]]] = ..., processes: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...
