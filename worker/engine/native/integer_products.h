// Products of rows of integers with a block of integers, exact within a span of inputs that share
// their scales. Spans are added in float32, in the order of the inputs, by one instruction each: so
// the sums are the same by every kernel set, for any number of rows.

#pragma once

#include <type_traits>

#include "coded_products.h"
#include "input_rows.h"
#include "linear_weights.h"

namespace jetflock {

// A row's sums with a block.
struct RowTotals {
  Floats of[2];
};

// Four neighbouring inputs of a block's columns.
template <Layout kLayout>
struct BlockQuads {
  std::conditional_t<kLayout == kInt8, Quads, SmallQuads> left, right;
};

template <Layout kLayout>
class IntegerWeights {
 public:
  static constexpr int64_t kQuadBytes = (kLayout == kInt8 ? 4 : 2) * kBlockCols;

  IntegerWeights(const Linear& linear, long block)
      : codes_(static_cast<const uint8_t*>(linear.weights) +
               block * linear.num_quads() * kQuadBytes) {}

  const uint8_t* at(int64_t quad) const { return codes_ + quad * kQuadBytes; }

  BlockQuads<kLayout> operator[](int64_t quad) const {
    const uint8_t* from = at(quad);
    for (int64_t line = 0; line < kQuadBytes; line += kLineBytes) {
      prefetch(from + kPrefetchBytes + line);
    }
    if constexpr (kLayout == kInt8) {
      return {load_quads(from), load_quads(from + 4 * kLanes)};
    } else {
      BlockQuads<kLayout> quads;
      load_quads(from, quads.left, quads.right);
      return quads;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t kPrefetchBytes = 3072;

  const uint8_t* codes_;
};

// What is between the codes of a span and what they stand for, and their scales.
class SpanColumns {
 public:
  SpanColumns(const Linear& linear, long block, int64_t span)
      : zero_point_(linear.zero_point),
        has_zeros_(linear.zeros != nullptr),
        has_minima_(linear.minima != nullptr) {
    const int64_t group = span * linear.span_size / linear.group_size;
    const int64_t at = (block * linear.num_groups() + group) * kBlockCols;
    const GroupScales columns(linear, block, group);
    for (int part = 0; part < 2; ++part) {
      scales_[part] = columns.scales(part);
      if (has_minima_) minima_[part] = columns.minima(part);
      if (has_zeros_) zeros_[part] = widen_int8(linear.zeros + at + part * kLanes);
    }
  }

  // Adds what a row's products of codes amount to.
  void add(const Ints (&products)[2], float input_scale, int32_t code_sum, RowTotals& totals) const {
    for (int part = 0; part < 2; ++part) {
      Ints sums = subtract(products[part], all_ints(static_cast<int32_t>(zero_point_ * code_sum)));
      if (has_zeros_) sums = subtract_products(sums, zeros_[part], all_ints(code_sum));
      Floats& total = totals.of[part];
      total = fmadd(to_floats(sums), multiply(scales_[part], all(input_scale)), total);
      if (!has_minima_) continue;
      const Floats input_sum = all(static_cast<float>(code_sum) * input_scale);
      total = fnmadd(input_sum, minima_[part], total);
    }
  }

 private:
  int64_t zero_point_;
  bool has_zeros_, has_minima_;
  Floats scales_[2], minima_[2];
  Ints zeros_[2];
};

template <int kRows, Layout kLayout>
inline void add_integer_span(const Linear& linear, const IntegerWeights<kLayout>& weights,
                             const SpanColumns& columns, const InputRows& inputs,
                             const Span& span, RowTotals* totals) {
  const int64_t num_spans = linear.num_spans(), stride = linear.num_quads() * 4;
  Ints acc[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) acc[row][0] = acc[row][1] = all_ints(0);
  const int8_t* codes = inputs.codes;
  const int64_t first_quad = span.first_input / 4, num_quads = (span.num_inputs + 3) / 4;
  for (int64_t quad = first_quad; quad < first_quad + num_quads; ++quad) {
    const BlockQuads<kLayout> at = weights[quad];
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const QuadInput input = broadcast_quad(codes + row * stride + 4 * quad);
      acc[row][0] = add_products(acc[row][0], at.left, input);
      acc[row][1] = add_products(acc[row][1], at.right, input);
    }
  }
  Ints sums[kRows][2];  // by way of memory: what follows shall not cost the loop its registers
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = acc[row][0];
    sums[row][1] = acc[row][1];
  }
  for (int row = 0; row < kRows; ++row) {
    const int64_t at = row * num_spans + span.group;
    columns.add(sums[row], inputs.scales[at], inputs.code_sums[at], totals[row]);
  }
}

// inputs: the slab's, up to kSlabRows. Compiled once, not for each of its callers.
template <Layout kLayout>
[[gnu::noinline]] void multiply_integer_block(const Linear& linear, long block,
                                              const InputRows& inputs, int64_t num_rows,
                                              RowTotals* totals) {
  const IntegerWeights<kLayout> weights(linear, block);
  std::fill_n(totals, num_rows, RowTotals{zeros(), zeros()});
  const int64_t num_tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t row = num_rows * tile / num_tiles;
    const int tile_rows = static_cast<int>(num_rows * (tile + 1) / num_tiles - row);
    const InputRows rows = inputs.from(linear, row);
    with_num_rows<kMaxTileRows>(tile_rows, [&]<int kRows>() {
      for_each_span(linear.in_features, linear.span_size, 0, linear.in_features,
                    [&](const Span& span) {
        const SpanColumns columns(linear, block, span.group);
        add_integer_span<kRows>(linear, weights, columns, rows, span, totals + row);
      });
    });
  }
}

}  // namespace jetflock
