"""Names that an operation's operands, attributes and regions have, with their types.

Written from the rooms in `hlo/ops/` by `python -m girih.specs.op_attributes`; do not edit. A type
checker knows by this class what `op.permutation` is, and that there is no `op.permutaton`. What a
name is of an operation at hand, and whether it has it, says its room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph import Region, Value


class OpAttributes:
    """What `Op.__getattr__` finds. Names that mean several things are of any type."""

    __slots__ = ()

    if TYPE_CHECKING:
        a: Value
        algorithm: str
        all_gather_dim: int
        allowed_direction: str
        axis: int
        b: Value
        base_dilations: tuple[Any, ...]
        batch_dims: int
        batch_group_count: int
        body: Region
        broadcast_dimensions: tuple[Any, ...]
        broadcast_sizes: tuple[Any, ...]
        c: Value
        callee: str
        channel_id: int
        channel_type: int
        codes: tuple[Any, ...]
        collapsed_slice_dims: tuple[Any, ...]
        combine: str
        comparator: Region
        compare_type: str
        comparison_direction: str
        composite_attributes: dict[str, Any]
        computation: Region
        compute_uv: bool
        concat_dimension: int
        cond: Region
        d: Value
        d_padding: Value
        decomposition: str
        dim: int
        dimension: int
        dimensions: tuple[Any, ...]
        dl: Value
        du: Value
        edge_padding_high: Any
        edge_padding_low: Any
        einsum_config: str
        epsilon: float
        exponent_bits: int
        false_branch: Region
        feature_group_count: int
        feature_index: int
        fft_length: tuple[Any, ...]
        fft_type: str
        fill: float
        full_matrices: bool
        grad_output: Value
        grid: tuple[Any, ...]
        group_id: int
        group_sizes: Value
        has_dynamic_root: bool
        high: int
        in_shardings: tuple[Any, ...]
        index: Any
        index_vector_dim: int
        indices_are_sorted: bool
        infeed_config: str
        init_value: Value
        initial_state: Value
        input_batch_dimension: int
        input_batching_dims: tuple[Any, ...]
        input_feature_dimension: int
        input_spatial_dimensions: tuple[Any, ...]
        inputs: tuple[Value, ...]
        inputs_and_inits: tuple[Value, ...]
        inputs_indices_updates: tuple[Value, ...]
        inserted_window_dims: tuple[Any, ...]
        interior_padding: Any
        iota_dimension: int
        is_associative: bool
        is_host_transfer: bool
        is_reverse: bool
        is_stable: bool
        k: int
        kernel: str
        kernel_input_feature_dimension: int
        kernel_output_feature_dimension: int
        kernel_spatial_dimensions: tuple[Any, ...]
        kind: str
        known_expanding_dimensions: tuple[Any, ...]
        known_nonexpanding_dimensions: tuple[Any, ...]
        layout: tuple[Any, ...]
        left: bool
        left_side: bool
        lhs: Value
        lhs_batching_dimensions: tuple[Any, ...]
        lhs_contracting_dimensions: tuple[Any, ...]
        lhs_dilation: tuple[Any, ...]
        lhs_ragged_dimensions: tuple[Any, ...]
        limit_indices: Any
        low: int
        lower: Any
        mantissa_bits: int
        manual_axes: tuple[Any, ...]
        masked: bool
        max: Value
        mean: Value
        memory: Value
        mesh: dict[str, Any]
        min: Value
        n: Value
        offset: Value
        offset_dims: tuple[Any, ...]
        offsets: tuple[Value, ...]
        on_false: Value
        on_true: Value
        operand: Value
        operand_batching_dims: tuple[Any, ...]
        out_shardings: tuple[Any, ...]
        outfeed_config: str
        output_batch_dimension: int
        output_dimensions: Value
        output_feature_dimension: int
        output_shape: Value
        output_spatial_dimensions: tuple[Any, ...]
        padding: tuple[Any, ...]
        padding_value: Value
        part_of: str
        permutation: tuple[Any, ...]
        pivots: Value
        precision_config: tuple[Any, ...]
        pred: Value
        q: Value
        replica_groups: Any
        rhs: Value
        rhs_batching_dimensions: tuple[Any, ...]
        rhs_contracting_dimensions: tuple[Any, ...]
        rhs_dilation: tuple[Any, ...]
        rhs_group_dimensions: tuple[Any, ...]
        right: bool
        rng_algorithm: str
        rng_distribution: str
        rows: Value
        scale: Value
        scatter: Region
        scatter_dimension: int
        scatter_dims_to_operand_dims: tuple[Any, ...]
        scatter_indices_batching_dims: tuple[Any, ...]
        select: Region
        shape: Value
        sharding: str
        shardings: tuple[Any, ...]
        size: Any
        sizes: tuple[Any, ...]
        slice_sizes: Any
        source: Value
        source_target_pairs: tuple[Any, ...]
        split_count: int
        split_dimension: int
        start_index_map: tuple[Any, ...]
        start_indices: Any
        start_indices_batching_dims: tuple[Any, ...]
        starts: tuple[Any, ...]
        stated: str
        step: int
        strides: Any
        taus: Value
        token: Value
        transfers: tuple[Any, ...]
        transpose: bool
        transpose_a: str
        true_branch: Region
        unique_indices: bool
        unit_diagonal: bool
        update: Value
        update_computation: Region
        update_window_dims: tuple[Any, ...]
        upper: Value
        use_global_device_ids: bool
        value: Any
        variance: Value
        variants: tuple[Any, ...]
        vectors: bool
        version: int
        weight: str
        weights: tuple[Any, ...]
        window_dilations: tuple[Any, ...]
        window_dimensions: tuple[Any, ...]
        window_reversal: tuple[Any, ...]
        window_strides: tuple[Any, ...]
        x: Value
