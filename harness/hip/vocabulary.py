"""HIP's own names, for a clang without ROCm's headers. They are part of the prelude there. hipRTC defines them itself.

Each name is a template, even without a parameter that matters. So a source may define a function with the same name and
arguments: overload resolution prefers a function that is not a template. Semantics are those of ROCm's headers
(amd_warp_functions.h, amd_device_functions.h, amd_hip_atomic.h, amd_hip_vector_types.h). docs/hip.md lists the names.
"""

from __future__ import annotations

import re

from harness.command import page
from harness.hip.halves import HALVES
from harness.hip.mathematics import INTEGERS, MATHEMATICS

QUALIFIERS = r"""
#define __host__ __attribute__((host))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
typedef podium_dim3 dim3;
typedef __SIZE_TYPE__ size_t;
#define PODIUM_OWN template <class = void> __device__ inline
template <class T> struct podium_same { typedef T type; };
template <class T, class... Ts> inline constexpr bool podium_among = (__is_same(T, Ts) || ...);
template <bool> struct podium_if {};
template <> struct podium_if<true> { typedef void type; };
template <class T>
inline constexpr bool podium_arithmetic = __is_integral(T) || __is_floating_point(T) || __is_same(T, _Float16);
"""

WAVES = r"""
inline constexpr int warpSize = WAVE_SIZE;
PODIUM_OWN unsigned __lane_id() { return lane_id(); }
PODIUM_OWN unsigned long long __ballot(int predicate) {
#if WAVE_SIZE == 64
    return __builtin_amdgcn_ballot_w64(predicate != 0);
#else
    return __builtin_amdgcn_ballot_w32(predicate != 0);
#endif
}
PODIUM_OWN unsigned long long __ballot64(int predicate) { return __ballot(predicate); }
PODIUM_OWN unsigned long long __activemask() { return __ballot(1); }
PODIUM_OWN int __any(int predicate) { return __ballot(predicate) != 0; }
PODIUM_OWN int __all(int predicate) { return __ballot(predicate) == __ballot(1); }

template <class T> __device__ inline T podium_of_lane(T value, int lane) {
    static_assert(podium_among<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double>,
                  "a shuffle takes int, unsigned, long, unsigned long, long long, unsigned long long, float or double");
    if constexpr (sizeof(T) == 4) {
        return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane << 2, __builtin_bit_cast(int, value)));
    } else {
        long long bits = __builtin_bit_cast(long long, value);
        unsigned low = __builtin_amdgcn_ds_bpermute(lane << 2, (int)bits);
        unsigned high = __builtin_amdgcn_ds_bpermute(lane << 2, (int)(bits >> 32));
        return __builtin_bit_cast(T, (unsigned long long)high << 32 | low);
    }
}
// Each group of `width` lanes is by itself. Whoever would read outside of it is given its own value.
template <class T> __device__ inline auto __shfl(T value, int source, int width = WAVE_SIZE) {
    return podium_of_lane(+value, (source & (width - 1)) + (lane_id() & ~(width - 1)));
}
template <class T> __device__ inline auto __shfl_up(T value, unsigned delta, int width = WAVE_SIZE) {
    int self = lane_id(), from = self - (int)delta;
    return podium_of_lane(+value, from < (self & ~(width - 1)) ? self : from);
}
template <class T> __device__ inline auto __shfl_down(T value, unsigned delta, int width = WAVE_SIZE) {
    int self = lane_id();
    return podium_of_lane(+value, (int)((self & (width - 1)) + delta) >= width ? self : self + (int)delta);
}
template <class T> __device__ inline auto __shfl_xor(T value, int mask, int width = WAVE_SIZE) {
    int self = lane_id(), from = self ^ mask;
    return podium_of_lane(+value, from >= ((self + width) & ~(width - 1)) ? self : from);
}
// As ROCm's: masks have 64 bits, also where a wave has 32 lanes.
#define PODIUM_MASKED template <class Mask, class T> __device__ inline auto
#define PODIUM_MASK static_assert(sizeof(Mask) == 8, "the mask must be a 64-bit integer")
PODIUM_MASKED __shfl_sync(Mask, T value, int source, int width = WAVE_SIZE) {
    PODIUM_MASK; return __shfl(value, source, width); }
PODIUM_MASKED __shfl_up_sync(Mask, T value, unsigned delta, int width = WAVE_SIZE) {
    PODIUM_MASK; return __shfl_up(value, delta, width); }
PODIUM_MASKED __shfl_down_sync(Mask, T value, unsigned delta, int width = WAVE_SIZE) {
    PODIUM_MASK; return __shfl_down(value, delta, width); }
PODIUM_MASKED __shfl_xor_sync(Mask, T value, int lanes, int width = WAVE_SIZE) {
    PODIUM_MASK; return __shfl_xor(value, lanes, width); }
// Of a wave of 32 lanes the upper half of a mask says nothing.
template <class Mask> __device__ inline unsigned long long podium_lanes(Mask mask) {
    PODIUM_MASK; return mask & (~0ull >> (64 - WAVE_SIZE)); }
PODIUM_MASKED __ballot_sync(Mask mask, T predicate) { return __ballot(predicate != 0) & podium_lanes(mask); }
PODIUM_MASKED __any_sync(Mask mask, T predicate) { return (int)(__ballot_sync(mask, predicate) != 0); }
PODIUM_MASKED __all_sync(Mask mask, T predicate) { return (int)(__ballot_sync(mask, predicate) == podium_lanes(mask)); }

PODIUM_OWN void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
PODIUM_OWN void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
PODIUM_OWN void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
PODIUM_OWN void __syncwarp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
"""

