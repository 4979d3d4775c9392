// The decoder of models/decoder.py in one call a step, for bfloat16 weights on a processor with
// AVX512-BF16. The residual stream and all sums are float32; a token's result does not depend, bit
// for bit, on the tokens computed beside it, nor on whether it comes in a prefill chunk or alone.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "experts.h"
#include "input_rows.h"
#include "linear.h"
#include "lora.h"
#include "packing.h"
#include "row_reader.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kTaskQueryRows = 48;  // of a prefill chunk, in one task

struct LayerWeights {
  const float* attention_norm;  // [hidden_size]
  Linear qkv;                   // to queries, keys, values: heads one after the other
  const float* query_norm;      // [head_dim], or null
  const float* key_norm;
  Linear output;
  const float* mlp_norm;
  Linear gate_up;  // gates and values interleaved, see pack_linear
  Linear down;
  void* keys;  // this layer's part of the pool
  void* values;
  int64_t window;  // of sliding attention; 0: none
  float attention_scale;
};

struct DecoderShape {
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  KVFormat kv_format;
  float norm_eps;
  float embedding_scale;    // what an embedding is multiplied with
  Linear embeddings;        // to vocab_size
  const float* final_norm;  // [hidden_size]
  Linear lm_head;
};

// The four projections of a layer, in the order of native_lora.py.
enum ProjectionId : int64_t { kQkv, kOutput, kGateUp, kDown, kNumProjections };

// One step, as in forward_batch.py. The outputs are [num_tokens, hidden_size].
struct Batch {
  int64_t num_tokens;
  int64_t num_rows;
  int64_t max_pages;
  const int64_t* input_ids;   // [num_tokens]
  const int64_t* positions;   // [num_tokens]
  const int64_t* angle_rows;  // [num_tokens], of cosines and sines
  const float* cosines;       // [num_angle_rows, head_dim / 2]
  const float* sines;
  const int64_t* given_rows;  // [num_tokens], of `given`; -1: none. Null: no token has one
  const float* given;         // [1 + num_deep, num_given, hidden_size]: the first in place of
                              // embeddings, the others added to what the first layers give
  int64_t num_given;
  int64_t num_deep;
  const int64_t* out_loc;     // [num_tokens]
  const int32_t* query_lens;  // [num_rows]
  const int32_t* page_table;  // [num_rows, max_pages]
  float* hidden;              // out: after the last norm
  const LoraStep* loras;      // null: no request has an adapter
};

template <class Out>
void rms_norm(const float* x, const float* weight, int64_t size, float eps, Out* out) {
  Floats squares = zeros();
  for (int64_t at = 0; at < size; at += kLanes) {
    const Floats values = load(x + at, first_lanes(size - at));
    squares = fmadd(values, values, squares);
  }
  const float mean = sum_of_lanes(squares) / static_cast<float>(size);
  const Floats scale = all(1.0f / std::sqrt(mean + eps));
  for (int64_t at = 0; at < size; at += kLanes) {
    const Mask mask = first_lanes(size - at);
    const Floats values = multiply(multiply(load(x + at, mask), scale), load(weight + at, mask));
    if constexpr (std::is_same_v<Out, float>) {
      store(out + at, values, mask);
    } else {
      store_bf16(out + at, values, mask);
    }
  }
}

class Decoder {
 public:
  Decoder(const DecoderShape& shape, const LayerWeights* layers, int64_t num_layers,
          int num_threads)
      : shape_(shape), layers_(layers, layers + num_layers), team_(num_threads) {
    inputs_.note(shape_.lm_head);
    for (const LayerWeights& layer : layers_) {
      for (const Linear* each : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
        inputs_.note(*each);
      }
    }
  }

