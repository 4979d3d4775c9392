// Linear layers over packed weights: bfloat16, or codes of 8 or 4 bits.

#pragma once

#include <algorithm>

#include "coded_weights.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kMaxTileRows = 12; // 12 rows x 2 vectors of sums fill the registers
constexpr int kSlabRows = 96;    // rows of a task: its weights stay in the second-level cache
constexpr int kPrefetchPairs = 24;
constexpr int64_t kDecodedInputs = 512;  // of a block, decoded for several tiles: 32 KiB

// weights of kBf16: [num_blocks][in_features / 2][kBlockCols][2], the pairs of two neighbouring
// inputs side by side, as the dot product instruction wants them. Columns beyond out_features are
// zero. Codes: [num_blocks][in_features / 2][bytes of a pair], see coded_weights.h.
struct Linear {
  const void* weights;
  const float* bias;  // [num_blocks * kBlockCols], or null
  int64_t in_features;
  int64_t out_features;
  Layout layout;
  // From here on of codes alone.
  int64_t group_size;     // inputs that share a scale, even; the last group may have fewer
  const float* scales;    // [num_blocks][num_groups][kBlockCols]
  const int8_t* zeros;    // [num_blocks][num_groups][2 * kBlockCols], each column's two times; or null
  const uint8_t* code_book;  // see coded_weights.h

  long num_blocks() const { return (out_features + kBlockCols - 1) / kBlockCols; }
  int64_t num_groups() const { return (in_features + group_size - 1) / group_size; }
};

// What becomes of a tile of sums.
enum class Epilogue { kStore, kStoreFloat, kAdd, kSiluMul };

// Each sum is taken over the inputs in their order, by itself: a row's result is the same, bit for
// bit, whatever other rows come with it.
template <int kRows>
inline void multiply_tile(const bf16* rows, int64_t stride, const bf16* weights, int64_t num_pairs,
                          __m512 (&sums)[kMaxTileRows][2]) {
  __m512 acc[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) acc[row][0] = acc[row][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const bf16* at = weights + pair * 2 * kBlockCols;
    if constexpr (kRows <= 12) {
      _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchPairs * 2 * kBlockCols), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(at + (kPrefetchPairs * 2 + 1) * kBlockCols),
                   _MM_HINT_T0);
    }
    const __m512bh left = load_pairs(at);
    const __m512bh right = load_pairs(at + kBlockCols);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const __m512bh input = broadcast_pair(rows + row * stride + 2 * pair);
      acc[row][0] = _mm512_dpbf16_ps(acc[row][0], input, left);
      acc[row][1] = _mm512_dpbf16_ps(acc[row][1], input, right);
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = acc[row][0];
    sums[row][1] = acc[row][1];
  }
}

inline void multiply_tile(int num_rows, const bf16* rows, int64_t stride, const bf16* weights,
                          int64_t num_pairs, __m512 (&sums)[kMaxTileRows][2]) {
  switch (num_rows) {
#define JETFLOCK_CASE(N) \
  case N:                \
    return multiply_tile<N>(rows, stride, weights, num_pairs, sums);
    JETFLOCK_CASE(1)
    JETFLOCK_CASE(2)
    JETFLOCK_CASE(3)
    JETFLOCK_CASE(4)
    JETFLOCK_CASE(5)
    JETFLOCK_CASE(6)
    JETFLOCK_CASE(7)
    JETFLOCK_CASE(8)
    JETFLOCK_CASE(9)
    JETFLOCK_CASE(10)
    JETFLOCK_CASE(11)
    JETFLOCK_CASE(12)
#undef JETFLOCK_CASE
  }
}

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

