// Products of rows of integers with a block of integers by AMX's tiles: exact within a span, and so
// the same bits as by vectors (integer_products.h), whichever of both takes how many rows.

#pragma once

#include "amx.h"
#include "coded_products.h"
#include "input_rows.h"
#include "integer_products.h"
#include "linear_weights.h"

namespace jetflock {

constexpr int kWordBlockBytes = kBlockCols * kWordBytes;  // a word of all columns
constexpr int kIntegerPassRows = 2 * kTileRows;

// A pass of up to kIntegerPassRows rows. Tiles 0 to 3: the sums of the upper and the lower rows,
// left and right columns; 4 and 5: inputs of both; 6 and 7: weights of left and right columns.
// kHalves: 2 where there are lower rows. A tile holds `tile_words` of the inputs.
template <class Tiles, int kHalves>
class IntegerPass {
 public:
  IntegerPass(Tiles& tiles, const int8_t* codes, int64_t stride, int num_rows, int tile_words)
      : tiles_(tiles), codes_(codes), stride_(stride), num_rows_(num_rows),
        tile_words_(tile_words) {
    TileConfig config;
    for (int half = 0; half < 2; ++half) {
      for (const int sums : {2 * half, 2 * half + 1}) config.set(sums, rows(half));
      config.set(kInputTile + half, rows(half));
      if (rows(half) > 0) config.row_bytes[kInputTile + half] = tile_words * kWordBytes;
    }
    config.set(kLeftTile, tile_words);
    config.set(kRightTile, tile_words);
    tiles_.configure(config);
  }

  int num_rows() const { return num_rows_; }

  void zero() {
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    if constexpr (kHalves == 2) {
      tiles_.template zero<2>();
      tiles_.template zero<3>();
    }
  }

  // sums: [kIntegerPassRows][kBlockCols].
  void load(const int32_t* sums) {
    tiles_.template load<0>(sums, kWordBlockBytes);
    tiles_.template load<1>(sums + kLanes, kWordBlockBytes);
    if constexpr (kHalves == 2) {
      tiles_.template load<2>(sums + kTileRows * kBlockCols, kWordBlockBytes);
      tiles_.template load<3>(sums + kTileRows * kBlockCols + kLanes, kWordBlockBytes);
    }
  }

  void store(int32_t* sums) {
    tiles_.template store<0>(sums, kWordBlockBytes);
    tiles_.template store<1>(sums + kLanes, kWordBlockBytes);
    if constexpr (kHalves == 2) {
      tiles_.template store<2>(sums + kTileRows * kBlockCols, kWordBlockBytes);
      tiles_.template store<3>(sums + kTileRows * kBlockCols + kLanes, kWordBlockBytes);
    }
  }

  // Adds the products of words [first, first + count) with their weights: [count][kBlockCols][4].
  void add(int64_t first, int64_t count, const int8_t* weights) {
    const int8_t* inputs = codes_ + first * kWordBytes;
    for (; count >= tile_words_; count -= tile_words_) {
      add_tile(inputs, stride_, weights);
      inputs += tile_words_ * kWordBytes;
      weights += tile_words_ * kWordBlockBytes;
    }
    if (count > 0) add_rest(inputs, static_cast<int>(count), weights);
  }

 private:
  static constexpr int kInputTile = 4, kLeftTile = 6, kRightTile = 7;

  int rows(int half) const {
    return half == 0 ? std::min(num_rows_, kTileRows) : std::max(0, num_rows_ - kTileRows);
  }

  void add_tile(const int8_t* inputs, int64_t stride, const int8_t* weights) {
    tiles_.template load<kInputTile>(inputs, stride);
    tiles_.template load<kLeftTile>(weights, kWordBlockBytes);
    tiles_.template multiply<int8_t, 0, kInputTile, kLeftTile>();
    tiles_.template load<kRightTile>(weights + kTileRowBytes, kWordBlockBytes);
    tiles_.template multiply<int8_t, 1, kInputTile, kRightTile>();
    if constexpr (kHalves == 2) {
      tiles_.template load<kInputTile + 1>(inputs + kTileRows * stride, stride);
      tiles_.template multiply<int8_t, 2, kInputTile + 1, kLeftTile>();
      tiles_.template multiply<int8_t, 3, kInputTile + 1, kRightTile>();
    }
  }