  void forward(const Batch& batch) {
    const int64_t num_tokens = batch.num_tokens;
    const int64_t qkv_size = (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim;
    residual_.reserve(num_tokens * shape_.hidden_size);
    normed_.reserve(num_tokens * shape_.hidden_size);
    qkv_.reserve(num_tokens * qkv_size);
    attended_.reserve(num_tokens * shape_.num_heads * shape_.head_dim);
    activated_.reserve(num_tokens * shape_.intermediate_size);
    inputs_.reserve(num_tokens);
    plan_attention(batch);
    loras_.plan(batch.loras, layers_.size() * kNumProjections);
    if (loras_.has_any()) gate_up_.reserve(num_tokens * gate_up_stride());
    team_.run([&](ThreadTeam::Member& member) {
      embed(member, batch);
      for (size_t layer_id = 0; layer_id < layers_.size(); ++layer_id) {
        run_layer(member, batch, layer_id);
      }
      finish(member, batch);
    });
  }

  // rows: [num_rows, hidden_size] float; logits: [num_rows, vocab_size] float.
  void logits(const float* rows, int64_t num_rows, float* logits) {
    const int64_t size = num_rows * shape_.hidden_size;
    normed_.reserve(size);
    inputs_.reserve(num_rows);
    for (int64_t at = 0; at < size; ++at) normed_.data()[at] = to_bf16(rows[at]);
    team_.run([&](ThreadTeam::Member& member) {
      project<Epilogue::kStoreFloat>(member, shape_.lm_head, normed_.data(), num_rows, logits);
    });
  }

 private:
  // Query rows [first_row, end_row) of a request and a KV head; row = query token * query heads of
  // a KV head + head.
  struct AttentionTask {
    int64_t first_token;  // of the request, in the step
    const int32_t* pages;
    int64_t kv_head;
    int64_t first_row;
    int64_t end_row;
    int64_t cost;  // of the whole request
  };

  template <Epilogue kEpilogue>
  void project(ThreadTeam::Member& member, const Linear& linear, const bf16* rows,
               int64_t num_rows, void* output) {
    multiply<kEpilogue>(member, team_.size(), linear, inputs_.rows(rows, 0), num_rows, output);
  }

  int64_t heads_per_kv_head() const { return shape_.num_heads / shape_.num_kv_heads; }

  // The longest requests first, so that nothing long begins when the others are done. All queries
  // of a KV head one after the other, while its keys and values are in the second-level cache.
  void plan_attention(const Batch& batch) {
    tasks_.clear();
    int64_t token = 0;
    for (int64_t row = 0; row < batch.num_rows; ++row) {
      const int64_t num_query_rows = batch.query_lens[row] * heads_per_kv_head();
      const int64_t last_token = token + batch.query_lens[row] - 1;
      const int64_t cost = num_query_rows * (batch.positions[last_token] + kBlockTokens);
      const int32_t* pages = batch.page_table + row * batch.max_pages;
      for (int64_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        for (int64_t end = num_query_rows; end > 0; end -= kTaskQueryRows) {
          const int64_t start = std::max<int64_t>(0, end - kTaskQueryRows);
          tasks_.push_back({token, pages, kv_head, start, end, cost});
        }
      }
      token += batch.query_lens[row];
    }
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const auto& one, const auto& other) { return one.cost > other.cost; });
  }

  void run_layer(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    const int64_t hidden_size = shape_.hidden_size;
    const int64_t attention_size = shape_.num_heads * shape_.head_dim;
    project_qkv(member, batch, layer);
    add_loras(member, layer_id, kQkv, normed_.data(), hidden_size, qkv_.data(),
              layer.qkv.out_features);
    run_attention(member, batch, layer);
    add_loras(member, layer_id, kOutput, attended_.data(), attention_size, residual_.data(),
              hidden_size);
    norm_rows(member, batch.num_tokens, layer.mlp_norm);
    project_gate_up(member, batch, layer_id);
    project_down(member, batch, layer);
    add_loras(member, layer_id, kDown, activated_.data(), shape_.intermediate_size,
              residual_.data(), hidden_size);
    if (layer_id < batch.num_deep) add_given(member, batch, layer_id + 1);
  }

  void add_given(ThreadTeam::Member& member, const Batch& batch, int64_t part) {
    const int64_t hidden_size = shape_.hidden_size;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      if (batch.given_rows[token] < 0) return;
      const float* from = given_row(batch, part, token);
      float* to = residual_.data() + token * hidden_size;
      for (int64_t at = 0; at < hidden_size; ++at) to[at] += from[at];
    });
  }

  const float* given_row(const Batch& batch, int64_t part, int64_t token) const {
    return batch.given +
           (part * batch.num_given + batch.given_rows[token]) * shape_.hidden_size;
  }

  template <class Out>
  void add_loras(ThreadTeam::Member& member, int64_t layer_id, ProjectionId projection,
                 const bf16* inputs, int64_t in_features, Out* outputs, int64_t out_stride) {
    loras_.add(member, layer_id * kNumProjections + projection, inputs, in_features, outputs,
               out_stride);
  }

  // Whole blocks: gates and values stay interleaved.
  int64_t gate_up_stride() const { return layers_[0].gate_up.num_blocks() * kBlockCols; }

  // With adapters in two steps: they add to gates and values before these are multiplied. The rows
  // of others come out the same.
  void project_gate_up(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    const int64_t num_tokens = batch.num_tokens;
    if (!loras_.has_any()) {
      project<Epilogue::kSiluMul>(member, layer.gate_up, normed_.data(), num_tokens,
                                  activated_.data());
      return;
    }
    Linear gate_up = layer.gate_up;
    gate_up.out_features = gate_up_stride();
    project<Epilogue::kStoreFloat>(member, gate_up, normed_.data(), num_tokens, gate_up_.data());
    add_loras(member, layer_id, kGateUp, normed_.data(), shape_.hidden_size, gate_up_.data(),
              gate_up_stride());
    member.for_each(num_tokens, [&](int64_t token) {
      activate(gate_up_.data() + token * gate_up_stride(), token);
    });
  }

  // SiLU of a row whose gates and values are interleaved, as finish_row does it.
  void activate(const float* gate_up, int64_t token) {
    const int64_t size = shape_.intermediate_size;
    for (int64_t at = 0; at < size; at += kLanes) {
      const Floats gate = load(gate_up + 2 * at);
      const Floats value = load(gate_up + 2 * at + kLanes);
      store_bf16(activated_.data() + token * size + at, multiply(silu(gate), value),
                 first_lanes(size - at));
    }
  }

  void embed(ThreadTeam::Member& member, const Batch& batch) {
    const int64_t hidden_size = shape_.hidden_size;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      float* to = residual_.data() + token * hidden_size;
      if (batch.given_rows != nullptr && batch.given_rows[token] >= 0) {
        const float* given = given_row(batch, 0, token);
        std::copy(given, given + hidden_size, to);
        return;
      }
      const RowReader row(shape_.embeddings, batch.input_ids[token]);
      row.read(shape_.embedding_scale, to);
    });
  }

  void project_qkv(ThreadTeam::Member& member, const Batch& batch, const LayerWeights& layer) {
    norm_rows(member, batch.num_tokens, layer.attention_norm);
    project<Epilogue::kStore>(member, layer.qkv, normed_.data(), batch.num_tokens, qkv_.data());
  }

  void run_attention(ThreadTeam::Member& member, const Batch& batch, const LayerWeights& layer) {
    member.for_each(batch.num_tokens,
                    [&](int64_t token) { rotate_and_write(layer, batch, token); });
    with_pool(layer, [&](const auto& pool) {
      member.for_each(tasks_.size(), [&](int64_t idx) { attend(layer, pool, batch, tasks_[idx]); });
    });
    project<Epilogue::kAdd>(member, layer.output, attended_.data(), batch.num_tokens,
                            residual_.data());
  }

  void project_down(ThreadTeam::Member& member, const Batch& batch, const LayerWeights& layer) {
    project<Epilogue::kAdd>(member, layer.down, activated_.data(), batch.num_tokens,
                            residual_.data());
  }

  void finish(ThreadTeam::Member& member, const Batch& batch) {
    const int64_t hidden_size = shape_.hidden_size;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      rms_norm(residual_.data() + token * hidden_size, shape_.final_norm, hidden_size,
               shape_.norm_eps, batch.hidden + token * hidden_size);
    });
  }

  void norm_rows(ThreadTeam::Member& member, int64_t num_tokens, const float* weight) {
    const int64_t size = shape_.hidden_size;
    member.for_each(num_tokens, [&](int64_t token) {
      rms_norm(residual_.data() + token * size, weight, size, shape_.norm_eps,
               normed_.data() + token * size);
    });
  }

  void rotate_and_write(const LayerWeights& layer, const Batch& batch, int64_t token) {
    const int64_t head_dim = shape_.head_dim;
    const int64_t num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads;
    const float* cosines = batch.cosines + batch.angle_rows[token] * head_dim / 2;
    const float* sines = batch.sines + batch.angle_rows[token] * head_dim / 2;
    bf16* queries = qkv_.data() + token * (num_heads + 2 * num_kv_heads) * head_dim;
    bf16* keys = queries + num_heads * head_dim;
    bf16* values = keys + num_kv_heads * head_dim;
    for (int64_t head = 0; head < num_heads; ++head) {
      rotate(queries + head * head_dim, layer.query_norm, cosines, sines);
    }
    with_pool(layer, [&](const auto& pool) {
      for (int64_t head = 0; head < num_kv_heads; ++head) {
        rotate(keys + head * head_dim, layer.key_norm, cosines, sines);
        pool.write(batch.out_loc[token], head, keys + head * head_dim, values + head * head_dim);
      }
    });
  }

  // Rotary position embedding of one head in place, pairs half a head apart; its norm first.
  void rotate(bf16* head, const float* norm, const float* cosines, const float* sines) {
    const int64_t half = shape_.head_dim / 2;
    alignas(64) float x[kMaxHeadDim];
    for (int64_t at = 0; at < 2 * half; at += kLanes) {
      store(x + at, load_bf16(head + at));
    }
    if (norm != nullptr) rms_norm(x, norm, 2 * half, shape_.norm_eps, x);
    for (int64_t at = 0; at < half; at += kLanes) {
      const Mask mask = first_lanes(half - at);
      const Floats first = load(x + at, mask);
      const Floats second = load(x + half + at, mask);
      const Floats cosine = load(cosines + at, mask);
      const Floats sine = load(sines + at, mask);
      store_bf16(head + at, fmsub(first, cosine, multiply(second, sine)), mask);
      store_bf16(head + half + at, fmadd(second, cosine, multiply(first, sine)), mask);
    }
  }

  template <class Pool>
  void attend(const LayerWeights& layer, const Pool& pool, const Batch& batch,
              const AttentionTask& task) {
    const int64_t head_dim = shape_.head_dim, num_shared = heads_per_kv_head();
    const int64_t qkv_stride = (shape_.num_heads + 2 * shape_.num_kv_heads) * head_dim;
    const AttentionShape<Pool> shape{pool, task.pages, task.kv_head,
                                     layer.attention_scale * kLog2E, layer.window};
    const int64_t num_rows = task.end_row - task.first_row;
    const int64_t num_tiles = (num_rows + kMaxQueryRows - 1) / kMaxQueryRows;
    for (int64_t tile_idx = 0; tile_idx < num_tiles; ++tile_idx) {
      const int64_t start = task.first_row + num_rows * tile_idx / num_tiles;
      const int64_t end = task.first_row + num_rows * (tile_idx + 1) / num_tiles;
      QueryTile tile;
      for (int64_t row = start; row < end; ++row) {
        const int64_t token = task.first_token + row / num_shared;
        const int64_t head = task.kv_head * num_shared + row % num_shared;
        tile.queries[row - start] = qkv_.data() + token * qkv_stride + head * head_dim;
        tile.outputs[row - start] =
            attended_.data() + (token * shape_.num_heads + head) * head_dim;
        tile.positions[row - start] = batch.positions[token];
      }
      attend_tile(static_cast<int>(end - start), shape, tile);
    }
  }

  template <class Call>
  void with_pool(const LayerWeights& layer, const Call& call) const {
    const PoolShape shape{shape_.num_kv_heads, shape_.head_dim, shape_.page_size};
    if (shape_.kv_format == kKVInt8) {
      call(Int8Pool{static_cast<int8_t*>(layer.keys), static_cast<int8_t*>(layer.values), shape});
    } else {
      call(Bf16Pool{static_cast<bf16*>(layer.keys), static_cast<bf16*>(layer.values), shape});
    }
  }

  const DecoderShape shape_;
  const std::vector<LayerWeights> layers_;
  ThreadTeam team_;
  std::vector<AttentionTask> tasks_;
  Buffer<float> residual_;  // [num_tokens, hidden_size]
  Buffer<bf16> normed_;     // [num_tokens, hidden_size]
  Buffer<bf16> qkv_;        // [num_tokens, heads * head_dim]
  Buffer<bf16> attended_;   // [num_tokens, num_heads * head_dim]
  Buffer<bf16> activated_;  // [num_tokens, intermediate_size]
  InputBuffers inputs_;     // of the linear that is multiplied
  StepLoras loras_;
  Buffer<float> gate_up_;   // of steps with adapters: [num_tokens, gate_up_stride()]
};

}  // namespace jetflock

