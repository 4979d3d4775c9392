// Attention over the paged pool of keys and values.

#pragma once

#include <algorithm>
#include <limits>

#include "kv_pool.h"
#include "vector_math.h"

namespace jetflock {

// Queries of one request and one KV head that are computed together: query tokens times the query
// heads that share the KV head, token by token.
template <int kMost>
struct QueryRows {
  const bf16* queries[kMost];
  bf16* outputs[kMost];
  int64_t positions[kMost];
  int64_t last_seen[kMost];  // positions: their own, or that of an image's last token
  float sinks[kMost];        // scores beside those of the tokens, times log2(e)

  QueryRows() { std::fill_n(sinks, kMost, -std::numeric_limits<float>::infinity()); }
};

using QueryTile = QueryRows<kMaxQueryRows>;

template <class Pool>
struct AttentionShape {
  const Pool& pool;
  const int32_t* pages;  // of the request
  int64_t kv_head;
  float scale;     // of the scores, times log2(e)
  float soft_cap;  // a score becomes soft_cap * tanh(score / soft_cap); 0: it does not
  int64_t window;  // a query sees itself and window - 1 tokens before it; 0: all
  int64_t chunk;   // tokens of positions [0, chunk), and so on, see none of others; 0: no chunks

  int64_t first_seen(int64_t position) const {
    if (chunk > 0) return position / chunk * chunk;
    return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  }

  float weight_scale() const { return soft_cap > 0.0f ? soft_cap * kLog2E : scale; }
};

template <int kRows>
inline void score(const QueryTile& tile, const Block& block, const Block& next, int64_t head_dim,
                  Floats (&scores)[kRows][kNumGroups]) {
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int group = 0; group < kNumGroups; ++group) scores[row][group] = zeros();
  }
  for (int64_t dim = 0; dim < head_dim; dim += 2) {
    Pairs keys[kNumGroups];
#pragma GCC unroll 4
    for (int group = 0; group < kNumGroups; ++group) {
      keys[group] = load_pairs(block.keys[group] + dim * kGroupTokens);
      prefetch(next.keys[group] + dim * kGroupTokens);
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const Pairs query = broadcast_pair(tile.queries[row] + dim);
#pragma GCC unroll 4
      for (int group = 0; group < kNumGroups; ++group) {
        scores[row][group] = add_products(scores[row][group], query, keys[group]);
      }
    }
  }
}

// Scores of positions that the query does not see become -infinity.
inline void mask_scores(Floats (&scores)[kNumGroups], int64_t start, int64_t first, int64_t last) {
  for (int group = 0; group < kNumGroups; ++group) {
    const int64_t group_start = start + group * kGroupTokens;
    const Mask seen = first_lanes(std::clamp<int64_t>(last + 1 - group_start, 0, kLanes)) &
                      ~first_lanes(std::clamp<int64_t>(first - group_start, 0, kLanes));
    scores[group] = select(seen, scores[group], all(-std::numeric_limits<float>::infinity()));
  }
}

// Scores become shares of their cap. `scale`: of scores in units of it, times log2(e).
inline void cap_scores(Floats (&scores)[kNumGroups], float scale) {
  for (Floats& each : scores) each = tanh_of_power(multiply(each, all(2.0f * scale)));
}

