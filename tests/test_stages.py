"""The texts of every stage: kept ones, the way on from each, and that they are what compiles."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import pytest
from google.protobuf import text_format

import girih
from girih.backends import Backend, find
from girih.hlo.build import Builder, build_module
from girih.hlo.errors import UserError
from girih.hlo.graph import Module
from girih.hlo.parse import parse_module
from girih.hlo.stated_sizes import with_stated_sizes
from girih.hlo.types import BF16, F32, TensorType
from girih.hlo.verify import verify
from girih.stages import IMPORT, PLAN, Stages, Text, names, read, written

from .cli.dump_programs import bounded, foreign_kernel, weights
from .optimizer.passes.layered import stack
from .stage_programs import PROGRAMS

AFRESH = girih.Options(cache="off")
GPU, CPU = "nvidia:sm_90a", "cpu:avx2"  # whatever machine this is
LLVM = ".".join(map(str, llvmlite.binding.llvm_version_info))
KEPT_LLVM = "22.1.0"
OPEN = """
func.func @main(%x: tensor<?x64xbf16>, %w: tensor<64x64xbf16>) -> tensor<?x64xbf16> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x64xbf16>, tensor<64x64xbf16>) -> tensor<?x64xbf16>
  %1 = stablehlo.tanh %0 : tensor<?x64xbf16>
  return %1 : tensor<?x64xbf16>
}
"""
Golden = Callable[[str, str], None]


@functools.cache
def backend_of(target: str) -> Backend:
    return find(target, AFRESH)


def stages_of(target: str, **settings: Any) -> Stages:
    return Stages(backend_of(target), AFRESH, origins=True, **settings)


@functools.cache
def texts_of(name: str, target: str) -> dict[str, Text]:
    return stages_of(target).texts(PROGRAMS[name](), names(backend_of(target)))


def together(texts: dict[str, Text], *chosen: str) -> str:
    return "".join(f"// stage {name}\n{written(texts[name])}" for name in chosen)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kept_texts(name: str, golden: Golden) -> None:
    """What girih writes. `pytest tests/test_stages.py --update-golden` keeps today's."""
    gpu = texts_of(name, GPU)
    plain = [one for one in gpu if one not in (IMPORT, "llvm", "ptx")]
    golden(f"{name}.txt", together(gpu, *plain))
    both = together(gpu, "llvm") + together(texts_of(name, CPU), "llvm")
    golden(f"{name}.ll.gz", both)


@pytest.mark.skipif(LLVM != KEPT_LLVM, reason="kept PTX is by another LLVM")
@pytest.mark.parametrize("name", PROGRAMS)
def test_kept_ptx(name: str, golden: Golden) -> None:
    golden(f"{name}.ptx.gz", together(texts_of(name, GPU), "ptx"))


def goes_on(texts: dict[str, Text], target: str) -> None:
    """The text of each stage from which anything goes on, read, gives those behind it."""
    backend, order = backend_of(target), list(texts)
    for name in order:
        behind = stages_of(target).behind(name) if name != IMPORT else order[1:2]
        taken = {one.takes for one in backend.stages.values()}
        if name == PLAN or name in backend.stages and name not in taken:
            continue
        next_ones = behind[:1] if behind[0] not in backend.stages else behind
        given = read(written(texts[name]), name, backend)
        for one, text in stages_of(target).texts(given, next_ones, name).items():
            assert written(text) == written(texts[one]), f"{name} to {one}"


@pytest.mark.parametrize("target", [GPU, CPU])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_text_gives_the_next(name: str, target: str) -> None:
    goes_on(texts_of(name, target), target)


def layers() -> tuple[Module]:
    return (stack(),)


def open_sizes() -> tuple[Module]:
    return (with_stated_sizes(girih.import_model(OPEN), {"d0": (1, 512)}),)


@pytest.mark.parametrize("target", [GPU, CPU])
@pytest.mark.parametrize("make", [weights, bounded, foreign_kernel, open_sizes, layers])
def test_of_other_programs(make: Callable[[], Any], target: str) -> None:
    """With packed weights, sizes that data decide, a reference in place of a kernel, open sizes,
    and equal layers, which are functions at some stages."""
    (source,) = make()
    module = source if isinstance(source, Module) else girih.import_model(source)
    stages = stages_of(target)
    goes_on(stages.texts(module, names(stages.backend)), target)


def test_stages_are_what_compiles() -> None:
    """The plan, and the PTX of every kernel but for its names and lines."""
    module, texts = PROGRAMS["attention"](), texts_of("attention", GPU)
    program = girih.compile(module, target=GPU, options=AFRESH)
    assert text_format.MessageToString(program.plan) == texts[PLAN]
    image = _plain(bytes(program.parts.variants[GPU].image).decode())
    ptx = texts["ptx"]
    assert not isinstance(ptx, str) and len(ptx) == len(program.plan.kernels) > 0
    for name, text in ptx.items():
        own = re.sub(r"kernel_[0-9a-f]{24}_", f"{name}$", text)
        assert _plain(own) in image