  // What follows is other words': zeros take their place.
  void add_rest(const int8_t* inputs, int count, const int8_t* weights) {
    alignas(64) int8_t rest[kTileWords * kWordBlockBytes] = {};
    alignas(64) int8_t rows[kIntegerPassRows * kTileRowBytes] = {};
    std::memcpy(rest, weights, count * kWordBlockBytes);
    for (int row = 0; row < num_rows_; ++row) {
      std::memcpy(rows + row * kTileRowBytes, inputs + row * stride_, count * kWordBytes);
    }
    add_tile(rows, kTileRowBytes, rest);
  }

  Tiles& tiles_;
  const int8_t* codes_;
  int64_t stride_;
  int num_rows_;
  int tile_words_;
};

// Calls `call` with a pass for each kIntegerPassRows of the rows, and with the first of them.
template <class Tiles, class Call>
inline void for_each_integer_pass(Tiles& tiles, const int8_t* codes, int64_t stride,
                                  int64_t num_rows, int tile_words, const Call& call) {
  for (int64_t row = 0; row < num_rows; row += kIntegerPassRows) {
    const int count = static_cast<int>(std::min<int64_t>(kIntegerPassRows, num_rows - row));
    const int8_t* from = codes + row * stride;
    if (count > kTileRows) {
      call(IntegerPass<Tiles, 2>(tiles, from, stride, count, tile_words), row);
    } else {
      call(IntegerPass<Tiles, 1>(tiles, from, stride, count, tile_words), row);
    }
  }
  tiles.release();
}

// A block's weights part by part as tiles take them: [num_words][kBlockCols][4] with signs,
// lessened by what of their zero points there is room for.
template <Layout kLayout>
class SignedWeights {
 public:
  SignedWeights(const Linear& linear, long block) : linear_(linear), block_(block) {
    if constexpr (kLayout == kInt8) {
      lessened_ = 128;
    } else {
      constexpr int kMostZero = 64;  // so that all differences are in eight bits
      takes_zeros_ = linear.zeros != nullptr && are_small(kMostZero);
      lessened_ = linear.zero_point >= 0 && linear.zero_point <= kMostZero ? linear.zero_point : 0;
    }
  }

  // What of the zero points has to be taken away of sums.
  int64_t rest_of_zero_point() const { return linear_.zero_point - lessened_; }
  bool has_zeros_left() const { return linear_.zeros != nullptr && !takes_zeros_; }

  // Inputs [begin, begin + count), in whole spans of one group each.
  void widen(const uint8_t* from, int64_t group, int64_t num_words, int8_t* to) const {
    alignas(64) uint8_t less[kWordBlockBytes];
    std::fill_n(less, kWordBlockBytes, static_cast<uint8_t>(lessened_));
    if (takes_zeros_) {
      const int8_t* zeros = linear_.zeros + (block_ * linear_.num_groups + group) * kBlockCols;
      for (int at = 0; at < kWordBlockBytes; ++at) less[at] += zeros[at / kWordBytes];
    }
    for (int64_t word = 0; word < num_words; ++word) {
      uint8_t* codes = reinterpret_cast<uint8_t*>(to) + word * kWordBlockBytes;
      widen_word(from + word * quad_bytes(kLayout), less, codes);
    }
  }

 private:
  bool are_small(int most) const {
    const int8_t* zeros = linear_.zeros + block_ * linear_.num_groups * kBlockCols;
    return std::all_of(zeros, zeros + linear_.num_groups * kBlockCols,
                       [&](int8_t zero) { return zero >= -most && zero <= most; });
  }

  static void widen_word(const uint8_t* from, const uint8_t* less, uint8_t* to) {
    constexpr int kHalf = kWordBlockBytes / 2, kPart = kHalf / 2;
    if constexpr (kLayout == kInt8) {
      for (int at = 0; at < kWordBlockBytes; ++at) to[at] = from[at] - less[at];
      return;
    }
    uint8_t codes[kWordBlockBytes];
    for (int at = 0; at < kHalf; ++at) {
      codes[at] = from[at] & 15;
      codes[kHalf + at] = from[at] >> 4;
    }
    if constexpr (kLayout == kInt6) {
      for (int part = 0; part < 4; ++part) {
        for (int at = 0; at < kPart; ++at) {
          codes[part * kPart + at] |= (from[kHalf + at] >> 2 * part & 3) << 4;
        }
      }
    }
    for (int at = 0; at < kWordBlockBytes; ++at) to[at] = codes[at] - less[at];
  }

