"""Embed sentences with a bundle, in a process that cannot import torch, jax or llvmlite.

    python search.py minilm.girih embeddings.npz

Only numpy, the tokenizer and girih's runtime are used. Prints one line of JSON with the times.
"""

from __future__ import annotations

import sys
import time

STARTED = time.perf_counter()
for framework in ("torch", "jax", "jaxlib", "llvmlite", "transformers"):
    sys.modules[framework] = None  # type: ignore[assignment]  # an import of it now fails

import json  # noqa: E402

import numpy as np  # noqa: E402

import girih  # noqa: E402
from minilm import encode, tokenizer  # noqa: E402
from sentences import QUESTIONS, SENTENCES  # noqa: E402


def main(bundle: str, result: str) -> None:
    words = tokenizer()
    inputs = [encode(words, text) for text in (*SENTENCES, *QUESTIONS)]
    before_load = time.perf_counter()
    program = girih.load(bundle)
    loaded = time.perf_counter()
    first = program(*inputs[0])
    answered = time.perf_counter()
    del first
    vectors, times = [], []
    for ids, mask in inputs:
        started = time.perf_counter()
        vectors.append(np.asarray(program(ids, mask))[0])
        times.append(time.perf_counter() - started)
    np.savez(result, vectors=np.stack(vectors))
    print(
        json.dumps(
            {
                "import": before_load - STARTED,
                "load": loaded - before_load,
                "first": answered - loaded,
                "sentence": float(np.median(times)),
                "modules": len(sys.modules),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
