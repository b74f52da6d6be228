"""The messages of XLA's `hlo.proto` and `xla_data.proto`: the fields by number, and enumerations.

Names are those of the .proto files. What no reader of a program needs is SKIP.
"""

from __future__ import annotations

from .wire import BOOL, BYTES, INT, INTS, RAW, REAL, SKIP, TEXT, TEXTS, Message

# xla_data.proto

LAYOUT = Message(
    "LayoutProto",
    {
        1: ("minor_to_major", INTS),
        6: ("tiles", RAW),
        7: ("element_size_in_bits", INT),
        8: ("memory_space", SKIP),
        9: ("dim_level_types", INTS),
        10: ("physical_shape", BYTES),
        11: ("index_primitive_type", SKIP),
        12: ("pointer_primitive_type", SKIP),
        13: ("dim_unique", SKIP),
        14: ("dim_ordered", SKIP),
        15: ("dynamic_shape_metadata_prefix_bytes", SKIP),
        16: ("tail_padding_alignment_in_elements", INT),
        17: ("split_configs", SKIP),
    },
)
SHAPE = Message(
    "ShapeProto",
    {
        2: ("element_type", INT),
        3: ("dimensions", INTS),
        4: ("tuple_shapes", RAW),
        5: ("layout", LAYOUT),
        6: ("is_dynamic_dimension", INTS),
    },
)
METADATA = Message(
    "OpMetadata",
    {
        1: ("op_type", TEXT),
        2: ("op_name", TEXT),
        3: ("source_file", TEXT),
        4: ("source_line", INT),
        15: ("stack_frame_id", INT),
        18: ("source_column", INT),
        **dict.fromkeys((5, 8, 9, 10, 12, 16, 17, 19, 20), ("", SKIP)),
    },
)
LITERAL = Message(
    "LiteralProto",
    {
        1: ("shape", BYTES),
        2: ("preds", RAW),
        3: ("u8s", RAW),
        4: ("s32s", RAW),
        5: ("s64s", RAW),
        6: ("u32s", RAW),
        7: ("u64s", RAW),
        8: ("f32s", RAW),
        9: ("f64s", RAW),
        10: ("tuple_literals", RAW),
        11: ("f16s", RAW),
        12: ("c64s", RAW),
        13: ("bf16s", RAW),
        14: ("sparse_indices", RAW),
        15: ("s8s", RAW),
        16: ("u16s", RAW),
        17: ("s16s", RAW),
        18: ("c128s", RAW),
        19: ("f8e5m2s", RAW),
        20: ("f8e4m3fns", RAW),
        21: ("s4s", RAW),
        22: ("u4s", RAW),
        23: ("f8e4m3b11fnuzs", RAW),
        24: ("f8e5m2fnuzs", RAW),
        25: ("f8e4m3fnuzs", RAW),
        26: ("s2s", RAW),
        27: ("u2s", RAW),
        28: ("f8e4m3s", RAW),
        29: ("f8e3m4s", RAW),
        30: ("s1s", RAW),
        31: ("u1s", RAW),
        32: ("f4e2m1fns", RAW),
        33: ("f8e8m0fnus", RAW),
        34: ("dynamic_sizes", RAW),
        35: ("f6e3m2fns", RAW),
        36: ("f6e2m3fns", RAW),
    },
)
WINDOW_DIMENSION = Message(
    "WindowDimension",
    {
        1: ("size", INT),
        2: ("stride", INT),
        3: ("padding_low", INT),
        4: ("padding_high", INT),
        5: ("window_dilation", INT),
        6: ("base_dilation", INT),
        7: ("window_reversal", BOOL),
    },
)
WINDOW = Message("Window", {1: ("dimensions", [WINDOW_DIMENSION])})
CONVOLUTION = Message(
    "ConvolutionDimensionNumbers",
    {
        3: ("kernel_input_feature_dimension", INT),
        4: ("kernel_output_feature_dimension", INT),
        6: ("kernel_spatial_dimensions", INTS),
        7: ("input_batch_dimension", INT),
        8: ("input_feature_dimension", INT),
        9: ("output_batch_dimension", INT),
        10: ("output_feature_dimension", INT),
        11: ("input_spatial_dimensions", INTS),
        12: ("output_spatial_dimensions", INTS),
    },
)
DOT = Message(
    "DotDimensionNumbers",
    {
        1: ("lhs_contracting_dims", INTS),
        2: ("rhs_contracting_dims", INTS),
        3: ("lhs_batch_dims", INTS),
        4: ("rhs_batch_dims", INTS),
    },
)
RAGGED_DOT = Message(
    "RaggedDotDimensionNumbers",
    {
        1: ("dot_dimension_numbers", DOT),
        2: ("lhs_ragged_dims", INTS),
        3: ("rhs_group_dims", INTS),
    },
)
GATHER = Message(
    "GatherDimensionNumbers",
    {
        1: ("offset_dims", INTS),
        2: ("collapsed_slice_dims", INTS),
        3: ("start_index_map", INTS),
        4: ("index_vector_dim", INT),
        5: ("operand_batching_dims", INTS),
        6: ("start_indices_batching_dims", INTS),
    },
)
SCATTER = Message(
    "ScatterDimensionNumbers",
    {
        1: ("update_window_dims", INTS),
        2: ("inserted_window_dims", INTS),
        3: ("scatter_dims_to_operand_dims", INTS),
        4: ("index_vector_dim", INT),
        5: ("input_batching_dims", INTS),
        6: ("scatter_indices_batching_dims", INTS),
    },
)
PADDING_DIMENSION = Message(
    "PaddingConfigDimension",
    {1: ("low", INT), 2: ("high", INT), 3: ("interior", INT)},
)
PADDING = Message("PaddingConfig", {1: ("dimensions", [PADDING_DIMENSION])})
PRECISION = Message("PrecisionConfig", {1: ("operand_precision", INTS), 2: ("algorithm", INT)})
TRIANGULAR = Message(
    "TriangularSolveOptions",
    {
        1: ("left_side", BOOL),
        2: ("lower", BOOL),
        3: ("unit_diagonal", BOOL),
        4: ("transpose_a", INT),
    },
)
CHOLESKY = Message("CholeskyOptions", {1: ("lower", BOOL)})
ATTRIBUTE = Message("FrontendAttributes.map", {1: ("key", TEXT), 2: ("value", TEXT)})
FRONTEND_ATTRIBUTES = Message("FrontendAttributes", {1: ("map", [ATTRIBUTE])})
ALIASING = Message(
    "OutputOperandAliasing",
    {
        1: ("output_shape_index", INTS),
        2: ("operand_index", INT),
        3: ("operand_shape_index", INTS),
    },
)
TOLERANCE = Message("Tolerance", {1: ("atol", REAL), 2: ("rtol", REAL), 3: ("ulps", INT)})
ACCURACY = Message("ResultAccuracy", {1: ("mode", INT), 2: ("tolerance", TOLERANCE)})
GROUP = Message("ReplicaGroup", {1: ("replica_ids", INTS)})
IOTA_GROUPS = Message(
    "IotaReplicaGroupListProto",
    {
        1: ("num_replica_groups", INT),
        2: ("num_devices_per_group", INT),
        3: ("iota_reshape_dims", INTS),
        4: ("iota_transpose_perm", INTS),
    },
)
MESH_AXIS = Message("MeshAxis", {1: ("name", TEXT), 2: ("size", INT)})
IOTA_TRANSFORM = Message("IotaTransform", {1: ("reshape_dims", INTS), 2: ("transpose_perm", INTS)})
MESH = Message(
    "MeshProto",
    {
        1: ("axes", [MESH_AXIS]),
        2: ("device_ids", INTS),
        3: ("iota_transform", IOTA_TRANSFORM),
    },
)
SUB_AXIS = Message("SubAxis", {1: ("pre_size", INT), 2: ("size", INT)})
AXIS = Message("AxisRefProto", {1: ("mesh_axis_index", INT), 2: ("sub_axis_info", SUB_AXIS)})
MESH_GROUPS = Message("MeshAxesReplicaGroupListProto", {1: ("mesh", MESH), 2: ("axes", [AXIS])})
DEVICE_LIST = Message(
    "CollectiveDeviceListProto",
    {1: ("replica_groups", [GROUP]), 2: ("iota_replica_group_list", IOTA_GROUPS)},
)
SOURCE_TARGET = Message("SourceTarget", {1: ("source", INT), 2: ("target", INT)})
DIMENSION_SHARDING = Message("DimensionSharding", {1: ("axes", [AXIS]), 2: ("is_closed", BOOL)})
NAMED_SHARDING = Message(
    "NamedShardingProto",
    {
        2: ("mesh", MESH),
        3: ("dim_shardings", [DIMENSION_SHARDING]),
        4: ("replicated_axes", [AXIS]),
        5: ("unreduced_axes", [AXIS]),
        6: ("metadata", SKIP),
        7: ("manual_axes", [AXIS]),
    },
)
SHARDING = Message("OpSharding", {})
SHARDING.fields.update(
    {
        1: ("type", INT),
        2: ("tile_shape", SKIP),
        3: ("tile_assignment_dimensions", INTS),
        4: ("tile_assignment_devices", INTS),
        5: ("tuple_shardings", [SHARDING]),
        6: ("replicate_on_last_tile_dim", BOOL),
        7: ("metadata", SKIP),
        8: ("last_tile_dims", INTS),
        9: ("iota_reshape_dims", INTS),
        10: ("iota_transpose_perm", INTS),
        11: ("is_shard_group", BOOL),
        12: ("shard_group_id", INT),
        13: ("shard_group_type", INT),
        14: ("named_sharding", NAMED_SHARDING),
    }
)

