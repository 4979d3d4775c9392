// Attention by AMX's tiles: sixteen query rows at a time, several such with each block of keys and
// values. Both products are taken over their inputs in one order, for any number of rows: those of
// scores by 32 dimensions of a head, those of values by the sixteen tokens of a group.

#pragma once

#include "amx.h"
#include "attention.h"

namespace jetflock {

constexpr int kTaskQueryRows = 48;  // of a prefill chunk, in one task

template <class Tiles, class Pool>
class TileAttention {
 public:
  using Rows = QueryRows<kTaskQueryRows>;

  TileAttention(const AttentionShape<Pool>& shape, const Rows& rows, int num_rows)
      : shape_(shape), rows_(rows), num_rows_(num_rows), head_dim_(shape.pool.shape.head_dim) {
    for (int row = 0; row < num_rows; ++row) {
      std::copy_n(rows.queries[row], head_dim_, queries_ + row * head_dim_);
    }
    std::fill_n(sums_, num_rows * head_dim_, 0.0f);
  }

  void attend() {
    const int64_t last_position = *std::max_element(rows_.last_seen, rows_.last_seen + num_rows_);
    const int64_t first_start = shape_.first_seen(rows_.positions[0]) / kBlockTokens * kBlockTokens;
    Reader reader(shape_.pool, shape_.pages, shape_.kv_head, first_start, last_position);
    for (int64_t start = first_start; start <= last_position; start += kBlockTokens) {
      const Block block = reader.read(start);
      fetch(reader.next());
      for (int first = 0; first < num_rows_; first += kTileRows) {
        const int end = std::min(first + kTileRows, num_rows_);
        if (*std::max_element(rows_.last_seen + first, rows_.last_seen + end) < start) continue;
        configure(end - first);
        score(block, queries_ + first * head_dim_);
        for (int row = first; row < end; ++row) weigh_row(reader, start, row, row - first);
        add_values(block, sums_ + first * head_dim_);
      }
    }
    tiles_.release();
    for (int row = 0; row < num_rows_; ++row) {
      end_attention(seen_[row], rows_.sinks[row], sums_ + row * head_dim_, head_dim_,
                    rows_.outputs[row]);
    }
  }

 private:
  using Reader = typename Pool::Reader;

  // Tiles 0 to 3: scores of the four groups, or sums of 64 dimensions.
  enum TileId : int { kQueries = 4, kKeys = 5, kHalf = 6, kHalfColumns = 7 };

  static constexpr int kTileDims = kTileRowBytes / sizeof(bf16);
  static constexpr int kHalfBytes = kTileRowBytes / 2;

  void configure(int num_rows) {
    if (num_rows == configured_rows_) return;
    configured_rows_ = num_rows;
    TileConfig config;
    for (int tile = 0; tile <= kQueries; ++tile) config.set(tile, num_rows);
    config.set(kKeys, kTileWords);
    config.set(kHalf, num_rows, kHalfBytes);
    config.set(kHalfColumns, kTileWords / 2);
    tiles_.configure(config);
  }

  void fetch(const Block& block) const {
    for (int group = 0; group < kNumGroups; ++group) {
      for (int64_t at = 0; at < kGroupTokens * head_dim_; at += 2 * kLanes) {
        prefetch(block.keys[group] + at);
        prefetch(block.values[group] + at);
      }
    }
  }

  void score(const Block& block, const bf16* queries) {
    const int64_t stride = head_dim_ * sizeof(bf16);
    each_tile<kNumGroups>([&]<int kTile>() { tiles_.template zero<kTile>(); });
    int64_t dim = 0;
    for (; dim + kTileDims <= head_dim_; dim += kTileDims) {
      tiles_.template load<kQueries>(queries + dim, stride);
      each_tile<kNumGroups>([&]<int kTile>() {
        tiles_.template load<kKeys>(block.keys[kTile] + dim * kGroupTokens, kTileRowBytes);
        tiles_.template multiply<bf16, kTile, kQueries, kKeys>();
      });
    }
    if (dim < head_dim_) {
      tiles_.template load<kHalf>(queries + dim, stride);
      each_tile<kNumGroups>([&]<int kTile>() {
        tiles_.template load<kHalfColumns>(block.keys[kTile] + dim * kGroupTokens, kTileRowBytes);
        tiles_.template multiply<bf16, kTile, kHalf, kHalfColumns>();
      });
    }
    each_tile<kNumGroups>([&]<int kTile>() {
      tiles_.template store<kTile>(scores_[0] + kTile * kGroupTokens, sizeof(scores_[0]));
    });
  }

  void weigh_row(const Reader& reader, int64_t start, int row, int at) {
    Floats scores[kNumGroups];
    for (int group = 0; group < kNumGroups; ++group) {
      scores[group] = load(scores_[at] + group * kGroupTokens);
    }
    const float factor = weigh(shape_, reader, start, rows_.positions[row], rows_.last_seen[row],
                               scores, seen_[row], weights_[at]);
    if (factor == 1.0f) return;
    float* sums = sums_ + row * head_dim_;
    for (int64_t dim = 0; dim < head_dim_; dim += kLanes) {
      store(sums + dim, multiply(load(sums + dim), all(factor)));
    }
  }

  void add_values(const Block& block, float* sums) {
    for (int64_t dim = 0; dim < head_dim_; dim += kNumGroups * kLanes) {
      const int num_tiles = static_cast<int>(std::min<int64_t>(4, (head_dim_ - dim) / kLanes));
      with_num_rows<4>(num_tiles, [&]<int kCount>() { add_values<kCount>(block, sums, dim); });
    }
  }

  // Of kCount times sixteen dimensions.
  template <int kCount>
  void add_values(const Block& block, float* sums, int64_t dim) {
    const int64_t stride = head_dim_ * sizeof(float);  // of sums, and of pairs of values
    each_tile<kCount>(
        [&]<int kTile>() { tiles_.template load<kTile>(sums + dim + kTile * kLanes, stride); });
    for (int group = 0; group < kNumGroups; ++group) {
      tiles_.template load<kHalf>(weights_[0] + group * kGroupTokens, sizeof(weights_[0]));
      each_tile<kCount>([&]<int kTile>() {
        const bf16* values = block.values[group] + (dim + kTile * kLanes) * 2;
        tiles_.template load<kHalfColumns>(values, stride);
        tiles_.template multiply<bf16, kTile, kHalf, kHalfColumns>();
      });
    }
    each_tile<kCount>(
        [&]<int kTile>() { tiles_.template store<kTile>(sums + dim + kTile * kLanes, stride); });
  }

  template <int kCount, int kTile = 0, class Call>
  static void each_tile(const Call& call) {
    if constexpr (kTile < kCount) {
      call.template operator()<kTile>();
      each_tile<kCount, kTile + 1>(call);
    }
  }

  const AttentionShape<Pool>& shape_;
  const Rows& rows_;
  const int num_rows_;
  const int64_t head_dim_;
  Tiles tiles_;
  int configured_rows_ = 0;
  SeenRow seen_[kTaskQueryRows];
  alignas(64) float scores_[kTileRows][kBlockTokens];
  alignas(64) bf16 weights_[kTileRows][kBlockTokens];
  alignas(64) bf16 queries_[kTaskQueryRows * kMaxHeadDim];  // [num_rows][head_dim]
  alignas(64) float sums_[kTaskQueryRows * kMaxHeadDim];    // the same
};

}  // namespace jetflock
