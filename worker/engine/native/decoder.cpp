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
#include "checksum.h"
#include "experts.h"
#include "input_rows.h"
#include "linear.h"
#include "lora.h"
#include "packing.h"
#include "product_team.h"
#include "router.h"
#include "row_reader.h"
#include "stored_codes.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kTaskQueryRows = 48;  // of a prefill chunk, in one task

// How queries and keys are brought to one length, if they are.
enum HeadNorm : int64_t {
  kEachHead,     // by itself
  kAllHeads,     // all queries at once, and all keys
  kRotatedHead,  // by itself, once it is rotated
};

struct LayerWeights {
  const float* attention_norm;  // [hidden_size]
  Linear qkv;                   // to queries, keys, values: heads one after the other
  const float* query_norm;      // [num_heads, head_dim], or null
  const float* key_norm;        // [num_kv_heads, head_dim], or null
  const float* sinks;           // [num_heads]: a score of nothing, times log2(e); or null
  Linear output;
  const float* mlp_norm;
  // Of what every token goes through; without inputs where it goes through experts alone.
  Linear gate_up;  // gates and values interleaved, see pack_linear
  Linear down;
  Experts experts;  // none: without numbers
  Router router;    // who chooses them
  void* keys;  // this layer's part of the pool
  void* values;
  int64_t window;  // of sliding attention; 0: none
  int64_t has_window_pages;  // numbered by themselves
  float attention_scale;

  bool has_mlp() const { return down.in_features > 0; }
  bool has_experts() const { return experts.num_experts > 0; }
};

struct DecoderShape {
  int64_t hidden_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  KVFormat kv_format;
  HeadNorm head_norm;
  float norm_eps;
  float embedding_scale;    // what an embedding is multiplied with
  Linear embeddings;        // to vocab_size
  const float* final_norm;  // [hidden_size]
  Linear lm_head;
};

// The four projections of a layer, in the order of native_lora.py.
enum ProjectionId : int64_t { kQkv, kOutput, kGateUp, kDown, kNumProjections };

// Where keys and values are, of layers whose pages have the same numbers.
struct PagePlaces {
  const int64_t* out_loc;     // [num_tokens]
  const int32_t* page_table;  // [num_rows, max_pages]
};

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
  const int32_t* query_lens;  // [num_rows]
  PagePlaces places;
  PagePlaces window_places;   // of layers that have pages of their own
  float* hidden;              // out: after the last norm
  float* streams;             // out: [num_tokens, num_streams, hidden_size], see hand_out
  const int64_t* stream_layers;  // [num_streams]
  int64_t num_streams;
  const LoraStep* loras;      // null: no request has an adapter

  const PagePlaces& places_of(const LayerWeights& layer) const {
    return layer.has_window_pages ? window_places : places;
  }
};

// What brings values with so many squares to one length. `squares`: lanes to be added.
inline float norm_scale(Floats squares, int64_t size, float eps) {
  const float mean = sum_of_lanes(squares) / static_cast<float>(size);
  return 1.0f / std::sqrt(mean + eps);
}

