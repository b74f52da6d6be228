"""Batch normalisation: inference, training and gradient, as decompositions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..access import Access, Space, at, identity
from ..factors import Factor, FactorBuilder, Factors
from ..graph import Op
from ..room import Case, attribute, constraint, operand
from ..room import operand as second
from ..types import F32, Type
from .clauses import same_dim, same_dims
from .decomposed import Decomposed, Term, sqrt
from .examples import counting, f32


def _has_feature_index(o: Op) -> bool:
    return 0 <= o.feature_index < o.operands[0].rank


def _per_feature(o: Op, values: Sequence[Any]) -> bool:
    """Whether the values are vectors of one entry per feature, of operand's element type."""
    x = o.operands[0]
    return all(
        v.rank == 1 and same_dim(v.dims[0], x.dims[o.feature_index]) and v.element is x.element
        for v in values
    )


class _Tools:
    """Building blocks over one operand: spread a vector of features, sum over everything else."""

    def __init__(self, b: Any, o: Op, values: Sequence[Any]) -> None:
        self.b, self.o = b, o
        self.x = o.operands[0].tensor
        self.element = self.x.element
        self.computing = F32 if self.element.is_float and self.element.bits < 32 else self.element
        self.wide = self.x.with_element(self.computing)
        self.others = [d for d in range(self.x.rank) if d != o.feature_index]
        self.values = values

    def terms(self, values: Sequence[Any]) -> list[Term]:
        return [Term(self.b, self.b.convert(v, self.computing)) for v in values]

    def spread(self, vector: Term) -> Term:
        index = (self.o.feature_index,)
        return Term(self.b, self.b.broadcast(vector.value, self.wide.dims, index))

    def sum(self, term: Term) -> Term:
        zero = self.b.constant(0, self.wide.with_dims(()))
        return Term(self.b, self.b.reduce("add", term.value, zero, self.others))

    def mean(self, term: Term) -> Term:
        """The sums of features as means."""
        kind = term.value.tensor
        count = self.b.count(self.values[0], self.others, kind)
        return term / Term(self.b, count)

    def results(self, *terms: Term) -> list[Any]:
        return [self.b.convert(term.value, self.element) for term in terms]


def _each_feature(o: Op) -> Factors:
    """Features pass, each for itself; over everything else there are statistics to be had first."""
    rule, x = FactorBuilder(o), o.operands[0]
    operands, results = (
        {n: o.feature_index if v.rank == x.rank else 0 for n, v in enumerate(values)}
        for values in (o.operands, o.results)
    )
    rule.add(Factor(x.dims[o.feature_index]), operands, results)
    return rule.build()


class BatchNormInference(Decomposed, name="batch_norm_inference"):
    """result = (operand - mean) / sqrt(variance + epsilon) * scale + offset, per feature."""

    pattern = "opaque"
    operand = operand()
    scale = second()
    offset = second()
    mean = second()
    variance = second()
    epsilon = attribute(float)
    feature_index = attribute(int)
    C1 = constraint("0 <= feature_index < rank(operand)", _has_feature_index)
    C3 = constraint(
        "scale, offset, mean and variance have one entry per feature",
        lambda o: _per_feature(o, o.operands[1:]),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        tools = _Tools(b, o, values)
        x, scale, offset, mean, variance = tools.terms(values)
        deviation = sqrt(variance + o.epsilon)
        centred = (x - tools.spread(mean)) / tools.spread(deviation)
        return tools.results(centred * tools.spread(scale) + tools.spread(offset))

    def access(self, o: Op) -> Access | None:
        vector = (at(o.feature_index),)
        return Space(o.type.dims).access(identity(o.operand.rank), *([vector] * 4))

    def cases(self) -> Iterator[Case]:
        x = counting(2, 3, 4) - 10
        vectors = [f32(v) for v in ([1, 2, 3], [0, 1, -1], [2, 0, 5], [1, 4, 0])]
        for dtype in ("float32", "float16"):
            inputs = tuple(v.astype(dtype) for v in (x, *vectors))
            yield Case(
                f"batch_norm_inference_{dtype}", inputs, {"epsilon": 0.5, "feature_index": 1},
                tolerance=1e-5 if dtype == "float32" else 4e-3,
            )  # fmt: skip


class BatchNormTraining(Decomposed, name="batch_norm_training"):
    """output, mean, variance: operand normalised with its own mean and variance per feature."""

    pattern = "opaque"
    opaque = "its results have different dims"
    operand = operand()
    scale = second()
    offset = second()
    epsilon = attribute(float)
    feature_index = attribute(int)
    C1 = constraint("0 <= feature_index < rank(operand)", _has_feature_index)
    C3 = constraint(
        "scale and offset have one entry per feature", lambda o: _per_feature(o, o.operands[1:])
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type, o.scale.type, o.scale.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        tools = _Tools(b, o, values)
        x, scale, offset = tools.terms(values)
        mean = tools.mean(tools.sum(x))
        centred = x - tools.spread(mean)
        variance = tools.mean(tools.sum(centred * centred))
        normal = centred / tools.spread(sqrt(variance + o.epsilon))
        output = normal * tools.spread(scale) + tools.spread(offset)
        return tools.results(output, mean, variance)

    def shard(self, o: Op) -> Factors | None:
        return _each_feature(o)

    def cases(self) -> Iterator[Case]:
        x = (counting(2, 3, 4) * 7) % 11
        inputs = (x, f32([1, 2, 3]), f32([0, 1, -1]))
        yield Case("batch_norm_training", inputs, {"epsilon": 0.25, "feature_index": 1})


class BatchNormGrad(Decomposed, name="batch_norm_grad"):
    """grad_operand, grad_scale, grad_offset of batch_norm_training's output."""

    pattern = "opaque"
    opaque = "its results have different dims"
    operand = operand()
    scale = second()
    mean = second()
    variance = second()
    grad_output = second()
    epsilon = attribute(float)
    feature_index = attribute(int)
    C1 = constraint("0 <= feature_index < rank(operand)", _has_feature_index)
    C3 = constraint(
        "operand and grad_output have the same dimensions",
        lambda o: same_dims(o.operand.dims, o.grad_output.dims),
    )
    C4 = constraint(
        "scale, mean and variance have one entry per feature",
        lambda o: _per_feature(o, o.operands[1:4]),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.operand.type, o.scale.type, o.scale.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        tools = _Tools(b, o, values)
        x, scale, mean, variance, gradient = tools.terms(values)
        deviation = sqrt(variance + o.epsilon)
        normal = (x - tools.spread(mean)) / tools.spread(deviation)
        grad_scale, grad_offset = tools.sum(gradient * normal), tools.sum(gradient)
        share = tools.spread(tools.mean(grad_offset))
        slope = normal * tools.spread(tools.mean(grad_scale))
        grad_x = tools.spread(scale / deviation) * (gradient - share - slope)
        return tools.results(grad_x, grad_scale, grad_offset)

    def shard(self, o: Op) -> Factors | None:
        return _each_feature(o)

    def cases(self) -> Iterator[Case]:
        x = (counting(2, 4, 3) * 7) % 11
        mean, variance = x.mean((0, 1)), x.var((0, 1))
        inputs = (x, f32([1, 2, 3]), mean, variance, (counting(2, 4, 3) * 5) % 7)
        yield Case("batch_norm_grad", inputs, {"epsilon": 0.25, "feature_index": 2}, tolerance=1e-4)


ROOMS = (BatchNormInference(), BatchNormTraining(), BatchNormGrad())
