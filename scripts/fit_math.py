#!/usr/bin/env python3
"""Fit the polynomials of src/kernels/math_int.h.

Remez exchange with mpmath, relative error, unknown coefficients only (the leading ones are fixed by the form), then
rounding of each coefficient to the target precision.  Prints C literals and the error that is left.
"""
import struct
import mpmath as mp

mp.mp.dps = 40


def to_f32(v):
    return mp.mpf(struct.unpack("f", struct.pack("f", float(v)))[0])


def remez(target, weight, a, b, n):
    """Coefficients c[0..n) of sum c_i t^i with the least maximum of |weight * (poly - target)| on [a, b]."""
    nodes = [(a + b) / 2 + (b - a) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * (n + 1))) for i in range(n + 1)]
    for _ in range(30):
        m = mp.matrix(n + 1, n + 1)
        rhs = mp.matrix(n + 1, 1)
        for i, t in enumerate(nodes):
            for j in range(n):
                m[i, j] = t**j
            m[i, n] = (-1) ** i / weight(t)
            rhs[i] = target(t)
        sol = mp.lu_solve(m, rhs)
        c = [sol[j] for j in range(n)]
        err = lambda t: weight(t) * (mp.polyval(c[::-1], t) - target(t))
        grid = [a + (b - a) * mp.mpf(i) / 2000 for i in range(2001)]
        vals = [err(t) for t in grid]
        peaks, start = [], 0
        for i in range(1, 2002):
            if i == 2001 or vals[i] * vals[start] < 0:
                k = max(range(start, i), key=lambda q: abs(vals[q]))
                peaks.append(grid[k])
                start = i
        if len(peaks) < n + 1:
            break
        best = max(range(len(peaks) - n), key=lambda s: min(abs(err(t)) for t in peaks[s : s + n + 1]))
        new = peaks[best : best + n + 1]
        if max(abs(x - y) for x, y in zip(new, nodes)) < (b - a) / 2000:
            break
        nodes = new
    return c


def report(name, c, approx, exact, a, b):
    c = [to_f32(x) for x in c]
    worst = max(abs(approx(c, t) / exact(t) - 1) for t in [a + (b - a) * mp.mpf(i) / 4001 for i in range(1, 4001)] if t)
    print(name, "relative error 2^%.2f" % float(mp.log(worst, 2)))
    for x in c:
        print("   ", float(x).hex())


tiny = mp.mpf(10) ** -9
# exp(r) = 1 + r + r^2 q(r)
R = mp.log(2) / 2 * mp.mpf("1.0001")
q = lambda r: (mp.exp(r) - 1 - r) / r**2 if abs(r) > tiny else mp.mpf(1) / 2 + r / 6
c = remez(q, lambda r: r**2 / mp.exp(r) if abs(r) > tiny else tiny**2, -R, R, 5)
report("exp", c, lambda c, r: 1 + r + r * r * mp.polyval(c[::-1], r), mp.exp, -R, R)

# tanh(x) = x + x^3 p(x^2)
T = mp.mpf("0.625")
p = lambda u: (mp.tanh(mp.sqrt(u)) / mp.sqrt(u) - 1) / u if u > tiny else -mp.mpf(1) / 3 + 2 * u / 15
c = remez(p, lambda u: u * mp.sqrt(u) / mp.tanh(mp.sqrt(u)) if u > tiny else tiny, mp.mpf(0), T**2, 5)
report("tanh", c, lambda c, x: x + x**3 * mp.polyval(c[::-1], x * x), mp.tanh, mp.mpf(0), T)

ln2 = mp.log(2)
hi = mp.floor(ln2 * 2**15) / 2**15  # 15 bits: n * hi is exact in f32 for |n| < 512
print("f32 ln2", float(hi).hex(), float(to_f32(ln2 - hi)).hex(), "log2e", float(to_f32(1 / ln2)).hex())
hi = mp.floor(ln2 * 2**40) / 2**40  # 40 bits: n * hi is exact in f64 for |n| < 8192
print("f64 ln2", float(hi).hex(), float(ln2 - hi).hex(), "log2e", float(1 / ln2).hex())
P = mp.mpf(float(mp.pi / 2))
print("pi/2", float(P).hex(), float(mp.pi / 2 - P).hex(), "2/pi", float(2 / mp.pi).hex())
print("sqrt(2/pi)*2", float(to_f32(2 * mp.sqrt(2 / mp.pi))).hex(), "*0.044715", float(to_f32(2 * mp.sqrt(2 / mp.pi) * mp.mpf("0.044715"))).hex())
