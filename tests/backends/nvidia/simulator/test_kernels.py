"""Whole kernels of sm_90a, and bugs seeded into them that must be found.

The PTX texts in data/ are studies of ours, compiled by LLVM: `min` (one product), `min4` (a
chain), `gemm` (persistent, warp specialised, ring of 4 stages), `gemm_cl2` (cluster of 2,
multicast), `attn` and `attn_bn176` (streaming attention, two products in flight under the softmax),
`gemm_badtouch` (accumulators used before the wait), `attn_keep` (see below).
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from girih.backends.nvidia.simulator import Report, SimulationError

from .asynchronous import MODES, Map, execute

DATA = Path(__file__).parent / "data"
BF16 = ml_dtypes.bfloat16


def ptx(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.ptx.gz").read_bytes()).decode()


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def small(steps: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b, c = normal((64, 64), 1), normal((256, 64), 2), np.zeros((64, 256), np.float32)
    arguments = [Map(a, (64, 64), 128), Map(b, (64, 256), 128), c]
    name = "min" if steps == 1 else "min4"
    execute(ptx(name), "k", arguments, threads=128, shared=49152 + 64, **options)
    k = 16 * steps
    return c, a[:, :k].astype(np.float32) @ b[:, :k].astype(np.float32).T


def product(
    size: tuple[int, int, int] = (256, 512, 256),
    *,
    text: str | None = None,
    cluster: int = 1,
    blocks: int = 1,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray, Report]:
    m, n, k = size
    a, b, c = normal((m, k), 1), normal((n, k), 2), np.zeros((m, n), BF16)
    arguments = [
        Map(a, (64, 128), 128), Map(b, (64, 256 // cluster), 128), Map(c, (64, 64), 128),
        np.int32(m), np.int32(n), np.int32(k),
    ]  # fmt: skip
    report = execute(
        text or ptx("gemm" if cluster == 1 else "gemm_cl2"), "gemm", arguments, threads=384,
        grid=(blocks * cluster,), cluster=cluster, shared=229440, **options,
    )  # fmt: skip
    return c.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32).T, report


def attention(
    length: int, columns: int, text: str | None = None, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    width = 128
    q, k, v = (normal((1, length, width), seed) for seed in (1, 2, 3))
    out = np.zeros((1, length, width), BF16)
    scale = 1 / np.sqrt(width)
    arguments = [
        Map(q, (64, 128, 1), 128), Map(k, (64, columns, 1), 128), Map(v, (64, columns, 1), 128),
        out, np.int32(length), np.float32(scale * np.log2(np.e)),
    ]  # fmt: skip
    name = "attn" if columns == 128 else "attn_bn176"
    shared = 163912 if columns == 128 else 213064
    blocks = options.pop("blocks", length // 128)
    execute(text or ptx(name), "attn", arguments, threads=384, grid=(blocks, 1), shared=shared,
            **options)  # fmt: skip
    q, k, v = (x[0].astype(np.float32) for x in (q, k, v))
    weights = q @ k.T * scale
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    return out[0, : 128 * blocks].astype(np.float32), wanted[: 128 * blocks]


def close(found: np.ndarray, wanted: np.ndarray, relative: float) -> None:
    error = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
    assert error.max() < relative


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize("steps", [1, 4])
def test_one_product(steps, mode, seed):
    close(*small(steps, mode=mode, seed=seed), 1e-5)


@pytest.mark.parametrize(("mode", "seed"), [*MODES, ("eager", 5)])
def test_the_persistent_product(mode, seed):
    found, wanted, _ = product(mode=mode, seed=seed)
    close(found, wanted, 0.004)


def test_several_blocks_share_the_tiles():
    found, wanted, report = product((384, 512, 192), blocks=4)
    close(found, wanted, 0.004)
    assert report.vector_instructions > 1000


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_a_cluster_with_multicast(mode, seed):
    found, wanted, _ = product((512, 256, 192), cluster=2, mode=mode, seed=seed)
    close(found, wanted, 0.004)


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize(("length", "columns"), [(384, 128), (528, 176)])
def test_attention(length, columns, mode, seed):
    found, wanted = attention(length, columns, mode=mode, seed=seed, blocks=1)
    close(found, wanted, 0.01)


# Seeded bugs: (name, what to replace, by what, the fault). Both modes find each of them.
BUGS = [
    ("no proxy fence", "fence.proxy.async.shared::cta;", "", {"proxy"}),
    ("a weaker wait at the end", "wgmma.wait_group.sync.aligned 0",
     "wgmma.wait_group.sync.aligned 1", {"in-flight"}),
    ("too few bytes expected", "%r150, 49152;", "%r150, 49024;", {"deadlock", "race"}),
    ("too many bytes expected", "%r150, 49152;", "%r150, 49280;", {"deadlock"}),
    ("no wait before the reuse of the C buffer", "cp.async.bulk.wait_group.read \t0;", "",
     {"race", "exit"}),
    ("no drain of the stores", None, None, {"exit"}),
    ("no wait for the stage", None, None, {"race", "deadlock"}),
    ("release of the stage in use", None, None, {"race", "deadlock"}),
    ("barriers never initialised", "mbarrier.init.shared.b64 \t[smem+229376], %r26;", "",
     {"barrier"}),
    ("each release arrives twice", None, None, {"barrier", "race", "deadlock"}),
    ("no fence before the products", "wgmma.fence.sync.aligned;", "", {"fence"}),
    ("no barrier between the warps of a group", "bar.sync \t%r2, 128;", "",
     {"race", "proxy"}),
]  # fmt: skip


def mutated(name: str, old: str | None, new: str | None) -> str:
    text = ptx("gemm")
    if old is not None and new is not None:
        assert old in text, name
        return text.replace(old, new)
    if name == "no drain of the stores":
        head, tail = text.rsplit("cp.async.bulk.wait_group.read \t0;", 1)
        return head + tail
    if name == "no wait for the stage":
        start = text.index("mbarrier.try_wait.parity.shared.b64 %p4, [%rd18]")
        end = text.index("@%p5 bra", start)
        end = text.index(";", end) + 1
        return text[:start] + text[end:]
    if name == "release of the stage in use":
        assert "shl.b32 \t%r56, %r16, 3;" in text
        return text.replace("shl.b32 \t%r56, %r16, 3;", "shl.b32 \t%r56, %r162, 3;")
    assert name == "each release arrives twice"
    arrive = "mbarrier.arrive.shared.b64 %rd41, [%rd19], %r58;"
    assert arrive in text
    return text.replace(arrive, arrive + "\n" + arrive)


@pytest.mark.parametrize(("name", "old", "new", "kinds"), BUGS, ids=[bug[0] for bug in BUGS])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_seeded_bugs_are_found(name, old, new, kinds, mode):
    """By some seed of five; most by the first."""
    for seed in range(5):
        try:
            product((128, 256, 384), text=mutated(name, old, new), mode=mode, seed=seed)
        except SimulationError as error:
            assert error.fault.kind in kinds, error
            assert error.fault.line > 0
            return
    pytest.fail(f"'{name}' went unnoticed")


def drop(text: str, *lines: str, last: bool = False) -> str:
    """Without the first (the last) of each line."""
    for line in lines:
        assert line in text
        head, tail = text.rsplit(line, 1) if last else text.split(line, 1)
        text = head + tail
    return text


REMOTE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%rd20], %r61;"
CLUSTER_BUGS = {
    "blocks leave before their neighbours' last arrivals": (
        lambda text: drop(
            text, "barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;", last=True
        ),
        {"cluster"},
    ),
    "copies before the neighbour's barriers are initialised": (
        lambda text: drop(
            text, "barrier.cluster.arrive.relaxed.aligned;", "barrier.cluster.wait.aligned;"
        ),
        {"barrier", "divergence"},
    ),
    "no arrival at the neighbour's barrier": (lambda text: drop(text, REMOTE), {"deadlock"}),
    "half of the bytes expected": (
        lambda text: text.replace("%r156, 49152;", "%r156, 32768;"),
        {"race", "deadlock"},
    ),
}


@pytest.mark.parametrize("name", CLUSTER_BUGS)
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_seeded_bugs_of_clusters_are_found(name, mode):
    change, kinds = CLUSTER_BUGS[name]
    text = ptx("gemm_cl2")
    assert change(text) != text
    for seed in range(8):
        try:
            product((256, 256, 384), text=change(text), cluster=2, mode=mode, seed=seed)
        except SimulationError as error:
            assert error.fault.kind in kinds, error
            return
    pytest.fail(f"'{name}' went unnoticed")


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_scores_are_not_read_in_flight(mode):
    text = ptx("attn")
    late = text.replace("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;")
    assert late != text
    with pytest.raises(SimulationError) as found:
        attention(384, 128, text=late, mode=mode, blocks=1)
    assert found.value.fault.kind == "in-flight"


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_weights_are_not_overwritten_in_flight(mode):
    """`attn_keep` packs the new weights while the product that reads the old ones is in flight,
    which ptxas answers by running the products one after the other."""
    with pytest.raises(SimulationError) as found:
        attention(384, 128, text=ptx("attn_keep"), mode=mode, blocks=1)
    assert found.value.fault.kind == "in-flight"


def test_accumulators_touched_in_flight():
    with pytest.raises(SimulationError, match="in flight"):
        product((128, 256, 128), text=ptx("gemm_badtouch"))
