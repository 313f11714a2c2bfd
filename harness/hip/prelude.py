"""The text that precedes every HIP source, so that one source compiles for both vendors without headers."""

from __future__ import annotations

from collections.abc import Mapping

from harness.hip.vocabulary import INCLUDED, QUALIFIERS, VOCABULARY

_TEXT = r"""#line 1 "prelude"
#if defined(PODIUM_NO_HEADERS)  // no lines of their own: an instruction of theirs is at the line that calls them
#pragma clang attribute push(__attribute__((nodebug)), apply_to = hasType(functionType))
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#endif
#if defined(PODIUM_ON_CPU)
// Whoever compiles for a CPU has defined what this branch and the next two define.
#elif defined(__HIP__)
#if defined(PODIUM_NO_HEADERS)  // clang alone; hipRTC brings these itself
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
template <class T, int N> struct HIP_vector_type;
struct podium_dim3 {
    unsigned x, y, z;
    __device__ constexpr podium_dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    __device__ inline operator HIP_vector_type<unsigned, 3>() const;
};
#define PODIUM_XYZ(f) (podium_dim3{f##_x(), f##_y(), f##_z()})
#define threadIdx PODIUM_XYZ(__builtin_amdgcn_workitem_id)
#define blockIdx PODIUM_XYZ(__builtin_amdgcn_workgroup_id)
#define blockDim PODIUM_XYZ(__builtin_amdgcn_workgroup_size)
#define gridDim (podium_dim3{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), \
                             __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(), \
                             __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()})
__device__ inline void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
QUALIFIERS
#endif
#if defined(__GFX9__)
#define WAVE_SIZE 64
__device__ inline int lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
#else
#define WAVE_SIZE 32
__device__ inline int lane_id() { return __builtin_amdgcn_mbcnt_lo(~0u, 0); }
#endif
__device__ inline float shuffle_xor(float value, int mask) {
    int bits = __builtin_amdgcn_ds_bpermute((lane_id() ^ mask) << 2, __builtin_bit_cast(int, value));
    return __builtin_bit_cast(float, bits);
}
#if __has_builtin(__builtin_amdgcn_exp2f)  // from LLVM 17 on
__device__ inline float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
#else
__device__ inline float exp2_fast(float x) { return __builtin_exp2f(x); }
#endif
__device__ inline unsigned short float16_bits(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
__device__ inline float float16_value(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }
#if defined(PODIUM_NO_HEADERS)
VOCABULARY
#endif
#else
#define WAVE_SIZE 32
__device__ inline int lane_id() { int lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane)); return lane; }
__device__ inline float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
__device__ inline float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ inline unsigned short float16_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ inline float float16_value(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif

#if !defined(INFINITY) && !defined(PODIUM_ON_CPU)  // neither hipRTC nor NVRTC has them
#define INFINITY __builtin_bit_cast(float, 0x7f800000u)
#define NAN __builtin_bit_cast(float, 0x7fc00000u)
#endif

// N values that are loaded and stored at once.
template <class T, int N> struct alignas(N * sizeof(T)) vec { T at[N]; };
typedef vec<unsigned, 4> bytes16;
typedef vec<unsigned, 2> bytes8;

// bfloat16 is the upper half of a float; rounding is to nearest even, and a NaN stays one.
__device__ inline float bfloat16_value(unsigned short bits) { return __builtin_bit_cast(float, (unsigned)bits << 16); }
__device__ inline unsigned short bfloat16_bits(float x) {
    unsigned bits = __builtin_bit_cast(unsigned, x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(bits >> 16 | 0x40);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// The two values of a word, the one at the lower address first.
__device__ inline float bfloat16_low(unsigned word) { return __builtin_bit_cast(float, word << 16); }
__device__ inline float bfloat16_high(unsigned word) { return __builtin_bit_cast(float, word & 0xffff0000u); }

// c[i, j] += sum over k of a[i, k] b[k, j], all 16 wide, by the 64 lanes of a wavefront:
//   a: lane holds row lane % 16, columns 4 (lane / 16) ..+3.    b: column lane % 16, rows 4 (lane / 16) ..+3.
//   c: column lane % 16, rows 4 (lane / 16) ..+3.               (AMD CDNA3 ISA guide, MFMA, V_MFMA_F32_16X16X16_BF16)
#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define HAS_MFMA_BF16 1
typedef vec<unsigned short, 4> podium_bf16x4;
__device__ inline vec<float, 4> mfma_16x16x16_bf16(podium_bf16x4 a, podium_bf16x4 b, vec<float, 4> c) {
    typedef short short4_ __attribute__((ext_vector_type(4)));
    typedef float float4_ __attribute__((ext_vector_type(4)));
    float4_ sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
        __builtin_bit_cast(short4_, a), __builtin_bit_cast(short4_, b), __builtin_bit_cast(float4_, c), 0, 0, 0);
    return __builtin_bit_cast(vec<float, 4>, sum);
}
#endif
#if defined(PODIUM_NO_HEADERS)
#pragma clang attribute pop
#pragma clang attribute pop
#endif
"""

PRELUDE = _TEXT.replace("QUALIFIERS\n", QUALIFIERS.lstrip()).replace("VOCABULARY\n", VOCABULARY.lstrip())
"""The beginning of every source. It defines, beyond what HIP and CUDA share (threadIdx, __shared__, __syncthreads, ..):

    WAVE_SIZE, lane_id()            64 lanes on AMD's gfx9, else 32
    shuffle_xor(float, mask)        within a wave
    exp2_fast(float)                one instruction; results under 2^-126 are 0
    float16_bits, float16_value     between float and the bits of a float16 or bfloat16,
    bfloat16_bits, bfloat16_value   rounded to nearest even
    INFINITY, NAN                   of float
    bfloat16_low, bfloat16_high     the two bfloat16 of a 32-bit word
    vec<T, N>, bytes8, bytes16      N values, aligned as a whole: one load, one store
    HAS_MFMA_BF16                   defined if there is mfma_16x16x16_bf16(a, b, c)
"""


def program(source: str, defines: Mapping[str, object]) -> str:
    """The text for a compiler: the prelude, the macros (which must not affect the prelude), and the source. The
    source's first line is line 1."""
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    own = INCLUDED.sub(r"\1//\2", source)
    return f'{PRELUDE}{macros}#line 1 "source"\n{own}\n'