  const Linear& linear_;
  long block_;
  bool takes_zeros_ = false;
  int64_t lessened_ = 0;
};

constexpr int kSpansAtOnce = 4;  // whose sums wait in the first-level cache for their scales

// The exact sums of a pass's rows, span by span.
struct SpanSums {
  alignas(64) int32_t of[kSpansAtOnce][kIntegerPassRows][kBlockCols];
};

// What the sums of neighbouring spans amount to.
class SpanFinish {
 public:
  SpanFinish(const Linear& linear, long block, int64_t rest_of_zero_point, bool has_zeros_left)
      : linear_(linear), block_(block), rest_(static_cast<int32_t>(rest_of_zero_point)),
        has_zeros_(has_zeros_left) {}

  // Of spans [first, first + count): adds those of rows of a pass to `totals`, [kBlockCols] each.
  void finish(int64_t first, int64_t count, const SpanSums& sums, const SpanInput* spans,
              int num_rows, float (*totals)[kBlockCols]) const {
    const bool is_plain = rest_ == 0 && !has_zeros_ && linear_.minima == nullptr;
    with_num_rows<kSpansAtOnce>(static_cast<int>(count), [&]<int kSpans>() {
      if (is_plain) {
        add_spans<kSpans, false>(first, sums, spans, num_rows, totals);
      } else {
        add_spans<kSpans, true>(first, sums, spans, num_rows, totals);
      }
    });
  }

 private:
  // kHasMore: zero points or minima that weights are lessened by.
  template <int kSpans, bool kHasMore>
  void add_spans(int64_t first, const SpanSums& sums, const SpanInput* spans, int num_rows,
                 float (*totals)[kBlockCols]) const {
    const int64_t num_spans = linear_.num_spans();
    const bool has_minima = linear_.minima != nullptr;
    Floats scales[kSpans][2], minima[kSpans][2];
    Ints zeros[kSpans][2];
    for (int span = 0; span < kSpans; ++span) {
      const int64_t group = linear_.group_of_span(first + span);
      const GroupScales columns(linear_, block_, group);
      const int64_t at = (block_ * linear_.num_groups + group) * kBlockCols;
      for (int part = 0; part < 2; ++part) {
        scales[span][part] = columns.scales(part);
        if (!kHasMore) continue;
        if (has_minima) minima[span][part] = columns.minima(part);
        if (has_zeros_) zeros[span][part] = widen_int8(linear_.zeros + at + part * kLanes);
      }
    }
    for (int row = 0; row < num_rows; ++row) {
      const SpanInput* inputs = spans + row * num_spans + first;
      Floats total[2] = {load(totals[row]), load(totals[row] + kLanes)};
#pragma GCC unroll 4
      for (int span = 0; span < kSpans; ++span) {
        const SpanInput& input = inputs[span];
        const Floats scale = all(input.scale);
#pragma GCC unroll 2
        for (int part = 0; part < 2; ++part) {
          Ints products = load_ints(sums.of[span][row] + part * kLanes);
          if (kHasMore) {
            products = add(products, all_ints(-rest_ * input.code_sum));
            if (has_zeros_) {
              products = subtract_products(products, zeros[span][part], all_ints(input.code_sum));
            }
          }
          total[part] =
              fmadd(to_floats(products), multiply(scales[span][part], scale), total[part]);
          if (kHasMore && has_minima) {
            total[part] = fnmadd(all(input.sum), minima[span][part], total[part]);
          }
        }
      }
      store(totals[row], total[0]);
      store(totals[row] + kLanes, total[1]);
    }
  }

