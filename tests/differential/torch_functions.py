"""PyTorch's public functions through girih, with arguments that nobody chose for them.

    python tests/differential/torch_functions.py [--only NAME ...] [--dtypes float32 int64 ...]
        [--once] [--samples 4] [--engine interpreter|cpu|file] [--jobs 2] [--record FILE]
        [--write FILE]

Every public function of `torch`, `torch.nn.functional`, `torch.linalg`, `torch.special` and
`torch.fft`, and every method of `torch.Tensor`, is called with each of a fixed list of argument
lists; those that eager PyTorch takes and answers with tensors are its samples (at most `--samples`
of them, different in kind). Each sample is exported, imported, run and compared with eager. Every
function runs in a process of its own, so that one that crashes or hangs is a line of the list and
not its end. `--record` adds the outcomes to a file, and `--write` puts the summary of such a file
into docs/support.md, where the rows of dtypes and engines that it has not stay.

`torch_operators.py` asks the same of the samples that PyTorch's authors wrote for their operators.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import io
import itertools
import json
import logging
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from girih.tests.differential.outcomes import (
    PAGE,
    failures,
    failures_of,
    markdown_rows,
    rows_of,
    section,
    write_section,
)
from girih.tests.differential.torch_operators import ENGINES, outcome

SPACES = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
    "torch.Tensor": torch.Tensor,
}
NOT_MATHEMATICS = re.compile(
    r"^(_.*|set_.*|get_.*|is_.*|are_.*|use_.*|has_.*|init.*|save|load|compile|cond|while_loop|"
    r"export|import.*|manual_seed|seed|fork|wait|from_.*|frombuffer|asarray|as_tensor|tensor|"
    r"sparse_.*|classproperty|handle_torch_function|boolean_dispatch|typename|unravel_index|"
    r"vmap|func|autocast.*|enable_grad|no_grad|inference_mode|register_.*|requires_grad_?|"
    r"retain_grad|backward|share_memory_|storage.*|untyped_storage|data_ptr|element_size|pin_memory|"
    r"record_stream|reinforce|refine_names|rename_?|align_.*|names|to_sparse.*|to_mkldnn|to_dense|"
    r"coalesce|indices|values|crow_indices|col_indices|ccol_indices|row_indices|sparse_resize_.*|"
    r"dense_dim|sparse_dim|apply_|map_|map2_|module_load|numpy|tolist|item|dim|ndimension|nelement|"
    r"numel|size|stride|dim_order|type|cpu|cuda|xpu|ipu|hpu|mtia|quantize_per.*|quantized_.*|"
    r"fake_quantize.*|fused_moving_avg_obs_fake_quant|fbgemm.*|cudnn.*|miopen.*|mkldnn.*|dequantize|"
    r"int_repr|q_.*|choose_qparams_optimized|has_names|Generator|Stream|sym_.*|promote_types|"
    r"result_type|can_cast|profiler.*|empty.*|new_empty.*|resize_.*|svd_lowrank|pca_lowrank|"
    r"lobpcg|memory_format|swap_tensors|data|grad_fn|as_subclass|chalf|const_data_ptr|"
    r"mutable_data_ptr|slice_inverse|layout)$"
)
"""What is no mathematics of tensors, or has no value to compare with (memory as it was found, bases
that random vectors decide). Random draws are compared by their distributions."""

AS_MANY = 3  # argument lists that differ only in their numbers, of one function


class Found(NamedTuple):
    """What became of one sample: a line of a record."""

    name: str
    dtype: str
    engine: str
    given: str
    verdict: str
    words: str


def functions() -> dict[str, Callable[..., Any]]:
    """Every public function by its name, a method as a function of its tensor."""
    found: dict[str, Callable[..., Any]] = {}
    for space, module in SPACES.items():
        for name in sorted(dir(module)):
            entry = getattr(module, name)
            if NOT_MATHEMATICS.match(name) or isinstance(entry, type) or not callable(entry):
                continue
            if space == "torch.Tensor":
                found[f"{space}.{name}"] = method(name)
            elif "torch" in (getattr(entry, "__module__", None) or "torch"):
                found[f"{space}.{name}"] = entry
    return found


def method(name: str) -> Callable[..., Any]:
    """A method called on a copy of its tensor: what changes its tensor must not change an input."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.clone() if name.endswith("_") else self
        return getattr(own, name)(*args, **kwargs)

    return call


