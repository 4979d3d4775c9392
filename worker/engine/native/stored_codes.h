// Codes as the blocks of a file have them: their bits are put together while they are packed.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
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
  int64_t flipped;  // bits of what is stored: a sign, so that codes are numbers above the least
  int64_t lift;     // what is added so that all rows of a weight have the same least number
  BitPlane planes[kPlanes];
};

// Rows [out_features], which need not lie side by side, nor be of one format.
struct StoredRows {
  const BlockFormat* formats;
  const uint8_t* format_of_row;
  const uint8_t* const* rows;
  int64_t zero;  // the code of zero, where a layout has signs
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

// The codes of a row, a byte each, as numbers above the least.
inline void read_row(const BlockFormat& format, const uint8_t* row, int64_t in_features,
                     uint8_t* codes) {
  std::memset(codes, 0, in_features);
  for (int64_t first = 0; first < in_features; first += format.num_values) {
    for (const BitPlane& plane : format.planes) add_plane(plane, row, codes + first);
    row += format.num_bytes;
  }
  const uint8_t flipped = static_cast<uint8_t>(format.flipped);
  const uint8_t lift = static_cast<uint8_t>(format.lift);
  if (flipped == 0 && lift == 0) return;
  for (int64_t idx = 0; idx < in_features; ++idx) codes[idx] = (codes[idx] ^ flipped) + lift;
}

// Puts sizes and signs in their place, as kCodes8 has them: a sign alone is -128.
inline void put_signs(uint8_t zero, int64_t in_features, uint8_t* codes) {
  for (int64_t idx = 0; idx < in_features; ++idx) {
    const int8_t number = static_cast<int8_t>(codes[idx] - zero);
    const uint8_t size = static_cast<uint8_t>(number < 0 ? -number : number);
    codes[idx] = static_cast<uint8_t>((size & 0x7f) | (number & 0x80));
  }
}

// A block of columns at `to`; `codes` is room for as many rows.
inline void pack_stored_block(Layout layout, const BlockedRows& blocked, int64_t block,
                              const StoredRows& stored, int64_t in_features,
                              std::vector<uint8_t>& codes, uint8_t* to) {
  codes.resize(kBlockCols * in_features);
  BlockRows<uint8_t> from;
  for (int64_t lane = 0; lane < kBlockCols; ++lane) {
    const int64_t row = blocked.row(block, lane);
    uint8_t* own = row < 0 ? nullptr : codes.data() + lane * in_features;
    from.rows[lane] = own;
    if (own == nullptr) continue;
    read_row(stored.formats[stored.format_of_row[row]], stored.rows[row], in_features, own);
    if (layout == kCodes8) put_signs(static_cast<uint8_t>(stored.zero), in_features, own);
  }
  pack_block_of_codes(layout, from, in_features, to);
}

}  // namespace jetflock
