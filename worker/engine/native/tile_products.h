// Products of rows with a block of weights by AMX's tiles: the same, bit for bit, for any number of
// rows. Each sum is taken over the inputs in their order, tile by tile of 64 bytes of inputs; groups
// of coded weights begin with a tile of their own.

#pragma once

#include "amx.h"
#include "coded_products.h"
#include "integer_tiles.h"
#include "linear_weights.h"

namespace jetflock {

constexpr int kPassRows = 2 * kTileRows;  // of two tiles, which share the tiles of weights
constexpr int kTilePrefetchWords = 24;

// Tiles 0 to 3: the sums of the upper and the lower rows, left and right columns; 4 and 5: inputs of
// the upper and the lower rows; 6 and 7: weights of the left and the right columns.
enum TileId : int { kSums = 0, kInputs = 4, kLeft = 6, kRight = 7 };

// Up to kPassRows rows of inputs.
template <class Value>
struct PassRows {
  const Value* values;
  int64_t in_features;
  int num_rows;

  int upper() const { return std::min(num_rows, kTileRows); }
  int lower() const { return num_rows - upper(); }

  TileConfig config() const {
    TileConfig config;
    for (int half = 0; half < 2; ++half) {
      const int rows = half == 0 ? upper() : lower();
      for (const int tile : {kSums + 2 * half, kSums + 2 * half + 1, kInputs + half}) {
        config.set(tile, rows);
      }
    }
    config.set(kLeft, kTileWords);
    config.set(kRight, kTileWords);
    return config;
  }
};

// Sums of bfloat16 are float, those of int8_t int32_t. kHalves: 2 where there are lower rows.
template <class Tiles, int kHalves, class Value>
class TilePass {
 public:
  TilePass(Tiles& tiles, const PassRows<Value>& rows) : tiles_(tiles), rows_(rows) {}

  void zero() {
    tiles_.template zero<kSums>();
    tiles_.template zero<kSums + 1>();
    if constexpr (kHalves == 2) {
      tiles_.template zero<kSums + 2>();
      tiles_.template zero<kSums + 3>();
    }
  }

  // sums: [kPassRows][kBlockCols].
  template <class Sum>
  void load(const Sum* sums) {
    tiles_.template load<kSums>(sums, kStride);
    tiles_.template load<kSums + 1>(sums + kLanes, kStride);
    if constexpr (kHalves == 2) {
      tiles_.template load<kSums + 2>(sums + kTileRows * kBlockCols, kStride);
      tiles_.template load<kSums + 3>(sums + kTileRows * kBlockCols + kLanes, kStride);
    }
  }

  template <class Sum>
  void store(Sum* sums) {
    tiles_.template store<kSums>(sums, kStride);
    tiles_.template store<kSums + 1>(sums + kLanes, kStride);
    if constexpr (kHalves == 2) {
      tiles_.template store<kSums + 2>(sums + kTileRows * kBlockCols, kStride);
      tiles_.template store<kSums + 3>(sums + kTileRows * kBlockCols + kLanes, kStride);
    }
  }

  // Adds the products of inputs [first, first + count), whole words, with their weights:
  // [num_words][kBlockCols][kPerWord], from memory or from a cache. `beside`: what is done while the
  // tiles are busy, tile by tile.
  template <bool kFromMemory, class Beside>
  void add(int64_t first, int64_t count, const Value* weights, const Beside& beside) {
    for (int64_t at = 0; at < count; at += kTileInputs) {
      const Value* tile = weights + at * kBlockCols;
      if (count - at >= kTileInputs) {
        if constexpr (kFromMemory) {
          prefetch_tile(tile + kTilePrefetchWords * kPerWord * kBlockCols);
        }
        add_tile(first + at, tile);
      } else {
        // Of inputs that follow the last, the weights are zero.
        alignas(64) Value padded[kTileInputs * kBlockCols] = {};
        std::memcpy(padded, tile, (count - at) * kBlockCols * sizeof(Value));
        add_tile(first + at, padded);
      }
      beside();
    }
  }

  void add(int64_t first, int64_t count, const Value* weights) {
    add<true>(first, count, weights, [] {});
  }

  static constexpr int64_t kPerWord = kWordBytes / sizeof(Value);
  static constexpr int64_t kTileInputs = kTileWords * kPerWord;

 private:
  static constexpr int64_t kStride = kBlockCols * kWordBytes;  // of sums, as of weights

  static void prefetch_tile(const Value* weights) {
    const char* from = reinterpret_cast<const char*>(weights);
    for (int row = 0; row < kTileWords; ++row) {
      _mm_prefetch(from + row * kStride, _MM_HINT_T0);
      _mm_prefetch(from + row * kStride + kTileRowBytes, _MM_HINT_T0);
    }
  }

  void add_tile(int64_t first, const Value* weights) {
    load_inputs<0>(first, rows_.upper());
    if constexpr (kHalves == 2) load_inputs<1>(first, rows_.lower());
    tiles_.template load<kLeft>(weights, kStride);
    tiles_.template multiply<Value, kSums, kInputs, kLeft>();
    if constexpr (kHalves == 2) tiles_.template multiply<Value, kSums + 2, kInputs + 1, kLeft>();
    tiles_.template load<kRight>(weights + kLanes * kPerWord, kStride);
    tiles_.template multiply<Value, kSums + 1, kInputs, kRight>();
    if constexpr (kHalves == 2) tiles_.template multiply<Value, kSums + 3, kInputs + 1, kRight>();
  }

