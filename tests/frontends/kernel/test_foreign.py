"""Kernels that were written elsewhere: records, calls, models, and what is refused."""

from __future__ import annotations

import shutil
import sys
import types
from typing import Any

import numpy as np
import pytest

import girih
import girih.language as tl
from girih import foreign
from girih.cli import main
from girih.frontends.kernel import toolchains
from girih.frontends.kernel.jax_primitive import UNROLLED
from girih.hlo.foreign import DeviceCode, HostCode, read_codes
from girih.runtime.bundle import Bundle
from girih.runtime.bundle_writer import write
from girih.runtime.devices.processors import this_processor
from girih.runtime.parts import copied_parts

from .foreign_sources import C_TWICE, CUDA_TWICE, LLVM_TWICE, PTX_TWICE

X = np.random.default_rng(3).standard_normal((30, 7)).astype(np.float32)
needs_c = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)


def twice_of(x):
    return x + x


def launch(**changes) -> foreign.Launch:
    rules: dict[str, Any] = {
        "entry": "twice", "grid": lambda x: girih.cdiv(x.size, 64), "block": 64,
        "arguments": lambda x: ("x", "out", np.int32(x.size)),
    }  # fmt: skip
    return foreign.Launch(**{**rules, **changes})


PTX = foreign.Ptx(PTX_TWICE, launch())
LLVM = foreign.Llvm(LLVM_TWICE, "twice", tiles=lambda x: x.size)


def kernel(*codes: Any, reference: Any = twice_of, **options: Any) -> foreign.ForeignKernel:
    return girih.foreign_kernel(
        "twice", out=lambda x: x, codes=codes, reference=reference, inputs=["x"], **options
    )


both = kernel(PTX, LLVM)


def call_of(made: girih.Module) -> Any:
    (op,) = [op for op in made.walk() if op.name == "foreign_call"]
    return op


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6, atol=1e-6)


class TestCalls:
    def test_numpy(self):
        np.testing.assert_array_equal(both(X), 2 * X)
        assert both.check(X) == 0
        np.testing.assert_array_equal(both.interpret(X), 2 * X)
        plan = both.program(X).plan
        assert [entry.kind for entry in plan.kernels] == ["foreign"] and not plan.notes

    def test_torch(self):
        torch = pytest.importorskip("torch")
        found = both(torch.from_numpy(X))
        assert isinstance(found, torch.Tensor)
        close(found, 2 * X)

    @needs_c
    def test_c(self):
        rows = foreign.C(
            C_TWICE, "twice", tiles=lambda x: x.shape[0],
            options=lambda x: (f"-DTILE={x.shape[1]}", f"-DSIZE={x.size}"),
        )  # fmt: skip
        np.testing.assert_array_equal(kernel(rows)(X), 2 * X)
        (code,) = read_codes(call_of(kernel(rows).module(X)).codes)
        assert isinstance(code, HostCode) and code.tiles == 30 and code.architecture

    def test_without_code_for_a_target_the_reference_runs_with_a_note(self):
        other = kernel(PTX)
        np.testing.assert_array_equal(other(X), 2 * X)
        program = other.program(X)
        assert list(program.plan.notes) == [
            "kernel 'twice' runs as its reference: it has no code for target cpu"
        ]
        assert [op.name for op in program.module.walk()] == ["add", "foreign_call"]
        with pytest.raises(girih.UserError, match="strict: kernel 'twice' runs as its reference"):
            other.program(X, options=girih.Options(strict=True))

    def test_without_code_and_reference_nothing_runs(self):
        alone = kernel(PTX, reference=None)
        with pytest.raises(
            girih.UnsupportedError, match=r"test_foreign.py:\d+: kernel 'twice'.*no"
        ):
            alone(X)
        with pytest.raises(girih.UserError, match="no reference=, so only a target"):
            alone.interpret(X)
        with pytest.raises(girih.UserError, match="cannot count"):
            alone.counts(X)

    def test_constants_reach_rules_and_reference(self):
        def scaled(x, *, factor=2):
            return x * factor

        wide = foreign.Ptx(PTX_TWICE, launch(grid=lambda factor: factor))
        made = girih.foreign_kernel("scaled", out=lambda x: x, codes=[wide], reference=scaled)
        (code,) = read_codes(call_of(made.module(X, factor=5)).codes)
        assert isinstance(code, DeviceCode) and code.launches[0].grid == (5, 1, 1)
        np.testing.assert_array_equal(made(X, factor=5), 5 * X)
        with pytest.raises(girih.UserError, match="has no constant 'other'; it has factor"):
            made(X, other=1)

    def test_several_outputs(self):
        def parts(x):
            return x + x, -x

        made = girih.foreign_kernel(
            "parts", out=lambda x: [x, x], outputs=("double", "minus"), reference=parts
        )
        double, minus = made(X)
        np.testing.assert_array_equal(double, 2 * X)
        np.testing.assert_array_equal(minus, -X)


