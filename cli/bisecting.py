"""`girih bisect`: which pass, rule, operation or kernel makes results differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..compilation import compile_lowered
from ..compiler import compile as compile_program
from ..hlo.errors import UserError
from ..hlo.graph import Module, Op, Value, signature_of
from ..hlo.interpret import Interpreter, flat_results, interpret, prepared
from ..hlo.regions import extract
from ..hlo.wire import encode
from ..optimizer.bisect import Fault, error_of, find_fault, reference
from ..options import Options
from ..runtime.bundle import Check, MemoryParts
from ..runtime.bundle_writer import write
from ..runtime.parts import module_weights
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
    entry: str | None = None,
) -> None:
    """Search, show what was found, and write the smallest program that shows it."""
    options = replace(read_options(settings), cache="off")
    module = import_source(source, entry)
    inputs = arrays.collect_inputs(signature_of(module), given, seed)
    if len(inputs) != len(module.body.arguments):
        raise UserError("bisect: a program with state is not compared yet; export it without")
    fault = find_fault(
        module, pipeline_of(module, target, options), inputs, tolerance, options.disable
    )
    if fault is None:
        fault = kernel_fault(source, module, target, options, inputs, tolerance, entry)
    data: dict[str, Any] = {"tolerance": tolerance, "fault": None}
    if fault is not None:
        data["fault"] = {
            name: getattr(fault, name)
            for name in ("name", "error", "rule", "operation", "place", "hit")
        }
        if output is not None and fault.program is not None:
            _write(output, fault.program, fault.inputs, tolerance)
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
            show.console.print("\n-o FILE writes it with its inputs, and gives a test to paste")
        else:
            show.console.print(f"the smallest program that shows it: {output}")
            print(f"\n{_test(fault, output, target, options, tolerance)}")


def kernel_fault(
    source: str,
    module: Module,
    target: str,
    options: Options,
    inputs: Sequence[Array],
    tolerance: float,
    entry: str | None = None,
) -> Fault | None:
    """The first kernel whose code differs from its operation, run on what the program gives it;
    None where the compiled program agrees."""
    program = compile_program(module, target=target, options=options)
    whole = error_of(_run(program, inputs), reference(module, inputs))
    if whole <= tolerance:
        return None
    lowered, _ = passed(source, target, options, entry=entry)
    for step in _steps(lowered, inputs):
        single = _single(step.op, lowered)
        found = error_of(_run(compile_lowered(single, target, options), step.inputs), step.outputs)
        if not found <= tolerance:
            names = dict.fromkeys(op.name for body in step.op.regions for op in body.ops)
            operation = " ".join([step.op.name, *names])
            return Fault(
                "kernel", found, operation=operation, place=step.op.place, program=single,
                inputs=step.inputs,
            )  # fmt: skip
    return Fault("steps", whole)


@dataclass(frozen=True)
class _OperationRecord:
    op: Op
    inputs: list[Array]
    outputs: list[Array]


def _steps(module: Module, inputs: Sequence[Array]) -> list[_OperationRecord]:
    """Every operation of the main program that becomes code, with the arrays of one run."""
    found: list[_OperationRecord] = []
    wanted = set(module.body.ops)

    class Recorder(Interpreter):
        def evaluate(self, op: Op, arrays: Sequence[Any], values: dict[Value, Any]) -> Any:
            results = super().evaluate(op, arrays, values)
            if op in wanted and op.operands and not any(body.captures() for body in op.regions):
                each = [np.array(array) for array in _distinct(op, arrays).values()]
                found.append(_OperationRecord(op, each, [np.array(result) for result in results]))
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


def _test(fault: Fault, output: Path, target: str, options: Options, tolerance: float) -> str:
    """A test to paste; the program and its inputs are the file that was written."""
    chosen = [
        f"{field.name}={value!r}"
        for field in fields(options)
        if (value := getattr(options, field.name)) != field.default
    ]
    imports = ["from girih.runtime.bundle import Bundle"]
    if fault.name == "kernel":
        imports += [
            "from girih.compilation import compile_lowered",
            "from girih.optimizer.bisect import error_of",
        ]
        lines = [
            f"program = compile_lowered(module, {target!r}, options)",
            "found = program(*case.inputs)",
            "found = list(found) if isinstance(found, (tuple, list)) else [found]",
            f"assert error_of(found, case.outputs) <= {tolerance!r}",
        ]
    else:
        imports += [
            "from girih.backends import find",
            "from girih.optimizer.bisect import find_fault",
            "from girih.optimizer.pipeline import pipeline_for",
        ]
        left_out = ", options.disable" if options.disable else ""
        lines = [
            f"pipeline = pipeline_for(find({target!r}, options), options)",
            f"assert find_fault(module, pipeline, case.inputs, {tolerance!r}{left_out}) is None",
        ]
    lines = [
        f"module = girih.import_model({output.name!r})",
        f"(case,) = Bundle({output.name!r}).checks",
        f"options = girih.Options({', '.join(chosen)})",
        *lines,
    ]
    name = re.sub(r"\W", "_", fault.rule or fault.name)
    body = [f"    {line}" for line in lines]
    return "\n".join(["import girih", *sorted(imports), "", "", f"def test_{name}():", *body])


def _write(path: Path, module: Module, inputs: Sequence[Array], tolerance: float) -> None:
    """A bundle of the program alone, with its weights, the inputs that show the fault and what the
    interpreter gives for them, without code."""
    case = Check(tuple(inputs), tuple(interpret(module, inputs)), tolerance)
    signatures = {"main": signature_of(module)}
    parts = MemoryParts(encode(module), signatures, module_weights(module), checks=[case])
    write(path, parts, seal=False)