  // What follows the end of a row is the next one's, and must not be read.
  template <int kHalf>
  void load_inputs(int64_t first, int num_rows) {
    const Value* from = rows_.values + kHalf * kTileRows * rows_.in_features + first;
    const int64_t count = rows_.in_features - first;
    if (count >= kTileInputs) {
      tiles_.template load<kInputs + kHalf>(from, rows_.in_features * sizeof(Value));
      return;
    }
    Tile padded = {};
    for (int row = 0; row < num_rows; ++row) {
      std::memcpy(padded.bytes[row], from + row * rows_.in_features, count * sizeof(Value));
    }
    tiles_.template load<kInputs + kHalf>(padded.bytes, kTileRowBytes);
  }

  Tiles& tiles_;
  const PassRows<Value>& rows_;
};

// Calls `call` with a pass for each kPassRows of the rows, and with the first of them.
template <class Tiles, class Value, class Call>
inline void for_each_pass(Tiles& tiles, const Value* rows, int64_t in_features, int64_t num_rows,
                          const Call& call) {
  for (int64_t row = 0; row < num_rows; row += kPassRows) {
    const PassRows<Value> pass{rows + row * in_features, in_features,
                        static_cast<int>(std::min<int64_t>(kPassRows, num_rows - row))};
    tiles.configure(pass.config());
    if (pass.lower() > 0) {
      call(TilePass<Tiles, 2, Value>(tiles, pass), row, pass.num_rows);
    } else {
      call(TilePass<Tiles, 1, Value>(tiles, pass), row, pass.num_rows);
    }
  }
  tiles.release();
}

// Sums of a slab's rows with a block.
struct BlockSums {
  alignas(64) float values[kSlabRows][kBlockCols];
};

// Adds what a group's sums of a row amount to, as end_group does.
inline void end_row_group(const Linear& linear, const Span& span, const GroupScales& columns,
                          const InputRows& inputs, int64_t row, const float* group,
                          float* totals) {
  for (int part = 0; part < 2; ++part) {
    const int at = part * kLanes;
    Floats total = fmadd(load(group + at), columns.scales(part), load(totals + at));
    if (columns.has_minima()) {
      const Floats input_sum = all(inputs.sums[row * linear.num_groups + span.group]);
      total = fnmadd(input_sum, columns.minima(part), total);
    }
    store(totals + at, total);
  }
}

// Decoded part by part: the sums of a group that a part's end divides wait in memory.
template <class Tiles, class Codes>
inline void multiply_codes_by_tiles(const Linear& linear, long block, const InputRows& inputs,
                                    int64_t num_rows, BlockSums& totals) {
  Tiles tiles;
  Codes codes(static_cast<const uint8_t*>(linear.weights) +
                  block * linear.in_features / 2 * Codes::kPairBytes,
              linear.code_book);
  BlockSums groups;
  alignas(64) bf16 decoded[(kDecodedInputs + 2 * kTilePrefetchWords) * kBlockCols];
  std::fill_n(totals.values[0], num_rows * kBlockCols, 0.0f);
  for (int64_t begin = 0; begin < linear.in_features; begin += kDecodedInputs) {
    const int64_t end = std::min(begin + kDecodedInputs, linear.in_features);
    decode(linear, block, codes, begin, end, decoded);
    for_each_pass(tiles, inputs.values, linear.in_features, num_rows,
                  [&](auto pass, int64_t first_row, int num_pass_rows) {
      for_each_span(linear, begin, end, [&](const Span& span) {
        if (span.begins_group) {
          pass.zero();
        } else {
          pass.load(groups.values[first_row]);
        }
        pass.add(span.first_input, span.num_inputs,
                 decoded + (span.first_input - begin) * kBlockCols);
        pass.store(groups.values[first_row]);
        if (!span.ends_group) return;
        const GroupScales columns(linear, block, span.group);
        for (int64_t row = first_row; row < first_row + num_pass_rows; ++row) {
          end_row_group(linear, span, columns, inputs, row, groups.values[row],
                        totals.values[row]);
        }
      });
    });
  }
}

template <class Tiles, Layout kLayout>
inline void multiply_integers_by_tiles(const Linear& linear, long block, const InputRows& inputs,
                                       int64_t num_rows, BlockSums& totals) {
  IntegerTileBlock<Tiles, kLayout>(linear, block, inputs, num_rows, totals.values).multiply();
}

template <class Tiles>
inline void multiply_by_tiles(const Linear& linear, long block, const InputRows& inputs,
                              int64_t num_rows, BlockSums& sums) {
  if (linear.layout == kInt8) {
    multiply_integers_by_tiles<Tiles, kInt8>(linear, block, inputs, num_rows, sums);
  } else if (linear.layout == kInt4) {
    multiply_integers_by_tiles<Tiles, kInt4>(linear, block, inputs, num_rows, sums);
  } else if (linear.layout == kInt6) {
    multiply_integers_by_tiles<Tiles, kInt6>(linear, block, inputs, num_rows, sums);
  } else if (linear.layout == kCodes8) {
    multiply_codes_by_tiles<Tiles, Codes8>(linear, block, inputs, num_rows, sums);
  } else if (linear.zeros == nullptr) {
    multiply_codes_by_tiles<Tiles, Codes4<false>>(linear, block, inputs, num_rows, sums);
  } else {
    multiply_codes_by_tiles<Tiles, Codes4<true>>(linear, block, inputs, num_rows, sums);
  }
}

}  // namespace jetflock
