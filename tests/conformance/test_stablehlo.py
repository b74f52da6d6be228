"""StableHLO's own test programs on both engines: equal, or a clear UnsupportedError by name."""

from __future__ import annotations

import numpy as np
import pytest

import girih

from .programs import as_results, read_programs

PROGRAMS = dict(read_programs())
SHARDS = 16
TOLERANCE = {"float64": 1e-10, "complex128": 1e-10, "float32": 2e-4, "complex64": 2e-4}
# Share of the programs that must pass; the rest may only be refused by name.
AT_LEAST = {"interpreter": 0.99, "cpu": 0.95}


def run(engine: str, text: str) -> list[np.ndarray]:
    module = girih.import_model(text)
    if engine == "interpreter":
        return girih.interpret(module, [])
    # Nothing is folded: the compiled code computes what the program says.
    options = girih.Options(fold_bytes=0, disable=("fold-constants", "fold-weights"))
    return girih.compile(module, options=options)()


def agree(actual: np.ndarray, expected: np.ndarray) -> bool:
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if actual.dtype.kind in "iub" or actual.dtype.name.startswith(("int", "uint")):
        return np.array_equal(actual, expected)
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    bound = TOLERANCE.get(actual.dtype.name, 2e-2)
    with np.errstate(all="ignore"):
        return np.allclose(
            actual.astype(wide), expected.astype(wide), rtol=bound, atol=bound, equal_nan=True
        )


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("engine", AT_LEAST)
def test_programs(engine, shard):
    names = sorted(PROGRAMS)[shard::SHARDS]
    wrong, refused = [], []
    for name in names:
        made = as_results(PROGRAMS[name])
        assert made is not None
        try:
            results = run(engine, made[0])
        except girih.UnsupportedError as error:
            refused.append(f"{name}: {error}")
            continue
        pairs = zip(results[::2], results[1::2], strict=True)
        if len(results) != 2 * made[1] or not all(agree(*pair) for pair in pairs):
            wrong.append(name)
    assert not wrong
    assert len(refused) <= max(2, (1 - AT_LEAST[engine]) * len(names) * 2), refused


def test_the_checks_can_fail():
    name = next(name for name in sorted(PROGRAMS) if name.startswith("add"))
    made = as_results(PROGRAMS[name])
    assert made is not None
    actual, expected = run("interpreter", made[0])[:2]
    assert agree(actual, expected)
    assert not agree(actual, expected + np.ones_like(expected))