// sums[row][start..] = sums * factors + weights x values, for kVectors * 16 dimensions.
template <int kRows, int kVectors>
inline void accumulate(float (&sums)[kMaxQueryRows][kMaxHeadDim], const float (&factors)[kRows],
                       const bf16 (&weights)[kMaxQueryRows][kBlockTokens], const Block& block,
                       const Block& next, int64_t head_dim, int64_t start) {
  Floats acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    const Floats factor = all(factors[row]);
#pragma GCC unroll 4
    for (int part = 0; part < kVectors; ++part) {
      acc[row][part] = multiply(factor, load(&sums[row][start + part * kLanes]));
    }
  }
  for (int group = 0; group < kNumGroups; ++group) {
    for (int pair = 0; pair < kGroupTokens / 2; ++pair) {
      const int64_t at = (pair * head_dim + start) * 2;
      const bf16* from = block.values[group] + at;
      Pairs values[kVectors];
#pragma GCC unroll 4
      for (int part = 0; part < kVectors; ++part) {
        values[part] = load_pairs(from + part * kLanes * 2);
        prefetch(next.values[group] + at + part * kLanes * 2);
      }
#pragma GCC unroll 6
      for (int row = 0; row < kRows; ++row) {
        const Pairs weight = broadcast_pair(&weights[row][group * kGroupTokens + pair * 2]);
#pragma GCC unroll 4
        for (int part = 0; part < kVectors; ++part) {
          acc[row][part] = add_products(acc[row][part], weight, values[part]);
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int part = 0; part < kVectors; ++part) {
      store(&sums[row][start + part * kLanes], acc[row][part]);
    }
  }
}

// What a row has seen so far.
struct SeenRow {
  float largest = -std::numeric_limits<float>::infinity();  // score
  float base = 0.0f;  // the same, scaled; finite also when nothing has been seen
  Floats total = zeros();
};

// A softmax that proceeds block by block, blocks starting at multiples of kBlockTokens: each row's
// result depends on its query, its position and the pool alone, not on the rows beside it. Makes
// weights of a row's scores, and returns what its sums are to be multiplied with first.
template <class Pool>
inline float weigh(const AttentionShape<Pool>& shape, const typename Pool::Reader& reader,
                   int64_t start, int64_t position, int64_t last, Floats (&scores)[kNumGroups],
                   SeenRow& row, bf16* weights) {
  const float scale = shape.weight_scale();
  reader.scale_scores(scores);
  if (shape.soft_cap > 0.0f) cap_scores(scores, shape.scale / shape.soft_cap);
  const int64_t first = shape.first_seen(position);
  if (last < start + kBlockTokens - 1 || first > start) mask_scores(scores, start, first, last);
  const float largest =
      largest_lane(larger(larger(scores[0], scores[1]), larger(scores[2], scores[3])));
  float factor = 1.0f;
  if (!(largest <= row.largest)) {  // also true when it is not a number
    const float base = largest * scale;
    const bool is_first = row.largest == -std::numeric_limits<float>::infinity();
    factor = is_first ? 0.0f : first_lane(exp2(all(row.base - base)));
    row.largest = largest;
    row.base = base;
    row.total = multiply(row.total, all(factor));
  }
  for (int group = 0; group < kNumGroups; ++group) {
    const Floats weight = exp2(fmsub(scores[group], all(scale), all(row.base)));
    row.total = add(row.total, weight);
    store_bf16(weights + group * kGroupTokens, reader.scaled_weight(weight, group));
  }
  return factor;
}

// sums: [head_dim].
inline void end_attention(const SeenRow& row, float own_sink, const float* sums, int64_t head_dim,
                          bf16* output) {
  const float sink = first_lane(exp2(all(own_sink - row.base)));
  const Floats inverse = all(1.0f / (sum_of_lanes(row.total) + sink));
  for (int64_t dim = 0; dim < head_dim; dim += kLanes) {
    store_bf16(output + dim, multiply(load(sums + dim), inverse));
  }
}

template <int kRows, class Pool>
void attend_tile(const AttentionShape<Pool>& shape, const QueryTile& tile) {
  const int64_t head_dim = shape.pool.shape.head_dim;
  const int64_t last_position = *std::max_element(tile.last_seen, tile.last_seen + kRows);
  alignas(64) float sums[kMaxQueryRows][kMaxHeadDim];
  alignas(64) bf16 weights[kMaxQueryRows][kBlockTokens];
  SeenRow rows[kRows];
  for (int row = 0; row < kRows; ++row) std::fill_n(sums[row], head_dim, 0.0f);
  const int64_t first_start = shape.first_seen(tile.positions[0]) / kBlockTokens * kBlockTokens;
  typename Pool::Reader reader(shape.pool, shape.pages, shape.kv_head, first_start, last_position);
  for (int64_t start = first_start; start <= last_position; start += kBlockTokens) {
    const Block block = reader.read(start);
    const Block& next = reader.next();
    Floats scores[kRows][kNumGroups];
    score<kRows>(tile, block, next, head_dim, scores);
    float factors[kRows];
    for (int row = 0; row < kRows; ++row) {
      factors[row] = weigh(shape, reader, start, tile.positions[row], tile.last_seen[row],
                           scores[row], rows[row], weights[row]);
    }
    int64_t dim = 0;
    for (; dim + 64 <= head_dim; dim += 64) {
      accumulate<kRows, 4>(sums, factors, weights, block, next, head_dim, dim);
    }
    for (; dim + 32 <= head_dim; dim += 32) {
      accumulate<kRows, 2>(sums, factors, weights, block, next, head_dim, dim);
    }
    for (; dim < head_dim; dim += 16) {
      accumulate<kRows, 1>(sums, factors, weights, block, next, head_dim, dim);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    end_attention(rows[row], tile.sinks[row], sums[row], head_dim, tile.outputs[row]);
  }
}

template <class Pool>
inline void attend_tile(int num_rows, const AttentionShape<Pool>& shape, const QueryTile& tile) {
  with_num_rows<kMaxQueryRows>(num_rows, [&]<int kRows>() { attend_tile<kRows>(shape, tile); });
}

}  // namespace jetflock
