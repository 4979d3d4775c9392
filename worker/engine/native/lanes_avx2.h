// Sixteen lanes at a time by AVX2 and FMA, in two halves. Sums are taken in the order in which
// lanes_avx512.h takes them.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace jetflock {

using bf16 = uint16_t;
using Mask = uint16_t;

struct Floats {
  __m256 low, high;
};

// Two neighbouring bfloat16 values in each lane, widened.
struct Pairs {
  Floats even, odd;
};

constexpr int kLanes = 16;
constexpr int kHalfLanes = 8;
// Tried: fewer rows or more are slower; the sums of more than 3 leave the registers.
constexpr int kMaxTileRows = 4;
constexpr int kIntegerTileRows = 4;
constexpr int kMaxQueryRows = 6;

inline Mask first_lanes(long count) {
  return count >= kLanes ? 0xFFFF : static_cast<Mask>((1u << count) - 1);
}

// Of lanes 0 to 7, or 8 to 15: all bits of each that is set.
inline __m256i half_mask(Mask mask, int half) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i own = _mm256_set1_epi32(mask >> (half * kHalfLanes));
  return _mm256_cmpeq_epi32(_mm256_and_si256(own, bits), bits);
}

inline Floats all(float value) {
  const __m256 half = _mm256_set1_ps(value);
  return {half, half};
}

inline Floats zeros() { return all(0.0f); }

inline Floats load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + kHalfLanes)};
}

inline Floats load(const float* from, Mask mask) {
  return {_mm256_maskload_ps(from, half_mask(mask, 0)),
          _mm256_maskload_ps(from + kHalfLanes, half_mask(mask, 1))};
}

inline void store(float* to, Floats values) {
  _mm256_storeu_ps(to, values.low);
  _mm256_storeu_ps(to + kHalfLanes, values.high);
}

inline void store(float* to, Floats values, Mask mask) {
  _mm256_maskstore_ps(to, half_mask(mask, 0), values.low);
  _mm256_maskstore_ps(to + kHalfLanes, half_mask(mask, 1), values.high);
}

inline Floats add(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

inline Floats subtract(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

inline Floats multiply(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

inline Floats divide(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

inline Floats fmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

inline Floats fmsub(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}

inline Floats fnmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

// `b` where either is not a number.
inline Floats larger(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

inline Floats smaller(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

inline Floats select(Mask mask, Floats set, Floats unset) {
  return {_mm256_blendv_ps(unset.low, set.low, _mm256_castsi256_ps(half_mask(mask, 0))),
          _mm256_blendv_ps(unset.high, set.high, _mm256_castsi256_ps(half_mask(mask, 1)))};
}

inline float largest_lane(Floats values) {
  const __m256 eight = _mm256_max_ps(values.low, values.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline float sum_of_lanes(Floats values) {
  const __m256 eight = _mm256_add_ps(values.low, values.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float first_lane(Floats values) { return _mm256_cvtss_f32(values.low); }

// To the nearest whole number, halves to the even one.
inline Floats whole_part(Floats x) {
  constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kRounding), _mm256_round_ps(x.high, kRounding)};
}

// 2^exponent, of whole exponents; 0 below -126, infinity from 128 on.
inline __m256 power_of_two(__m256 exponent) {
  const __m256 least = _mm256_set1_ps(-127.0f), most = _mm256_set1_ps(128.0f);
  const __m256i whole = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(exponent, least), most));
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(127)), 23));
}

// x * 2^exponent, of whole exponents.
inline Floats scale_by_power(Floats x, Floats exponent) {
  return multiply(x, {power_of_two(exponent.low), power_of_two(exponent.high)});
}

inline Floats from_int8(const int8_t* from) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(narrow)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(narrow, 8)))};
}

// Whole numbers of 32 bits. Sums that leave them wrap.
struct Ints {
  __m256i low, high;
};

inline Ints all_ints(int32_t value) {
  const __m256i half = _mm256_set1_epi32(value);
  return {half, half};
}

inline Ints load_ints(const int32_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + kHalfLanes))};
}

inline Floats to_floats(Ints values) {
  return {_mm256_cvtepi32_ps(values.low), _mm256_cvtepi32_ps(values.high)};
}

inline Ints widen_int8(const int8_t* from) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepi8_epi32(narrow), _mm256_cvtepi8_epi32(_mm_srli_si128(narrow, 8))};
}

inline Ints add(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

inline Ints subtract_products(Ints sums, Ints a, Ints b) {
  return {_mm256_sub_epi32(sums.low, _mm256_mullo_epi32(a.low, b.low)),
          _mm256_sub_epi32(sums.high, _mm256_mullo_epi32(a.high, b.high))};
}

// To the nearest whole numbers, halves to the even one, within eight bits.
inline void store_int8(int8_t* to, Floats values) {
  values = smaller(all(127.0f), larger(all(-128.0f), values));
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(values.low), _mm256_cvtps_epi32(values.high)), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(words),
                                   _mm256_extracti128_si256(words, 1)));
}

// Four neighbouring integers without signs in each lane, widened: the first and the third, the
// second and the fourth. Their products with eight bits would leave 16 bits two by two.
struct Quads {
  __m256i even[2], odd[2];
};

// The same, each below 64: no two products leave 16 bits.
struct SmallQuads {
  __m256i half[2];
};

// Four integers with signs, in every lane.
struct QuadInput {
  __m256i whole, even, odd;
};