def argument_lists(dtype: torch.dtype) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The argument lists that every function is tried with, with floats in that dtype."""
    make = torch.Generator().manual_seed(5)

    def x(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
        drawn = torch.rand(shape, generator=make, dtype=torch.float64) * (high - low) + low
        if dtype.is_complex:
            return torch.complex(drawn, torch.rand(shape, generator=make).double()).to(dtype)
        if dtype.is_floating_point:
            return drawn.to(dtype)
        return (drawn * 3).round().to(dtype) if dtype is not torch.bool else drawn > 0

    def index(*shape: int, below: int = 3) -> Any:
        return torch.randint(0, below, shape, generator=make)

    def mask(*shape: int) -> Any:
        return torch.rand(shape, generator=make) > 0.4

    square = x(4, 4) + 5 * torch.eye(4).to(x(1).dtype) if dtype is not torch.bool else x(4, 4)
    yield (x(3, 5),), {}
    yield (x(3, 5), x(3, 5)), {}
    yield (x(7),), {}
    yield (square,), {}
    yield (x(7), x(7)), {}
    yield (square, x(4, 4)), {}
    yield (x(3, 5), 1), {}
    yield (x(2, 3, 4),), {}
    yield (x(2, 3, 4), -1), {}
    yield (x(2, 4, 8, 8),), {}
    yield (x(3, 5), x(5)), {}
    yield (x(3, 5), x(5, 4)), {}
    yield (square, x(4)), {}
    yield (x(3, 5), 0.5), {}
    yield (x(3, 5), 2), {}
    yield (x(2, 3, 4), x(2, 4, 5)), {}
    yield (x(),), {}
    yield (x(), x(3, 5)), {}
    yield (2.0, x(3, 5)), {}
    yield (2, x(3, 5, low=0.1)), {}
    yield (x(3, 5), index(3, 5)), {}
    yield (index(3, 5), x(3, 5)), {}
    yield (x(3, 5), mask(3, 5)), {}
    yield (mask(3, 5), x(3, 5), x(3, 5)), {}
    yield (mask(3, 5), x(3, 5), 0.0), {}
    yield (x(3, 5), mask(3, 5), 1.0), {}
    yield (x(3, 5), mask(3, 5), x(15)), {}
    yield (x(3, 5), x(3, 5), x(3, 5)), {}
    yield (x(3, 5), x(5), x(5)), {}
    yield (x(3, 5), x(3, 4), x(4, 5)), {}
    yield (x(3), x(3, 4), x(4)), {}
    yield (x(2, 3, 5), x(2, 3, 4), x(2, 4, 5)), {}
    yield (x(3, 5), x(2, 3, 4), x(2, 4, 5)), {}
    yield (x(3, 5), -1.0, 1.0), {}
    yield (x(3, 5), 0, 1), {}
    yield (x(3, 5), 0, 1, 2), {}
    yield (x(3, 5), (0, 1)), {}
    yield (x(3, 5), (5, 3)), {}
    yield (x(3, 5), (1, 0), 1), {}
    yield (x(3, 5), 0, index(2)), {}
    yield (x(3, 5), 0, index(3, 5)), {}
    yield (x(3, 5), 0, index(2), x(2, 5)), {}
    yield (x(3, 5), 0, index(3, 5), x(3, 5)), {}
    yield (x(3, 5), 1, index(3, 2), 2.0), {}
    yield (x(3, 5), 0, index(2), 2.0), {}
    yield (x(3, 5), 0, index(3, 5), x(3, 5), "sum"), {}
    yield (x(3, 5), 0, index(2), x(2, 5), "amax"), {}
    yield (x(3, 5), index(4, below=15), x(4)), {}
    yield (x(3, 5), (index(4), index(4)), x(4)), {}
    yield (x(3, 5), x(3, 5, low=0.2), 0.5), {}
    yield (x(3, 5), index(3, below=5)), {}
    yield (x(6, 3, 5), index(6, 5, below=3)), {}
    yield (index(2, 4, below=6), x(6, 3)), {}
    yield (index(6, below=6), x(6, 3), index(3, below=1)), {}
    yield (index(5, below=4),), {}
    yield (index(5, below=4), 6), {}
    yield ([x(3, 5), x(3, 5)],), {}
    yield ([x(3, 5), x(3, 5)], 1), {}
    yield ([x(3), x(4)],), {}
    yield (x(4), x(3)), {}
    yield ("ij,jk->ik", x(3, 5), x(5, 2)), {}
    yield (x(2, 3, 4), x(3, 4, 2), 2), {}
    yield (x(4), 3), {}
    yield (4,), {}
    yield (3, 4), {}
    yield ((3, 4),), {}
    yield ((3, 4), 2.5), {}
    yield (0.0, 3.0, 7), {}
    yield (x(2, 4, 16),), {}
    yield (x(2, 4, 16), 2), {}
    yield (x(2, 4, 16), 3, 2), {}
    yield (x(2, 4, 8, 8), 2), {}
    yield (x(2, 4, 8, 8), (3, 2)), {}
    yield (x(2, 4, 8, 8), 3, 2, 1), {}
    yield (x(1, 2, 6, 6, 6), 2), {}
    yield (x(2, 4, 16), x(6, 4, 3)), {}
    yield (x(2, 4, 16), x(4, 3, 3), x(3), 2), {}
    yield (x(2, 4, 8, 8), x(6, 4, 3, 3)), {}
    yield (x(2, 4, 8, 8), x(4, 6, 3, 3), x(6), 2, 1), {}
    yield (x(1, 2, 6, 6, 6), x(2, 2, 3, 3, 3)), {}
    yield (x(2, 4, 8, 8), 2, x(4), x(4)), {}
    yield (x(2, 4, 8, 8), (8,)), {}
    yield (x(2, 4, 8, 8), x(4), x(4, low=0.5)), {}
    yield (x(2, 4, 8, 8), x(4), x(4, low=0.5), x(4), x(4), True), {}
    yield (x(2, 4, 8, 8), (1, 2, 0, -1)), {}
    yield (x(2, 4, 8, 8), (1, 2, 2, 1), "reflect"), {}
    yield (x(2, 4, 8, 8), x(2, 5, 5, 2, low=-1, high=1)), {}
    yield (x(1, 2, 6, 6, 6), x(1, 3, 3, 3, 3, low=-1, high=1)), {}
    yield (x(2, 4, 8, 8),), {"scale_factor": 2}
    yield (x(2, 4, 8, 8),), {"size": (5, 12), "mode": "bilinear"}
    yield (x(2, 4, 8, 8),), {"size": (5, 12), "mode": "bicubic", "antialias": True}
    yield (x(2, 4, 6, 8), x(2, 4, 6, 8), x(2, 4, 6, 8)), {}
    yield (x(3, 5), x(3, 6), x(4, 5, 6), x(4)), {}
    yield (x(2, 12, 9), (4, 4), 2), {}
    yield (x(3, 5), x(4, 5), x(4)), {}
    yield (x(3, 5),), {"dim": 1}
    yield (x(3, 5),), {"dim": (0, 1)}
    yield (x(3, 5),), {"dim": 0, "keepdim": True}
    yield (x(3, 5), 2.0, 1), {}
    yield (x(3, 5), "fro"), {}
    yield (x(3, 5),), {"descending": True}
    yield (x(3, 5),), {"dtype": torch.float64}
    yield (x(3, 5), torch.float64), {}
    yield (x(3, 5), 0.3), {"dim": 1}
    yield (x(12), (3, 4)), {}
    yield (x(3, 5), [1, 2]), {}
    yield (x(4, 5), 2, 0), {}
    yield (x(4, 6), (2, 3), (3, 1)), {}
    yield (x(7), x(5).sort()[0] if not dtype.is_complex else x(5)), {}
    yield (x(5).sort()[0] if not dtype.is_complex else x(5), x(7)), {}
    yield (x(30), 5, -1.0, 1.0), {}
    yield (x(2, 3, 4), 0, 2), {}
    yield (x(2, 3, 4), (0, 1), (1, 0)), {}


def kind(leaf: Any) -> str:
    """What makes two arguments different in kind."""
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.ndim}{leaf.dtype.is_floating_point}"
    return type(leaf).__name__


def samples(name: str, dtype: torch.dtype, count: int) -> list[tuple[Any, Any]]:
    """Those argument lists that eager takes and answers with tensors, different in kind first."""
    body, found = functions()[name], collections.defaultdict[str, list[Any]](list)
    for args, kwargs in argument_lists(dtype):
        copies = _pytree.tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, args
        )
        try:
            results = _pytree.tree_leaves(body(*copies, **kwargs))
        except Exception:  # noqa: BLE001 - whatever eager says of arguments it does not take
            continue
        if not any(isinstance(leaf, torch.Tensor) for leaf in results):
            continue
        if not is_defined(name, args):
            continue
        leaves = _pytree.tree_leaves((args, kwargs))
        found[" ".join((*map(kind, leaves), *kwargs))].append((args, kwargs))
    kinds = sorted(found.values(), key=lambda group: len(group[0][0]))
    first = [group[0] for group in kinds]
    more = [entry for group in kinds for entry in group[1:AS_MANY]]
    return [*first, *more][:count]


def is_defined(name: str, args: Any) -> bool:
    """Whether PyTorch's documentation says what the result is: searches are of sorted numbers, and
    Cholesky's factors have a real diagonal."""
    name = name.rpartition(".")[2]
    if name == "cholesky_inverse":
        return not args[0].is_complex() or not args[0].diagonal(0, -1, -2).imag.any()
    searched = {"bucketize": 1, "histogram": 1, "searchsorted": 0}.get(name, len(args))
    numbers = args[searched] if searched < len(args) else None
    if numbers is None or not isinstance(numbers, torch.Tensor) or not numbers.ndim:
        return True
    return bool((numbers.double().diff(dim=-1) >= 0).all())


