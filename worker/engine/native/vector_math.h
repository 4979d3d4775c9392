// bfloat16 and the few functions that the kernels need, sixteen lanes at a time.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>

namespace jetflock {

using bf16 = uint16_t;

constexpr int kLanes = 16;

inline __m512 load_bf16(const bf16* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 load_bf16(const bf16* from, __mmask16 mask) {
  const __m256i bits = _mm256_maskz_loadu_epi16(mask, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void store_bf16(bf16* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

inline void store_bf16(bf16* to, __m512 values, __mmask16 mask) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

inline bf16 to_bf16(float value) {
  return static_cast<bf16>(
      _mm_extract_epi16(reinterpret_cast<__m128i>(_mm_cvtneps_pbh(_mm_set_ss(value))), 0));
}

inline float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

// The two bfloat16 values at `from`, in every lane: one side of a dot product of pairs.
inline __m512bh broadcast_pair(const bf16* from) {
  int32_t pair;
  __builtin_memcpy(&pair, from, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

inline __m512bh load_pairs(const bf16* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}

inline void prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1);
}

// 2^x for x up to 127, relative error below 3e-6: far below bfloat16's. 0 from -160 on. A minimax
// polynomial on [-1/2, 1/2], then scaling by the integer part.
inline __m512 exp2(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-160.0f), x);  // in this order, not-a-number stays what it is
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 value = _mm512_set1_ps(9.570101433278185e-3f);
  value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(5.591786028190548e-2f));
  value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(2.402474483966416e-1f));
  value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(6.931218147436762e-1f));
  value = _mm512_fmadd_ps(value, rest, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(value, whole);
}

constexpr float kLog2E = 1.4426950408889634f;

// 1 / x to the last bit or two: an estimate of 14 bits and one step of Newton's. 0 for infinity.
inline __m512 reciprocal(__m512 x) {
  const __m512 estimate = _mm512_rcp14_ps(x);
  const __m512 error = _mm512_fnmadd_ps(estimate, x, _mm512_set1_ps(1.0f));
  const __mmask16 is_finite =
      _mm512_cmp_ps_mask(x, _mm512_set1_ps(std::numeric_limits<float>::infinity()), _CMP_NEQ_UQ);
  return _mm512_mask_fmadd_ps(estimate, is_finite, error, estimate);
}

inline __m512 silu(__m512 x) {
  const __m512 exponential = exp2(_mm512_mul_ps(x, _mm512_set1_ps(-kLog2E)));
  return _mm512_mul_ps(x, reciprocal(_mm512_add_ps(_mm512_set1_ps(1.0f), exponential)));
}

// The first `count` of sixteen lanes; all of them from sixteen on.
inline __mmask16 first_lanes(long count) {
  return count >= kLanes ? 0xFFFF : static_cast<__mmask16>((1u << count) - 1);
}

// Calls `call` with the number of rows, 1 to kMax, as a constant.
template <int kMax, int kRows = 1, class Call>
inline void with_num_rows(int num_rows, const Call& call) {
  if constexpr (kRows <= kMax) {
    if (num_rows == kRows) {
      call.template operator()<kRows>();
    } else {
      with_num_rows<kMax, kRows + 1>(num_rows, call);
    }
  }
}

}  // namespace jetflock
