"""Compiles LLVM IR of a user in a process of its own, where LLVM may abort: JSON on the standard
input (`text`, `entry`, `triple`, `cpu`, `features`), an ELF object on the standard output. Exit
status 2 means that the text is wrong; the reason stands on the standard error output.

Run as a file, with nothing of girih: it starts in the time that llvmlite needs.
"""

from __future__ import annotations

import json
import sys

import llvmlite.binding as binding

SIGNATURE = ("ptr", "i64", "i64", "ptr")
OUTSIDE = ("llvm.", "memcpy", "memmove", "memset")


def main() -> None:
    wanted = json.load(sys.stdin)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(wanted["triple"])
    machine = target.create_target_machine(
        cpu=wanted["cpu"], features=wanted["features"], opt=3, reloc="pic", codemodel="small"
    )
    try:
        module = binding.parse_assembly(wanted["text"])
        module.verify()
    except RuntimeError as error:
        refuse(str(error))
    module.triple = wanted["triple"]
    module.data_layout = str(machine.target_data)
    check(module, wanted["entry"])
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    sys.stdout.buffer.write(machine.emit_object(module))


def check(module: binding.ModuleRef, entry: str) -> None:
    functions = {function.name: function for function in module.functions}
    if entry not in functions or functions[entry].is_declaration:
        known = ", ".join(name for name, f in functions.items() if not f.is_declaration)
        refuse(f"it defines no function '{entry}'; it defines {known or 'none'}")
    types = tuple(str(argument.type) for argument in functions[entry].arguments)
    if types != SIGNATURE:
        refuse(
            f"'{entry}' takes ({', '.join(types)}); it has to take (ptr arguments, i64 begin, "
            "i64 end, ptr scratch)"
        )
    for name, function in functions.items():
        if function.is_declaration and not name.startswith(OUTSIDE):
            refuse(f"it calls '{name}', which it does not define; kernels call nothing outside")


def refuse(reason: str) -> None:
    sys.stderr.write(reason)
    sys.exit(2)


main()