ATOMICS = r"""
// Relaxed, for all of the device, as ROCm's are. They return what was there.
#define PODIUM_ATOMIC(name, operation, ...)                                                               \
    template <class T> __device__ inline T name(T* address, typename podium_same<T>::type value) {       \
        static_assert(podium_among<T, __VA_ARGS__>, #name " takes a pointer to one of " #__VA_ARGS__);   \
        return operation(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);                    \
    }
PODIUM_ATOMIC(atomicAdd, __hip_atomic_fetch_add, int, unsigned, unsigned long, unsigned long long, float, double)
PODIUM_ATOMIC(unsafeAtomicAdd, __hip_atomic_fetch_add, float, double)
PODIUM_ATOMIC(atomicExch, __hip_atomic_exchange, int, unsigned, unsigned long, unsigned long long, float, double)
PODIUM_ATOMIC(atomicMin, __hip_atomic_fetch_min, int, unsigned, long long, unsigned long, unsigned long long, float,
              double)
PODIUM_ATOMIC(atomicMax, __hip_atomic_fetch_max, int, unsigned, long long, unsigned long, unsigned long long, float,
              double)
PODIUM_ATOMIC(atomicAnd, __hip_atomic_fetch_and, int, unsigned, unsigned long, unsigned long long)
PODIUM_ATOMIC(atomicOr, __hip_atomic_fetch_or, int, unsigned, unsigned long, unsigned long long)
PODIUM_ATOMIC(atomicXor, __hip_atomic_fetch_xor, int, unsigned, unsigned long, unsigned long long)
template <class T> __device__ inline T atomicSub(T* address, typename podium_same<T>::type value) {
    return atomicAdd(address, (T)-value);
}
template <class T>
__device__ inline T atomicCAS(T* address, typename podium_same<T>::type old, typename podium_same<T>::type value) {
    static_assert(podium_among<T, int, unsigned, unsigned long, unsigned long long>,
                  "atomicCAS takes a pointer to one of int, unsigned, unsigned long, unsigned long long");
    __hip_atomic_compare_exchange_strong(address, &old, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_AGENT);
    return old;
}
// Up to `last`, then 0 again; down to 0, then `last` again.
PODIUM_OWN unsigned atomicInc(unsigned* address, unsigned last) {
    return __builtin_amdgcn_atomic_inc32(address, last, __ATOMIC_RELAXED, "agent");
}
PODIUM_OWN unsigned atomicDec(unsigned* address, unsigned last) {
    return __builtin_amdgcn_atomic_dec32(address, last, __ATOMIC_RELAXED, "agent");
}
"""