using namespace jetflock;

extern "C" {

// Once, before anything else. Null, or why this kernel set cannot be used here.
const char* jetflock_prepare() { return prepare_kernels(); }

// Memory for packed weights; null when there is none.
void* jetflock_allocate(int64_t num_bytes) { return allocate(num_bytes); }

// Packs [out_features, in_features] bf16 into a Linear's layout at `packed`.
void jetflock_pack_linear(const bf16* rows, int64_t out_features, int64_t in_features,
                          int interleaved, int num_threads, bf16* packed) {
  const BlockedRows blocked{out_features, interleaved != 0};
  const int64_t block_size = kBlockCols * in_features;
  divide(blocked.num_blocks(), num_threads, [&](int64_t block) {
    pack_block(blocked, block, rows, in_features, packed + block * block_size);
  });
}

// The same with codes [out_features, in_features], a byte each, of all layouts but kBf16.
void jetflock_pack_codes(Layout layout, const uint8_t* codes, int64_t out_features,
                         int64_t in_features, int interleaved, int num_threads, uint8_t* packed) {
  const BlockedRows blocked{out_features, interleaved != 0};
  const int64_t stride = block_bytes(layout, in_features);
  divide(blocked.num_blocks(), num_threads, [&](int64_t block) {
    pack_block_of_codes(layout, blocked, block, codes, in_features, packed + block * stride);
  });
}

void jetflock_free(void* packed) { std::free(packed); }

Decoder* jetflock_decoder_new(const DecoderShape* shape, const LayerWeights* layers,
                              int64_t num_layers, int num_threads) {
  return new Decoder(*shape, layers, num_layers, num_threads);
}

void jetflock_decoder_free(Decoder* decoder) { delete decoder; }

void jetflock_decoder_forward(Decoder* decoder, const Batch* batch) { decoder->forward(*batch); }

void jetflock_decoder_logits(Decoder* decoder, const float* rows, int64_t num_rows,
                             float* logits) {
  decoder->logits(rows, num_rows, logits);
}

ExpertTeam* jetflock_expert_team_new(int num_threads) { return new ExpertTeam(num_threads); }

void jetflock_expert_team_free(ExpertTeam* team) { delete team; }

void jetflock_experts_forward(ExpertTeam* team, const Experts* experts, const ExpertStep* step) {
  team->forward(*experts, *step);
}

}  // extern "C"