def words_of(args: Any, kwargs: Any) -> str:
    def spelled(leaf: Any) -> str:
        return str(list(leaf.shape)) if isinstance(leaf, torch.Tensor) else repr(leaf)

    parts = [*map(spelled, _pytree.tree_leaves(args))]
    return ", ".join([*parts, *(f"{key}={value}" for key, value in kwargs.items())])


def tried(name: str, dtype: str, arguments: Any) -> list[Found]:
    """What becomes of each sample of one function with floats of that dtype."""
    body = functions()[name]
    known = name.removeprefix("torch.").removeprefix("Tensor.")
    with contextlib.redirect_stderr(io.StringIO()):
        given = samples(name, getattr(torch, dtype), arguments.samples)
    found = []
    for args, kwargs in given:
        said = outcome(body, args, kwargs, arguments.engine, False, known)
        found.append(Found(name, dtype, arguments.engine, words_of(args, kwargs), *said[:2]))
    return found


def _child(pipe: Any, *given: Any) -> None:
    pipe.send(tried(*given))


def in_own_process(name: str, dtype: str, arguments: Any) -> list[Found]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, name, dtype, arguments))
    child.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(arguments.seconds) else None
        words = f"ran on for {arguments.seconds} s"
    except EOFError:
        found, words = None, "ended its process"
    child.kill()
    child.join()
    return [Found(name, dtype, arguments.engine, "", "bug", words)] if found is None else found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="parts of names")
    parser.add_argument(
        "--once", action="store_true", help="no methods that torch has as functions"
    )
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--engine", default="cpu", choices=ENGINES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=300, help="of one function, at most")
    parser.add_argument("--record", type=Path, help="adds what it finds to this file of JSON lines")
    parser.add_argument("--write", type=Path, help="writes this record into docs/support.md")
    arguments = parser.parse_args()
    if arguments.write:
        write(read(arguments.write))
        return 0
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    only = arguments.only or [""]
    known = functions()
    names = [name for name in known if any(part in name for part in only)]
    if arguments.once:
        methods = "torch.Tensor."
        twins = {name for name in names if name.startswith(methods)
                 and name.replace(methods, "torch.") in known}  # fmt: skip
        names = [name for name in names if name not in twins]
    outcome(torch.relu, (torch.ones(2),), {}, arguments.engine, False)  # imports, for every child
    work = [(name, dtype, arguments) for dtype in arguments.dtypes for name in names]
    every = list[Found]()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(lambda given: in_own_process(*given), work):
            every += found
            if arguments.record:
                with arguments.record.open("a") as file:
                    file.writelines(json.dumps(entry) + "\n" for entry in found)
            for entry in found:
                if entry.verdict not in ("agrees", "no export"):
                    print(*entry, flush=True)
    print(markdown_rows(TITLES, *rows(every).values()))
    return 0


