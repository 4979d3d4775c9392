// Products of rows with a block of coded weights: the same, bit for bit, for any number of rows.

#pragma once

#include <algorithm>

#include "coded_weights.h"
#include "input_rows.h"
#include "linear_weights.h"

namespace jetflock {

constexpr int64_t kDecodedInputs = 512;  // of a block, decoded for several tiles: 32 KiB

// The sums of a row that are under way over a block of coded weights: of the group, and of the
// groups before it, each with its scales.
struct GroupedSums {
  Floats group[2];
  Floats total[2];
};

// A part of a block's inputs that share their scales.
struct Span {
  int64_t first_input;
  int64_t num_inputs;
  int64_t group;  // of the block
  bool begins_group;
  bool ends_group;
};

// In groups of so many inputs each.
template <class Visit>
inline void for_each_span(int64_t in_features, int64_t group_size, int64_t begin, int64_t end,
                          const Visit& visit) {
  int64_t at = begin;
  for (int64_t group = begin / group_size; at < end; ++group) {
    const int64_t group_begin = group * group_size;
    const int64_t group_end = std::min(group_begin + group_size, in_features);
    const int64_t stop = std::min(group_end, end);
    visit(Span{at, stop - at, group, at == group_begin, stop == group_end});
    at = stop;
  }
}

template <class Visit>
inline void for_each_span(const Linear& linear, int64_t begin, int64_t end, const Visit& visit) {
  for_each_span(linear.in_features, linear.group_size, begin, end, visit);
}

// What a block's columns take of the sums of a group of inputs.
class GroupScales {
 public:
  GroupScales(const Linear& linear, long block, int64_t group)
      : linear_(linear), at_((block * linear.num_groups + group) * kBlockCols) {
    // Blocks of columns have whole shares.
    shared_at_ = linear.scale_steps == nullptr
                     ? at_
                     : (at_ / kBlockCols >> linear.share_bits) * kBlockCols;
  }

  bool has_minima() const { return linear_.minima != nullptr; }
  Floats scales(int part) const { return take(linear_.scales, linear_.scale_steps, part); }
  Floats minima(int part) const { return take(linear_.minima, linear_.minimum_steps, part); }

 private:
  Floats take(const float* values, const int8_t* steps, int part) const {
    const Floats shared = load(values + shared_at_ + part * kLanes);
    if (steps == nullptr) return shared;
    return multiply(shared, from_int8(steps + at_ + part * kLanes));
  }

  const Linear& linear_;
  int64_t at_;
  int64_t shared_at_;
};

// Adds what a group's sums amount to: scaled, and lessened by the minima times the inputs' sums.
template <int kRows>
inline void end_group(const Linear& linear, const Span& span, const GroupScales& columns,
                      const InputRows& inputs, const Floats (&acc)[kRows][2],
                      GroupedSums* sums) {
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
    const Floats scales = columns.scales(part);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      sums[row].total[part] = fmadd(acc[row][part], scales, sums[row].total[part]);
    }
    if (!columns.has_minima()) continue;
    const Floats minima = columns.minima(part);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Floats input_sum = all(inputs.sums[row * linear.num_groups + span.group]);
      sums[row].total[part] = fnmadd(input_sum, minima, sums[row].total[part]);
    }
  }
}

// weights: of the span's pairs, from `first_pair` on.
template <int kRows, class Weights>
inline void add_span(const Linear& linear, const Span& span, const GroupScales& columns,
                     const Weights& weights, int64_t first_pair, const InputRows& inputs,
                     GroupedSums* sums) {
  const bf16* rows = inputs.values + span.first_input;
  const int64_t stride = linear.in_features;
  Floats acc[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    acc[row][0] = span.begins_group ? zeros() : sums[row].group[0];
    acc[row][1] = span.begins_group ? zeros() : sums[row].group[1];
  }
  for (int64_t pair = 0; pair < span.num_inputs / 2; ++pair) {
    const DecodedPairs at = weights[first_pair + pair];
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Pairs input = broadcast_pair(rows + row * stride + 2 * pair);
      acc[row][0] = add_products(acc[row][0], input, at.left);
      acc[row][1] = add_products(acc[row][1], input, at.right);
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
  end_group<kRows>(linear, span, columns, inputs, acc, sums);
}

template <class Weights>
inline void enter_group(const Linear& linear, long block, const Span& span, Weights& weights) {
  if (linear.zeros == nullptr) return;
  const int64_t group = block * linear.num_groups + span.group;
  weights.enter_group(linear.zeros + group * 2 * kBlockCols);
}

// Adds the products of inputs [begin, end) of a block to the sums of a tile of rows; `weights`
// begins with input `first`.
template <class Weights>
inline void add_products(const Linear& linear, long block, Weights& weights, int64_t first,
                         int64_t begin, int64_t end, const InputRows& inputs, int num_rows,
                         GroupedSums* sums) {
  for_each_span(linear, begin, end, [&](const Span& span) {
    enter_group(linear, block, span, weights);
    const GroupScales columns(linear, block, span.group);
    const int64_t first_pair = (span.first_input - first) / 2;
    with_num_rows<kMaxTileRows>(num_rows, [&]<int kRows>() {
      add_span<kRows>(linear, span, columns, weights, first_pair, inputs, sums);
    });
  });
}

// Decodes inputs [begin, end) of a block.
template <class Codes>
inline void decode(const Linear& linear, long block, Codes& codes, int64_t begin, int64_t end,
                   bf16* decoded) {
  for_each_span(linear, begin, end, [&](const Span& span) {
    enter_group(linear, block, span, codes);
    const int64_t first_pair = span.first_input / 2;
    for (int64_t pair = first_pair; pair < first_pair + span.num_inputs / 2; ++pair) {
      const DecodedPairs pairs = codes[pair];
      bf16* to = decoded + (pair - begin / 2) * 2 * kBlockCols;
      store_pairs(to, pairs.left);
      store_pairs(to + kBlockCols, pairs.right);
    }
  });
}

// inputs: the slab's, up to kSlabRows. Decoded on the way where one tile holds them all, else once
// for all tiles, part by part: the sums are taken in the same order, so they are the same.
template <class Codes>
inline void multiply_coded_block(const Linear& linear, long block, const InputRows& inputs,
                                 int64_t num_rows, GroupedSums* sums) {
  Codes codes(static_cast<const uint8_t*>(linear.weights) +
                  block * linear.in_features / 2 * Codes::kPairBytes,
              linear.code_book);
  for (int64_t row = 0; row < num_rows; ++row) {
    sums[row].total[0] = sums[row].total[1] = zeros();
  }
  if (num_rows <= kMaxTileRows) {
    add_products(linear, block, codes, 0, 0, linear.in_features, inputs,
                 static_cast<int>(num_rows), sums);
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
      add_products(linear, block, weights, begin, begin, end, inputs.from(linear, row), tile_rows,
                   sums + row);
    }
  }
}

}  // namespace jetflock
