"""HIP's functions of integers and floats, for a clang without ROCm's headers and device library.

See `vocabulary` for how names are defined. Some functions compute in double where ROCm's library uses float, because
that is shorter. tests/test_hip_vocabulary.py checks each function against double precision.
"""

from __future__ import annotations

INTEGERS = r"""
template <class A, class B> __device__ inline auto min(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) T;
    if constexpr (podium_among<T, float, double>) return __builtin_elementwise_min((T)a, (T)b);
    else return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B> __device__ inline auto max(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) T;
    if constexpr (podium_among<T, float, double>) return __builtin_elementwise_max((T)a, (T)b);
    else return (T)a < (T)b ? (T)b : (T)a;
}
template <class T> __device__ inline auto abs(T x) -> decltype(+x) { return __builtin_elementwise_abs(+x); }
PODIUM_OWN int __popc(unsigned x) { return __builtin_popcount(x); }
PODIUM_OWN int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
PODIUM_OWN int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
PODIUM_OWN int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
PODIUM_OWN int __ffs(int x) { return __builtin_ffs(x); }
PODIUM_OWN int __ffsll(long long x) { return __builtin_ffsll(x); }
PODIUM_OWN unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
PODIUM_OWN unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
PODIUM_OWN int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
PODIUM_OWN unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
PODIUM_OWN int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
PODIUM_OWN unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
PODIUM_OWN int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
PODIUM_OWN unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
PODIUM_OWN float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
PODIUM_OWN float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
PODIUM_OWN long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
PODIUM_OWN double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
PODIUM_OWN int __float2int_rn(float x) { return (int)__builtin_elementwise_roundeven(x); }
PODIUM_OWN int __float2int_rz(float x) { return (int)x; }
PODIUM_OWN int __float2int_rd(float x) { return (int)__builtin_elementwise_floor(x); }
PODIUM_OWN int __float2int_ru(float x) { return (int)__builtin_elementwise_ceil(x); }
PODIUM_OWN float __int2float_rn(int x) { return (float)x; }
PODIUM_OWN float __uint2float_rn(unsigned x) { return (float)x; }
template <class T> __device__ inline T __ldg(const T* address) { return *address; }
"""

