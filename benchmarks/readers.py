"""Operations a second that the StableHLO readers read and the writers write.

python benchmarks/readers.py             a long program of our own, and StableHLO's own tests
python benchmarks/readers.py ARCHIVE     another .tar.xz of .mlir files
"""

from __future__ import annotations

import statistics
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from girih.frontends import tree
from girih.frontends.stablehlo.bytecode import read_bytecode
from girih.frontends.stablehlo.text import read_text
from girih.frontends.stablehlo.versions import NEWEST
from girih.frontends.stablehlo.write_bytecode import artifact
from girih.frontends.stablehlo.write_text import document_text

COUNT = 20_000
TESTS = Path(__file__).parents[1] / "tests" / "conformance" / "stablehlo_testdata.tar.xz"


def program(count: int) -> str:
    """A chain of additions, each with a location."""
    body = [
        f"    %{n + 1} = stablehlo.add %{n}, %{n} : tensor<8x8xf32> loc(#loc1)"
        for n in range(count)
    ]
    head = "func.func @main(%0: tensor<8x8xf32>) -> tensor<8x8xf32> {"
    tail = [f"    return %{count} : tensor<8x8xf32>", "}", '#loc1 = loc("m.py":1:1)']
    return "\n".join([head, *body, *tail])


def programs(archive: Path) -> Iterator[str]:
    """The texts of an archive, without those that have no portable form."""
    with tarfile.open(archive) as files:
        for member in files:
            file = files.extractfile(member)
            if file is not None and member.name.endswith(".mlir"):
                for text in file.read().decode().split("// -----"):
                    if not any(word in text for word in ("chlo.", '"check.', "check.expect_eq_")):
                        yield text


def rate(work: Callable[[], Any], count: int) -> float:
    """The median operations per second of processor time, of five runs."""
    rates = []
    for _ in range(5):
        started = time.process_time()
        work()
        rates.append(count / (time.process_time() - started))
    return statistics.median(rates)


def measure(name: str, texts: list[str]) -> None:
    documents = [read_text(text) for text in texts]
    count = sum(1 for document in documents for _ in tree.walk(document.module))
    artifacts = [artifact(document, NEWEST) for document in documents]
    rows: dict[str, Callable[[], Any]] = {
        "text read": lambda: [read_text(text) for text in texts],
        "artifact read": lambda: [read_bytecode(data) for data in artifacts],
        "text written": lambda: [document_text(document) for document in documents],
        "artifact written": lambda: [artifact(document, NEWEST) for document in documents],
    }
    print(f"{name}: {len(texts)} programs, {count:,} operations")
    for what, work in rows.items():
        print(f"    {what:18}{rate(work, count):>12,.0f} operations a second")


def main() -> None:
    measure("a chain", [program(COUNT)])
    archive = Path(sys.argv[1]) if len(sys.argv) > 1 else TESTS
    measure(archive.stem, list(programs(archive)))


if __name__ == "__main__":
    main()