VECTORS = r"""
// Of 2 and 4 values aligned as a whole, of 3 as one value. Arithmetic goes value by value.
#define PODIUM_VECTOR(N, alignment, members, arguments, given, splat)                                    \
    template <class T> struct alignas(alignment) HIP_vector_type<T, N> {                                 \
        T members;                                                                                       \
        HIP_vector_type() = default;                                                                     \
        __host__ __device__ constexpr HIP_vector_type arguments given {}                                 \
        splat                                                                                            \
    };
#define PODIUM_L(...) __VA_ARGS__
#define PODIUM_SPLAT(given) __host__ __device__ explicit constexpr HIP_vector_type(T s) given {}
PODIUM_VECTOR(1, sizeof(T), x, (T x), : x(x), )
PODIUM_VECTOR(2, 2 * sizeof(T), PODIUM_L(x, y), (T x, T y), PODIUM_L(: x(x), y(y)),
              PODIUM_SPLAT(PODIUM_L(: x(s), y(s))))
PODIUM_VECTOR(3, sizeof(T), PODIUM_L(x, y, z), (T x, T y, T z), PODIUM_L(: x(x), y(y), z(z)),
              PODIUM_SPLAT(PODIUM_L(: x(s), y(s), z(s))))
PODIUM_VECTOR(4, 4 * sizeof(T), PODIUM_L(x, y, z, w), (T x, T y, T z, T w), PODIUM_L(: x(x), y(y), z(z), w(w)),
              PODIUM_SPLAT(PODIUM_L(: x(s), y(s), z(s), w(s))))
template <class T, int N> using podium_vector = HIP_vector_type<T, N>;
#define PODIUM_EACH template <class T, int N> __device__ constexpr podium_vector<T, N>
#define PODIUM_ONE typename podium_same<T>::type
#define PODIUM_OPERATOR(op)                                                                              \
    PODIUM_EACH& operator op##=(podium_vector<T, N>& a, podium_vector<T, N> b) {                         \
        a.x = a.x op b.x;                                                                                \
        if constexpr (N > 1) a.y = a.y op b.y;                                                           \
        if constexpr (N > 2) a.z = a.z op b.z;                                                           \
        if constexpr (N > 3) a.w = a.w op b.w;                                                           \
        return a;                                                                                        \
    }                                                                                                    \
    PODIUM_EACH& operator op##=(podium_vector<T, N>& a, PODIUM_ONE b) {                                  \
        return a op##= podium_vector<T, N>(b);                                                           \
    }                                                                                                    \
    PODIUM_EACH operator op(podium_vector<T, N> a, podium_vector<T, N> b) { return a op##= b; }          \
    PODIUM_EACH operator op(podium_vector<T, N> a, PODIUM_ONE b) { return a op##= b; }                   \
    PODIUM_EACH operator op(PODIUM_ONE a, podium_vector<T, N> b) { return podium_vector<T, N>(a) op b; }
PODIUM_OPERATOR(+)
PODIUM_OPERATOR(-)
PODIUM_OPERATOR(*)
PODIUM_OPERATOR(/)
template <class T, int N> __device__ constexpr HIP_vector_type<T, N> operator-(HIP_vector_type<T, N> a) {
    a.x = -a.x;  // not 0 - x: that of 0.0 is -0.0
    if constexpr (N > 1) a.y = -a.y;
    if constexpr (N > 2) a.z = -a.z;
    if constexpr (N > 3) a.w = -a.w;
    return a;
}
template <class T, int N> __device__ constexpr bool operator==(HIP_vector_type<T, N> a, HIP_vector_type<T, N> b) {
    bool same = a.x == b.x;
    if constexpr (N > 1) same = same && a.y == b.y;
    if constexpr (N > 2) same = same && a.z == b.z;
    if constexpr (N > 3) same = same && a.w == b.w;
    return same;
}
template <class T, int N> __device__ constexpr bool operator!=(HIP_vector_type<T, N> a, HIP_vector_type<T, N> b) {
    return !(a == b);
}
#define PODIUM_TYPES(name, T)                                                                            \
    typedef HIP_vector_type<T, 1> name##1;                                                               \
    typedef HIP_vector_type<T, 2> name##2;                                                               \
    typedef HIP_vector_type<T, 3> name##3;                                                               \
    typedef HIP_vector_type<T, 4> name##4;                                                               \
    PODIUM_OWN name##1 make_##name##1(T x) { return name##1(x); }                                        \
    PODIUM_OWN name##2 make_##name##2(T x, T y) { return name##2(x, y); }                                \
    PODIUM_OWN name##3 make_##name##3(T x, T y, T z) { return name##3(x, y, z); }                        \
    PODIUM_OWN name##4 make_##name##4(T x, T y, T z, T w) { return name##4(x, y, z, w); }
PODIUM_TYPES(char, signed char)
PODIUM_TYPES(uchar, unsigned char)
PODIUM_TYPES(short, short)
PODIUM_TYPES(ushort, unsigned short)
PODIUM_TYPES(int, int)
PODIUM_TYPES(uint, unsigned)
PODIUM_TYPES(long, long)
PODIUM_TYPES(ulong, unsigned long)
PODIUM_TYPES(longlong, long long)
PODIUM_TYPES(ulonglong, unsigned long long)
PODIUM_TYPES(float, float)
PODIUM_TYPES(double, double)
inline __device__ podium_dim3::operator HIP_vector_type<unsigned, 3>() const { return uint3(x, y, z); }
"""

