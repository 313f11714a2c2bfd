"""HIP's 16-bit floats, `__half` and `__half2`, for a clang that has no ROCm headers.

`vocabulary` says how its names are defined. Semantics are those of ROCm's amd_hip_fp16.h: operators round to float16
after each operation, and an operation on a `__half` and a float is ambiguous there as well. Quotients and functions are
computed in float and rounded once. hipRTC brings all of these itself, and not `__hip_bfloat16` (HIPRTC.cmake of
ROCm/clr), so that type is not here.
"""

from __future__ import annotations

HALVES = r"""
struct __half_raw { union { _Float16 data; unsigned short x; }; };
struct __half {
    _Float16 podium_value;
    __half() = default;
    __host__ __device__ constexpr __half(__half_raw raw) : podium_value(raw.data) {}
    template <class T> __host__ __device__ constexpr __half(T x) : podium_value((_Float16)x) {
        static_assert(podium_arithmetic<T>, "a __half is made of a number");
    }
    __host__ __device__ constexpr operator __half_raw() const { return __half_raw{podium_value}; }
    template <class T, class = typename podium_if<podium_arithmetic<T>>::type>
    __host__ __device__ constexpr operator T() const { return (T)podium_value; }
#define PODIUM_HALF_OPERATOR(op, value)                                                                  \
    friend __device__ constexpr __half operator op(__half a, __half b) { return __half(value); }         \
    __device__ constexpr __half& operator op##=(__half b) { return *this = *this op b; }
    PODIUM_HALF_OPERATOR(+, (_Float16)(a.podium_value + b.podium_value))
    PODIUM_HALF_OPERATOR(-, (_Float16)(a.podium_value - b.podium_value))
    PODIUM_HALF_OPERATOR(*, (_Float16)(a.podium_value * b.podium_value))
    PODIUM_HALF_OPERATOR(/, (float)a.podium_value / (float)b.podium_value)
    __device__ constexpr __half operator+() const { return *this; }
    __device__ constexpr __half operator-() const { return __half((_Float16)-podium_value); }
#define PODIUM_HALF_ORDER(op)                                                                            \
    friend __device__ constexpr bool operator op(__half a, __half b) { return a.podium_value op b.podium_value; }
    PODIUM_HALF_ORDER(==) PODIUM_HALF_ORDER(!=) PODIUM_HALF_ORDER(<)
    PODIUM_HALF_ORDER(>) PODIUM_HALF_ORDER(<=) PODIUM_HALF_ORDER(>=)
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __host__ __device__ constexpr __half2(__half x, __half y) : x(x), y(y) {}
#define PODIUM_HALF2_OPERATOR(op)                                                                        \
    friend __device__ constexpr __half2 operator op(__half2 a, __half2 b) { return {a.x op b.x, a.y op b.y}; } \
    __device__ constexpr __half2& operator op##=(__half2 b) { return *this = *this op b; }
    PODIUM_HALF2_OPERATOR(+) PODIUM_HALF2_OPERATOR(-) PODIUM_HALF2_OPERATOR(*) PODIUM_HALF2_OPERATOR(/)
    __device__ constexpr __half2 operator-() const { return {-x, -y}; }
    friend __device__ constexpr bool operator==(__half2 a, __half2 b) { return a.x == b.x && a.y == b.y; }
    friend __device__ constexpr bool operator!=(__half2 a, __half2 b) { return !(a == b); }
};
typedef __half half;
typedef __half2 half2;

PODIUM_OWN __half __float2half(float x) { return __half(x); }
PODIUM_OWN __half __float2half_rn(float x) { return __half(x); }
PODIUM_OWN float __half2float(__half x) { return (float)x.podium_value; }
PODIUM_OWN __half __int2half_rn(int x) { return __half(x); }
PODIUM_OWN int __half2int_rz(__half x) { return (int)x.podium_value; }
PODIUM_OWN short __half_as_short(__half x) { return __builtin_bit_cast(short, x); }
PODIUM_OWN unsigned short __half_as_ushort(__half x) { return __builtin_bit_cast(unsigned short, x); }
PODIUM_OWN __half __short_as_half(short x) { return __builtin_bit_cast(__half, x); }
PODIUM_OWN __half __ushort_as_half(unsigned short x) { return __builtin_bit_cast(__half, x); }

PODIUM_OWN __half2 make_half2(__half x, __half y) { return __half2(x, y); }
PODIUM_OWN __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
PODIUM_OWN __half2 __half2half2(__half x) { return __half2(x, x); }
PODIUM_OWN __half2 __float2half2_rn(float x) { return __half2(x, x); }
PODIUM_OWN __half2 __floats2half2_rn(float x, float y) { return __half2(x, y); }
PODIUM_OWN __half2 __float22half2_rn(float2 x) { return __half2(x.x, x.y); }
PODIUM_OWN float2 __half22float2(__half2 x) { return make_float2(__half2float(x.x), __half2float(x.y)); }
PODIUM_OWN float __low2float(__half2 x) { return __half2float(x.x); }
PODIUM_OWN float __high2float(__half2 x) { return __half2float(x.y); }
PODIUM_OWN __half __low2half(__half2 x) { return x.x; }
PODIUM_OWN __half __high2half(__half2 x) { return x.y; }
PODIUM_OWN __half2 __low2half2(__half2 x) { return __half2(x.x, x.x); }
PODIUM_OWN __half2 __high2half2(__half2 x) { return __half2(x.y, x.y); }
PODIUM_OWN __half2 __lows2half2(__half2 x, __half2 y) { return __half2(x.x, y.x); }
PODIUM_OWN __half2 __highs2half2(__half2 x, __half2 y) { return __half2(x.y, y.y); }
PODIUM_OWN __half2 __lowhigh2highlow(__half2 x) { return __half2(x.y, x.x); }

#define PODIUM_HALF(name, op)                                                                            \
    PODIUM_OWN __half name(__half a, __half b) { return a op b; }                                        \
    PODIUM_OWN __half2 name##2(__half2 a, __half2 b) { return a op b; }
PODIUM_HALF(__hadd, +)
PODIUM_HALF(__hsub, -)
PODIUM_HALF(__hmul, *)
PODIUM_OWN __half __hdiv(__half a, __half b) { return a / b; }
PODIUM_OWN __half2 __h2div(__half2 a, __half2 b) { return a / b; }
PODIUM_OWN __half __hneg(__half a) { return -a; }
PODIUM_OWN __half2 __hneg2(__half2 a) { return -a; }
PODIUM_OWN __half __habs(__half a) { return __half(__builtin_elementwise_abs(a.podium_value)); }
PODIUM_OWN __half2 __habs2(__half2 a) { return __half2(__habs(a.x), __habs(a.y)); }
PODIUM_OWN __half __hfma(__half a, __half b, __half c) {
    return __half(__builtin_elementwise_fma(a.podium_value, b.podium_value, c.podium_value));
}
PODIUM_OWN __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
#define PODIUM_HALF_TEST(name, op)                                                                       \
    PODIUM_OWN bool name(__half a, __half b) { return a op b; }
PODIUM_HALF_TEST(__heq, ==)
PODIUM_HALF_TEST(__hne, !=)
PODIUM_HALF_TEST(__hlt, <)
PODIUM_HALF_TEST(__hle, <=)
PODIUM_HALF_TEST(__hgt, >)
PODIUM_HALF_TEST(__hge, >=)
PODIUM_OWN bool __hisnan(__half a) { return __builtin_isnan(__half2float(a)); }
PODIUM_OWN int __hisinf(__half a) { return __builtin_isinf(__half2float(a)); }
PODIUM_OWN __half __hmax(__half a, __half b) { return __half(fmaxf(__half2float(a), __half2float(b))); }
PODIUM_OWN __half __hmin(__half a, __half b) { return __half(fminf(__half2float(a), __half2float(b))); }
#define PODIUM_HALF_OF_FLOAT(name, function)                                                             \
    PODIUM_OWN __half h##name(__half x) { return __half(function(__half2float(x))); }                    \
    PODIUM_OWN __half2 h2##name(__half2 x) { return __half2(h##name(x.x), h##name(x.y)); }
PODIUM_HALF_OF_FLOAT(exp, expf)
PODIUM_HALF_OF_FLOAT(exp2, exp2f)
PODIUM_HALF_OF_FLOAT(log, logf)
PODIUM_HALF_OF_FLOAT(log2, log2f)
PODIUM_HALF_OF_FLOAT(sqrt, sqrtf)
PODIUM_HALF_OF_FLOAT(rsqrt, rsqrtf)
PODIUM_HALF_OF_FLOAT(rcp, __frcp_rn)
PODIUM_HALF_OF_FLOAT(ceil, ceilf)
PODIUM_HALF_OF_FLOAT(floor, floorf)
PODIUM_HALF_OF_FLOAT(trunc, truncf)
PODIUM_HALF_OF_FLOAT(rint, rintf)
"""