# hlo.proto

SLICE = Message("SliceDimensions", {1: ("start", INT), 2: ("limit", INT), 3: ("stride", INT)})
PAYLOAD = Message("Payload", {1: ("value", BYTES), 2: ("id", INT)})
INSTRUCTION = Message(
    "HloInstructionProto",
    {
        1: ("name", TEXT),
        2: ("opcode", TEXT),
        3: ("shape", BYTES),
        7: ("metadata", BYTES),
        8: ("literal", BYTES),
        9: ("parameter_number", INT),
        11: ("fusion_kind", SKIP),
        13: ("tuple_index", INT),
        14: ("dimensions", INTS),
        15: ("window", WINDOW),
        16: ("convolution_dimension_numbers", CONVOLUTION),
        17: ("slice_dimensions", [SLICE]),
        18: ("exponent_bits", INT),
        19: ("mantissa_bits", INT),
        20: ("dynamic_slice_sizes", INTS),
        21: ("padding_config", PADDING),
        22: ("outfeed_config", TEXT),
        23: ("distribution", INT),
        24: ("epsilon", REAL),
        25: ("feature_index", INT),
        26: ("channel_id", INT),
        27: ("infeed_config", TEXT),
        28: ("custom_call_target", TEXT),
        29: ("outfeed_shape", SKIP),
        30: ("dot_dimension_numbers", DOT),
        31: ("fft_type", INT),
        32: ("fft_length", INTS),
        33: ("gather_dimension_numbers", GATHER),
        34: ("gather_slice_sizes", INTS),
        35: ("id", INT),
        36: ("operand_ids", INTS),
        37: ("control_predecessor_ids", SKIP),
        38: ("called_computation_ids", INTS),
        40: ("sharding", SHARDING),
        43: ("backend_config", TEXT),
        45: ("all_reduce_id", INT),
        47: ("is_host_transfer", BOOL),
        48: ("scatter_dimension_numbers", SCATTER),
        49: ("replica_groups", [GROUP]),
        50: ("feature_group_count", INT),
        51: ("precision_config", PRECISION),
        52: ("source_target_pairs", [SOURCE_TARGET]),
        54: ("domain_entry_sharding", SKIP),
        55: ("domain_exit_sharding", SKIP),
        56: ("constrain_layout", BOOL),
        57: ("operand_shapes_with_layout", RAW),
        58: ("batch_group_count", INT),
        59: ("triangular_solve_options", TRIANGULAR),
        60: ("is_stable", BOOL),
        61: ("parameter_replication", SKIP),
        62: ("cholesky_options", CHOLESKY),
        63: ("comparison_direction", TEXT),
        65: ("custom_call_has_side_effect", BOOL),
        66: ("delta", INT),
        67: ("indices_are_sorted", BOOL),
        68: ("frontend_attributes", FRONTEND_ATTRIBUTES),
        69: ("unique_indices", BOOL),
        70: ("rng_algorithm", INT),
        71: ("use_global_device_ids", BOOL),
        72: ("comparison_type", TEXT),
        73: ("is_cross_program_prefetch", SKIP),
        74: ("output_operand_aliasing", [ALIASING]),
        75: ("padding_type", INT),
        76: ("custom_call_schedule", SKIP),
        77: ("custom_call_api_version", INT),
        79: ("async_execution_thread", SKIP),
        80: ("cross_program_prefetch_index", SKIP),
        81: ("k", INT),
        82: ("statistics_viz", SKIP),
        85: ("largest", BOOL),
        86: ("dot_sparsity", RAW),
        87: ("collective_device_list", DEVICE_LIST),
        88: ("original_value", SKIP),
        89: ("is_composite", BOOL),
        90: ("ragged_dot_dimension_numbers", RAGGED_DOT),
        91: ("result_accuracy", ACCURACY),
        92: ("iota_collective_device_list", IOTA_GROUPS),
        93: ("mesh_axes_replica_group_list", MESH_GROUPS),
        94: ("is_reverse", BOOL),
        95: ("num_carries", INT),
        96: ("is_associative", INT),
        97: ("conv_kind", SKIP),
        98: ("sparsity_config", BYTES),
        99: ("backend_config_payload", PAYLOAD),
    },
)
COMPUTATION = Message(
    "HloComputationProto",
    {
        1: ("name", TEXT),
        2: ("instructions", [INSTRUCTION]),
        4: ("program_shape", SKIP),
        5: ("id", INT),
        6: ("root_id", INT),
        7: ("is_fusion_computation", SKIP),
        8: ("execution_thread", SKIP),
    },
)
ALIAS_ENTRY = Message(
    "AliasEntryProto",
    {
        1: ("output_shape_index", INTS),
        2: ("parameter_number", INT),
        3: ("parameter_shape_index", INTS),
        4: ("kind", SKIP),
    },
)
ALIASES = Message("HloInputOutputAliasProto", {1: ("entries", [ALIAS_ENTRY])})
DONOR_ENTRY = Message(
    "BufferDonorEntryProto", {1: ("parameter_number", INT), 2: ("parameter_shape_index", INTS)}
)
DONORS = Message("HloBufferDonorProto", {1: ("entries", [DONOR_ENTRY])})
FILE_LOCATION = Message(
    "FileLocation",
    {
        1: ("file_name_id", INT),
        2: ("function_name_id", INT),
        3: ("line", INT),
        4: ("column", INT),
        5: ("end_line", SKIP),
        6: ("end_column", SKIP),
    },
)
STACK_FRAME = Message("StackFrame", {1: ("file_location_id", INT), 2: ("parent_frame_id", INT)})
STACK_FRAMES = Message(
    "StackFrameIndexProto",
    {
        1: ("file_names", TEXTS),
        2: ("function_names", TEXTS),
        3: ("file_locations", [FILE_LOCATION]),
        4: ("stack_frames", [STACK_FRAME]),
    },
)
DEVICE_ASSIGNMENT = Message(
    "DeviceAssignmentProto",
    {1: ("replica_count", INT), 2: ("computation_count", INT), 3: ("", SKIP)},
)
MODULE = Message(
    "HloModuleProto",
    {
        1: ("name", TEXT),
        2: ("entry_computation_name", TEXT),
        3: ("computations", [COMPUTATION]),
        6: ("entry_computation_id", INT),
        8: ("input_output_alias", ALIASES),
        15: ("device_assignment", DEVICE_ASSIGNMENT),
        17: ("stack_frame_index", STACK_FRAMES),
        18: ("buffer_donor", DONORS),
        19: ("frontend_attributes", FRONTEND_ATTRIBUTES),
        **dict.fromkeys((4, 5, 7, 10, 11, 12, 13, 14, 16, 20, 21, 22, 23), ("", SKIP)),
    },
)

