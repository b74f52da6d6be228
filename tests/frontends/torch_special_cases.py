"""Calls of PyTorch's special functions, and of elementwise functions of extreme values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special as _special
from torch.nn import functional as F

scipy: Any = _special  # its own types lack some functions
REACH = np.concatenate([np.linspace(-12, 12, 97), [-300.5, 1e-9, 40.25, 300.5]])
SIZES = np.abs(REACH)
PLACES = REACH[np.abs(REACH - np.round(REACH)) > 1e-2]
SHARES = np.concatenate([np.linspace(0.01, 0.99, 33), [1e-30, 1e-8, 0.125, 1 - 2.0**-20]])
FIRST = np.repeat([0.02, 0.5, 1.5, 8.0, 20.5, 150.0, 400.0], 9)
SECOND = FIRST * np.tile([0.01, 0.5, 0.8, 0.95, 1.0, 1.05, 1.3, 2.0, 9.0], 7)
EXPONENTS, STARTS = np.repeat([1.5, 2.0, 7.25], 4), np.tile([0.25, 1.0, 4.5, 30.0], 3)
WHOLE = np.repeat([2.0, 3.0, 4.0], 3)
BELOW = np.tile([-0.5, -1.75, -6.5], 3)


def _zeta_below(s: Any, q: Any) -> Any:
    """Hurwitz' zeta of negative q by its first terms."""
    shift = 8
    return sum((q + k) ** -s for k in range(shift)) + scipy.zeta(s, q + shift)


S: Any = torch.special
BESIDE_SCIPY: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "i0": (torch.i0, scipy.i0, (REACH[:97],)),
    "i0e": (S.i0e, scipy.i0e, (REACH,)),
    "i1": (S.i1, scipy.i1, (REACH[:97],)),
    "i1e": (S.i1e, scipy.i1e, (REACH,)),
    "j0": (S.bessel_j0, scipy.j0, (REACH,)),
    "j1": (S.bessel_j1, scipy.j1, (REACH,)),
    "y0": (S.bessel_y0, scipy.y0, (SIZES + 1e-3,)),
    "y1": (S.bessel_y1, scipy.y1, (SIZES + 1e-3,)),
    "k0": (S.modified_bessel_k0, scipy.k0, (SIZES[:97],)),
    "k1": (S.modified_bessel_k1, scipy.k1, (SIZES[:97] + 1e-3,)),
    "k0e": (S.scaled_modified_bessel_k0, scipy.k0e, (SIZES,)),
    "k1e": (S.scaled_modified_bessel_k1, scipy.k1e, (SIZES + 1e-3,)),
    "spherical_j0": (S.spherical_bessel_j0, lambda x: scipy.spherical_jn(0, x), (REACH,)),
    "airy": (S.airy_ai, lambda x: scipy.airy(x)[0], (REACH[:97],)),
    "entr": (S.entr, scipy.entr, (SIZES,)),
    "erfcx": (S.erfcx, scipy.erfcx, (np.maximum(REACH, -9.0),)),
    "ndtr": (S.ndtr, scipy.ndtr, (REACH,)),
    "log_ndtr": (S.log_ndtr, scipy.log_ndtr, (REACH,)),
    "ndtri": (S.ndtri, scipy.ndtri, (SHARES,)),
    "digamma": (S.digamma, scipy.digamma, (PLACES,)),
    "multigammaln": (
        lambda x: torch.mvlgamma(x, 3),
        lambda x: np.array([scipy.multigammaln(each, 3) for each in x]),
        (SIZES + 1.1,),
    ),
    "trigamma": (lambda x: torch.polygamma(1, x), lambda x: scipy.zeta(2, x), (SIZES + 0.1,)),
    "polygamma": (
        lambda x: x.clone().polygamma_(4),
        lambda x: scipy.polygamma(4, x),
        (SIZES + 0.5,),
    ),
    "zeta": (S.zeta, scipy.zeta, (EXPONENTS, STARTS)),
    "zeta-below": (S.zeta, _zeta_below, (WHOLE, BELOW)),
    "xlog1py": (S.xlog1py, scipy.xlog1py, (REACH, SIZES)),
    "gammainc": (S.gammainc, scipy.gammainc, (FIRST, SECOND)),
    "gammaincc": (S.gammaincc, scipy.gammaincc, (FIRST, SECOND)),
}
"""name -> PyTorch's function, SciPy's, and their arguments in f64."""