  const Linear& linear_;
  long block_;
  int32_t rest_;
  bool has_zeros_;
};

// A block's product with the rows of a slab, part by part of its inputs.
template <class Tiles, Layout kLayout>
class IntegerTileBlock {
 public:
  IntegerTileBlock(const Linear& linear, long block, const InputRows& inputs, int64_t num_rows,
                   float (*totals)[kBlockCols])
      : linear_(linear), codes_(linear, block), weights_(linear, block),
        finish_(linear, block, weights_.rest_of_zero_point(), weights_.has_zeros_left()),
        inputs_(inputs), num_rows_(num_rows), totals_(totals) {}

  void multiply() {
    std::fill_n(totals_[0], num_rows_ * kBlockCols, 0.0f);
    if (linear_.span_size <= kPartInputs) {
      const int64_t part = kPartInputs / linear_.span_size * linear_.span_size;
      for (int64_t begin = 0; begin < linear_.in_features; begin += part) {
        multiply_spans(begin, std::min(begin + part, linear_.in_features));
      }
    } else {
      for_each_span(linear_.in_features, linear_.span_size, 0, linear_.in_features,
                    [&](const Span& span) { multiply_long_span(span); });
    }
  }

 private:
  static constexpr int64_t kPartInputs = 512;

  static int64_t words(int64_t num_inputs) { return (num_inputs + kWordBytes - 1) / kWordBytes; }

  template <class Call>
  void for_each_pass(const Call& call) {
    const int64_t span_words = words(std::min(linear_.span_size, linear_.in_features));
    const int tile_words = static_cast<int>(std::min<int64_t>(span_words, kTileWords));
    for_each_integer_pass(tiles_, inputs_.codes, linear_.code_stride(), num_rows_, tile_words,
                          call);
  }

  void widen(const Span& span, int64_t begin) {
    const int64_t group = linear_.group_of_span(span.group);
    weights_.widen(codes_.at(span.first_input / kWordBytes), group, words(span.num_inputs),
                   widened_ + (span.first_input - begin) * kBlockCols);
  }

  // Whole spans.
  void multiply_spans(int64_t begin, int64_t end) {
    const auto for_each = [&](const auto& visit) {
      for_each_span(linear_.in_features, linear_.span_size, begin, end, visit);
    };
    for_each([&](const Span& span) { widen(span, begin); });
    const int64_t num_spans = linear_.num_spans();
    for_each_pass([&](auto pass, int64_t row) {
      const SpanInput* of_rows = inputs_.spans + row * num_spans;
      int64_t first = begin / linear_.span_size, count = 0;
      for_each([&](const Span& span) {
        pass.zero();
        pass.add(span.first_input / kWordBytes, words(span.num_inputs),
                 widened_ + (span.first_input - begin) * kBlockCols);
        pass.store(sums_.of[count++][0]);
        if (count < kSpansAtOnce && span.first_input + span.num_inputs < end) return;
        finish_.finish(first, count, sums_, of_rows, pass.num_rows(), totals_ + row);
        first += count;
        count = 0;
      });
    });
  }

  // Its sums wait in memory between parts.
  void multiply_long_span(const Span& span) {
    const int64_t num_spans = linear_.num_spans(), span_end = span.first_input + span.num_inputs;
    for (int64_t begin = span.first_input; begin < span_end; begin += kPartInputs) {
      const int64_t count = std::min(kPartInputs, span_end - begin);
      widen(Span{begin, count, span.group, false, false}, begin);
      for_each_pass([&](auto pass, int64_t row) {
        if (begin == span.first_input) {
          pass.zero();
        } else {
          pass.load(long_sums_[row]);
        }
        pass.add(begin / kWordBytes, words(count), widened_);
        pass.store(begin + count < span_end ? long_sums_[row] : sums_.of[0][0]);
        if (begin + count < span_end) return;
        finish_.finish(span.group, 1, sums_, inputs_.spans + row * num_spans, pass.num_rows(),
                    totals_ + row);
      });
    }
  }

  const Linear& linear_;
  IntegerWeights<kLayout> codes_;
  SignedWeights<kLayout> weights_;
  SpanFinish finish_;
  const InputRows& inputs_;
  int64_t num_rows_;
  float (*totals_)[kBlockCols];
  Tiles tiles_;
  SpanSums sums_;
  alignas(64) int32_t long_sums_[kSlabRows][kBlockCols];
  alignas(64) int8_t widened_[kPartInputs * kBlockCols];
};

}  // namespace jetflock
