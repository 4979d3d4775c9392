// Sixteen lanes at a time by AVX-512 and its bfloat16 products. lanes_avx2.h has the same words.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace jetflock {

using bf16 = uint16_t;
using Floats = __m512;
using Pairs = __m512bh;  // two neighbouring bfloat16 values in each lane
using Mask = __mmask16;

constexpr int kLanes = 16;
constexpr int kMaxTileRows = 12;  // 12 rows x 2 vectors of sums fill the registers
constexpr int kMaxQueryRows = 6;  // 6 rows x 4 vectors of sums

// The first `count` of sixteen lanes; all of them from sixteen on.
inline Mask first_lanes(long count) {
  return count >= kLanes ? 0xFFFF : static_cast<Mask>((1u << count) - 1);
}

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats all(float value) { return _mm512_set1_ps(value); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, Mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline void store(float* to, Floats values, Mask mask) { _mm512_mask_storeu_ps(to, mask, values); }

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fmsub(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

// `b` where either is not a number.
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }

inline Floats select(Mask mask, Floats set, Floats unset) {
  return _mm512_mask_mov_ps(unset, mask, set);
}

inline float largest_lane(Floats values) { return _mm512_reduce_max_ps(values); }

// By halves, then quarters: compilers' own words for it leave the order to them.
inline float sum_of_lanes(Floats values) {
  const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(values), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(values), upper);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float first_lane(Floats values) { return _mm512_cvtss_f32(values); }

// To the nearest whole number, halves to the even one.
inline Floats whole_part(Floats x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// x * 2^exponent, of whole exponents.
inline Floats scale_by_power(Floats x, Floats exponent) { return _mm512_scalef_ps(x, exponent); }

inline Floats from_int8(const int8_t* from) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(narrow));
}

inline Floats load_bf16(const bf16* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline Floats load_bf16(const bf16* from, Mask mask) {
  const __m256i bits = _mm256_maskz_loadu_epi16(mask, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void store_bf16(bf16* to, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

inline void store_bf16(bf16* to, Floats values, Mask mask) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

inline bf16 to_bf16(float value) {
  return static_cast<bf16>(
      _mm_extract_epi16(reinterpret_cast<__m128i>(_mm_cvtneps_pbh(_mm_set_ss(value))), 0));
}

// Sixteen values to every second place. The places between may be written at the same time.
inline void store_every_second(bf16* to, const bf16* from) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  _mm512_mask_storeu_epi16(to, 0x55555555, wide);
}

inline Pairs load_pairs(const bf16* from) {
  return reinterpret_cast<Pairs>(_mm512_loadu_si512(from));
}

// Of the first `count` values, up to 32; the others are zero.
inline Pairs load_pairs(const bf16* from, int64_t count) {
  const __mmask32 mask = count >= 2 * kLanes ? ~0u : (1u << count) - 1;
  return reinterpret_cast<Pairs>(_mm512_maskz_loadu_epi16(mask, from));
}

inline void store_pairs(bf16* to, Pairs pairs) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(pairs));
}

inline Pairs all_pairs(bf16 value) {
  return reinterpret_cast<Pairs>(_mm512_set1_epi16(static_cast<int16_t>(value)));
}

// The two values at `from`, in every lane: one side of a dot product of pairs.
inline Pairs broadcast_pair(const bf16* from) {
  int32_t pair;
  __builtin_memcpy(&pair, from, sizeof(pair));
  return reinterpret_cast<Pairs>(_mm512_set1_epi32(pair));
}

// sums + the dot products of the pairs.
inline Floats add_products(Floats sums, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sums, a, b); }

}  // namespace jetflock
