// Codes as a file has them: their bits are put together while they are packed.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "packing.h"

namespace jetflock {

constexpr int kPlanes = 2;  // at most

// Some of the bits of all codes of a block. Of each `width` bytes there come first the lowest
// `num_bits` of all, then the next ones of all; `width` is 1 or whole vectors.
struct BitPlane {
  int64_t start;
  int64_t num_bytes;  // 0: there is none
  int64_t num_bits;
  int64_t width;
  int64_t shift;  // where they stand in a code
};

struct BlockFormat {
  int64_t num_values;
  int64_t num_bytes;
  int64_t stride;   // from a block of a row to its next one, in bytes
  int64_t place;    // where its code is in a block that several rows share
  int64_t flipped;  // bits of what is stored: a sign, so that codes are numbers above the least
  int64_t lift;     // what is added so that all rows of a weight have the same least number
  int64_t high_first;  // of words: a byte's upper half is before its lower one
  BitPlane planes[kPlanes];
};

// Rows [out_features], which need not lie side by side, nor be of one format.
struct StoredRows {
  const BlockFormat* formats;
  const uint8_t* format_of_row;
  const uint8_t* const* rows;
  int64_t zero;  // the code of zero, where a layout has signs
  const int64_t* order;  // of each place the input whose code stands there; null: its own
};

inline void add_plane(const BitPlane& plane, const uint8_t* block, uint8_t* codes) {
  const uint8_t* from = block + plane.start;
  const int mask = (1 << plane.num_bits) - 1;
  if (plane.width == 1) {
    for (int64_t byte = 0; byte < plane.num_bytes; ++byte) {
      for (int at = 0; at < 8; at += plane.num_bits) {
        *codes++ |= static_cast<uint8_t>((from[byte] >> at & mask) << plane.shift);
      }
    }
    return;
  }
  constexpr int64_t kBytes = sizeof(__m128i);
  const __m128i masks = _mm_set1_epi8(static_cast<char>(mask));
  for (int64_t first = 0; first < plane.num_bytes; first += plane.width) {
    for (int at = 0; at < 8; at += plane.num_bits) {
      for (int64_t idx = first; idx < first + plane.width; idx += kBytes, codes += kBytes) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + idx));
        const __m128i bits = _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(at)), masks);
        const __m128i shift = _mm_cvtsi64_si128(plane.shift);
        const auto to = reinterpret_cast<__m128i*>(codes);
        _mm_storeu_si128(to, _mm_or_si128(_mm_loadu_si128(to), _mm_sll_epi16(bits, shift)));
      }
    }
  }
}

// A word of 32 bits has eight codes, of neighbouring inputs or of as many rows.
constexpr int64_t kWordCodes = 8;

inline bool is_of_words(const BlockFormat& format) {
  const BitPlane& plane = format.planes[0];
  return plane.num_bits == 4 && plane.width == 1 && format.planes[1].num_bytes == 0;
}

inline uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Of words whose codes are one input's after the other's; [num_codes] in whole words.
inline void read_words(const uint8_t* words, const BlockFormat& format, int64_t num_codes,
                       uint8_t* codes) {
  const __m128i mask = _mm_set1_epi8(15);
  const int64_t stride = format.stride;
  const auto halves = [&](__m128i both, __m128i& first, __m128i& second) {
    first = _mm_and_si128(both, mask);
    second = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
    if (format.high_first) std::swap(first, second);
  };
  __m128i first, second;
  int64_t idx = 0;
  if (stride == sizeof(uint32_t)) {
    for (; idx + 32 <= num_codes; idx += 32) {
      halves(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + idx / 2)), first, second);
      const auto to = reinterpret_cast<__m128i*>(codes + idx);
      _mm_storeu_si128(to, _mm_unpacklo_epi8(first, second));
      _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(first, second));
    }
  }
  for (; idx < num_codes; idx += kWordCodes) {
    halves(_mm_cvtsi32_si128(word_at(words + idx / kWordCodes * stride)), first, second);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + idx), _mm_unpacklo_epi8(first, second));
  }
}

// Of the words of one input after the other, `place` codes in each before it.
inline void read_places(const uint32_t* words, int64_t place, int64_t num_codes, uint8_t* codes) {
  const __m128i shift = _mm_cvtsi64_si128(4 * place), mask = _mm_set1_epi32(15);
  const auto four = [&](int64_t idx) {
    const __m128i at = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + idx));
    return _mm_and_si128(_mm_srl_epi32(at, shift), mask);
  };
  int64_t idx = 0;
  for (; idx + 16 <= num_codes; idx += 16) {
    const __m128i left = _mm_packs_epi32(four(idx), four(idx + 4));
    const __m128i right = _mm_packs_epi32(four(idx + 8), four(idx + 12));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + idx), _mm_packus_epi16(left, right));
  }
  for (; idx < num_codes; ++idx) codes[idx] = words[idx] >> 4 * place & 15;
}

