"""`girih bisect`: which pass, rule, operation or kernel makes results differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler import compile as compile_program
from ..compiler import compile_lowered, signature_of
from ..hlo.errors import UserError
from ..hlo.graph import Module, Op, Value
from ..hlo.interpret import Interpreter, flat_results, prepared
from ..optimizer.bisect import Fault, error_of, find_fault, reference
from ..optimizer.regions import extract
from ..options import Options
from . import arrays, show
from .compiling import import_source, passed, pipeline_of, read_options

Array = np.ndarray[Any, Any]


def bisect_source(
    source: str,
    target: str,
    settings: Sequence[str],
    given: Sequence[str],
    seed: int,
    tolerance: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Search, show what was found, and write the smallest program that shows it."""
    options = replace(read_options(settings), cache="off")
    module = import_source(source)
    inputs = arrays.collect_inputs(signature_of(module), given, seed)
    if len(inputs) != len(module.body.arguments):
        raise UserError("bisect: a program with state is not compared yet; export it without")
    fault = find_fault(
        module, pipeline_of(module, target, options), inputs, tolerance, options.disable
    )
    if fault is None:
        fault = kernel_fault(source, module, target, options, inputs, tolerance)
    data: dict[str, Any] = {"tolerance": tolerance, "fault": None}
    if fault is not None:
        data["fault"] = {
            name: getattr(fault, name)
            for name in ("name", "error", "rule", "operation", "place", "hit")
        }
        if output is not None and fault.program is not None:
            _write(output, fault.program)
            data["program"] = str(output)
    if as_json:
        return show.print_json(data)
    if fault is None:
        show.console.print(f"all passes and kernels agree with float64 to {tolerance:g}")
        return
    show.console.print(_sentence(fault, tolerance), markup=False)
    if fault.program is not None:
        if output is None:
            show.console.print(f"\n{fault.program}", markup=False)
        else:
            show.console.print(f"the smallest program that shows it: {output}")
        show.console.print(f"\n{_test(fault, output, target, tolerance)}", markup=False)


def kernel_fault(
    source: str,
    module: Module,
    target: str,
    options: Options,
    inputs: Sequence[Array],
    tolerance: float,
) -> Fault | None:
    """The first kernel whose code differs from its operation, run on what the program gives it;
    None where the compiled program agrees."""
    program = compile_program(module, target=target, options=options)
    whole = error_of(_run(program, inputs), reference(module, inputs))
    if whole <= tolerance:
        return None
    lowered, _ = passed(source, target, options)
    for step in _steps(lowered, inputs):
        single = _single(step.op, lowered)
        found = error_of(_run(compile_lowered(single, target, options), step.inputs), step.outputs)
        if not found <= tolerance:
            names = dict.fromkeys(op.name for body in step.op.regions for op in body.ops)
            operation = " ".join([step.op.name, *names])
            return Fault("kernel", found, operation=operation, place=step.op.place, program=single)
    return Fault("steps", whole)


@dataclass(frozen=True)
class _Step:
    op: Op
    inputs: list[Array]
    outputs: list[Array]


def _steps(module: Module, inputs: Sequence[Array]) -> list[_Step]:
    """Every operation of the main program that becomes code, with the arrays of one run."""
    found: list[_Step] = []
    wanted = set(module.body.ops)

    class Recorder(Interpreter):
        def evaluate(self, op: Op, arrays: Sequence[Any], values: dict[Value, Any]) -> Any:
            results = super().evaluate(op, arrays, values)
            if op in wanted and op.operands and not any(body.captures() for body in op.regions):
                each = [np.array(array) for array in _distinct(op, arrays).values()]
                found.append(_Step(op, each, [np.array(result) for result in results]))
            return results

    flat_results(Recorder(prepared(module)), inputs)
    return found


def _distinct(op: Op, values: Sequence[Any]) -> Mapping[Value, Any]:
    return dict(zip(op.operands, values, strict=True))


def _single(op: Op, module: Module) -> Module:
    inputs = list(dict.fromkeys(op.operands))
    alone = module.with_main(extract([op], inputs, list(op.results)))
    return replace(alone.with_weights({}), signature=None)


def _run(program: Any, inputs: Sequence[Array]) -> list[Array]:
    positional, keywords = arrays.as_call(program.signature, inputs)
    result, state = program.stateless(*positional, **keywords)
    return [*program.signature.outputs.flatten(result, "output"), *state.values()]


def _sentence(fault: Fault, tolerance: float) -> str:
    off = f"differs by {fault.error:.3g} of the largest result, more than {tolerance:g}"
    if fault.name == "source":
        return f"the program itself, as imported, {off} from float64: raise --tolerance"
    if fault.name == "steps":
        return f"each kernel alone is right, but the compiled program {off}: look at its memory"
    if fault.name == "kernel":
        return f"{fault.place}the kernel of '{fault.operation}' {off}"
    if not fault.rule:
        return f"after pass '{fault.name}' the program {off}"
    return (
        f"{fault.place}rule '{fault.rule}' in pass '{fault.name}', firing {fault.hit}, on "
        f"{fault.operation}: the program {off}"
    )


def _test(fault: Fault, output: Path | None, target: str, tolerance: float) -> str:
    """A test to paste; the program is the file that was written."""
    name = (fault.rule or fault.name).replace("-", "_").replace(":", "_")
    path = "fault.girih" if output is None else output.name
    if fault.name == "kernel":
        body = (
            f'    program = compile_lowered(module, "{target}", girih.Options(cache="off"))\n'
            "    found = program(*inputs)\n"
            "    found = list(found) if isinstance(found, (tuple, list)) else [found]\n"
            f"    assert error_of(found, interpret(module, inputs)) <= {tolerance!r}\n"
        )
        more = "from girih.compiler import compile_lowered\nfrom girih.optimizer.bisect import "
        more += "error_of, made_up\n"
    else:
        body = (
            f'    backend = find("{target}", girih.Options())\n'
            "    pipeline = pipeline_for(backend, girih.Options())\n"
            f"    assert find_fault(module, pipeline, inputs, {tolerance!r}) is None\n"
        )
        more = (
            "from girih.backends import find\n"
            "from girih.optimizer.bisect import find_fault, made_up\n"
            "from girih.optimizer.pipeline import pipeline_for\n"
        )
    interpreter = "from girih.hlo.interpret import interpret\n" if fault.name == "kernel" else ""
    return (
        "import numpy as np\n\nimport girih\n"
        f"{more}{interpreter}\n\n"
        f"def test_{name}():\n"
        f'    module = girih.import_model("{path}")\n'
        "    generator = np.random.default_rng(0)\n"
        "    inputs = [made_up(value.type, generator) for value in module.body.arguments]\n"
        f"{body}"
    )


def _write(path: Path, module: Module) -> None:
    """A bundle of the program alone, with its weights and without code."""
    from ..hlo.wire import encode
    from ..runtime.bundle import MemoryParts, write
    from ..runtime.parts import module_weights

    signatures = {"main": signature_of(module)}
    write(path, MemoryParts(encode(module), signatures, module_weights(module)), seal=False)
