"""chlo's special functions as formulas: error functions, gamma family, zeta, Bessel.

Rational approximations of erf and erfc are those of Cephes (f64) and of the f32 minimax fits that
XLA uses; erf_inv is Giles' approximation; the gamma family is Lanczos' with g = 7; zeta is
Euler-Maclaurin's sum; the Bessel function is a Chebyshev series.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import Op
from ..room import Case, OpDefinition, constraint, operand
from ..types import F64, Type
from .clauses import same_dims
from .decomposed import Decomposed, Term, exp, in_f32, log, log1p, polynomial, sqrt, where
from .examples import f32, f64
from .functions import RealFunction

ERF_LIMIT = 3.832506856900711  # |erf| rounds to one in f32 from here on
ERF_ALPHA = (
    0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145,
    1.128379143519084,
)  # fmt: skip
ERF_BETA = (
    -1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667,
    0.11098505178285362, 0.49746925110067538, 1.0,
)  # fmt: skip
ERFC_P = (
    2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1, -5.824733027278666e-1,
    6.210004621745983e-1, -4.944515323274145e-1, 3.404879937665872e-1, -2.741127028184656e-1,
    5.638259427386472e-1,
)  # fmt: skip
ERFC_R = (
    -1.047766399936249e1, 1.297719955372516e1, -7.495518717768503, 2.921019019210786,
    -1.015265279202700, 4.218463358204948e-1, -2.820767439740514e-1, 5.641895067754075e-1,
)  # fmt: skip
CEPHES_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
CEPHES_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
CEPHES_R = (
    5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414,
    6.16021097993053585195, 7.40974269950448939160, 2.97886665372100240670,
)  # fmt: skip
CEPHES_S = (
    1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1,
    1.70814450747565897222e1, 9.60896809063285878198, 3.36907645100081516050,
)  # fmt: skip
CEPHES_T = (
    9.60497373987051638749, 9.00260197203842689217e1, 2.23200534594684319226e3,
    7.00332514112805075473e3, 5.55923013010394962768e4,
)  # fmt: skip
CEPHES_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
    2.26290000613890934246e4, 4.92673942608635921086e4,
)  # fmt: skip


def _erf(x: Term) -> Term:
    if x.element is F64:
        square = x * x
        small = x * polynomial(square, CEPHES_T) / polynomial(square, CEPHES_U)
        return where(abs(x) < 1.0, small, 1.0 - _erfc_tail_f64(x))
    limited = x.like(-ERF_LIMIT).op("maximum", x).op("minimum", ERF_LIMIT)
    square = limited * limited
    fit = limited * polynomial(square, ERF_ALPHA) / polynomial(square, ERF_BETA)
    return fit.op("maximum", -1.0).op("minimum", 1.0)  # else 1 + erf(x) is less than 0 for some x


def _erfc_tail_f64(x: Term) -> Term:
    """erfc for |x| >= 1."""
    size = abs(x)
    near = polynomial(size, CEPHES_P) / polynomial(size, CEPHES_Q)
    far = polynomial(size, CEPHES_R) / polynomial(size, CEPHES_S)
    scale = exp(-x * x)
    tail = where(scale.equals(0.0), 0.0, scale * where(size < 8.0, near, far))
    return where(x < 0.0, 2.0 - tail, tail)


def _erfc_tail_f32(x: Term) -> Term:
    size = abs(x)
    inverse = 1.0 / size
    square = inverse * inverse
    scale = exp(-x * x) * inverse
    fit = where(size < 2.0, polynomial(square, ERFC_P), polynomial(square, ERFC_R))
    tail = where(scale.equals(0.0), 0.0, scale * fit)
    return where(x < 0.0, 2.0 - tail, tail)


def _erfc(x: Term) -> Term:
    tail = _erfc_tail_f64(x) if x.element is F64 else _erfc_tail_f32(x)
    return where(abs(x) < 1.0, 1.0 - _erf(x), tail)


GILES_F32_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
GILES_F32_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
GILES_F64_CENTRE = (
    -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
    1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
    6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
    2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
    4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
    0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
    0.24015818242558961693, 1.6536545626831027356,
)  # fmt: skip
GILES_F64_MIDDLE = (
    2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07,
    1.8239629214389227755e-08, 1.5027403968909827627e-06, -4.013867526981545969e-06,
    2.9234449089955446044e-06, 1.2475304481671778723e-05, -4.7318229009055733981e-05,
    6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
    0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066,
    -0.0037512085075692412107, 0.005370914553590063617, 1.0052589676941592334,
    3.0838856104922207635,
)  # fmt: skip
GILES_F64_TAIL = (
    -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
    -3.7894654401267369937e-09, 7.6157012080783393804e-09, -1.4960026627149240478e-08,
    2.9147953450901080826e-08, -6.7711997758452339498e-08, 2.2900482228026654717e-07,
    -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
    7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026,
    1.0103004648645343977, 4.8499064014085844221,
)  # fmt: skip


def _erf_inv(x: Term) -> Term:
    w = -log((1.0 - x) * (1.0 + x))  # near one, 1 - x is exact and 1 - x * x is not
    if x.element is F64:
        root = sqrt(w)
        tail = where(
            w < 16.0, polynomial(root - 3.25, GILES_F64_MIDDLE),
            polynomial(root - 5.0, GILES_F64_TAIL),
        )  # fmt: skip
        fit = where(w < 6.25, polynomial(w - 3.125, GILES_F64_CENTRE), tail)
    else:
        tail = polynomial(sqrt(w) - 3.0, GILES_F32_TAIL)
        fit = where(w < 5.0, polynomial(w - 2.5, GILES_F32_CENTRE), tail)
    return where(abs(x).equals(1.0), x * math.inf, x * fit)


LANCZOS_G = 7.0
LANCZOS_BASE = 0.99999999999980993227684700473478
LANCZOS = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283,
    771.3234287776530788486528258894, -176.61502916214059906584551354,
    12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip


def _lgamma(x: Term) -> Term:
    reflected = x < 0.5
    z = where(reflected, -x, x - 1.0)
    series = x.like(LANCZOS_BASE)
    for index, coefficient in enumerate(LANCZOS):
        series = series + coefficient / (z + (index + 1.0))
    half = LANCZOS_G + 0.5
    t = z + half
    log_t = math.log(half) + log1p(z / half)
    log_y = (z + 0.5 - t / log_t) * log_t + 0.5 * math.log(2 * math.pi) + log(series)
    size = abs(x)
    part = size - size.op("floor")
    part = where(part > 0.5, 1.0 - part, part)
    sine = log((part * math.pi).op("sine"))
    finite = Term(x.b, x.b("is_finite", sine.value))
    mirrored = where(finite, math.log(math.pi) - sine - log_y, -sine)
    result = where(reflected, mirrored, log_y)
    return where(size.equals(math.inf), math.inf, result)


def _digamma(x: Term) -> Term:
    reflected = x < 0.5
    z = where(reflected, -x, x - 1.0)
    numerator, denominator = x.like(0.0), x.like(LANCZOS_BASE)
    for index, coefficient in enumerate(LANCZOS):
        shifted = z + (index + 1.0)
        numerator = numerator - coefficient / (shifted * shifted)
        denominator = denominator + coefficient / shifted
    half = LANCZOS_G + 0.5
    log_t = math.log(half) + log1p(z / half)
    y = log_t + numerator / denominator - LANCZOS_G / (z + half)
    # the cotangent of pi * x, its argument reduced to less than a half
    reduced = math.pi * (x + abs((x + 0.5).op("floor")))
    mirrored = y - math.pi * reduced.op("cosine") / reduced.op("sine")
    result = where(reflected, mirrored, y)
    pole = (x <= 0.0) & x.equals(x.op("floor"))
    return where(pole, math.nan, result)


# Chebyshev coefficients of i1e(x) / x in x / 4 - 1, and of sqrt(x) * i1e(x) in 16 / x - 1.
BESSEL_NEAR = (
    0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499,
    0.024726449030626516, -0.010564084894626197, 0.004156422944312888, -0.0015135724506312532,
    0.0005122859561685758, -0.00016176081582589674, 4.781565107550054e-05, -1.3273163656039436e-05,
    3.4702513081376785e-06, -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08,
    9.381537386495773e-09, -1.8872497517228294e-09, 3.625590281552117e-10, -6.663489723502027e-11,
    1.1736186298890901e-11, -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14,
    7.600684294735408e-15, -1.1055969477353862e-15, 1.5536319577362005e-16, -2.111421214358166e-17,
)  # fmt: skip
BESSEL_FAR = (
    0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06,
    -2.512236237870209e-07, -2.6314688468895196e-08, -3.835380385964237e-09, -5.589743462196584e-10,
    -1.8974958123505413e-11, 3.2526035830154884e-11, 1.4125807436613782e-11, 2.0356285441470896e-12,
    -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14, 4.272440016711951e-14,
    1.0420276984128802e-14, -3.8144030724370075e-15, -1.8803547755107825e-15,
    3.3082023109209285e-16, 2.96262899764595e-16, -3.209525921993424e-17, -4.6503053684893586e-17,
    4.414348323071708e-18,
)  # fmt: skip


def chebyshev(t: Term, coefficients: Sequence[float]) -> Term:
    """Clenshaw's sum of coefficient[j] * T_j(t)."""
    smallest = float(np.finfo(t.element.dtype).eps) / 64
    used = [c for c in coefficients if abs(c) > smallest]
    double = 2.0 * t
    last, before = t.like(used[-1]), t.like(0.0)
    for coefficient in used[-2:0:-1]:
        last, before = double * last - before + coefficient, last
    return t * last - before + used[0]


