"""Samples of jax.scipy."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any, cast

import jax
import jax.numpy as jnp
import jax.scipy as S  # noqa: N812
from jax.scipy.interpolate import RegularGridInterpolator
from jax.scipy.optimize import minimize
from jax.scipy.spatial.transform import Rotation as R  # noqa: N817
from jax.scipy.spatial.transform import Slerp

from .table import (
    FLOATS,
    INEXACT,
    REAL,
    SINGLE,
    Table,
    f,
    i,
    matrix,
    n,
    p,
    part,
    rising,
    u,
)

PAIR = ("float32", "float64")
special = Table("jax.scipy.special", PAIR)
t = special
t("erf erfc erfcx expit entr exp1 expi factorial gammaln loggamma gamma gammasgn digamma i0 i0e i1 "
  "i1e dawsn spence sici fresnel log_softmax softmax logsumexp wofz", p(3, 4))  # fmt: skip
t("erf erfc erfcx expit gammaln gamma gammasgn digamma i0 i0e i1 i1e dawsn ndtr log_ndtr "
  "log_softmax softmax logsumexp sici fresnel expi", n(3, 4))  # fmt: skip
t("erf erfc expit gammaln i0e ndtr logsumexp digamma entr", n(3, 4), types=FLOATS)
t("expit logsumexp softmax wofz loggamma", n(3, 4), types=("complex64",))
t("erfinv", u(3, 4))
t("ndtri logit", part(3, 4))
t("beta betaln gammainc gammaincc poch rel_entr kl_div xlogy xlog1py zeta boxcox boxcox1p",
  p(3, 4), p(3, 4))  # fmt: skip
t("xlogy xlog1py rel_entr kl_div", n(3, 4), p(4))
t("owens_t", n(3, 4), n(3, 4))
t("betainc", p(3, 4), p(3, 4), part(3, 4))
t("comb", i(4, low=4, high=9), i(4), types=SINGLE)
t("comb", p(4), p(4))
t("hyp1f1", p(3, 4), p(3, 4), n(3, 4))
t("hyp2f1", p(3, 4), p(3, 4), p(3, 4), part(3, 4))
t("expn", i(4, low=1), p(4))
t("polygamma", i(4, low=0), p(4))
t("multigammaln", p(3, 4), 1)
t.by("multigammaln", lambda x: S.special.multigammaln(x + 2, 3), p(3, 4))
t("bernoulli", 6, types=SINGLE)
t("bessel_jn", p(4), v=3, n_iter=30)
t.by("sph_harm_y", lambda a, b: S.special.sph_harm_y(
    jnp.array([2, 3, 1]), jnp.array([1, -2, 0]), a, b, n_max=3), p(3), n(3))  # fmt: skip
t("logsumexp", n(3, 4), axis=1, b=n(3, 4), return_sign=True)

linalg = Table("jax.scipy.linalg", ("float32", "float64", "complex64"))
t = linalg
t("cholesky det inv expm", matrix(4, 4))
t("lu polar", n(4, 4))
t("block_diag", n(2, 3), n(2, 2))
t.by("cho_factor cho_solve", lambda a, b: S.linalg.cho_solve(S.linalg.cho_factor(a), b),
     matrix(4, 4), n(4, 2))  # fmt: skip
t.by("lu_factor lu_solve", lambda a, b: S.linalg.lu_solve(S.linalg.lu_factor(a), b), n(4, 4), n(4))
t("circulant hankel fiedler fiedler_companion companion", p(4))
t("toeplitz", n(4), n(3))
t("leslie", p(4), p(3))
t("convolution_matrix", n(4), 5)
t("dft hadamard helmert hilbert invhilbert invpascal pascal", 4, types=SINGLE)
t.by("eigh", lambda a: S.linalg.eigh(a, eigvals_only=True), matrix(4, 4))
t.by("eigh_tridiagonal", lambda d, e: S.linalg.eigh_tridiagonal(d, e, eigvals_only=True), n(4),
     n(3), types=PAIR)  # fmt: skip
t("expm_frechet", n(3, 3), n(3, 3))
t.by("funm", lambda a: S.linalg.funm(a, jnp.exp), n(3, 3))
t("hessenberg schur sqrtm", n(4, 4))
t.by("rsf2csf", lambda a: jnp.abs(S.linalg.rsf2csf(*S.linalg.schur(a))[0]), n(3, 3), types=PAIR)
t("qr", n(4, 3))
t("qr_multiply", n(4, 4), n(4))
t("solve", n(4, 4), n(4, 2))
t("solve_sylvester", n(3, 3), matrix(3, 3), n(3, 3))
t("solve_triangular", matrix(4, 4), n(4, 2), lower=True)
t.by("svd", lambda a: S.linalg.svd(a, compute_uv=False), n(4, 3))

stats = Table("jax.scipy.stats", REAL)
t = stats
t("mode rankdata sem", n(3, 6))
t("mode sem", n(3, 6), axis=None)
t("rankdata", n(8), "dense")
for call in ("evaluate", "pdf", "logpdf"):
    t.by("gaussian_kde", lambda x, y, call=call: getattr(S.stats.gaussian_kde(x), call)(y), n(2, 9),
         n(2, 3), types=PAIR)  # fmt: skip
t.by("gaussian_kde", lambda x: S.stats.gaussian_kde(x[0], "silverman").integrate_box_1d(-1, 1),
     n(1, 9), types=PAIR)  # fmt: skip
t.by("gaussian_kde", lambda x, k: S.stats.gaussian_kde(x).resample(
    jax.random.wrap_key_data(k), (4,)), n(2, 9), i(2, dtype="uint32"), types=SINGLE)  # fmt: skip

DISTRIBUTIONS = {
    "bernoulli": (i(4, high=2), part(4)), "beta": (part(4), p(4), p(4)),
    "betabinom": (i(4), i(4, low=4, high=9), p(4), p(4)),
    "binom": (i(4), i(4, low=4, high=9), part(4)),
    "cauchy": (n(4), n(4), p(4)), "chi2": (p(4), p(4)), "expon": (p(4), n(), p()),
    "gamma": (p(4), p(4)), "gennorm": (n(4), p(4)), "geom": (i(4, low=1), part(4)),
    "gumbel_l": (n(4), n(4), p(4)), "gumbel_r": (n(4), n(4), p(4)), "laplace": (n(4), n(4), p(4)),
    "logistic": (n(4), n(4), p(4)), "nbinom": (i(4), p(4), part(4)), "norm": (n(4), n(4), p(4)),
    "pareto": (p(4), p(4)), "poisson": (i(4), p(4)), "t": (n(4), p(4)),
    "truncnorm": (n(4), f(4, kind="unit"), f(4, kind="positive")), "uniform": (n(4), n(4), p(4)),
    "vonmises": (n(4), p(4)), "wrapcauchy": (p(4), part(4)),
}  # fmt: skip
"""A place and parameters."""
distributions: list[Table] = []
for found in pkgutil.iter_modules(S.stats.__path__):
    module = importlib.import_module(f"jax.scipy.stats.{found.name}")
    t = Table(module.__name__, FLOATS)
    distributions.append(t)
    place, *parameters = DISTRIBUTIONS.get(found.name, (None,))
    for name, _ in inspect.getmembers(module, inspect.isroutine):
        if place is None or name.startswith("_"):
            continue
        first = part(4) if name in ("ppf", "isf") else place
        t(name, *([] if name == "entropy" else [first]), *parameters)
    if found.name == "dirichlet":
        t.by("pdf logpdf", lambda x, a: S.stats.dirichlet.logpdf(x / x.sum(), a), p(4), p(4))
    elif found.name == "multinomial":
        t.by("pmf logpmf", lambda q: S.stats.multinomial.logpmf(
            jnp.array([1, 2, 0]), 3, q / q.sum()), p(3))  # fmt: skip
    elif found.name == "multivariate_normal":
        t("pdf logpdf", n(5, 3), n(3), matrix(3, 3), types=PAIR)
        t("pdf logpdf", n(5, 3), n(3), p(), types=PAIR)

signal = Table("jax.scipy.signal", INEXACT)
t = signal
for mode in ("full", "same", "valid"):
    t("convolve correlate convolve2d correlate2d fftconvolve", n(6, 7), n(3, 2), mode=mode)
t("convolve correlate", n(9), n(4), method="fft")
t("detrend", n(3, 8), types=FLOATS)
t("detrend", n(3, 8), type="constant", bp=4, types=FLOATS)
t("stft welch", n(2, 40), nperseg=8, types=("float32", "float64", "complex64"))
t("stft", n(40), window="hann", nperseg=8, noverlap=2, padded=False, types=PAIR)
t("csd", n(40), n(40), nperseg=8, types=("float32", "float64", "complex64"))
t("welch", n(40), nperseg=8, average="median", scaling="spectrum", types=PAIR)
t("istft", n(5, 9), nperseg=8, types=("complex64",))

ndimage = Table("jax.scipy.ndimage", ("float32", "float64", "int32", "complex64"))
for mode in ("constant", "nearest", "wrap", "mirror", "reflect"):
    for order in (0, 1):
        ndimage("map_coordinates", n(4, 5), [f(6, kind="positive"), f(6)], order, mode)

fft = Table("jax.scipy.fft", PAIR)
t = fft
t("dct idct", n(3, 8))
t("dct idct", n(3, 7), n=5, axis=0, norm="ortho")
t("dctn idctn", n(3, 8), norm="ortho")

integrate = Table("jax.scipy.integrate", REAL)
integrate("trapezoid", n(3, 5))
integrate("trapezoid", n(3, 5), rising(3), axis=0)

interpolate = Table("jax.scipy.interpolate", PAIR)
for method in ("linear", "nearest"):
    interpolate.by("RegularGridInterpolator", lambda x, y, v, q, method=method: (
        RegularGridInterpolator((x, y), v, method=method, bounds_error=False)(q)),
        rising(4), rising(5), n(4, 5), n(3, 2))  # fmt: skip

vq = Table("jax.scipy.cluster.vq", PAIR)
vq("vq", n(6, 2), n(3, 2))

optimize = Table("jax.scipy.optimize", PAIR)
optimize.by(
    "minimize",
    lambda x: minimize(lambda v: ((v - 1) ** 2 * jnp.array([1.0, 4, 9])).sum(), x, method="BFGS").x,
    n(3),
)
optimize.none("a type", "OptimizeResults")

sparse = Table("jax.scipy.sparse.linalg", PAIR)
sparse("cg bicgstab gmres", matrix(4, 4), n(4))
sparse("gmres", matrix(4, 4), n(4), solve_method="incremental", restart=3)

transform = Table("jax.scipy.spatial.transform", PAIR)
t = transform
t.by("Rotation", lambda q: (R.from_quat(q).as_matrix(), R.from_quat(q).as_rotvec(),
                            R.from_quat(q).as_euler("xyz"), R.from_quat(q).as_mrp(),
                            R.from_quat(q).magnitude()), n(3, 4))  # fmt: skip
t.by("Rotation", lambda a, v: ((R.from_euler("xyz", a) * R.from_rotvec(a)).inv().apply(v),
                               R.from_rotvec(a).mean().as_quat()), n(3, 3), n(3, 3))  # fmt: skip
t.by("Rotation", lambda a: R.from_matrix(R.from_rotvec(a).as_matrix()).as_quat(canonical=True),
     n(3, 3))  # fmt: skip
t.by("Slerp", lambda x, a, y: cast(Any, Slerp.init(x, R.from_rotvec(a))(y)).as_quat(),
     rising(4), n(4, 3), part(3))  # fmt: skip