def read(record: Path) -> list[Found]:
    """A record's samples: of what ran several times those of the last time."""
    every = (Found(*json.loads(line)) for line in record.read_text().splitlines())
    runs = itertools.groupby(every, lambda entry: entry[:3])
    return [entry for found in {key: list(run) for key, run in runs}.values() for entry in found]


HEAD = "\n## PyTorch's public functions\n"
RUNS = {
    "interpreter": "the interpreter",
    "cpu": "the cpu",
    "file": "a saved file, interpreted",
}
TITLES = (
    "dtype", "runs on", "functions", "whole", "samples", "agree", "blocked", "wrong", "errors",
)  # fmt: skip


def rows(found: list[Found]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Of each dtype and engine how many functions are exported, and what becomes of the samples."""
    known = dict[tuple[str, ...], tuple[str, ...]]()
    for dtype, engine in dict.fromkeys((entry.dtype, entry.engine) for entry in found):
        ours = [x for x in found if (x.dtype, x.engine) == (dtype, engine)]
        ours = [x for x in ours if x.verdict != "no export"]
        count = collections.Counter(x.verdict for x in ours)
        names = {x.name for x in ours}
        whole = names - {x.name for x in ours if x.verdict != "agrees"}
        refused = count["blocked"] + count["refused"]
        numbers = (len(names), len(whole), len(ours), count["agrees"], refused, count["differs"])
        key = (dtype, RUNS[engine])
        known[key] = (*key, *map(str, numbers), str(count["bug"]))
    return known


def write(found: list[Found]) -> None:
    """The summary as a part of docs/support.md; rows of other dtypes and engines stay."""
    page, own = section(HEAD), rows(found)
    known = {row[:2]: row for row in rows_of(page)} | own
    ran = {f"{dtype} on {engine}" for dtype, engine in own}
    before = failures_of(page)
    reasons = {words: [x for x in before[words] if x not in ran] for words in before}
    for entry in found:
        if entry.verdict not in ("agrees", "no export"):
            where = f"{entry.dtype} on {RUNS[entry.engine]}"
            places = reasons.setdefault(f"`{entry.name}`: {one_line(entry)}", [])
            places += [where] if where not in places else []
    text = """
Written by `python tests/differential/torch_functions.py --write RECORD` from the record of its
runs: functions of `torch`, `torch.nn.functional`, `torch.linalg`, `torch.special`, `torch.fft` and
methods of tensors, each with a few argument lists that eager PyTorch takes. Methods that `torch`
has as functions too are the same operators; runs with `--once` leave them out. *functions* are
those of which `torch.export` exports a sample, *whole* those of which every exported sample agrees
with eager (random draws by their distributions; 16-bit floats with eager's float32, rounded, as
well); *blocked* samples are refused with a reason, *wrong* ones give other results, *errors* are
exceptions of girih. On the cpu, a size that data decide and the export does not limit is said to be
at most 64. *A saved file* is what `torch.export.save` writes of an export as it is, with
its composite operators, and girih reads without PyTorch.

"""
    text += markdown_rows(TITLES, *known.values())
    write_section(HEAD, text + failures({words: x for words, x in reasons.items() if x}))


def one_line(entry: Found) -> str:
    said = {"differs": "wrong, ", "bug": "an error, "}.get(entry.verdict, "")
    words = entry.words.replace(f"{PAGE.parents[1]}/", "")
    return said + " ".join(words.split())[:200]


if __name__ == "__main__":
    sys.exit(main())