// Puts sizes and signs in their place, as kCodes8 has them: a sign alone is -128.
inline void put_signs(uint8_t zero, int64_t num_codes, uint8_t* codes) {
  for (int64_t idx = 0; idx < num_codes; ++idx) {
    const int8_t number = static_cast<int8_t>(codes[idx] - zero);
    const uint8_t size = static_cast<uint8_t>(number < 0 ? -number : number);
    codes[idx] = static_cast<uint8_t>((size & 0x7f) | (number & 0x80));
  }
}

// Reads the codes of rows, some inputs of each at a time: what is read stays in a processor's own
// cache until it is packed.
class StoredReader {
 public:
  static constexpr int64_t kInputs = 512;  // whole blocks of every format

  explicit StoredReader(const StoredRows& stored) : stored_(stored) {}

  // Codes as numbers above the least, a byte each; `first` is a multiple of kInputs.
  void read(int64_t row, int64_t first, int64_t num_codes, uint8_t* codes) {
    const BlockFormat& format = stored_.formats[stored_.format_of_row[row]];
    const uint8_t* from = stored_.rows[row] + first / format.num_values * format.stride;
    if (!is_of_words(format)) {
      read_blocks(format, from, num_codes, codes);
    } else if (format.num_values == kWordCodes) {
      read_words(from, format, num_codes, codes);
    } else {
      gather(from, format.stride, num_codes);
      read_places(words_, format.place, num_codes, codes);
    }
    const uint8_t flipped = static_cast<uint8_t>(format.flipped);
    const uint8_t lift = static_cast<uint8_t>(format.lift);
    if (flipped == 0 && lift == 0) return;
    for (int64_t idx = 0; idx < num_codes; ++idx) codes[idx] = (codes[idx] ^ flipped) + lift;
  }

 private:
  static void read_blocks(const BlockFormat& format, const uint8_t* block, int64_t num_codes,
                          uint8_t* codes) {
    std::memset(codes, 0, num_codes);
    for (int64_t idx = 0; idx < num_codes; idx += format.num_values) {
      for (const BitPlane& plane : format.planes) add_plane(plane, block, codes + idx);
      block += format.stride;
    }
  }

  // Rows that share words come one after the other.
  void gather(const uint8_t* from, int64_t stride, int64_t num_words) {
    if (from == gathered_) return;
    gathered_ = from;
    for (int64_t idx = 0; idx < num_words; ++idx) words_[idx] = word_at(from + idx * stride);
  }

  const StoredRows& stored_;
  const uint8_t* gathered_ = nullptr;
  uint32_t words_[kInputs];
};

// The same where codes have an order: whole rows at once.
inline void pack_ordered_block(Layout layout, const BlockedRows& blocked, int64_t block,
                               const StoredRows& stored, int64_t in_features, uint8_t* to) {
  constexpr int64_t kInputs = StoredReader::kInputs;
  std::vector<uint8_t> row_codes(in_features), ordered(kBlockCols * in_features);
  StoredReader reader(stored);
  BlockRows<uint8_t> from;
  for (int64_t lane = 0; lane < kBlockCols; ++lane) {
    const int64_t row = blocked.row(block, lane);
    uint8_t* codes = ordered.data() + lane * in_features;
    from.rows[lane] = row < 0 ? nullptr : codes;
    if (row < 0) continue;
    for (int64_t first = 0; first < in_features; first += kInputs) {
      reader.read(row, first, std::min(kInputs, in_features - first), row_codes.data() + first);
    }
    for (int64_t at = 0; at < in_features; ++at) codes[at] = row_codes[stored.order[at]];
    if (layout == kCodes8) put_signs(static_cast<uint8_t>(stored.zero), in_features, codes);
  }
  pack_block_of_codes(layout, from, in_features, to);
}

// A block of columns at `to`.
inline void pack_stored_block(Layout layout, const BlockedRows& blocked, int64_t block,
                              const StoredRows& stored, int64_t in_features, uint8_t* to) {
  if (stored.order != nullptr) {
    return pack_ordered_block(layout, blocked, block, stored, in_features, to);
  }
  constexpr int64_t kInputs = StoredReader::kInputs;
  uint8_t codes[kBlockCols][kInputs + 64];  // rows apart, so that they are kept side by side
  StoredReader reader(stored);
  for (int64_t first = 0; first < in_features; first += kInputs) {
    const int64_t num_codes = std::min(kInputs, in_features - first);
    BlockRows<uint8_t> from;
    for (int64_t lane = 0; lane < kBlockCols; ++lane) {
      const int64_t row = blocked.row(block, lane);
      from.rows[lane] = row < 0 ? nullptr : codes[lane];
      if (row < 0) continue;
      reader.read(row, first, num_codes, codes[lane]);
      if (layout == kCodes8) put_signs(static_cast<uint8_t>(stored.zero), num_codes, codes[lane]);
    }
    pack_block_of_codes(layout, from, num_codes, to + block_bytes(layout, first));
  }
}

}  // namespace jetflock