class TestModels:
    def model(self, x):
        import jax.numpy as jnp

        return jnp.tanh(both(x * 2)) + 1

    wanted = np.tanh(4 * X) + 1

    def test_jax(self):
        jax = pytest.importorskip("jax")
        module = girih.import_model(self.model, X)
        assert len(call_of(module).regions) == 1
        close(girih.interpret(module, [X])[0], self.wanted)
        close(girih.compile(module)(X), self.wanted)
        exported = jax.export.export(jax.jit(self.model))(X)
        close(exported.call(X), self.wanted)
        again = girih.import_model(bytes(exported.serialize()))
        assert len(read_codes(call_of(again).codes)) == 2
        close(girih.compile(again)(X), self.wanted)

    def test_stablehlo(self):
        pytest.importorskip("jax")
        data = girih.export_stablehlo(self.model, X)
        again = call_of(girih.import_model(data))
        assert again.codes == call_of(girih.import_model(self.model, X)).codes
        assert len(again.regions) == 1
        with pytest.raises(girih.ExportBlockers, match="'twice' has no reference"):
            girih.export_stablehlo(kernel(PTX, reference=None).module(X))

    def test_jax_without_a_reference_exports_a_custom_call(self):
        jax = pytest.importorskip("jax")
        alone = kernel(LLVM, reference=None)
        exported = jax.export.export(jax.jit(lambda x: alone(x) + 1))(X)
        module = girih.import_model(exported)
        assert not call_of(module).regions
        close(girih.compile(module)(X), 2 * X + 1)

    def test_torch(self):
        torch = pytest.importorskip("torch")

        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.tanh(both(x * 2)) + 1

        exported = torch.export.export(Model(), (torch.from_numpy(X),))
        module = girih.import_model(exported)
        assert len(call_of(module).regions) == 1
        close(girih.compile(module)(X), self.wanted)

    def test_derivatives_and_batches(self):
        jax = pytest.importorskip("jax")
        found = jax.grad(lambda x: (both(x) ** 2).sum())(X)
        close(found, 8 * X)
        batch = np.stack([X, 3 * X])
        close(jax.vmap(both)(batch), 2 * batch)
        close(jax.vmap(jax.vmap(both))(batch[None]), 2 * batch[None])
        model = jax.vmap(lambda x: both(x) + 1, in_axes=1)
        exported = jax.export.export(jax.jit(model))(batch.swapaxes(0, 1))
        program = girih.compile(exported.serialize())
        close(program(batch.swapaxes(0, 1)), 2 * batch + 1)
        assert sum(kernel.kind == "foreign" for kernel in program.plan.kernels) == 1
        long = np.stack([X] * (UNROLLED + 1))  # a loop
        close(jax.vmap(both)(long), 2 * long)

    def test_bundles(self, tmp_path):
        both.program(X).save(tmp_path / "twice.girih")
        loaded = girih.load(tmp_path / "twice.girih", allow_native=True)
        close(loaded(X)[0], 2 * X)
        again = call_of(girih.import_model(tmp_path / "twice.girih"))
        assert again.codes == call_of(both.module(X)).codes

    def test_code_of_a_bundle_that_nobody_trusts_is_not_compiled(self, tmp_path):
        both.program(X).save(tmp_path / "twice.girih", seal=False)
        refused = r"not compiled by this user.*allow_native=True.*the code of kernel 'twice'"
        with pytest.raises(girih.UserError, match=refused):
            girih.load(tmp_path / "twice.girih")
        # Nor is it where no code fits, whatever the reason for compiling is.
        program = both.program(X)
        away = "cpu:avx2" if this_processor().architecture == "aarch64" else "cpu:neon"
        (code,) = girih.compile(program.module, target=away).parts.variants.values()
        variants = {away: code, f"{away}-2": code}
        write(tmp_path / "away.girih", copied_parts(program.parts, variants=variants), seal=False)
        with pytest.raises(girih.UserError, match=refused):
            girih.load(tmp_path / "away.girih")
        with pytest.warns(UserWarning, match="no code for this machine: .*compiled anew"):
            close(girih.load(tmp_path / "away.girih", allow_native=True)(X)[0], 2 * X)

    def test_adding_code_makes_no_strangers_kernel_ours(self, tmp_path, capsys):
        path = tmp_path / "twice.girih"
        both.program(X).save(path, seal=False)
        assert not Bundle(path).is_trusted
        with pytest.raises(SystemExit, match="0"):
            main(["retarget", str(path), "--add", "cpu"])
        assert "kernel 'twice' was not compiled by you" in capsys.readouterr().out
        assert not Bundle(path).is_trusted