INF, NAN = math.inf, math.nan
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-42, 3e38, INF, -INF, NAN])
GRID_X, GRID_Y = (grid.reshape(-1) for grid in torch.meshgrid(EDGES, EDGES, indexing="ij"))
DEGREES = torch.tensor([-1.0, 0.0, 1.0, 2.0, 5.0, 7.0, 9.0, 30.0, NAN]).repeat(6)
POINTS = torch.tensor([-1.5, -1.0, -0.3, 0.0, 0.75, 1.0]).repeat_interleave(9)
PAIRS = torch.tensor([[0, 0], [12, -18], [-127, 64], [-128, 6], [7, 0], [100, 75]])
COMPLEX = torch.complex(GRID_X, GRID_Y)
NEAR = EDGES[EDGES != 3e38]  # PyTorch's phases of waves are not exact far away

BESIDE_EAGER: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        f"{name}-edges": (getattr(S, name), (NEAR,))
        for name in (
            "i0e", "i1e", "bessel_j0", "bessel_y0", "bessel_y1", "modified_bessel_k0", "airy_ai",
            "scaled_modified_bessel_k1", "spherical_bessel_j0", "entr", "erfcx", "log_ndtr",
            "ndtri", "digamma", "sinc",
        )
    },
    "gammainc-edges": (
        S.gammainc, tuple(v[(GRID_X != 1e-42) & (GRID_Y != 1e-42)] for v in (GRID_X, GRID_Y)),
    ),
    "gammaincc-of-bf16": (S.gammaincc, (torch.tensor([0.5, 2.0]).bfloat16(),) * 2),
    **{
        f"{name}-degrees": (getattr(S, name), (POINTS, DEGREES))
        for name in dir(S)
        if "_polynomial_" in name
    },
    "hermite-of-int": (S.hermite_polynomial_h, (torch.arange(5), torch.arange(5))),
    "legendre-degree": (lambda x: S.legendre_polynomial_p(x, 4), (POINTS,)),
    "gcd": (lambda x: torch.gcd(x[:, 0], x[:, 1]), (PAIRS.to(torch.int8),)),
    "lcm": (lambda x: torch.lcm(x[:, 0], x[:, 1]), (PAIRS.to(torch.int8),)),
    "frexp": (lambda x: tuple(torch.frexp(x)), (EDGES,)),
    "frexp-half": (lambda x: tuple(torch.frexp(x)), (EDGES.half(),)),
    "ldexp": (torch.ldexp, (EDGES, torch.arange(-5, 6))),
    "nextafter": (torch.nextafter, (GRID_X, GRID_Y)),
    "nextafter-bf16": (torch.nextafter, (GRID_X.bfloat16(), GRID_Y.bfloat16())),
    "angle": (torch.angle, (EDGES,)),
    "angle-of-complex": (torch.angle, (COMPLEX,)),
    "hypot-edges": (torch.hypot, (GRID_X, GRID_Y)),
    "hash": (lambda x: torch.hash_tensor(x, 1).view(torch.int64), (torch.arange(6.0).view(2, 3),)),
    "shift-out": (lambda x: (x << 9, x >> -1), (PAIRS.to(torch.int32),)),
    "isnan-complex": (lambda x: (torch.isnan(x), torch.isinf(x), torch.isfinite(x)), (COMPLEX,)),
    "nan-to-num-complex": (lambda x: torch.nan_to_num(x, 1.0), (COMPLEX,)),
    "real-of-int": (torch.real, (PAIRS,)),
    "sign-of-uint8": (torch.sgn, (PAIRS.to(torch.uint8),)),
    "square-of-bool": (torch.square, (PAIRS > 0,)),
    "logit-of-int": (torch.logit, (torch.arange(3),)),
    "isclose-of-int": (lambda x: torch.isclose(x, x + 1, rtol=0.2), (torch.arange(9),)),
    "float-power-complex": (
        lambda x: torch.float_power(x, 2), (torch.tensor([1 + 2j, -3j]),),
    ),
    "log2-complex": (torch.log2, (torch.tensor([0j, 1 + 2j, -4 + 0j]),)),
    "lerp-complex": (
        lambda x: torch.lerp(x, x.flip(0), 0.3), (torch.tensor([1 + 2j, -3j]),),
    ),
    "threshold-edges": (lambda x: F.threshold(x, 1, 20), (EDGES,)),
    "gelu-edges": (F.gelu, (NEAR[~NEAR.isinf()],)),  # inf is nan where PyTorch uses AVX-512
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), (EDGES,)),
}  # fmt: skip
"""name -> a function of tensors and its arguments; numbers and element types are PyTorch's."""