template <class Weights>
inline void add_span(int num_rows, const Span& span, const Weights& weights, int64_t first_pair,
                     const float* scales, const bf16* rows, int64_t stride, GroupedSums* sums) {
  switch (num_rows) {
#define JETFLOCK_CASE(N) \
  case N:                \
    return add_span<N>(span, weights, first_pair, scales, rows, stride, sums);
    JETFLOCK_CASE(1)
    JETFLOCK_CASE(2)
    JETFLOCK_CASE(3)
    JETFLOCK_CASE(4)
    JETFLOCK_CASE(5)
    JETFLOCK_CASE(6)
    JETFLOCK_CASE(7)
    JETFLOCK_CASE(8)
    JETFLOCK_CASE(9)
    JETFLOCK_CASE(10)
    JETFLOCK_CASE(11)
    JETFLOCK_CASE(12)
#undef JETFLOCK_CASE
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
    add_span(num_rows, span, weights, (span.first_input - first) / 2,
             linear.scales + span.group * kBlockCols, rows + span.first_input, linear.in_features,
             sums);
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

// Output of kStore: bf16; kStoreFloat and kAdd: float; kSiluMul: bf16, half as many columns: the
// left vector of a block holds gates, the right one the values that they are multiplied with.
template <Epilogue kEpilogue>
inline void finish_row(const Linear& linear, long block, const __m512 (&sums)[2], void* output,
                       int64_t row) {
  __m512 values[2] = {sums[0], sums[1]};
  const long col = block * kBlockCols;
  if (linear.bias != nullptr) {
    values[0] = _mm512_add_ps(values[0], _mm512_loadu_ps(linear.bias + col));
    values[1] = _mm512_add_ps(values[1], _mm512_loadu_ps(linear.bias + col + kLanes));
  }
  if constexpr (kEpilogue == Epilogue::kSiluMul) {
    const int64_t num_cols = linear.out_features / 2;
    const long half = col / 2;
    store_bf16(static_cast<bf16*>(output) + row * num_cols + half,
               _mm512_mul_ps(silu(values[0]), values[1]), first_lanes(num_cols - half));
    return;
  }
  for (int part = 0; part < 2; ++part) {
    const long start = col + part * kLanes;
    if (start >= linear.out_features) return;
    const __mmask16 mask = first_lanes(linear.out_features - start);
    const int64_t at = row * linear.out_features + start;
    if constexpr (kEpilogue == Epilogue::kStore) {
      store_bf16(static_cast<bf16*>(output) + at, values[part], mask);
    } else {
      float* to = static_cast<float*>(output) + at;
      if constexpr (kEpilogue == Epilogue::kAdd) {
        values[part] = _mm512_add_ps(values[part], _mm512_maskz_loadu_ps(mask, to));
      }
      _mm512_mask_storeu_ps(to, mask, values[part]);
    }
  }
}

template <Epilogue kEpilogue>
inline void multiply_bf16_block(const Linear& linear, long block, const bf16* rows,
                                int64_t slab_start, int64_t slab_rows, void* output) {
  const bf16* weights =
      static_cast<const bf16*>(linear.weights) + block * kBlockCols * linear.in_features;
  const int64_t num_tiles = (slab_rows + kMaxTileRows - 1) / kMaxTileRows;
  int64_t row = slab_start;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int tile_rows = static_cast<int>((slab_rows * (tile + 1)) / num_tiles -
                                           (slab_rows * tile) / num_tiles);
    __m512 sums[kMaxTileRows][2];
    multiply_tile(tile_rows, rows + row * linear.in_features, linear.in_features, weights,
                  linear.in_features / 2, sums);
    for (int idx = 0; idx < tile_rows; ++idx) {
      finish_row<kEpilogue>(linear, block, sums[idx], output, row + idx);
    }
    row += tile_rows;
  }
}

template <Epilogue kEpilogue>
inline void multiply_codes(const Linear& linear, long block, const bf16* rows, int64_t slab_start,
                           int64_t slab_rows, void* output) {
  GroupedSums sums[kSlabRows];
  const bf16* slab = rows + slab_start * linear.in_features;
  if (linear.layout == kCodes8) {
    multiply_coded_block<Codes8>(linear, block, slab, slab_rows, sums);
  } else if (linear.zeros == nullptr) {
    multiply_coded_block<Codes4<false>>(linear, block, slab, slab_rows, sums);
  } else {
    multiply_coded_block<Codes4<true>>(linear, block, slab, slab_rows, sums);
  }
  for (int64_t row = 0; row < slab_rows; ++row) {
    finish_row<kEpilogue>(linear, block, sums[row].total, output, slab_start + row);
  }
}

// output[row] (epilogue)= rows[row] x weights + bias; rows: [num_rows, in_features] bf16.
template <Epilogue kEpilogue>
void multiply(ThreadTeam::Member& member, int team_size, const Linear& linear, const bf16* rows,
              int64_t num_rows, void* output) {
  const long num_slabs = (num_rows + kSlabRows - 1) / kSlabRows;
  const long num_blocks = linear.num_blocks();
  // Large layers on few rows: several blocks a task, but enough tasks that no thread waits long.
  // Two blocks of kSiluMul's output share a cache line: one thread writes both.
  const long least = kEpilogue == Epilogue::kSiluMul ? 2 : 1;
  const long blocks_per_task =
      num_slabs > 1 ? least : (1 + num_blocks / (team_size * 32 * least)) * least;
  const long tasks_per_slab = (num_blocks + blocks_per_task - 1) / blocks_per_task;
  member.for_each(num_slabs * tasks_per_slab, [&](long task) {
    const int64_t slab_start = task / tasks_per_slab * kSlabRows;
    const int64_t slab_rows = std::min<int64_t>(kSlabRows, num_rows - slab_start);
    const long first_block = task % tasks_per_slab * blocks_per_task;
    const long end_block = std::min(first_block + blocks_per_task, num_blocks);
    for (long block = first_block; block < end_block; ++block) {
      if (linear.layout == kBf16) {
        multiply_bf16_block<kEpilogue>(linear, block, rows, slab_start, slab_rows, output);
      } else {
        multiply_codes<kEpilogue>(linear, block, rows, slab_start, slab_rows, output);
      }
    }
  });
}

}  // namespace jetflock
