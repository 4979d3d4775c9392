// Products of rows with a block of coded weights: the same, bit for bit, for any number of rows.

#pragma once

#include <algorithm>

#include "coded_weights.h"
#include "linear_weights.h"

namespace jetflock {

constexpr int64_t kDecodedInputs = 512;  // of a block, decoded for several tiles: 32 KiB

// The sums of a row that are under way over a block of coded weights: of the group, and of the
// groups before it, each with its scales.
struct GroupedSums {
  __m512 group[2];
  __m512 total[2];
};

// A part of a block's inputs that share their scales.
struct Span {
  int64_t first_input;
  int64_t num_inputs;
  int64_t group;  // of the whole Linear
  bool begins_group;
  bool ends_group;
};

template <class Visit>
inline void for_each_span(const Linear& linear, long block, int64_t begin, int64_t end,
                          const Visit& visit) {
  for (int64_t at = begin; at < end;) {
    const int64_t group = at / linear.group_size;
    const int64_t group_end = std::min((group + 1) * linear.group_size, linear.in_features);
    const int64_t stop = std::min(group_end, end);
    visit(Span{at, stop - at, block * linear.num_groups() + group,
               at == group * linear.group_size, stop == group_end});
    at = stop;
  }
}

// rows: from the span's first input on; weights: of its pairs, from `first_pair` on.
template <int kRows, class Weights>
inline void add_span(const Span& span, const Weights& weights, int64_t first_pair,
                     const float* scales, const bf16* rows, int64_t stride, GroupedSums* sums) {
  __m512 acc[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    acc[row][0] = span.begins_group ? _mm512_setzero_ps() : sums[row].group[0];
    acc[row][1] = span.begins_group ? _mm512_setzero_ps() : sums[row].group[1];
  }
  for (int64_t pair = 0; pair < span.num_inputs / 2; ++pair) {
    const DecodedPairs at = weights[first_pair + pair];
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const __m512bh input = broadcast_pair(rows + row * stride + 2 * pair);
      acc[row][0] = _mm512_dpbf16_ps(acc[row][0], input, at.left);
      acc[row][1] = _mm512_dpbf16_ps(acc[row][1], input, at.right);
    }
  }
  if (!span.ends_group) {
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      sums[row].group[0] = acc[row][0];
      sums[row].group[1] = acc[row][1];
    }
    return;
  }
  const __m512 left = _mm512_loadu_ps(scales), right = _mm512_loadu_ps(scales + kLanes);
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row].total[0] = _mm512_fmadd_ps(acc[row][0], left, sums[row].total[0]);
    sums[row].total[1] = _mm512_fmadd_ps(acc[row][1], right, sums[row].total[1]);
  }
}

// Adds the products of inputs [begin, end) of a block to the sums of a tile of rows; `weights`
// begins with input `first`.
template <class Weights>
inline void add_products(const Linear& linear, long block, Weights& weights, int64_t first,
                         int64_t begin, int64_t end, const bf16* rows, int num_rows,
                         GroupedSums* sums) {
  for_each_span(linear, block, begin, end, [&](const Span& span) {
    if (linear.zeros != nullptr) weights.enter_group(linear.zeros + span.group * 2 * kBlockCols);
    const float* scales = linear.scales + span.group * kBlockCols;
    with_num_rows<kMaxTileRows>(num_rows, [&]<int kRows>() {
      add_span<kRows>(span, weights, (span.first_input - first) / 2, scales,
                      rows + span.first_input, linear.in_features, sums);
    });
  });
}

// Decodes inputs [begin, end) of a block.
template <class Codes>
inline void decode(const Linear& linear, long block, Codes& codes, int64_t begin, int64_t end,
                   bf16* decoded) {
  for_each_span(linear, block, begin, end, [&](const Span& span) {
    if (linear.zeros != nullptr) codes.enter_group(linear.zeros + span.group * 2 * kBlockCols);
    const int64_t first_pair = span.first_input / 2;
    for (int64_t pair = first_pair; pair < first_pair + span.num_inputs / 2; ++pair) {
      const DecodedPairs pairs = codes[pair];
      bf16* to = decoded + (pair - begin / 2) * 2 * kBlockCols;
      _mm512_storeu_si512(to, reinterpret_cast<__m512i>(pairs.left));
      _mm512_storeu_si512(to + kBlockCols, reinterpret_cast<__m512i>(pairs.right));
    }
  });
}

// rows: the slab's, up to kSlabRows. Decoded on the way where one tile holds them all, else once
// for all tiles, part by part: the sums are taken in the same order, so they are the same.
template <class Codes>
inline void multiply_coded_block(const Linear& linear, long block, const bf16* rows,
                                 int64_t num_rows, GroupedSums* sums) {
  Codes codes(static_cast<const uint8_t*>(linear.weights) +
                  block * linear.in_features / 2 * Codes::kPairBytes,
              linear.code_book);
  for (int64_t row = 0; row < num_rows; ++row) {
    sums[row].total[0] = sums[row].total[1] = _mm512_setzero_ps();
  }
  if (num_rows <= kMaxTileRows) {
    add_products(linear, block, codes, 0, 0, linear.in_features, rows, static_cast<int>(num_rows),
                 sums);
    return;
  }
  alignas(64) bf16 decoded[kDecodedInputs * kBlockCols];
  DecodedWeights weights(decoded);
  for (int64_t begin = 0; begin < linear.in_features; begin += kDecodedInputs) {
    const int64_t end = std::min(begin + kDecodedInputs, linear.in_features);
    decode(linear, block, codes, begin, end, decoded);
    const int64_t num_tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t row = num_rows * tile / num_tiles;
      const int tile_rows = static_cast<int>(num_rows * (tile + 1) / num_tiles - row);
      add_products(linear, block, weights, begin, begin, end, rows + row * linear.in_features,
                   tile_rows, sums + row);
    }
  }
}

}  // namespace jetflock