class TestMistakes:
    @pytest.mark.parametrize(
        ("made", "reason"),
        [
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(entry="thrice"))), "has twice"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(arguments=None))), "takes 3 parameters"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(arguments=("x", "y", 1)))), "'y'; arr"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(arguments=("x", "out", 1)))), "scalars"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(grid=-1))), "integers from 0"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(block=0))), "integers from 1"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(shared=1.5))), "an integer from 0"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(grid=lambda z: z))), "asks for 'z'"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE, launch(grid=lambda x: 1 // 0))), "grid failed"),
            (lambda: kernel(foreign.Ptx(PTX_TWICE)), "no launch"),
            (lambda: kernel(foreign.Ptx("nonsense", launch())), "declaration should begin"),
            (lambda: kernel(foreign.Llvm("nonsense", "twice")), "LLVM IR is refused"),
            (lambda: kernel(foreign.Llvm(LLVM_TWICE, "other")), "defines no function 'other'"),
            (lambda: kernel(foreign.Llvm(LLVM_TWICE, "twice_of")), r"takes \(float\)"),
            (lambda: kernel(reference=None), "no code, and no reference"),
            (lambda: kernel(LLVM, outputs=("x",)), "different names"),
            (lambda: kernel(LLVM, reference=lambda x: x[0]), "its reference gives"),
            (lambda: girih.foreign_kernel("f", out=lambda x: x, codes=[LLVM]), "needs inputs="),
        ],
    )
    def test_each_is_one_sentence_with_a_place(self, made, reason):
        with pytest.raises(girih.UserError, match=reason) as caught:
            made()(X)
        assert "kernel '" in str(caught.value)

    @needs_c
    @pytest.mark.parametrize("option", ["-march=native", "-mavx512f"])
    def test_options_choose_no_instructions(self, option):
        """A program for another level would take the code, and end on a machine without them."""
        made = kernel(foreign.C(C_TWICE, "twice", tiles=lambda x: x.shape[0], options=option))
        with pytest.raises(girih.UserError, match=f"{option} chooses.*say features="):
            made(X)
        options = ("-mtune=generic", "-DTILE=7", "-DSIZE=210")
        made = kernel(foreign.C(C_TWICE, "twice", tiles=lambda x: x.shape[0], options=options))
        close(made(X), 2 * X)

    @needs_c
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("void twice( {", "does not compile"),
            ("int twice;", "no function|not link|does not compile|cannot"),
            ("void other(void) {}", "defines no function 'twice'"),
            ("extern void g(void); void twice(void) { g(); }", "undefined symbol 'g'"),
            (
                "float expf(float); float twice(float x) { return expf(x); }",
                "calls expf of C's library, which no image is linked with: define it",
            ),
            ("static int n; int twice(void) { return ++n; }", "variables that change"),
            ("static int n = 1; int twice(void) { return ++n; }", "writable"),
        ],
    )
    def test_c(self, source, reason):
        made = kernel(foreign.C(source, "twice"))
        with pytest.raises(girih.UserError, match=reason) as caught:
            made(X)
        assert "kernel 'twice'" in str(caught.value)

    def test_llvm_that_kills_its_compiler(self):
        """An intrinsic that no CPU has ends LLVM's process, not ours."""
        text = LLVM_TWICE.replace(
            "fadd float %x, %x", "call float @llvm.nvvm.rcp.approx.f(float %x)"
        )
        text += "declare float @llvm.nvvm.rcp.approx.f(float)"
        with pytest.raises(girih.UserError, match=r"kernel 'twice'.*(LLVM|undefined symbol)"):
            kernel(foreign.Llvm(text, "twice"))(X)

    def test_machines_without_compilers(self, monkeypatch):
        toolchains.cuda_to_ptx.cache_clear()
        toolchains.c_to_object.cache_clear()
        monkeypatch.setattr(toolchains, "_nvrtc", lambda: None)
        monkeypatch.setattr(toolchains.shutil, "which", lambda name: None)
        with pytest.raises(girih.UserError, match="pip install cuda-bindings nvidia-cuda-nvrtc"):
            kernel(foreign.Cuda(CUDA_TWICE, launch())).module(X)
        with pytest.raises(girih.UserError, match="install gcc or clang"):
            kernel(foreign.C(C_TWICE, "twice")).module(X)


