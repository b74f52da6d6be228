"""Operations a second that the StableHLO text reader reads: `python benchmarks/readers.py`."""

from __future__ import annotations

import statistics
import time

from girih.frontends.stablehlo.text import read_text

COUNT = 20_000


def program(count: int) -> str:
    """A chain of additions, each with a location."""
    body = [
        f"    %{n + 1} = stablehlo.add %{n}, %{n} : tensor<8x8xf32> loc(#loc1)"
        for n in range(count)
    ]
    head = "func.func @main(%0: tensor<8x8xf32>) -> tensor<8x8xf32> {"
    tail = [f"    return %{count} : tensor<8x8xf32>", "}", '#loc1 = loc("m.py":1:1)']
    return "\n".join([head, *body, *tail])


def main() -> None:
    text = program(COUNT)
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        read_text(text)
        rates.append(COUNT / (time.perf_counter() - started))
    print(f"StableHLO text: {statistics.median(rates):,.0f} operations a second")


if __name__ == "__main__":
    main()