def _bessel_i1e(x: Term) -> Term:
    size = abs(x)
    near = size * chebyshev(size * 0.25 - 1.0, BESSEL_NEAR)
    far = chebyshev(16.0 / size - 1.0, BESSEL_FAR) / sqrt(size)
    result = where(size <= 8.0, near, far)
    return where(x.equals(0.0), x, where(x < 0.0, -result, result))


class Zeta(Decomposed, name="chlo.zeta"):
    """result = sum over k >= 0 of (q + k)^-x, Hurwitz' zeta function."""

    pattern = "elementwise"
    x = operand()
    q = operand()
    C1 = constraint(
        "x and q have the same float type",
        lambda o: (
            o.x.element.is_float and o.x.element is o.q.element and same_dims(o.x.dims, o.q.dims)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.x.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return in_f32(b, _zeta, values)

    def cases(self) -> Iterator[Case]:
        x = f32([2, 3, 1.5, 4, 7, 1, 0.5])
        yield Case("zeta_f32", (x, f32([1, 2, 0.5, 10, 3, 2, 2])))
        yield Case("zeta_f64", (x.astype(np.float64), f64([1, 2, 0.5, 10, 3, 2, 2])))


# (2j)! / B_2j: the reciprocals of Euler-Maclaurin's coefficients
ZETA_COEFFICIENTS = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
    -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
    1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip
ZETA_TERMS = 10


def _zeta(x: Term, q: Term) -> Term:
    total = x.like(0.0)
    for index in range(ZETA_TERMS):
        total = total + (q + float(index)).op("power", -x)
    a = q + float(ZETA_TERMS)
    last = a.op("power", -x)
    total = total + last * a / (x - 1.0) + last * 0.5
    factor = x * last / a
    inverse_square = 1.0 / (a * a)
    for index, coefficient in enumerate(ZETA_COEFFICIENTS):
        total = total + factor / coefficient
        step = 2.0 * index
        factor = factor * (x + (step + 1.0)) * (x + (step + 2.0)) * inverse_square
    pole = (q <= 0.0) & q.equals(q.op("floor"))
    total = where(pole, math.inf, total)
    total = where(x < 1.0, math.nan, total)
    return where(x.equals(1.0), math.inf, total)


class Polygamma(Decomposed, name="chlo.polygamma"):
    """result = derivative number n of digamma at x."""

    pattern = "elementwise"
    n = operand()
    x = operand()
    C1 = constraint(
        "n and x have the same float type",
        lambda o: (
            o.x.element.is_float and o.x.element is o.n.element and same_dims(o.x.dims, o.n.dims)
        ),
    )

    def infer(self, o: Op) -> Sequence[Type]:
        return [o.n.type]

    def decompose(self, b: Any, o: Op, *values: Any) -> Any:
        return in_f32(b, _polygamma, values)

    def cases(self) -> Iterator[Case]:
        n, x = f32([0, 1, 2, 3, 1]), f32([0.5, 1, 2.5, 4, 10])
        yield Case("polygamma_f32", (n, x), tolerance=1e-4)
        yield Case("polygamma_f64", (n.astype(np.float64), x.astype(np.float64)))


def _polygamma(n: Term, x: Term) -> Term:
    sign = 2.0 * n.op("remainder", 2.0) - 1.0  # (-1)^(n + 1)
    derivative = sign * exp(_lgamma(n + 1.0)) * _zeta(n + 1.0, x)
    result = where(n.equals(0.0), _digamma(x), derivative)
    legal = n.equals(n.op("floor")) & (n >= 0.0)
    return where(legal, result, math.nan)


ROOMS: tuple[OpDefinition, ...] = (
    RealFunction(
        "chlo.erf",
        _erf,
        "result = 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x.",
        cost_class="transcendental",
    ),
    RealFunction("chlo.erfc", _erfc, "result = 1 - erf(x).", cost_class="transcendental"),
    RealFunction(
        "chlo.erf_inv",
        _erf_inv,
        "result = the number whose erf is operand.",
        cost_class="transcendental",
    ),
    RealFunction("chlo.lgamma", _lgamma, "result = log |gamma(x)|."),
    RealFunction("chlo.digamma", _digamma, "result = derivative of log gamma.", domain="finite"),
    RealFunction("chlo.bessel_i1e", _bessel_i1e, "result = exp(-|x|) I1(x).", domain="ordered"),
    Zeta(),
    Polygamma(),
)