def _plain(ptx: str) -> str:
    kept = (line for line in ptx.splitlines() if not re.match(r"\s*\.(loc|file|version|t|a)", line))
    return "\n".join(line for line in kept if not line.startswith(".extern .shared"))


@pytest.mark.parametrize("name", ["product", "attention", "int8_product"])
def test_layouts_are_attributes_of_the_kernel_that_is_emitted(name: str) -> None:
    texts, code = texts_of(name, GPU)["layouts"], texts_of(name, GPU)["llvm"]
    assert not isinstance(texts, str) and not isinstance(code, str)
    for kernel, text in texts.items():
        module = parse_module(text)
        verify(module)
        (op,) = module.body.ops
        spread = [one.attributes.get("layout", ()) for one in module.walk()]
        assert op.name == "kernel_call" and any("lane (" in "".join(one) for one in spread)
        if name == "attention":  # others become tile functions where they are emitted
            assert backend_of(GPU).stages["llvm"].run(op) == code[kernel]


def test_pipeline_tells_roles_rings_and_instructions() -> None:
    texts = texts_of("product", GPU)["pipeline"]
    assert not isinstance(texts, str)
    (text,) = texts.values()
    for words in (
        "role copy: one thread of a warp group of 128, 40 registers a thread",
        "role multiply: 2 warp groups with 64 rows each, 232 registers a thread",
        "ring 0: 4 stages of 49152 bytes", "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16",
        "128 registers of sums", "loop: 64 rounds", "by the copy engine", "clusters of 2 x 1 x 1",
    ):  # fmt: skip
        assert words in text


def test_one_kernel() -> None:
    def body(b: Builder, x: Any) -> list[Any]:
        return [b("sort", x, regions=(_least(b),), dimension=1), b("tanh", x)]

    module = build_module([TensorType((8, 64), F32)], body)
    every = stages_of(CPU).texts(module, ["llvm"])["llvm"]
    assert not isinstance(every, str) and len(every) == 2
    for name, text in every.items():
        assert stages_of(CPU, kernel=name).texts(module, ["llvm"])["llvm"] == {name: text}
    assert read(written(every), "llvm", backend_of(CPU)) == every
    with pytest.raises(UserError, match="there is no kernel 'sorts'; there are .*sort_"):
        stages_of(CPU, kernel="sorts").texts(module, ["llvm"])


def _least(b: Builder) -> Any:
    scalar = TensorType((), F32)
    return b.nested([scalar, scalar], lambda b, x, y: [b.compare("LT", x, y)])


def test_what_cannot_be_shown() -> None:
    module, stages = PROGRAMS["softmax"](), stages_of(GPU)
    texts = texts_of("softmax", GPU)
    with pytest.raises(UserError, match="no stage 'tiles' .* there are import, simplify, .* ptx"):
        stages.after(module, "tiles")
    with pytest.raises(UserError, match="goes on from the text of stage 'layouts' .* kernels, ll"):
        read(written(texts["layouts"]), "layouts", stages.backend)
    with pytest.raises(UserError, match="line 3: unexpected character"):
        read(written(texts["llvm"]), "kernels", stages.backend)
    fused = read(written(texts["fuse"]), "fuse", stages.backend)
    with pytest.raises(UserError, match="'simplify' does not follow from .* 'fuse'"):
        stages.texts(fused, ["simplify"], "fuse")
    code = read(written(texts["llvm"]), "llvm", stages.backend)
    with pytest.raises(UserError, match="'plan' does not follow from .* 'llvm'"):
        stages.texts(code, [PLAN], "llvm")
    limited = Stages(stages.backend, girih.Options(cache="off", max_memory="1MB"))
    with pytest.raises(UserError, match="max_memory .* leave it out"):
        limited.texts(module, [PLAN])


def test_code_of_narrow_numbers_keeps_its_instructions() -> None:
    """Assembly is for what the kernel's text says it may use, not for the whole target."""

    def body(b: Builder, x: Any, y: Any) -> list[Any]:
        facts: dict[str, Any] = {
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)
        }  # fmt: skip
        return [b("dot_general", x, y, **facts), b("tanh", x)]

    module = build_module([TensorType((64, 64), BF16)] * 2, body)
    found = Stages(find("cpu:avx512-bf16", AFRESH), AFRESH).texts(module, ["llvm", "asm"])
    llvm, asm = found["llvm"], found["asm"]
    assert not isinstance(llvm, str) and not isinstance(asm, str)
    allowed = {name for name, text in llvm.items() if "+avx512bf16" in text}
    used = {name for name, text in asm.items() if "vdpbf16ps" in text}
    assert used and used <= allowed != set(llvm)
