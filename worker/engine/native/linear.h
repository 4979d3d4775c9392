// Linear layers over packed weights: bfloat16, or codes of 8 or 4 bits.

#pragma once

#include <algorithm>

#include "coded_products.h"
#include "input_rows.h"
#include "integer_products.h"
#include "linear_weights.h"
#include "thread_team.h"
#include "tile_check.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kPrefetchPairs = 24;

// What takes the sums of a block: vectors, or tiles where the kernel set has them.
#if defined(JETFLOCK_AMX)
constexpr bool kHasTiles = true;
using KernelTiles = InstructionTiles;
inline const char* prepare_kernels() { return prepare_tiles(); }
#elif defined(JETFLOCK_AMX_EMULATED)
constexpr bool kHasTiles = true;
using KernelTiles = EmulatedTiles;
inline const char* prepare_kernels() { return nullptr; }
#else
constexpr bool kHasTiles = false;
using KernelTiles = EmulatedTiles;
inline const char* prepare_kernels() { return nullptr; }
#endif

// What becomes of a tile of sums.
enum class Epilogue { kStore, kStoreFloat, kAdd, kSiluMul };

// Each sum is taken over the inputs in their order, by itself: a row's result is the same, bit for
// bit, whatever other rows come with it.
template <int kRows>
inline void multiply_tile(const bf16* rows, int64_t stride, const bf16* weights, int64_t num_pairs,
                          Floats (&sums)[kMaxTileRows][2]) {
  Floats acc[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) acc[row][0] = acc[row][1] = zeros();
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const bf16* at = weights + pair * 2 * kBlockCols;
    if constexpr (kRows <= 12) {
      _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchPairs * 2 * kBlockCols), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(at + (kPrefetchPairs * 2 + 1) * kBlockCols),
                   _MM_HINT_T0);
    }
    const Pairs left = load_pairs(at);
    const Pairs right = load_pairs(at + kBlockCols);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Pairs input = broadcast_pair(rows + row * stride + 2 * pair);
      acc[row][0] = add_products(acc[row][0], input, left);
      acc[row][1] = add_products(acc[row][1], input, right);
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = acc[row][0];
    sums[row][1] = acc[row][1];
  }
}

// Output of kStore: bf16; kStoreFloat and kAdd: float; kSiluMul: bf16, half as many columns: the
// left vector of a block holds gates, the right one the values that they are multiplied with.
template <Epilogue kEpilogue>
inline void finish_row(const Linear& linear, long block, const Floats (&sums)[2], void* output,
                       int64_t row) {
  Floats values[2] = {sums[0], sums[1]};
  const long col = block * kBlockCols;
  if (linear.bias != nullptr) {
    values[0] = add(values[0], load(linear.bias + col));
    values[1] = add(values[1], load(linear.bias + col + kLanes));
  }
  if constexpr (kEpilogue == Epilogue::kSiluMul) {
    const int64_t num_cols = linear.out_features / 2;
    const long half = col / 2;
    store_bf16(static_cast<bf16*>(output) + row * num_cols + half,
               multiply(silu(values[0]), values[1]), first_lanes(num_cols - half));
    return;
  }
  for (int part = 0; part < 2; ++part) {
    const long start = col + part * kLanes;
    if (start >= linear.out_features) return;
    const Mask mask = first_lanes(linear.out_features - start);
    const int64_t at = row * linear.out_features + start;
    if constexpr (kEpilogue == Epilogue::kStore) {
      store_bf16(static_cast<bf16*>(output) + at, values[part], mask);
    } else {
      float* to = static_cast<float*>(output) + at;
      if constexpr (kEpilogue == Epilogue::kAdd) {
        values[part] = add(values[part], load(to, mask));
      }
      store(to, values[part], mask);
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
    Floats sums[kMaxTileRows][2];
    with_num_rows<kMaxTileRows>(tile_rows, [&]<int kRows>() {
      multiply_tile<kRows>(rows + row * linear.in_features, linear.in_features, weights,
                           linear.in_features / 2, sums);
    });
    for (int idx = 0; idx < tile_rows; ++idx) {
      finish_row<kEpilogue>(linear, block, sums[idx], output, row + idx);
    }
    row += tile_rows;
  }
}

template <Epilogue kEpilogue>
inline void multiply_codes(const Linear& linear, long block, const InputRows& inputs,
                           int64_t slab_start, int64_t slab_rows, void* output) {
  GroupedSums sums[kSlabRows];
  const InputRows slab = inputs.from(linear, slab_start);
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

template <Epilogue kEpilogue>
inline void multiply_tiles(const Linear& linear, long block, const InputRows& inputs,
                           int64_t slab_start, int64_t slab_rows, void* output) {
  BlockSums sums;
  multiply_by_tiles<KernelTiles>(linear, block, inputs.from(linear, slab_start), slab_rows, sums);
  for (int64_t row = 0; row < slab_rows; ++row) {
    const float* from = sums.values[row];
    finish_row<kEpilogue>(linear, block, {load(from), load(from + kLanes)}, output,
                          slab_start + row);
  }
}

template <Epilogue kEpilogue>
inline void multiply_integers(const Linear& linear, long block, const InputRows& inputs,
                              int64_t slab_start, int64_t slab_rows, void* output) {
  RowTotals totals[kSlabRows];
  const InputRows slab = inputs.from(linear, slab_start);
  if (linear.layout == kInt8) {
    multiply_integer_block<kInt8>(linear, block, slab, slab_rows, totals);
  } else {
    multiply_integer_block<kInt4>(linear, block, slab, slab_rows, totals);
  }
  for (int64_t row = 0; row < slab_rows; ++row) {
    finish_row<kEpilogue>(linear, block, totals[row].of, output, slab_start + row);
  }
}

// A slab's rows with a block, by what the kernel set has for the layout.
template <Epilogue kEpilogue>
inline void multiply_block(const Linear& linear, long block, const InputRows& inputs,
                           int64_t slab_start, int64_t slab_rows, void* output) {
  if constexpr (kHasTiles) {
    if (!linear.by_vectors) {
      return multiply_tiles<kEpilogue>(linear, block, inputs, slab_start, slab_rows, output);
    }
  }
  if (linear.has_integers()) {
    multiply_integers<kEpilogue>(linear, block, inputs, slab_start, slab_rows, output);
  } else if (linear.layout == kBf16) {
    multiply_bf16_block<kEpilogue>(linear, block, inputs.values, slab_start, slab_rows, output);
  } else {
    multiply_codes<kEpilogue>(linear, block, inputs, slab_start, slab_rows, output);
  }
}

// output[row] (epilogue)= inputs[row] x weights + bias.
template <Epilogue kEpilogue>
void multiply(ThreadTeam::Member& member, int team_size, const Linear& linear,
              const InputRows& inputs, int64_t num_rows, void* output) {
  if (must_prepare(linear)) {
    member.for_each(num_rows, [&](int64_t row) { prepare_row(linear, inputs, row); });
  }
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
      multiply_block<kEpilogue>(linear, block, inputs, slab_start, slab_rows, output);
    }
  });
}

}  // namespace jetflock
