// Exchanges rows and columns of eight by eight values, by AVX2, which all kernel sets have.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace jetflock {

constexpr int kTurned = 8;

using Words32 = __m256i;  // eight of 32 bits

// Zeros from nullptr.
inline Words32 load_words32(const void* from) {
  if (from == nullptr) return _mm256_setzero_si256();
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

inline void store(void* to, Words32 words) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), words);
}

// Of bytes below 16: the second's in the upper halves of the first's.
inline Words32 join_halves(Words32 low, Words32 high) {
  return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
}

inline Words32 and_bytes(Words32 words, uint8_t mask) {
  return _mm256_and_si256(words, _mm256_set1_epi8(static_cast<char>(mask)));
}

// Of bytes below 64 the upper two bits, the first's lowest.
inline Words32 join_upper_bits(Words32 first, Words32 second, Words32 third, Words32 fourth) {
  const Words32 low = _mm256_or_si256(and_bytes(_mm256_srli_epi16(first, 4), 0x03),
                                      and_bytes(_mm256_srli_epi16(second, 2), 0x0c));
  const Words32 high =
      _mm256_or_si256(and_bytes(third, 0x30), and_bytes(_mm256_slli_epi16(fourth, 2), 0xc0));
  return _mm256_or_si256(low, high);
}

// Of 32 bits.
inline void turn(Words32 (&rows)[kTurned]) {
  __m256i twos[kTurned], fours[kTurned];
  for (int at = 0; at < kTurned; at += 2) {
    twos[at] = _mm256_unpacklo_epi32(rows[at], rows[at + 1]);
    twos[at + 1] = _mm256_unpackhi_epi32(rows[at], rows[at + 1]);
  }
  for (int at = 0; at < kTurned; at += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[at + 2 * half] = _mm256_unpacklo_epi64(twos[at + half], twos[at + 2 + half]);
      fours[at + 2 * half + 1] = _mm256_unpackhi_epi64(twos[at + half], twos[at + 2 + half]);
    }
  }
  for (int at = 0; at < 4; ++at) {
    rows[at] = _mm256_permute2x128_si256(fours[at], fours[at + 4], 0x20);
    rows[at + 4] = _mm256_permute2x128_si256(fours[at], fours[at + 4], 0x31);
  }
}

// Of 16 bits.
inline void turn(__m128i (&rows)[kTurned]) {
  __m128i twos[kTurned], fours[kTurned];
  for (int at = 0; at < kTurned; at += 2) {
    twos[at] = _mm_unpacklo_epi16(rows[at], rows[at + 1]);
    twos[at + 1] = _mm_unpackhi_epi16(rows[at], rows[at + 1]);
  }
  for (int at = 0; at < kTurned; at += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[at + 2 * half] = _mm_unpacklo_epi32(twos[at + half], twos[at + 2 + half]);
      fours[at + 2 * half + 1] = _mm_unpackhi_epi32(twos[at + half], twos[at + 2 + half]);
    }
  }
  for (int at = 0; at < 4; ++at) {
    rows[2 * at] = _mm_unpacklo_epi64(fours[at], fours[at + 4]);
    rows[2 * at + 1] = _mm_unpackhi_epi64(fours[at], fours[at + 4]);
  }
}

}  // namespace jetflock
