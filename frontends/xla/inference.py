"""Shapes that HLO text leaves out where the operands tell them."""

from __future__ import annotations

from typing import Any

from .program import ConvolutionLabels, Instruction, Shape, WindowDimension

_LIKE_FIRST = frozenset(
    (
        "abs", "acos", "acosh", "add", "add-dependency", "and", "asin", "asinh", "atan2", "atanh",
        "cbrt", "ceil", "copy", "cosine", "cosh", "count-leading-zeros", "divide", "domain", "erf",
        "exponential",
        "exponential-minus-one", "floor", "log", "log-plus-one", "logistic", "maximum", "minimum",
        "mulhi", "multiply", "negate", "not", "opt-barrier", "or", "popcnt", "power",
        "reduce-precision", "remainder", "reverse", "round-nearest-afz", "round-nearest-even",
        "rsqrt", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine",
        "sinh", "sqrt", "subtract", "tan", "tanh", "while", "xor", "dynamic-update-slice",
        "cholesky",
    )
)  # fmt: skip


def infer(instruction: Instruction) -> Shape | None:
    """The instruction's shape, as XLA infers it; None where it has to be written."""
    operands, facts = instruction.operands, instruction.attributes
    shapes = [operand.shape for operand in operands]
    if instruction.opcode == "after-all":
        return Shape("token")
    if not shapes:
        return Shape("tuple") if instruction.opcode == "tuple" else None
    first = shapes[0]
    match instruction.opcode:
        case opcode if opcode in _LIKE_FIRST:
            return first
        case "compare" | "is-finite":
            return first._replace(element="pred")
        case "real" | "imag":
            parts = {"c64": "f32", "c128": "f64"}
            return first._replace(element=parts.get(first.element, first.element))
        case "select" | "clamp" if len(shapes) == 3:
            return shapes[1]
        case "tuple":
            return Shape("tuple", members=tuple(shapes))
        case "get-tuple-element":
            index = facts.get("index", 0)
            return first.members[index] if 0 <= index < len(first.members) else None
        case "call" | "map" if instruction.calls:
            root = instruction.calls[0].root.shape
            return root if instruction.opcode == "call" else first._replace(element=root.element)
        case "conditional" if instruction.calls:
            return instruction.calls[0].root.shape
        case "sort":
            return first if len(shapes) == 1 else Shape("tuple", members=tuple(shapes))
        case "concatenate" if facts.get("dimensions"):
            along = facts["dimensions"][0]
            if any(not 0 <= along < len(shape.dims) for shape in shapes):
                return None
            total = sum(shape.dims[along] for shape in shapes)
            return Shape(first.element, (*first.dims[:along], total, *first.dims[along + 1 :]))
        case "transpose":
            order = facts.get("dimensions", ())
            if sorted(order) != list(range(len(first.dims))):
                return None
            # Laid out so that nothing moves.
            layout = tuple(order.index(dim) for dim in reversed(first.major_to_minor))
            return Shape(first.element, tuple(first.dims[dim] for dim in order), layout=layout)
        case "reduce" if len(shapes) == 2:
            gone = facts.get("dimensions", ())
            kept = tuple(size for dim, size in enumerate(first.dims) if dim not in gone)
            return Shape(first.element, kept)
        case "dot" if len(shapes) == 2:
            return _dot(shapes[0], shapes[1], facts)
        case "pad" if len(facts.get("padding", ())) == len(first.dims):
            pairs = zip(first.dims, facts["padding"], strict=True)
            dims = tuple(
                size + low + high + max(size - 1, 0) * interior
                for size, (low, high, interior) in pairs
            )
            return first._replace(dims=dims, layout=None) if min(dims, default=0) >= 0 else None
        case "reduce-window" if len(facts.get("window", ())) == len(first.dims):
            pairs = zip(first.dims, facts["window"], strict=True)
            return first._replace(dims=tuple(_positions(*pair) for pair in pairs), layout=None)
        case "convolution" if len(shapes) == 2 and "dim_labels" in facts:
            return _convolution(shapes[0], shapes[1], facts)
    return None


def _positions(size: int, window: WindowDimension) -> int:
    """How often a window fits into a dimension."""
    dilated = max(size - 1, 0) * window.base_dilation + min(size, 1) + window.low + window.high
    reach = max(window.size - 1, 0) * window.window_dilation + 1
    return 0 if dilated < reach or window.stride < 1 else (dilated - reach) // window.stride + 1


def _convolution(lhs: Shape, rhs: Shape, facts: dict[str, Any]) -> Shape | None:
    labels: ConvolutionLabels = facts["dim_labels"]
    window = facts.get("window", ())
    rank = len(lhs.dims)
    if len(rhs.dims) != rank or not all(
        sorted(part) == list(range(rank)) and len(window) == rank - 2 for part in labels
    ):
        return None
    groups = facts.get("batch_group_count", 1)
    if groups < 1:
        return None
    sizes = [lhs.dims[labels.input[0]] // groups, rhs.dims[labels.kernel[1]]]
    for dim, part in zip(labels.input[2:], window, strict=True):
        sizes.append(_positions(lhs.dims[dim], part))
    dims = [0] * rank
    for place, size in zip(labels.output, sizes, strict=True):
        dims[place] = size
    return Shape(lhs.element, tuple(dims))


def _dot(lhs: Shape, rhs: Shape, facts: dict[str, tuple[int, ...]]) -> Shape | None:
    if lhs.element != rhs.element:
        return None
    batch = facts.get("lhs_batch_dims", ())
    if any(not 0 <= dim < len(lhs.dims) for dim in batch):
        return None
    dims = [lhs.dims[dim] for dim in batch]
    for shape, side in ((lhs, "lhs"), (rhs, "rhs")):
        used = {*facts.get(f"{side}_batch_dims", ()), *facts.get(f"{side}_contracting_dims", ())}
        dims += [size for dim, size in enumerate(shape.dims) if dim not in used]
    return Shape(lhs.element, tuple(dims))