inline Quads load_quads(const uint8_t* from) {
  Quads quads;
  for (int half = 0; half < 2; ++half) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
    quads.even[half] = _mm256_and_si256(bytes, _mm256_set1_epi16(255));
    quads.odd[half] = _mm256_srli_epi16(bytes, 8);
  }
  return quads;
}

// Lower and upper halves of bytes.
inline void load_quads(const uint8_t* from, SmallQuads& left, SmallQuads& right) {
  const __m256i lower_half = _mm256_set1_epi8(15);
  for (int half = 0; half < 2; ++half) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
    left.half[half] = _mm256_and_si256(both, lower_half);
    right.half[half] = _mm256_and_si256(_mm256_srli_epi16(both, 4), lower_half);
  }
}

// Of kInt6.
inline void add_upper_bits(const uint8_t* from, SmallQuads& left, SmallQuads& right) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const auto add = [](__m256i& quads, __m256i uppers) {
    quads = _mm256_or_si256(quads, _mm256_and_si256(uppers, _mm256_set1_epi8(0x30)));
  };
  add(left.half[0], _mm256_slli_epi16(bits, 4));
  add(left.half[1], _mm256_slli_epi16(bits, 2));
  add(right.half[0], bits);
  add(right.half[1], _mm256_srli_epi16(bits, 2));
}

inline QuadInput broadcast_quad(const int8_t* from) {
  int32_t quad;
  std::memcpy(&quad, from, sizeof(quad));
  const __m256i whole = _mm256_set1_epi32(quad);
  return {whole, _mm256_srai_epi16(_mm256_slli_epi16(whole, 8), 8), _mm256_srai_epi16(whole, 8)};
}

inline __m256i add_products(__m256i sums, __m256i even, __m256i odd, const QuadInput& input) {
  return _mm256_add_epi32(sums, _mm256_add_epi32(_mm256_madd_epi16(even, input.even),
                                                 _mm256_madd_epi16(odd, input.odd)));
}

inline Ints add_products(Ints sums, const Quads& weights, const QuadInput& input) {
  return {add_products(sums.low, weights.even[0], weights.odd[0], input),
          add_products(sums.high, weights.even[1], weights.odd[1], input)};
}

inline __m256i add_small_products(__m256i sums, __m256i weights, __m256i input) {
  const __m256i twos = _mm256_maddubs_epi16(weights, input);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
}

inline Ints add_products(Ints sums, const SmallQuads& weights, const QuadInput& input) {
  return {add_small_products(sums.low, weights.half[0], input.whole),
          add_small_products(sums.high, weights.half[1], input.whole)};
}

inline __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline Floats load_bf16(const bf16* from) {
  return {widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
          widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + kHalfLanes)))};
}

// The mask is of the first lanes.
inline Floats load_bf16(const bf16* from, Mask mask) {
  bf16 padded[kLanes] = {};
  std::memcpy(padded, from, __builtin_popcount(mask) * sizeof(bf16));
  return load_bf16(padded);
}

// Rounded to the nearest, halves to the even one: in the lower half of each lane.
inline __m256i narrow_to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounding = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, rounding), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

inline void store_bf16(bf16* to, Floats values) {
  const __m256i packed =
      _mm256_packus_epi32(narrow_to_bf16(values.low), narrow_to_bf16(values.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
}

// The mask is of the first lanes.
inline void store_bf16(bf16* to, Floats values, Mask mask) {
  bf16 narrow[kLanes];
  store_bf16(narrow, values);
  std::memcpy(to, narrow, __builtin_popcount(mask) * sizeof(bf16));
}

inline bf16 to_bf16(float value) {
  return static_cast<bf16>(_mm256_extract_epi16(narrow_to_bf16(_mm256_set1_ps(value)), 0));
}

// Sixteen values to every second place. The places between may be written at the same time.
inline void store_every_second(bf16* to, const bf16* from) {
  for (int lane = 0; lane < kLanes; ++lane) to[2 * lane] = from[lane];
}

inline __m256 even_values(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

inline __m256 odd_values(__m256i pairs) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
}

inline Pairs widen_pairs(__m256i low, __m256i high) {
  return {{even_values(low), even_values(high)}, {odd_values(low), odd_values(high)}};
}

inline Pairs load_pairs(const bf16* from) {
  return widen_pairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + kLanes)));
}

// Of the first `count` values, up to 32; the others are zero.
inline Pairs load_pairs(const bf16* from, int64_t count) {
  if (count >= 2 * kLanes) return load_pairs(from);
  bf16 padded[2 * kLanes] = {};
  std::memcpy(padded, from, count * sizeof(bf16));
  return load_pairs(padded);
}

inline __m256i join_pairs(__m256 even, __m256 odd) {
  return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(even), 16),
                         _mm256_castps_si256(odd));
}

inline void store_pairs(bf16* to, Pairs pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), join_pairs(pairs.even.low, pairs.odd.low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kLanes),
                      join_pairs(pairs.even.high, pairs.odd.high));
}

inline Pairs all_pairs(bf16 value) {
  const __m256i pairs = _mm256_set1_epi16(static_cast<int16_t>(value));
  return widen_pairs(pairs, pairs);
}

// The two values at `from`, in every lane: one side of a dot product of pairs.
inline Pairs broadcast_pair(const bf16* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  const __m256i pairs = _mm256_set1_epi32(pair);
  return widen_pairs(pairs, pairs);
}

// sums + the dot products of the pairs: the odd products first, as VDPBF16PS has it.
inline Floats add_products(Floats sums, Pairs a, Pairs b) {
  return fmadd(a.even, b.even, fmadd(a.odd, b.odd, sums));
}

}  // namespace jetflock
