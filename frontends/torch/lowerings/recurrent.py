"""LSTM, GRU and plain recurrent layers: the input's products for all steps at once, then a loop.

A layer that runs backwards reads and writes its steps from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....hlo.graph import Value
from ....hlo.types import I32
from ..context import Blocked, Context

Step = Callable[[Context, Value, Sequence[Value]], list[Value]]


class Layer:
    """Weights of one direction of one layer: [gates, in], [gates, hidden], biases, projection."""

    def __init__(self, weights: Sequence[Value], has_biases: bool) -> None:
        self.input, self.hidden = weights[0], weights[1]
        rest = list(weights[2:])
        self.biases = rest[:2] if has_biases else []
        left = rest[2 if has_biases else 0 :]
        self.projection = left[0] if left else None


def loop(
    c: Context, gates: Value, state: Sequence[Value], step: Step, backwards: bool
) -> tuple[Value, list[Value]]:
    """Outputs [t, b, h] and last state of `step(gates[t], state)`, whose first state is the output.

    One step is built in place; more become a `while` with the outputs written step by step.
    """
    count, batch, width = gates.dims
    hidden = state[0].dims[-1]
    if count == 1:
        new = step(c, c.builder.reshape(gates, (batch, width)), state)
        return c.builder.reshape(new[0], (1, batch, hidden)), new
    outputs = c.full(0, (count, batch, hidden), state[0].element)
    carried = [c.scalar(0, I32), outputs, *state]

    def condition(at: Value, *rest: Value) -> Value:
        return c.builder.compare("LT", at, c.scalar(count, I32))

    def body(at: Value, written: Value, *inner: Value) -> list[Value]:
        zero = c.scalar(0, I32)
        place = c.subtract(count - 1, at) if backwards else at
        line = c("dynamic_slice", gates, place, zero, zero, slice_sizes=(1, batch, width))
        new = step(c, c.builder.reshape(line, (batch, width)), inner)
        row = c.builder.reshape(new[0], (1, batch, hidden))
        written = c("dynamic_update_slice", written, row, place, zero, zero)
        return [c.add(at, 1), written, *new]

    found = c.iterate(carried, condition, body)
    return found[1], list(found[2:])


def _parts(c: Context, value: Value, count: int) -> list[Value]:
    size = value.dims[-1] // count
    return [c.slice(value, value.rank - 1, i * size, (i + 1) * size) for i in range(count)]


def _project(c: Context, x: Value, weight: Value) -> Value:
    return c.dot(x, weight, ((x.rank - 1,), (1,)))


def lstm_step(layer: Layer) -> Step:
    def step(c: Context, gates: Value, state: Sequence[Value]) -> list[Value]:
        hidden, cell = state
        total = c("add", gates, _project(c, hidden, layer.hidden))
        enter, forget, candidate, leave = _parts(c, total, 4)
        kept = c("multiply", c("logistic", forget), cell)
        cell = c("add", kept, c("multiply", c("logistic", enter), c("tanh", candidate)))
        hidden = c("multiply", c("logistic", leave), c("tanh", cell))
        if layer.projection is not None:
            hidden = _project(c, hidden, layer.projection)
        return [hidden, cell]

    return step


def gru_step(layer: Layer) -> Step:
    def step(c: Context, gates: Value, state: Sequence[Value]) -> list[Value]:
        (hidden,) = state
        inner = _project(c, hidden, layer.hidden)
        if layer.biases:  # the candidate's hidden bias is inside the reset gate's product
            inner = c("add", inner, c.spread(layer.biases[1], inner.dims))
        reset, update, candidate = _parts(c, gates, 3)
        hidden_reset, hidden_update, hidden_candidate = _parts(c, inner, 3)
        reset = c("logistic", c("add", reset, hidden_reset))
        update = c("logistic", c("add", update, hidden_update))
        new = c("tanh", c("add", candidate, c("multiply", reset, hidden_candidate)))
        gap = c("subtract", hidden, new)
        return [c("add", new, c("multiply", update, gap))]

    return step


def plain_step(activation: str) -> Callable[[Layer], Step]:
    def of_layer(layer: Layer) -> Step:
        def step(c: Context, gates: Value, state: Sequence[Value]) -> list[Value]:
            total = c("add", gates, _project(c, state[0], layer.hidden))
            if activation == "relu":
                return [c.binary("maximum", total, 0)]
            return [c("tanh", total)]

        return step

    return of_layer


def network(
    c: Context,
    input: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
    of_layer: Callable[[Layer], Step],
    hidden_bias_inside: bool,
) -> tuple[Value, ...]:
    """All layers and directions; outputs, then the last states [layers * directions, b, h]."""
    x = c.builder.transpose(input, [1, 0, 2]) if batch_first else input
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    finals: list[list[Value]] = [[] for _ in states]
    for number in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = number * directions + direction
            layer = Layer(params[at * each : (at + 1) * each], has_biases)
            gates = _project(c, x, layer.input)
            if layer.biases:
                first, second = layer.biases
                bias = first if hidden_bias_inside else c("add", first, second)
                gates = c("add", gates, c.spread(bias, gates.dims))
            start = [c.builder.reshape(c.slice(s, 0, at, at + 1), s.dims[1:]) for s in states]
            output, state = loop(c, gates, start, of_layer(layer), direction == 1)
            outputs.append(output)
            for final, value in zip(finals, state, strict=True):
                final.append(c.builder.reshape(value, (1, *value.dims)))
        x = c.concatenate(outputs, 2)
    x = c.builder.transpose(x, [1, 0, 2]) if batch_first else x
    return (x, *(c.concatenate(final, 0) for final in finals))


def _inference(dropout: float, train: bool) -> None:
    if train and dropout:
        raise Blocked("drops values at random", "call model.eval() before exporting")


def lstm(
    c: Context,
    input: Value,
    hx: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, ...]:
    _inference(dropout, train)
    return network(
        c, input, hx, params, has_biases, num_layers, bidirectional, batch_first, lstm_step, False
    )


def single_state(
    of_layer: Callable[[Layer], Step], hidden_bias_inside: bool
) -> Callable[..., tuple[Value, ...]]:
    """GRU and plain recurrent networks."""

    def lower(
        c: Context,
        input: Value,
        hx: Value,
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        _inference(dropout, train)
        return network(
            c, input, [hx], params, has_biases, num_layers, bidirectional, batch_first, of_layer,
            hidden_bias_inside,
        )  # fmt: skip

    return lower


def cell(of_layer: Callable[[Layer], Step], hidden_bias_inside: bool, several: bool) -> Any:
    """One step of one layer, as nn.LSTMCell, nn.GRUCell and nn.RNNCell do it."""

    def lower(
        c: Context,
        input: Value,
        hx: Any,
        w_ih: Value,
        w_hh: Value,
        b_ih: Value | None = None,
        b_hh: Value | None = None,
    ) -> Any:
        biases = [bias for bias in (b_ih, b_hh) if bias is not None]
        layer = Layer([w_ih, w_hh, *biases], bool(biases))
        gates = _project(c, input, w_ih)
        if biases:
            bias = biases[0] if hidden_bias_inside else c("add", *biases)
            gates = c("add", gates, c.spread(bias, gates.dims))
        results = of_layer(layer)(c, gates, hx if several else [hx])
        return tuple(results) if several else results[0]

    return lower


TABLE: dict[str, Callable[..., Any]] = {
    "aten.gru.input": single_state(gru_step, True),
    "aten.gru_cell.default": cell(gru_step, True, False),
    "aten.lstm.input": lstm,
    "aten.lstm_cell.default": cell(lstm_step, False, True),
    "aten.rnn_relu.input": single_state(plain_step("relu"), False),
    "aten.rnn_relu_cell.default": cell(plain_step("relu"), False, False),
    "aten.rnn_tanh.input": single_state(plain_step("tanh"), False),
    "aten.rnn_tanh_cell.default": cell(plain_step("tanh"), False, False),
}
