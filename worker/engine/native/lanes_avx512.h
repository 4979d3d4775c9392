// Sixteen lanes at a time by AVX-512, with its products of bfloat16 or without. lanes_avx2.h has the
// same words.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace jetflock {

using bf16 = uint16_t;
using Floats = __m512;
using Mask = __mmask16;

constexpr int kLanes = 16;
constexpr int kMaxTileRows = 12;  // 12 rows x 2 vectors of sums fill the registers
constexpr int kIntegerTileRows = 6;  // the same of integers, and what they are added to
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
inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }

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

// Ints: whole numbers of 32 bits. Sums that leave them wrap.
using Ints = __m512i;

inline Ints all_ints(int32_t value) { return _mm512_set1_epi32(value); }
inline Ints load_ints(const int32_t* from) { return _mm512_loadu_si512(from); }
inline Floats to_floats(Ints values) { return _mm512_cvtepi32_ps(values); }

inline Ints widen_int8(const int8_t* from) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }

inline Ints subtract_products(Ints sums, Ints a, Ints b) {
  return _mm512_sub_epi32(sums, _mm512_mullo_epi32(a, b));
}

// To the nearest whole numbers, halves to the even one, within eight bits.
inline void store_int8(int8_t* to, Floats values) {
  values = smaller(all(127.0f), larger(all(-128.0f), values));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(values)));
}

// Quads: four neighbouring integers without signs in each lane; of SmallQuads each below 64.
using Quads = __m512i;
using SmallQuads = __m512i;
using QuadInput = __m512i;

inline Quads load_quads(const uint8_t* from) { return _mm512_loadu_si512(from); }

// Lower and upper halves of bytes.
inline void load_quads(const uint8_t* from, SmallQuads& left, SmallQuads& right) {
  const __m512i both = _mm512_loadu_si512(from), lower_half = _mm512_set1_epi8(15);
  left = _mm512_and_si512(both, lower_half);
  right = _mm512_and_si512(_mm512_srli_epi16(both, 4), lower_half);
}

// Of kInt6.
inline void add_upper_bits(const uint8_t* from, SmallQuads& left, SmallQuads& right) {
  const __m512i bits = _mm512_broadcast_i64x4(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const __m512i upper_two = _mm512_set1_epi8(0x30);
  const __m512i lefts = _mm512_sllv_epi64(bits, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
  const __m512i rights = _mm512_srlv_epi64(bits, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
  left = _mm512_ternarylogic_epi64(left, lefts, upper_two, 0xf8);  // left | (lefts & upper_two)
  right = _mm512_ternarylogic_epi64(right, rights, upper_two, 0xf8);
}

// Four integers with signs, in every lane.
inline QuadInput broadcast_quad(const int8_t* from) {
  int32_t quad;
  __builtin_memcpy(&quad, from, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

inline Ints add_products(Ints sums, Quads weights, QuadInput input) {
  return _mm512_dpbusd_epi32(sums, weights, input);
}

// Pairs: two neighbouring bfloat16 values in each lane. A sum takes the odd products first, then the
// even ones, each with a rounding of its own.
#if defined(__AVX512BF16__)

using Pairs = __m512bh;

inline __m256i narrow_to_bf16(Floats values) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
}

inline Pairs widen_pairs(__m512i pairs) { return reinterpret_cast<Pairs>(pairs); }
inline __m512i join_pairs(Pairs pairs) { return reinterpret_cast<__m512i>(pairs); }
inline Floats add_products(Floats sums, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sums, a, b); }

#else

struct Pairs {
  Floats even, odd;
};

// To the nearest, halves to the even one.
inline __m256i narrow_to_bf16(Floats values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounding = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, rounding), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const Mask is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet));
}

inline Pairs widen_pairs(__m512i pairs) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(pairs, upper))};
}

inline __m512i join_pairs(Pairs pairs) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(pairs.even), 16),
                         _mm512_castps_si512(pairs.odd));
}

inline Floats add_products(Floats sums, Pairs a, Pairs b) {
  return fmadd(a.even, b.even, fmadd(a.odd, b.odd, sums));
}

#endif

inline void store_bf16(bf16* to, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow_to_bf16(values));
}

inline void store_bf16(bf16* to, Floats values, Mask mask) {
  _mm256_mask_storeu_epi16(to, mask, narrow_to_bf16(values));
}

inline bf16 to_bf16(float value) {
  return static_cast<bf16>(_mm256_extract_epi16(narrow_to_bf16(all(value)), 0));
}

// Sixteen values to every second place. The places between may be written at the same time.
inline void store_every_second(bf16* to, const bf16* from) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  _mm512_mask_storeu_epi16(to, 0x55555555, wide);
}

inline Pairs load_pairs(const bf16* from) { return widen_pairs(_mm512_loadu_si512(from)); }

// Of the first `count` values, up to 32; the others are zero.
inline Pairs load_pairs(const bf16* from, int64_t count) {
  const __mmask32 mask = count >= 2 * kLanes ? ~0u : (1u << count) - 1;
  return widen_pairs(_mm512_maskz_loadu_epi16(mask, from));
}

inline void store_pairs(bf16* to, Pairs pairs) { _mm512_storeu_si512(to, join_pairs(pairs)); }

inline Pairs all_pairs(bf16 value) {
  return widen_pairs(_mm512_set1_epi16(static_cast<int16_t>(value)));
}

// The two values at `from`, in every lane: one side of a dot product of pairs.
inline Pairs broadcast_pair(const bf16* from) {
  int32_t pair;
  __builtin_memcpy(&pair, from, sizeof(pair));
  return widen_pairs(_mm512_set1_epi32(pair));
}

}  // namespace jetflock
