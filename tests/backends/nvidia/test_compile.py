"""LLVM IR becomes PTX; what LLVM would not survive is refused before it sees it."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from girih.backends.nvidia.assemble import assemble, find_tool
from girih.backends.nvidia.compile import compile_ptx
from girih.backends.nvidia.target import ARCHITECTURES, target
from girih.hlo.errors import CompilerBug, UserError

SM_90A = ARCHITECTURES["sm_90a"]


def kernel(body: str, declarations: str = "") -> str:
    return (
        f"{declarations}\n"
        "define ptx_kernel void @k(ptr addrspace(1) align 16 %p, float %x) "
        f'"nvvm.maxntid"="128" {{\n{body}\n  ret void\n}}\n'
    )


STORES = kernel("  %y = fmul float %x, 3.0\n  store float %y, ptr addrspace(1) %p")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_has_code(name: str) -> None:
    architecture = ARCHITECTURES[name]
    ptx = compile_ptx(STORES, architecture)
    major, minor = divmod(architecture.ptx, 10)
    assert ptx.splitlines()[:3] == [f".version {major}.{minor}", f".target {name}",
                                    ".address_size 64"]  # fmt: skip
    assert ".entry k(" in ptx and "mul.rn.f32" in ptx and "st.global" in ptx
    assert "//" not in ptx


@pytest.mark.requires_ptxas
@pytest.mark.parametrize(
    ("opcode", "version"),
    [("bf16.bf16", "8.1"), ("e4m3.e4m3", "8.4"), ("e5m2.e4m3", "8.4")],
)
def test_instructions_bring_their_version(opcode: str, version: str) -> None:
    """Those of assembly text, which LLVM does not know."""
    depth = 16 if opcode[0] == "b" else 32
    text = f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{opcode}.f32 {{$0,$1,$2,$3}}, "
    text += "{$4,$5,$6,$7}, {$8,$9}, {$0,$1,$2,$3};"
    given = ", ".join([*["i32 1"] * 6, *["float %x"] * 4])
    kind = "{float, float, float, float}"
    constraints = ",".join([*["=f"] * 4, *["r"] * 6, *"0123"])
    ptx = compile_ptx(
        kernel(
            f'  %d = call {kind} asm sideeffect "{text}", "{constraints}"({given}) convergent\n'
            f"  %e = extractvalue {kind} %d, 0\n  store float %e, ptr addrspace(1) %p"
        ),
        SM_90A,
    )
    assert ptx.startswith(f".version {version}\n")
    assert assemble(ptx, SM_90A).cubin


def test_text_is_deterministic_in_threads() -> None:
    def one(number: int) -> tuple[int, str]:
        return number % 3, compile_ptx(STORES.replace("3.0", f"{number % 3}.0"), SM_90A)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(24)))
    assert len(set(found)) == 3


def test_text_is_deterministic_behind_calls() -> None:
    """LLVM numbers calls through the whole process."""
    body = "  %y = call float @f(float %x)\n  store float %y, ptr addrspace(1) %p"
    doubled = "  %y = fmul float %x, %x\n  ret float %y"
    text = kernel(body, f"define internal float @f(float %x) noinline {{\n{doubled}\n}}")
    first = compile_ptx(text, SM_90A)
    assert "call.uni" in first and first == compile_ptx(text, SM_90A)


def test_products_are_not_contracted() -> None:
    body = (
        "  %m = fmul float %x, %x\n  %s = fadd float %m, %x\n  store float %s, ptr addrspace(1) %p"
    )
    ptx = compile_ptx(kernel(body), SM_90A)
    assert "fma" not in ptx and "mul.rn.f32" in ptx and "add.rn.f32" in ptx


@pytest.mark.parametrize(
    "name",
    ["llvm.exp.f32", "llvm.log.f32", "llvm.sin.f32", "llvm.pow.f32", "llvm.tan.f32",
     "llvm.nvvm.no.such.thing", "llvm.no.such.thing.f32", "expf"],
)  # fmt: skip
def test_what_llvm_has_no_code_for_is_refused(name: str) -> None:
    body = f"  %y = call float @{name}(float %x)\n  store float %y, ptr addrspace(1) %p"
    with pytest.raises(CompilerBug, match=name.replace(".", r"\.")):
        compile_ptx(kernel(body, f"declare float @{name}(float)"), SM_90A)


def test_remainders_of_floats_are_refused() -> None:
    body = "  %y = frem float %x, 3.0\n  store float %y, ptr addrspace(1) %p"
    with pytest.raises(CompilerBug, match="frem"):
        compile_ptx(kernel(body), SM_90A)


def test_wrong_text_is_our_mistake() -> None:
    with pytest.raises(CompilerBug, match="does not verify"):
        compile_ptx(kernel("  store double %x, ptr addrspace(1) %p"), SM_90A)
    with pytest.raises(CompilerBug, match="defines no function"):
        compile_ptx("declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()", SM_90A)


def test_unknown_architectures_are_errors() -> None:
    with pytest.raises(UserError, match="unknown architecture 'sm_10'.*sm_90a"):
        target("sm_10")


@pytest.mark.requires_ptxas
def test_ptxas_reports_what_an_entry_uses() -> None:
    made = assemble(compile_ptx(STORES, SM_90A), SM_90A)
    assert made.cubin[:4] == b"\x7fELF"
    assert 0 < made.usages["k"].registers < 32
    assert made.faults() == []


@pytest.mark.requires_ptxas
def test_arrays_in_local_memory_are_faults_unless_declared() -> None:
    body = """
  %a = alloca [64 x float], align 16
  %i = fptoui float %x to i64
  %j = and i64 %i, 63
  %q = getelementptr float, ptr %a, i64 %j
  store volatile float %x, ptr %q
  %k = xor i64 %j, 1
  %r = getelementptr float, ptr %a, i64 %k
  %y = load volatile float, ptr %r
  store float %y, ptr addrspace(1) %p"""
    made = assemble(compile_ptx(kernel(body), SM_90A), SM_90A)
    assert made.usages["k"].stack_bytes == 256
    assert "256 bytes of local memory" in made.faults()[0]
    assert made.faults({"k": 256}) == []


@pytest.mark.requires_ptxas
def test_spills_are_faults() -> None:
    lines = [f"  %v{n} = load volatile float, ptr addrspace(1) %p" for n in range(400)]
    lines += [f"  store volatile float %v{n}, ptr addrspace(1) %p" for n in range(400)]
    made = assemble(compile_ptx(kernel("\n".join(lines)), SM_90A), SM_90A)
    assert "spills" in made.faults()[0]


@pytest.mark.requires_ptxas
def test_refused_ptx_is_our_mistake() -> None:
    ptx = compile_ptx(STORES, SM_90A).replace("mul.rn.f32", "mul.rn.f33")
    with pytest.raises(CompilerBug, match="ptxas refuses"):
        assemble(ptx, SM_90A)


def test_a_missing_ptxas_is_told() -> None:
    with pytest.raises(UserError, match="did not run"):
        assemble("", SM_90A, "/nonexistent/ptxas")


def test_tools_are_found_in_pythons_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NVIDIA's wheels put commands into folders by CUDA's generation; the newest counts."""
    for folder in ("cuda_nvcc", "cu13", "cu9"):
        command = tmp_path / folder / "bin" / "ptxas"
        command.parent.mkdir(parents=True)
        command.touch(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    find = find_tool.__wrapped__
    assert find("ptxas") == str(tmp_path / "cu13" / "bin" / "ptxas")
    assert find("nvdisasm") is None
    (tmp_path / "cu13" / "bin" / "ptxas").chmod(0o644)  # it is no command
    (tmp_path / "cu9" / "bin" / "ptxas").unlink()
    assert find("ptxas") == str(tmp_path / "cuda_nvcc" / "bin" / "ptxas")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda_nvcc"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find("ptxas") == str(tmp_path / "cuda_nvcc" / "bin" / "ptxas")
    monkeypatch.delenv("CUDA_HOME")
    assert find("ptxas") is None
