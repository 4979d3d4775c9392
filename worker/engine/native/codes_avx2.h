// Decodes codes of 8 and 4 bits by AVX2: what stands for integers is converted, all else is looked
// up sixteen values at a time.

#pragma once

#include <cstring>

#include "coded_layout.h"

namespace jetflock {

inline __m256i all_bytes(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }

// The same sixteen bytes in both halves, as the look-up wants them.
inline __m256i load_table(const uint8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Bytes that are integers with a sign, as the pairs of the two vectors that unpack them.
inline Pairs pairs_of_integers(__m256i low, __m256i high) {
  const auto even = [](__m256i x) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 24));
  };
  const auto odd = [](__m256i x) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 24)); };
  return {{even(low), even(high)}, {odd(low), odd(high)}};
}

class Codes8 {
 public:
  static constexpr int kPairBytes = 2 * kBlockCols;

  Codes8(const uint8_t* codes, const uint8_t* code_book)
      : codes_(codes), book_(code_book), are_integers_(book_is_of_integers(code_book)) {}

  void enter_group(const int8_t*) {}

  DecodedPairs operator[](int64_t pair) const {
    const uint8_t* at = codes_ + pair * kPairBytes;
    prefetch(at + kPrefetchPairs * kPairBytes);
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32));
    return are_integers_ ? integers(first, second) : looked_up(first, second);
  }

 private:
  static constexpr int kPrefetchPairs = 48;
  static constexpr int kTableValues = 16;

  static bool book_is_of_integers(const uint8_t* book) {
    for (int code = 0; code < kCodes8Values; ++code) {
      const int bits = book[code] | book[kCodes8Values + code] << 8;
      if (to_float(static_cast<bf16>(bits)) != static_cast<float>(code)) return false;
    }
    return book[2 * kCodes8Values] == 0xc3;  // -128
  }

  static DecodedPairs integers(__m256i first, __m256i second) {
    const __m256i zero = _mm256_setzero_si256();
    first = by_twos_complement(first);
    second = by_twos_complement(second);
    return {pairs_of_integers(_mm256_unpacklo_epi8(zero, first),
                              _mm256_unpacklo_epi8(zero, second)),
            pairs_of_integers(_mm256_unpackhi_epi8(zero, first),
                              _mm256_unpackhi_epi8(zero, second))};
  }

  static __m256i by_twos_complement(__m256i codes) {
    const __m256i sign = all_bytes(0x80);
    const __m256i is_negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), codes);
    const __m256i size = _mm256_andnot_si256(sign, codes);
    const __m256i value = _mm256_sub_epi8(_mm256_xor_si256(size, is_negative), is_negative);
    return _mm256_or_si256(value, _mm256_and_si256(_mm256_cmpeq_epi8(codes, sign), sign));
  }

  DecodedPairs looked_up(__m256i first, __m256i second) const {
    __m256i low[2], high[2];
    look_up(first, low[0], high[0]);
    look_up(second, low[1], high[1]);
    return {widen_pairs(_mm256_unpacklo_epi8(low[0], high[0]),
                        _mm256_unpacklo_epi8(low[1], high[1])),
            widen_pairs(_mm256_unpackhi_epi8(low[0], high[0]),
                        _mm256_unpackhi_epi8(low[1], high[1]))};
  }

  // A look-up gives zero where the upper bit of the index is set, so each table answers for its own
  // sixteen codes alone.
  void look_up(__m256i codes, __m256i& low, __m256i& high) const {
    const __m256i sign = all_bytes(0x80);
    const __m256i size = _mm256_andnot_si256(sign, codes);
    low = high = _mm256_setzero_si256();
    for (int first = 0; first < kCodes8Values; first += kTableValues) {
      const __m256i index =
          _mm256_adds_epu8(_mm256_xor_si256(size, all_bytes(first)), all_bytes(0x70));
      low = _mm256_or_si256(low, _mm256_shuffle_epi8(load_table(book_ + first), index));
      high = _mm256_or_si256(
          high, _mm256_shuffle_epi8(load_table(book_ + kCodes8Values + first), index));
    }
    high = _mm256_or_si256(high, _mm256_and_si256(codes, sign));
    high = _mm256_blendv_epi8(high, all_bytes(book_[2 * kCodes8Values]),
                              _mm256_cmpeq_epi8(codes, sign));
  }

  const uint8_t* codes_;
  const uint8_t* book_;
  bool are_integers_;
};

// With zero points codes stand for integers.
template <bool kHasZeros>
class Codes4 {
 public:
  static constexpr int kPairBytes = kBlockCols;

  Codes4(const uint8_t* codes, const uint8_t* code_book) : codes_(codes) {
    uint8_t bytes[2][16];
    for (int code = 0; code < 16; ++code) {
      bytes[0][code] = code_book[2 * code];
      bytes[1][code] = code_book[2 * code + 1];
    }
    low_ = load_table(bytes[0]);
    high_ = load_table(bytes[1]);
  }

  // zeros: of the columns, each two times.
  void enter_group(const int8_t* zeros) {
    if constexpr (kHasZeros) {
      zeros_[0] = in_order(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(zeros)));
      zeros_[1] =
          in_order(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(zeros + kBlockCols)));
    }
  }

  DecodedPairs operator[](int64_t pair) const {
    const uint8_t* at = codes_ + pair * kPairBytes;
    prefetch(at + kPrefetchPairs * kPairBytes);
    const __m256i both = in_order(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    const __m256i lower_half = all_bytes(0x0f);
    const __m256i left = _mm256_and_si256(both, lower_half);
    const __m256i right = _mm256_and_si256(_mm256_srli_epi16(both, 4), lower_half);
    if constexpr (kHasZeros) {
      return {integers(_mm256_sub_epi8(left, zeros_[0])),
              integers(_mm256_sub_epi8(right, zeros_[1]))};
    } else {
      return {looked_up(left), looked_up(right)};
    }
  }

 private:
  static constexpr int kPrefetchPairs = 96;

  // So that unpacking, which goes by halves, gives elements 0 to 15, then 16 to 31.
  static __m256i in_order(__m256i bytes) { return _mm256_permute4x64_epi64(bytes, 0xd8); }

  static Pairs integers(__m256i bytes) {
    const __m256i zero = _mm256_setzero_si256();
    return pairs_of_integers(_mm256_unpacklo_epi8(zero, bytes),
                             _mm256_unpackhi_epi8(zero, bytes));
  }

  Pairs looked_up(__m256i codes) const {
    const __m256i low = _mm256_shuffle_epi8(low_, codes);
    const __m256i high = _mm256_shuffle_epi8(high_, codes);
    return widen_pairs(_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
  }

  const uint8_t* codes_;
  __m256i low_, high_;
  __m256i zeros_[2];
};

}  // namespace jetflock
