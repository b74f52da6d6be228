"""The program's representation and its meaning; imports nothing else of girih but its wire format.

In: programs as wire messages or text, or operations that a `Builder` is asked for. Out: modules
that are verified, printed, compared, interpreted. Imported by `backends`, `cli`, `frontends`,
`girih`, `optimizer`, `runtime`, `specs`.
"""