MATHEMATICS = r"""
#define PODIUM_PLAIN(name, builtin)                                                                      \
    PODIUM_OWN float name##f(float x) { return builtin(x); }                                             \
    PODIUM_OWN float name(float x) { return builtin(x); }                                                \
    PODIUM_OWN double name(double x) { return builtin(x); }
PODIUM_PLAIN(fabs, __builtin_elementwise_abs)
PODIUM_PLAIN(floor, __builtin_elementwise_floor)
PODIUM_PLAIN(ceil, __builtin_elementwise_ceil)
PODIUM_PLAIN(trunc, __builtin_elementwise_trunc)
PODIUM_PLAIN(round, __builtin_elementwise_round)
PODIUM_PLAIN(rint, __builtin_elementwise_roundeven)
PODIUM_PLAIN(sqrt, __builtin_elementwise_sqrt)
PODIUM_OWN float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PODIUM_OWN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PODIUM_OWN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
PODIUM_OWN float fminf(float a, float b) { return __builtin_fminf(a, b); }
PODIUM_OWN float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
template <class A, class B> __device__ inline auto fmin(A a, B b) { return min(1.0f * a, 1.0f * b); }
template <class A, class B> __device__ inline auto fmax(A a, B b) { return max(1.0f * a, 1.0f * b); }
PODIUM_OWN float copysignf(float a, float b) { return __builtin_copysignf(a, b); }
template <class T> __device__ inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T> __device__ inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T> __device__ inline bool isfinite(T x) { return __builtin_isfinite(x); }

PODIUM_OWN float rsqrtf(float x) {
    bool small = x < 0x1p-100f;  // the instruction takes denormals as 0
    float root = __builtin_amdgcn_rsqf(small ? x * 0x1p+24f : x);
    return small ? root * 0x1p+12f : root;
}
// One instruction and a product: results or arguments under 2^-126 are taken as 0.
PODIUM_OWN float __expf(float x) { return exp2_fast(x * 1.44269504f); }
PODIUM_OWN float __exp10f(float x) { return exp2_fast(x * 3.32192809f); }
PODIUM_OWN float __log2f(float x) { return __builtin_amdgcn_logf(x); }
PODIUM_OWN float __logf(float x) { return __builtin_amdgcn_logf(x) * 0.693147181f; }
PODIUM_OWN float __log10f(float x) { return __builtin_amdgcn_logf(x) * 0.301029996f; }
PODIUM_OWN float __powf(float x, float y) { return exp2_fast(y * __builtin_amdgcn_logf(x)); }
PODIUM_OWN float __sinf(float x) { return __builtin_amdgcn_sinf(__builtin_amdgcn_fractf(x * 0.159154943f)); }
PODIUM_OWN float __cosf(float x) { return __builtin_amdgcn_cosf(__builtin_amdgcn_fractf(x * 0.159154943f)); }
PODIUM_OWN float __fdividef(float a, float b) { return a * __builtin_amdgcn_rcpf(b); }
PODIUM_OWN float __frcp_rn(float x) { return 1.0f / x; }
PODIUM_OWN float __fsqrt_rn(float x) { return sqrtf(x); }
PODIUM_OWN float __frsqrt_rn(float x) { return rsqrtf(x); }
PODIUM_OWN float __fadd_rn(float a, float b) { return a + b; }
PODIUM_OWN float __fsub_rn(float a, float b) { return a - b; }
PODIUM_OWN float __fmul_rn(float a, float b) { return a * b; }
PODIUM_OWN float __fdiv_rn(float a, float b) { return a / b; }
PODIUM_OWN float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PODIUM_OWN float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

PODIUM_OWN float expf(float x) { return __builtin_elementwise_exp(x); }
PODIUM_OWN float exp2f(float x) { return __builtin_elementwise_exp2(x); }
PODIUM_OWN float logf(float x) { return __builtin_elementwise_log(x); }
PODIUM_OWN float log2f(float x) { return __builtin_elementwise_log2(x); }
PODIUM_OWN float log10f(float x) { return __builtin_elementwise_log10(x); }

// Double precision stands in for ROCm's device library below: within 2 units in the last place.
PODIUM_OWN float podium_sine(float x, int quarters) {
    double turn = __builtin_elementwise_roundeven(x * 0x1.45f306dc9c883p-1);
    double r = __builtin_fma(-turn, 0x1.1a62633145c07p-54, __builtin_fma(-turn, 0x1.921fb54442d18p+0, (double)x));
    int quarter = ((int)(turn - 4.0 * __builtin_elementwise_floor(turn * 0.25)) + quarters) & 3;
    double s = r * r;
    double sine = r + r * s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880 - s / 39916800))));
    double cosine = 1.0 + s * (-1.0 / 2 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 - s / 3628800))));
    double found = quarter & 1 ? cosine : sine;
    return (float)(quarter & 2 ? -found : found);
}
PODIUM_OWN float sinf(float x) { return podium_sine(x, 0); }
PODIUM_OWN float cosf(float x) { return podium_sine(x, 1); }
PODIUM_OWN void sincosf(float x, float* sine, float* cosine) { *sine = sinf(x); *cosine = cosf(x); }
PODIUM_OWN float tanhf(float x) {
    float z = x * x, large = 1.0f - 2.0f / (expf(2.0f * fabsf(x)) + 1.0f);
    float p = fmaf(fmaf(fmaf(fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f), z, -5.37397155531e-2f), z,
                        1.33314422036e-1f), z, -3.33332819422e-1f);  // Cephes, tanhf
    return copysignf(fabsf(x) < 0.625f ? fmaf(p * z, x, x) : large, x);
}
PODIUM_OWN float erff(float x) {
    float t = fabsf(x), s = x * x;
    float r = fmaf(fmaf(-1.72853470e-5f, t, 3.83197126e-4f), s, fmaf(-3.88396438e-3f, t, 2.42546219e-2f));
    r = fmaf(fmaf(fmaf(fmaf(r, t, -1.06777877e-1f), t, -6.34846687e-1f), t, -1.28717512e-1f), t, -t);
    float large = copysignf(1.0f - expf(r), x);
    float p = fmaf(fmaf(fmaf(-5.96761703e-4f, s, 4.99119423e-3f), s, -2.67681349e-2f), s, 1.12819925e-1f);
    p = fmaf(fmaf(fmaf(p, s, -3.76125336e-1f), s, 1.28379166e-1f), x, x);
    return t > 0.927734375f ? large : p;
}
PODIUM_OWN float powf(float x, float y) {
    float size = fabsf(x);
    bool whole = y == truncf(y), odd = whole && fabsf(y) < 0x1p+24f && ((int)y & 1);
    if (y == 0.0f || x == 1.0f) return 1.0f;
    if (isnan(x) || isnan(y)) return x + y;
    float sign = x < 0.0f || (x == 0.0f && __builtin_signbit(x)) ? (odd ? -1.0f : 1.0f) : 1.0f;
    if (size == 0.0f || isinf(x)) return sign * ((size == 0.0f) == (y > 0.0f) ? 0.0f : __builtin_inff());
    if (size == 1.0f) return whole ? sign : __builtin_nanf("");
    if (x < 0.0f && !whole) return __builtin_nanf("");
    long long bits = __builtin_bit_cast(long long, (double)size);
    long long exponent = (bits - 0x3fe6a09e667f3bcdll) >> 52;  // of the root of 1/2: m lies from it to the root of 2
    double m = __builtin_bit_cast(double, bits - (exponent << 52)), a = (m - 1.0) / (m + 1.0), s = a * a;
    double l = 1.0 / 7 + s * (1.0 / 9 + s * (1.0 / 11 + s * (1.0 / 13 + s / 15)));
    l = a * (1.0 + s * (1.0 / 3 + s * (1.0 / 5 + s * l)));
    double t = y * ((double)exponent + l * 2.8853900817779268);
    t = t > 200.0 ? 200.0 : t < -200.0 ? -200.0 : t;
    double n = __builtin_elementwise_roundeven(t), f = (t - n) * 0.69314718055994531;
    double e = 1.0 + f * (1.0 + f * (1.0 / 2 + f * (1.0 / 6 + f * (1.0 / 24 + f * (1.0 / 120 + f * (1.0 / 720 +
                   f * (1.0 / 5040 + f * (1.0 / 40320 + f / 362880))))))));
    return sign * (float)(e * __builtin_bit_cast(double, ((long long)n + 1023) << 52));
}
PODIUM_OWN float exp10f(float x) { return powf(10.0f, x); }  // clang 19 has no builtin for it
#define PODIUM_OF_FLOAT(name)                                                                            \
    PODIUM_OWN float name(float x) { return name##f(x); }                                                \
    PODIUM_OWN double name(double) = delete;
PODIUM_OF_FLOAT(rsqrt)
PODIUM_OF_FLOAT(exp)
PODIUM_OF_FLOAT(exp2)
PODIUM_OF_FLOAT(log)
PODIUM_OF_FLOAT(log2)
PODIUM_OF_FLOAT(log10)
PODIUM_OF_FLOAT(sin)
PODIUM_OF_FLOAT(cos)
PODIUM_OF_FLOAT(tanh)
PODIUM_OF_FLOAT(erf)
PODIUM_OWN float pow(float x, float y) { return powf(x, y); }
PODIUM_OWN double pow(double, double) = delete;
"""