# Enumerations: the words of HLO text by number

ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16",
    17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4",
    23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 34: "buffer",
    35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip
FFT_TYPES = ("FFT", "IFFT", "RFFT", "IRFFT")
DISTRIBUTIONS = ("", "rng_uniform", "rng_normal")
ALGORITHMS = ("rng_default", "rng_three_fry", "rng_philox")
TRANSPOSES = ("", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
PRECISIONS = ("default", "high", "highest")
ACCURACIES = ("default", "highest")
PADDING_TYPES = ("", "padding_valid", "padding_same")
API_VERSIONS = (
    "API_VERSION_UNSPECIFIED",
    "API_VERSION_ORIGINAL",
    "API_VERSION_STATUS_RETURNING",
    "API_VERSION_STATUS_RETURNING_UNIFIED",
    "API_VERSION_TYPED_FFI",
)
DOT_ALGORITHMS = (
    "dot_unset",
    "dot_any_f8_any_f8_f32",
    "dot_any_f8_any_f8_f32_fast_accum",
    "dot_f16_f16_f16",
    "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32",
    "dot_bf16_bf16_f32_x3",
    "dot_bf16_bf16_f32_x6",
    "dot_tf32_tf32_f32",
    "dot_tf32_tf32_f32_x3",
    "dot_f32_f32_f32",
    "dot_f64_f64_f64",
    "dot_bf16_bf16_f32_x9",
)
