"""In a fresh process: import girih, load a bundle, run it once. Prints the seconds as JSON.

python benchmarks/first_result.py model.girih inputs.pickle
"""

import sys
import time

started = time.perf_counter()
for framework in ("torch", "jax", "jaxlib", "llvmlite", "transformers"):
    sys.modules[framework] = None  # type: ignore[assignment]  # an import of it now fails

import girih  # noqa: E402

imported = time.perf_counter()
program = girih.load(sys.argv[1])
loaded = time.perf_counter()

import json  # noqa: E402
import pickle  # noqa: E402
from pathlib import Path  # noqa: E402

inputs = pickle.loads(Path(sys.argv[2]).read_bytes())
before = time.perf_counter()
program(*inputs)
first = time.perf_counter()
program(*inputs)
second = time.perf_counter()
print(
    json.dumps(
        {
            "import": imported - started,
            "load": loaded - imported,
            "first": first - before,
            "second": second - first,
        }
    )
)