class TestCuda:
    @pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
    def test_nvcc(self, monkeypatch):
        toolchains.cuda_to_ptx.cache_clear()
        monkeypatch.setattr(toolchains, "_nvrtc", lambda: None)
        made = kernel(foreign.Cuda(CUDA_TWICE, launch()))
        (code,) = read_codes(call_of(made.module(X)).codes)
        assert isinstance(code, DeviceCode) and ".target sm_80" in code.ptx
        with pytest.raises(girih.UserError, match=r"does not compile:\n.*kernel.cu"):
            kernel(foreign.Cuda("nonsense", launch())).module(X)

    def test_nvrtc_is_asked_first(self, monkeypatch):
        """By a recording stand-in: the calls and their order are NVRTC's."""
        toolchains.cuda_to_ptx.cache_clear()
        asked: list[Any] = []

        def answer(name, *values):
            def function(*arguments):
                asked.append((name, arguments))
                if name == "nvrtcGetPTX":
                    return (0,)
                return (0, *values)

            return function

        names = {
            "nvrtcCreateProgram": ("program",), "nvrtcCompileProgram": (), "nvrtcGetPTX": (),
            "nvrtcGetPTXSize": (3,), "nvrtcDestroyProgram": (), "nvrtcVersion": (13, 0),
        }  # fmt: skip
        fake: Any = types.ModuleType("nvrtc")
        for name, values in names.items():
            setattr(fake, name, answer(name, *values))
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", types.ModuleType("cuda.bindings"))
        monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", fake)
        toolchains.cuda_to_ptx("source", "sm_90a", ("-lineinfo",))
        assert [name for name, _ in asked] == [
            "nvrtcVersion", "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetPTXSize",
            "nvrtcGetPTX", "nvrtcDestroyProgram",
        ]  # fmt: skip
        assert asked[2][1][2] == [b"--gpu-architecture=sm_90a", b"-lineinfo"]
        toolchains.cuda_to_ptx.cache_clear()


