// Decodes codes of 8 and 4 bits by AVX-512's look-ups. codes_avx2.h has the same words.

#pragma once

#include "coded_layout.h"

namespace jetflock {

class Codes8 {
 public:
  static constexpr int kPairBytes = 2 * kBlockCols;

  Codes8(const uint8_t* codes, const uint8_t* code_book) : codes_(codes) {
    for (int half = 0; half < 2; ++half) {
      low_[half] = _mm512_loadu_si512(code_book + 64 * half);
      high_[half] = _mm512_loadu_si512(code_book + kCodes8Values + 64 * half);
    }
    lone_sign_ = _mm512_set1_epi8(static_cast<char>(code_book[2 * kCodes8Values]));
  }

  void enter_group(const int8_t*) {}

  DecodedPairs operator[](int64_t pair) const {
    const __m512i codes = _mm512_loadu_si512(codes_ + pair * kPairBytes);
    prefetch(codes_ + (pair + kPrefetchPairs) * kPairBytes);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);
    __m512i high = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
    high = _mm512_ternarylogic_epi64(high, codes, sign, 0xf8);  // high | (codes & sign)
    high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(codes, sign), lone_sign_);
    return {widen_pairs(_mm512_unpacklo_epi8(low, high)),
            widen_pairs(_mm512_unpackhi_epi8(low, high))};
  }

 private:
  static constexpr int kPrefetchPairs = 48;

  const uint8_t* codes_;
  __m512i low_[2], high_[2];
  __m512i lone_sign_;  // upper bytes of what code 0x80 stands for
};

// 32 bytes a pair of inputs: element e of the left vector in the lower half of byte e, of the right
// one in the upper half.
template <bool kHasZeros>
class Codes4 {
 public:
  static constexpr int kPairBytes = kBlockCols;

  Codes4(const uint8_t* codes, const uint8_t* code_book)
      : codes_(codes), values_(_mm512_loadu_si512(code_book)) {}

  // zeros: of the columns, each two times.
  void enter_group(const int8_t* zeros) {
    if constexpr (kHasZeros) {
      zeros_[0] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(zeros)));
      zeros_[1] = _mm512_cvtepi8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(zeros + kBlockCols)));
    }
  }

  DecodedPairs operator[](int64_t pair) const {
    const uint8_t* at = codes_ + pair * kPairBytes;
    prefetch(at + kPrefetchPairs * kPairBytes);
    // The instruction that looks up reads five bits: without zero points both halves of the values
    // are the same, so that the fifth, a neighbour's, does not matter.
    __m512i left =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    __m512i right = _mm512_srli_epi16(left, 4);
    if constexpr (kHasZeros) {
      left = _mm512_sub_epi16(_mm512_and_si512(left, _mm512_set1_epi16(15)), zeros_[0]);
      right = _mm512_sub_epi16(right, zeros_[1]);
    }
    return {widen_pairs(_mm512_permutexvar_epi16(left, values_)),
            widen_pairs(_mm512_permutexvar_epi16(right, values_))};
  }

 private:
  static constexpr int kPrefetchPairs = 96;

  const uint8_t* codes_;
  __m512i values_;
  __m512i zeros_[2];
};

}  // namespace jetflock