template <class Out>
void rms_norm(const float* x, const float* weight, int64_t size, float eps, Out* out) {
  Floats squares = zeros();
  for (int64_t at = 0; at < size; at += kLanes) {
    const Floats values = load(x + at, first_lanes(size - at));
    squares = fmadd(values, values, squares);
  }
  const Floats scale = all(norm_scale(squares, size, eps));
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
    const int64_t down_size = shape_.hidden_size + kBlockCols;  // of a row, read in whole blocks
    for (const LayerWeights& layer : layers_) {
      for (const Linear* each : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
        inputs_.note(*each);
      }
      inner_size_ = std::max(inner_size_, layer.down.in_features);
      gate_up_size_ = std::max({gate_up_size_, stride_of(layer.gate_up), down_size});
      if (!layer.has_experts()) continue;
      routing_.note(layer.router);
      experts_.note(layer.experts);
      num_chosen_ = std::max(num_chosen_, layer.router.num_chosen);
    }
  }

  void forward(const Batch& batch) {
    const int64_t num_tokens = batch.num_tokens;
    const int64_t qkv_size = (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim;
    residual_.reserve(num_tokens * shape_.hidden_size);
    normed_.reserve(num_tokens * shape_.hidden_size);
    qkv_.reserve(num_tokens * qkv_size);
    attended_.reserve(num_tokens * shape_.num_heads * shape_.head_dim);
    activated_.reserve(num_tokens * inner_size_);
    inputs_.reserve(num_tokens);
    routing_.reserve(num_tokens);
    experts_.reserve(num_tokens * num_chosen_);
    plan_attention(batch);
    loras_.plan(batch.loras, layers_.size() * kNumProjections);
    if (loras_.has_any()) gate_up_.reserve(num_tokens * gate_up_size_);
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
      project(member, shape_.lm_head, normed_.data(), num_rows, StoreFloats{logits});
    });
  }

 private:
  // Query rows [first_row, end_row) of a request and a KV head; row = query token * query heads of
  // a KV head + head.
  struct AttentionTask {
    int64_t first_token;  // of the request, in the step
    int64_t row;  // of the page table
    int64_t kv_head;
    int64_t first_row;
    int64_t end_row;
    int64_t cost;  // of the whole request
  };

  template <class Finish>
  void project(ThreadTeam::Member& member, const Linear& linear, const bf16* rows,
               int64_t num_rows, const Finish& finish) {
    multiply(member, team_.size(), linear, inputs_.rows(rows, 0), num_rows, finish);
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
      for (int64_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        for (int64_t end = num_query_rows; end > 0; end -= kTaskQueryRows) {
          const int64_t start = std::max<int64_t>(0, end - kTaskQueryRows);
          tasks_.push_back({token, row, kv_head, start, end, cost});
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
    norm_rows(member, batch, layer.attention_norm, layer_id);
    project(member, layer.qkv, normed_.data(), batch.num_tokens, Store{qkv_.data()});
    add_loras(member, layer_id, kQkv, normed_.data(), hidden_size, qkv_.data(),
              layer.qkv.out_features);
    run_attention(member, batch, layer);
    add_loras(member, layer_id, kOutput, attended_.data(), attention_size, residual_.data(),
              hidden_size);
    norm_rows(member, batch, layer.mlp_norm, -1);
    if (layer.has_experts()) run_experts(member, batch, layer);
    if (layer.has_mlp()) {
      project_gate_up(member, batch, layer_id);
      project_down(member, batch, layer_id);
    }
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

  void run_experts(ThreadTeam::Member& member, const Batch& batch, const LayerWeights& layer) {
    const ExpertStep step{batch.num_tokens, layer.router.num_chosen, normed_.data(),
                          routing_.expert_ids(), routing_.shares()};
    routing_.choose(member, layer.router, normed_.data(), batch.num_tokens, shape_.hidden_size,
                    [&] { experts_.plan(layer.experts, step); });
    experts_.multiply(member, team_.size(), layer.experts, step);
  }

  // What a layer's experts have given is added where the stream is read next: a phase less.
  void add_experts(int64_t layer_id, int64_t token) {
    if (layer_id < 0 || !layers_[layer_id].has_experts()) return;
    const LayerWeights& layer = layers_[layer_id];
    float* to = residual_.data() + token * shape_.hidden_size;
    experts_.add_up(layer.experts, layer.router.num_chosen, token,
                    [&](int64_t at, Floats sum, Mask mask) {
                      store(to + at, add(load(to + at, mask), sum), mask);
                    });
  }

  // Whole blocks: gates and values stay interleaved.
  static int64_t stride_of(const Linear& gate_up) { return gate_up.num_blocks() * kBlockCols; }

  // With adapters in two steps: they add to gates and values before these are multiplied. The rows
  // of others come out the same.
  void project_gate_up(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    const int64_t num_tokens = batch.num_tokens;
    if (!loras_.has_any()) {
      project(member, layer.gate_up, normed_.data(), num_tokens,
              StoreGated<SiluGate>{activated_.data()});
      return;
    }
    Linear gate_up = layer.gate_up;
    gate_up.out_features = stride_of(gate_up);
    project(member, gate_up, normed_.data(), num_tokens, StoreFloats{gate_up_.data()});
    add_loras(member, layer_id, kGateUp, normed_.data(), shape_.hidden_size, gate_up_.data(),
              gate_up.out_features);
    member.for_each(num_tokens, [&](int64_t token) { activate(layer, token); });
  }

  // SiLU of a row whose gates and values are interleaved, as StoreGated does it.
  void activate(const LayerWeights& layer, int64_t token) {
    const int64_t size = layer.down.in_features;
    const float* gate_up = gate_up_.data() + token * stride_of(layer.gate_up);
    for (int64_t at = 0; at < size; at += kLanes) {
      const Floats gate = load(gate_up + 2 * at);
      const Floats value = load(gate_up + 2 * at + kLanes);
      store_bf16(activated_.data() + token * size + at, SiluGate{}(gate, value),
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

  void run_attention(ThreadTeam::Member& member, const Batch& batch, const LayerWeights& layer) {
    member.for_each(batch.num_tokens,
                    [&](int64_t token) { rotate_and_write(layer, batch, token); });
    with_pool(layer, [&](const auto& pool) {
      member.for_each(tasks_.size(), [&](int64_t idx) { attend(layer, pool, batch, tasks_[idx]); });
    });
    project(member, layer.output, attended_.data(), batch.num_tokens, AddTo{residual_.data()});
  }

  void project_down(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    const int64_t num_tokens = batch.num_tokens, hidden_size = shape_.hidden_size;
    const bf16* inputs = activated_.data();
    const auto add_own_loras = [&](float* to) {
      add_loras(member, layer_id, kDown, inputs, layer.down.in_features, to, hidden_size);
    };
    if (!layer.router.has_shared_gate) {
      project(member, layer.down, inputs, num_tokens, AddTo{residual_.data()});
      add_own_loras(residual_.data());
      return;
    }
    const AddShareTo finish{residual_.data(), routing_.shared_gates(layer.router),
                            layer.router.stride()};
    if (!loras_.has_any()) return project(member, layer.down, inputs, num_tokens, finish);
    // The gate counts what adapters add, too.
    project(member, layer.down, inputs, num_tokens, StoreFloats{gate_up_.data()});
    add_own_loras(gate_up_.data());
    member.for_each(num_tokens, [&](int64_t token) {
      for (int64_t at = 0; at < hidden_size; at += kBlockCols) {
        const float* from = gate_up_.data() + token * hidden_size + at;
        finish(hidden_size, at, token, {load(from), load(from + kLanes)});
      }
    });
  }

  void finish(ThreadTeam::Member& member, const Batch& batch) {
    const int64_t hidden_size = shape_.hidden_size;
    const int64_t last_layer = static_cast<int64_t>(layers_.size()) - 1;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      add_experts(last_layer, token);
      float* hidden = batch.hidden + token * hidden_size;
      rms_norm(residual_.data() + token * hidden_size, shape_.final_norm, hidden_size,
               shape_.norm_eps, hidden);
      hand_out(batch, last_layer + 1, token, hidden);
    });
  }

  // Of the stream that comes into a layer, to which the experts of the one before are added; -1: it
  // is within one.
  void norm_rows(ThreadTeam::Member& member, const Batch& batch, const float* weight,
                 int64_t layer_id) {
    const int64_t size = shape_.hidden_size;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      add_experts(layer_id - 1, token);
      hand_out(batch, layer_id, token, residual_.data() + token * size);
      rms_norm(residual_.data() + token * size, weight, size, shape_.norm_eps,
               normed_.data() + token * size);
    });
  }

  // A token's stream as it comes into a layer, if the step's caller reads it; behind the last layer
  // what the last norm gives.
  void hand_out(const Batch& batch, int64_t layer_id, int64_t token, const float* from) const {
    for (int64_t idx = 0; idx < batch.num_streams; ++idx) {
      if (batch.stream_layers[idx] != layer_id) continue;
      std::copy(from, from + shape_.hidden_size,
                batch.streams + (token * batch.num_streams + idx) * shape_.hidden_size);
    }
  }

  void rotate_and_write(const LayerWeights& layer, const Batch& batch, int64_t token) {
    const int64_t head_dim = shape_.head_dim;
    const int64_t num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads;
    const float* cosines = batch.cosines + batch.angle_rows[token] * head_dim / 2;
    const float* sines = batch.sines + batch.angle_rows[token] * head_dim / 2;
    bf16* queries = qkv_.data() + token * (num_heads + 2 * num_kv_heads) * head_dim;
    bf16* keys = queries + num_heads * head_dim;
    bf16* values = keys + num_kv_heads * head_dim;
    rotate_heads(queries, num_heads, layer.query_norm, cosines, sines);
    rotate_heads(keys, num_kv_heads, layer.key_norm, cosines, sines);
    const int64_t slot = batch.places_of(layer).out_loc[token];
    with_pool(layer, [&](const auto& pool) {
      for (int64_t head = 0; head < num_kv_heads; ++head) {
        pool.write(slot, head, keys + head * head_dim, values + head * head_dim);
      }
    });
  }

  // Rotary position embedding in place, with the norm before or after it.
  void rotate_heads(bf16* heads, int64_t num_heads, const float* norms, const float* cosines,
                    const float* sines) const {
    const int64_t head_dim = shape_.head_dim;
    const bool at_once = norms != nullptr && shape_.head_norm == kAllHeads;
    const float scale = at_once ? scale_of(heads, num_heads * head_dim) : 1.0f;
    for (int64_t head = 0; head < num_heads; ++head) {
      const float* norm = norms == nullptr ? nullptr : norms + head * head_dim;
      bf16* at = heads + head * head_dim;
      alignas(64) float x[kMaxHeadDim];
      for (int64_t dim = 0; dim < head_dim; dim += kLanes) store(x + dim, load_bf16(at + dim));
      if (at_once) {
        for (int64_t dim = 0; dim < head_dim; dim += kLanes) {
          store(x + dim, multiply(multiply(load(x + dim), all(scale)), load(norm + dim)));
        }
      } else if (norm != nullptr && shape_.head_norm == kEachHead) {
        rms_norm(x, norm, head_dim, shape_.norm_eps, x);
      }
      rotate(x, cosines, sines);
      if (norm != nullptr && shape_.head_norm == kRotatedHead) {
        rms_norm(x, norm, head_dim, shape_.norm_eps, x);
      }
      for (int64_t dim = 0; dim < head_dim; dim += kLanes) store_bf16(at + dim, load(x + dim));
    }
  }

  float scale_of(const bf16* values, int64_t size) const {
    Floats squares = zeros();
    for (int64_t at = 0; at < size; at += kLanes) {
      const Floats each = load_bf16(values + at);
      squares = fmadd(each, each, squares);
    }
    return norm_scale(squares, size, shape_.norm_eps);
  }

  // Pairs half a head apart.
  void rotate(float* x, const float* cosines, const float* sines) const {
    const int64_t half = shape_.head_dim / 2;
    for (int64_t at = 0; at < half; at += kLanes) {
      const Mask mask = first_lanes(half - at);
      const Floats first = load(x + at, mask);
      const Floats second = load(x + half + at, mask);
      const Floats cosine = load(cosines + at, mask);
      const Floats sine = load(sines + at, mask);
      store(x + at, fmsub(first, cosine, multiply(second, sine)), mask);
      store(x + half + at, fmadd(second, cosine, multiply(first, sine)), mask);
    }
  }

  template <class Pool>
  void attend(const LayerWeights& layer, const Pool& pool, const Batch& batch,
              const AttentionTask& task) {
    const int64_t head_dim = shape_.head_dim, num_shared = heads_per_kv_head();
    const int64_t qkv_stride = (shape_.num_heads + 2 * shape_.num_kv_heads) * head_dim;
    const int32_t* pages = batch.places_of(layer).page_table + task.row * batch.max_pages;
    const AttentionShape<Pool> shape{pool, pages, task.kv_head,
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
        if (layer.sinks != nullptr) tile.sinks[row - start] = layer.sinks[head];
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
  Buffer<bf16> activated_;  // [num_tokens, inner_size_]
  InputBuffers inputs_;     // of the linear that is multiplied
  Routing routing_;
  ExpertRows experts_;
  StepLoras loras_;
  Buffer<float> gate_up_;   // of steps with adapters: [num_tokens, gate_up_size_]
  int64_t inner_size_ = 0;  // of the largest MLP that every token goes through
  int64_t gate_up_size_ = 0;
  int64_t num_chosen_ = 0;  // experts of a token, at most
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
    pack_block(BlockRows<bf16>(blocked, block, rows, in_features), in_features,
               packed + block * block_size);
  });
}

// The same with codes [out_features, in_features], a byte each, of all layouts but kBf16.
void jetflock_pack_codes(Layout layout, const uint8_t* codes, int64_t out_features,
                         int64_t in_features, int interleaved, int num_threads, uint8_t* packed) {
  const BlockedRows blocked{out_features, interleaved != 0};
  const int64_t stride = block_bytes(layout, in_features);
  divide(blocked.num_blocks(), num_threads, [&](int64_t block) {
    const BlockRows<uint8_t> from(blocked, block, codes, in_features);
    pack_block_of_codes(layout, from, in_features, packed + block * stride);
  });
}

// The same with codes that are bits of blocks.
void jetflock_pack_stored(Layout layout, const StoredRows* stored, int64_t out_features,
                          int64_t in_features, int interleaved, int num_threads, uint8_t* packed) {
  const BlockedRows blocked{out_features, interleaved != 0};
  const int64_t stride = block_bytes(layout, in_features);
  divide(blocked.num_blocks(), num_threads, [&](int64_t block) {
    pack_stored_block(layout, blocked, block, *stored, in_features, packed + block * stride);
  });
}

// The checksum of bytes, in kChecksumParts words.
void jetflock_checksum(const uint8_t* bytes, int64_t num_bytes, uint32_t* sums) {
  checksum(bytes, num_bytes, sums);
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

// Rows of a table of embeddings: [num_ids, in_features] float.
void jetflock_read_rows(const Linear* table, float scale, const int64_t* ids, int64_t num_ids,
                        float* rows) {
  for (int64_t at = 0; at < num_ids; ++at) {
    RowReader(*table, ids[at]).read(scale, rows + at * table->in_features);
  }
}

ProductTeam* jetflock_product_team_new(int num_threads) { return new ProductTeam(num_threads); }

void jetflock_product_team_free(ProductTeam* team) { delete team; }

void jetflock_experts_forward(ProductTeam* team, const Experts* experts, const ExpertStep* step,
                              bf16* outputs) {
  team->forward(*experts, *step, outputs);
}

void jetflock_linear_forward(ProductTeam* team, const Linear* linear, const bf16* inputs,
                             int64_t num_rows, bf16* outputs) {
  team->multiply_rows(*linear, inputs, num_rows, outputs);
}

}  // extern "C"