class TestTriton:
    text = """
.version 8.4
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry add_kernel(
    .param .u64 .ptr .global .align 1 p0, .param .u64 .ptr .global .align 1 p1,
    .param .u32 p2, .param .u64 .ptr .global .align 1 p3, .param .u64 .ptr .global .align 1 p4
)
.reqntid 128
{
    ret;
}
"""
    metadata: dict[str, Any] = {  # noqa: RUF012
        "name": "add_kernel", "num_warps": 4, "shared": 1024, "num_ctas": 1, "warp_size": 32,
        "global_scratch_size": 16, "launch_cooperative_grid": False, "tensordesc_meta": [],
    }  # fmt: skip

    def code(self, kernel: Any, **options: Any) -> Any:
        return foreign.Triton(
            kernel, grid=lambda x: (girih.cdiv(x.size, 64), 2),
            arguments=lambda x: ("x", "out", np.int32(x.size)), **options,
        )  # fmt: skip

    def record(self, code: Any) -> DeviceCode:
        (found,) = read_codes(call_of(kernel(code).module(X)).codes)
        assert isinstance(found, DeviceCode)
        return found

    def test_saved(self):
        made = self.record(self.code(self.text, metadata=self.metadata))
        (one,) = made.launches
        assert (one.grid, one.block, one.shared) == ((4, 2, 1), (128, 1, 1), 1024)
        assert made.scratch == 16 * 8 and len(one.arguments) == 5

    def test_compiled(self):
        facts = types.SimpleNamespace(_asdict=lambda: self.metadata)
        compiled = types.SimpleNamespace(asm={"ptx": self.text}, metadata=facts)
        assert self.record(self.code(compiled)) == self.record(
            self.code(self.text, metadata=self.metadata)
        )
        assert "triton" not in sys.modules

    def test_mistakes(self):
        with pytest.raises(girih.UserError, match="no Triton kernel"):
            self.code(twice_of)
        with pytest.raises(girih.UserError, match="needs metadata="):
            self.code(self.text)
        for change, reason in (
            ({"tensordesc_meta": [1]}, "tensor descriptors"),
            ({"launch_cooperative_grid": True}, "a cooperative launch"),
            ({"num_warps": 8}, r"requires blocks of \[128"),
            ({"name": "other"}, "no entry 'other'"),
            ({"name": None}, "lack 'name'"),
        ):
            with pytest.raises(girih.UserError, match=reason):
                self.record(self.code(self.text, metadata={**self.metadata, **change}))


def test_tensor_maps():
    text = PTX_TWICE.replace("twice(.param .u64 x", "twice(.param .align 64 .b8 x[128]")
    rules = {"arguments": (foreign.TensorMap("x", (8, 4), 32), "out", np.int32(3))}
    made = girih.foreign_kernel(
        "copy", out=tl.Array((2,), "f32"), inputs=["x"],
        codes=[foreign.Ptx(text, launch(**rules, grid=1))],
    )  # fmt: skip
    (code,) = read_codes(call_of(made.module(np.zeros((6, 12), np.float32))).codes)
    assert isinstance(code, DeviceCode)
    found: Any = code.launches[0].arguments[0]
    assert (found.dims, found.strides, found.box, found.swizzle) == ((12, 6), (48,), (4, 8), 32)
    with pytest.raises(girih.UserError, match="multiple of 16 bytes"):
        made.module(np.zeros((6, 7), np.float32))
    with pytest.raises(girih.UserError, match="a box of its rank"):
        made.module(np.zeros(6, np.float32))
