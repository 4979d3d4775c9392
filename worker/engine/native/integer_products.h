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
  static constexpr int64_t kQuadBytes = quad_bytes(kLayout);

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
      if constexpr (kLayout == kInt6) {
        add_upper_bits(from + kBlockCols * 2, quads.left, quads.right);
      }
      return quads;
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t kPrefetchBytes = 3072;

  const uint8_t* codes_;
};

// What the sums of a span's products amount to in each column.
class SpanColumns {
 public:
  SpanColumns(const Linear& linear, long block, int64_t span)
      : has_zeros_(linear.zeros != nullptr), has_minima_(linear.minima != nullptr) {
    const int64_t group = linear.group_of_span(span);
    const int64_t at = (block * linear.num_groups + group) * kBlockCols;
    const GroupScales columns(linear, block, group);
    for (int part = 0; part < 2; ++part) {
      scales_[part] = columns.scales(part);
      if (has_minima_) minima_[part] = columns.minima(part);
      if (has_zeros_) zeros_[part] = widen_int8(linear.zeros + at + part * kLanes);
    }
  }

  // Adds sums of products, which began with the inputs' start, to those of the spans before.
  void add(const Ints (&sums)[2], const SpanInput& input, Floats (&totals)[2]) const {
    const Floats scale = all(input.scale), input_sum = all(input.sum);
    for (int part = 0; part < 2; ++part) {
      const Ints products =
          has_zeros_ ? subtract_products(sums[part], zeros_[part], all_ints(input.code_sum))
                     : sums[part];
      Floats& total = totals[part];
      total = fmadd(to_floats(products), multiply(scales_[part], scale), total);
      if (has_minima_) total = fnmadd(input_sum, minima_[part], total);
    }
  }

 private:
  bool has_zeros_, has_minima_;
  Floats scales_[2], minima_[2];
  Ints zeros_[2];
};

template <int kRows, Layout kLayout>
inline void add_integer_span(const Linear& linear, long block,
                             const IntegerWeights<kLayout>& weights, const InputRows& inputs,
                             const Span& span, Floats (&totals)[kRows][2]) {
  const int64_t num_spans = linear.num_spans(), stride = linear.code_stride();
  const SpanInput* of_span = inputs.spans + span.group;
  Ints sums[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = sums[row][1] = all_ints(of_span[row * num_spans].start);
  }
  const int64_t first_quad = span.first_input / 4, num_quads = (span.num_inputs + 3) / 4;
  for (int64_t quad = first_quad; quad < first_quad + num_quads; ++quad) {
    const BlockQuads<kLayout> at = weights[quad];
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const QuadInput input = broadcast_quad(inputs.codes + row * stride + 4 * quad);
      sums[row][0] = add_products(sums[row][0], at.left, input);
      sums[row][1] = add_products(sums[row][1], at.right, input);
    }
  }
  const SpanColumns columns(linear, block, span.group);
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    columns.add(sums[row], of_span[row * num_spans], totals[row]);
  }
}

// inputs: the slab's, up to kSlabRows. Compiled once, not for each of its callers.
template <Layout kLayout>
[[gnu::noinline]] void multiply_integer_block(const Linear& linear, long block,
                                              const InputRows& inputs, int64_t num_rows,
                                              RowTotals* totals) {
  const IntegerWeights<kLayout> weights(linear, block);
  const int64_t num_tiles = (num_rows + kIntegerTileRows - 1) / kIntegerTileRows;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = num_rows * tile / num_tiles;
    const int tile_rows = static_cast<int>(num_rows * (tile + 1) / num_tiles - first);
    const InputRows rows = inputs.from(linear, first);
    with_num_rows<kIntegerTileRows>(tile_rows, [&]<int kRows>() {
      Floats sums[kRows][2];
#pragma GCC unroll 12
      for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = zeros();
      for_each_span(linear.in_features, linear.span_size, 0, linear.in_features,
                    [&](const Span& span) {
        add_integer_span<kRows>(linear, block, weights, rows, span, sums);
      });
#pragma GCC unroll 12
      for (int row = 0; row < kRows; ++row) {
        totals[first + row].of[0] = sums[row][0];
        totals[first + row].of[1] = sums[row][1];
      }
    });
  }
}

}  // namespace jetflock