VOCABULARY = WAVES + ATOMICS + VECTORS + INTEGERS + MATHEMATICS + HALVES

INCLUDED = re.compile(r"^([ \t]*)#([ \t]*include[ \t]*[<\"]hip/hip_(?:runtime|runtime_api|fp16)\.h[>\"])", re.MULTILINE)
"""Headers that HIP's files begin with. hipRTC declares their device functions without them, and so does the prelude."""

_UNKNOWN = re.compile(r"(?:use of undeclared identifier|unknown type name|no template named) '(\w+)'")
_LACKING = re.compile(r"'(hip/[\w./]+|rocwmma/[\w./]+|cuda\w*\.h)' file not found")
_CALLED_SO = re.compile(
    r"(__\w+|(unsafe)?[aA]tomic\w+|hip\w+|make_\w+|(rocwmma|cooperative_groups|cg)|u?(char|short|int|long)\d"
    r"|bfloat16|half2?|printf|assert|clock(64)?|wall_clock64|abort|mem(cpy|set)|signbit"
    r"|u?int(8|16|32|64)_t|u(char|short|int|long)|NULL|[A-Z]+_(MAX|MIN|EPSILON)|M_\w+"
    r"|(a?(sin|cos|tan)h?(pi)?|atan2|sincospi|expm1|log1p|logb|r?cbrt|r?hypot|fmod|modf|remainder|fdim|nextafter|ldexp"
    r"|frexp|scalbn|erfc|erfinv|erfcinv|erfcx|[lt]gamma|normcdf|l?lrint|l?lround|nearbyint|nan)f?)"
)


def hint(log: str) -> str:
    """A line to add to a compiler's log that misses one of HIP's names; "" for any other log."""
    found = {name for name in _UNKNOWN.findall(log) if _CALLED_SO.fullmatch(name)} | set(_LACKING.findall(log))
    if not found:
        return ""
    is_or_are = "is" if len(found) == 1 else "are"
    return (
        f"\n{', '.join(sorted(found))} {is_or_are} not there without ROCm's headers: "
        f'{page("hip")}, "Names of HIP", lists what is'
    )
