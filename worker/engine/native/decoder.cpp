// The decoder of models/decoder.py in one call a step, for bfloat16 weights on a processor with
// AVX512-BF16. The residual stream and all sums are float32; a token's result does not depend, bit
// for bit, on the tokens computed beside it, nor on whether it comes in a prefill chunk or alone.

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "attention.h"
#include "attention_tiles.h"
#include "buffer.h"
#include "checksum.h"
#include "experts.h"
#include "input_rows.h"
#include "linear.h"
#include "lora.h"
#include "norms.h"
#include "packing.h"
#include "product_team.h"
#include "router.h"
#include "row_reader.h"
#include "stored_codes.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

// How queries and keys are brought to one length, if they are.
enum HeadNorm : int64_t {
  kEachHead,     // by itself
  kAllHeads,     // all queries at once, and all keys
  kRotatedHead,  // by itself, once it is rotated
};

// What a token leaves for others, as a layer computes it.
enum Kept : int64_t {
  kOthersKeys,  // nothing: it sees what an earlier layer keeps
  kKeysAlone,   // which are the values, too
  kKeysAndValues,
};

struct HeadShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;

  int64_t heads_per_kv_head() const { return num_heads / num_kv_heads; }
  int64_t queries_size() const { return num_heads * head_dim; }
  int64_t keys_size() const { return num_kv_heads * head_dim; }
};

struct LayerWeights {
  HeadShape heads;
  Kept kept;
  Norm before_attention;  // [hidden_size]
  Linear qkv;             // to queries, what is kept, gates: heads one after the other
  Norm query_norm;        // [num_heads, head_dim]
  Norm key_norm;          // [num_kv_heads, head_dim]
  Norm value_norm;        // the same
  const float* sinks;     // [num_heads]: a score of nothing, times log2(e); or null
  Linear output;
  Norm after_attention;
  Norm before_mlp;
  Norm after_mlp;
  // Of what every token goes through; without inputs where it goes through experts alone.
  Linear gate_up;  // gated, gates and values are interleaved, see pack_linear
  Linear down;
  Inner inner;
  Experts experts;  // none: without numbers
  Router router;    // who chooses them
  void* keys;  // this layer's part of the pool
  void* values;
  int64_t rope;    // its angles' place in a step; -1: it does not rotate
  int64_t window;  // as AttentionShape has it
  int64_t chunk;
  int64_t has_window_pages;  // numbered by themselves
  int64_t is_causal;         // else the tokens of an image see each other
  int64_t grows_queries;     // by a step's factors
  int64_t has_gates;         // by which what attention gives is multiplied
  float attention_scale;
  float soft_cap;
  float stream_scale;  // of the stream, when the layer is done

  bool has_mlp() const { return down.in_features > 0; }
  bool has_experts() const { return experts.num_experts > 0; }
};

struct DecoderShape {
  int64_t hidden_size;
  int64_t page_size;
  KVFormat kv_format;
  HeadNorm head_norm;
  NormRule norm;
  int64_t is_parallel;       // attention and MLP are given the same stream
  int64_t norms_embeddings;  // by the last norm
  float qkv_bound;           // of queries, keys and values, as projected; 0: they have none
  float embedding_scale;     // what an embedding is multiplied with
  Linear embeddings;         // to vocab_size
  const float* positions;    // [num_positions, hidden_size], added to embeddings; or null
  Norm final_norm;           // [hidden_size]
  Linear lm_head;
};

// The four projections of a layer, in the order of native_lora.py.
enum ProjectionId : int64_t { kQkv, kOutput, kGateUp, kDown, kNumProjections };

// Where keys and values are, of layers whose pages have the same numbers.
struct PagePlaces {
  const int64_t* out_loc;     // [num_tokens]
  const int32_t* page_table;  // [num_rows, max_pages]
};

// Of one rotation.
struct Angles {
  const int64_t* rows;   // [num_tokens], of cosines and sines
  const float* cosines;  // [num_rows, head_dim / 2]
  const float* sines;
};

// One step, as in forward_batch.py. The outputs are [num_tokens, hidden_size].
struct Batch {
  int64_t num_tokens;
  int64_t num_rows;
  int64_t max_pages;
  const int64_t* input_ids;   // [num_tokens]
  const int64_t* positions;   // [num_tokens]
  const int64_t* reach;       // [num_tokens], the last position seen; null: its own
  const Angles* angles;       // by rope
  const float* query_factors;  // [num_tokens], where layers grow queries
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
      plan_ids_.push_back(plan_id_of(layer.heads));
      qkv_size_ = std::max(qkv_size_, layer.qkv.out_features);
      attended_size_ = std::max(attended_size_, layer.heads.queries_size());
      if (layer.kept == kKeysAlone) values_size_ = std::max(values_size_, layer.heads.keys_size());
      has_two_inputs_ |= has_two_inputs(layer);
      has_sums_ |= layer.after_attention.exists() || layer.after_mlp.exists();
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
    residual_.reserve(num_tokens * shape_.hidden_size);
    if (has_sums_) sums_.reserve(num_tokens * shape_.hidden_size);
    normed_.reserve(num_tokens * shape_.hidden_size);
    if (has_two_inputs_) mlp_inputs_.reserve(num_tokens * shape_.hidden_size);
    qkv_.reserve(num_tokens * qkv_size_);
    values_.reserve(num_tokens * values_size_);
    attended_.reserve(num_tokens * attended_size_);
    activated_.reserve(num_tokens * inner_size_);
    inputs_.reserve(num_tokens);
    routing_.reserve(num_tokens);
    experts_.reserve(num_tokens * num_chosen_);
    for (AttentionPlan& plan : plans_) plan_attention(plan, batch);
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

  // Of all layers whose queries and keys have as many heads.
  struct AttentionPlan {
    int64_t num_kv_heads;
    int64_t heads_per_kv_head;
    std::vector<AttentionTask> tasks;
  };

  int64_t plan_id_of(const HeadShape& heads) {
    const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
      return plan.num_kv_heads == heads.num_kv_heads &&
             plan.heads_per_kv_head == heads.heads_per_kv_head();
    });
    const int64_t plan_id = found - plans_.begin();
    if (found == plans_.end()) {
      plans_.push_back({heads.num_kv_heads, heads.heads_per_kv_head(), {}});
    }
    return plan_id;
  }

  template <class Finish>
  void project(ThreadTeam::Member& member, const Linear& linear, const bf16* rows,
               int64_t num_rows, const Finish& finish) {
    multiply(member, team_.size(), linear, inputs_.rows(rows, 0), num_rows, finish);
  }

  // The longest requests first, so that nothing long begins when the others are done. All queries
  // of a KV head one after the other, while its keys and values are in the second-level cache.
  void plan_attention(AttentionPlan& plan, const Batch& batch) {
    plan.tasks.clear();
    int64_t token = 0;
    for (int64_t row = 0; row < batch.num_rows; ++row) {
      const int64_t num_query_rows = batch.query_lens[row] * plan.heads_per_kv_head;
      const int64_t last_token = token + batch.query_lens[row] - 1;
      const int64_t cost = num_query_rows * (batch.positions[last_token] + kBlockTokens);
      for (int64_t kv_head = 0; kv_head < plan.num_kv_heads; ++kv_head) {
        for (int64_t end = num_query_rows; end > 0; end -= kTaskQueryRows) {
          const int64_t start = std::max<int64_t>(0, end - kTaskQueryRows);
          plan.tasks.push_back({token, row, kv_head, start, end, cost});
        }
      }
      token += batch.query_lens[row];
    }
    std::stable_sort(plan.tasks.begin(), plan.tasks.end(),
                     [](const auto& one, const auto& other) { return one.cost > other.cost; });
  }

  void run_layer(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    begin_layer(member, batch, layer_id);
    project(member, layer.qkv, normed_.data(), batch.num_tokens, Store{qkv_.data()});
    add_loras(member, layer_id, kQkv, normed_.data(), shape_.hidden_size, qkv_.data(),
              layer.qkv.out_features);
    run_attention(member, batch, layer_id);
    float* sums = sums_before(layer.after_attention);
    project(member, layer.output, attended_.data(), batch.num_tokens, AddTo{sums});
    add_loras(member, layer_id, kOutput, attended_.data(), layer.heads.queries_size(), sums,
              shape_.hidden_size);
    if (!shape_.is_parallel) {
      member.for_each(batch.num_tokens, [&](int64_t token) {
        join(layer.after_attention, token);
        norm_stream(layer.before_mlp, token, normed_.data());
      });
    }
    const bf16* inputs = has_two_inputs(layer) ? mlp_inputs_.data() : normed_.data();
    if (layer.has_experts()) run_experts(member, batch, layer, inputs);
    if (layer.has_mlp()) {
      project_gate_up(member, batch, layer_id, inputs);
      project_down(member, batch, layer_id);
    }
    if (layer_id < batch.num_deep) add_given(member, batch, layer_id + 1);
  }

  // Whether the MLP has a norm of its own of the stream that attention is given, too.
  bool has_two_inputs(const LayerWeights& layer) const {
    return shape_.is_parallel && layer.before_mlp.exists();
  }

  void begin_layer(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    member.for_each(batch.num_tokens, [&](int64_t token) {
      end_layer(layer_id - 1, token);
      hand_out(batch, layer_id, token, stream(token));
      norm_stream(layer.before_attention, token, normed_.data());
      if (has_two_inputs(layer)) norm_stream(layer.before_mlp, token, mlp_inputs_.data());
    });
  }

  // Where the stream is read next: a phase less. -1: before all layers.
  void end_layer(int64_t layer_id, int64_t token) {
    if (layer_id < 0) return;
    const LayerWeights& layer = layers_[layer_id];
    add_experts(layer, token);
    join(layer.after_mlp, token);
    if (layer.stream_scale == 1.0f) return;
    float* to = stream(token);
    for (int64_t at = 0; at < shape_.hidden_size; ++at) to[at] *= layer.stream_scale;
  }

  float* stream(int64_t token) const { return residual_.data() + token * shape_.hidden_size; }

  // Where a part of a layer adds what it gives: to the stream, or to zeros that `norm` is of.
  float* sums_before(const Norm& norm) const {
    return norm.exists() ? sums_.data() : residual_.data();
  }

  // The norm of a token's sums is added to its stream; zeros are left.
  void join(const Norm& norm, int64_t token) {
    if (!norm.exists()) return;
    const int64_t size = shape_.hidden_size;
    float *sums = sums_.data() + token * size, *to = stream(token);
    normalise(shape_.norm, norm, sums, size, sums);
    for (int64_t at = 0; at < size; ++at) to[at] += sums[at];
    std::fill_n(sums, size, 0.0f);
  }

  // To [num_tokens, hidden_size]. Without a norm the stream is rounded.
  void norm_stream(const Norm& norm, int64_t token, bf16* outputs) {
    const int64_t size = shape_.hidden_size;
    const float* from = stream(token);
    bf16* to = outputs + token * size;
    if (norm.exists()) return normalise(shape_.norm, norm, from, size, to);
    for (int64_t at = 0; at < size; at += kLanes) {
      const Mask mask = first_lanes(size - at);
      store_bf16(to + at, load(from + at, mask), mask);
    }
  }

  void add_given(ThreadTeam::Member& member, const Batch& batch, int64_t part) {
    const int64_t hidden_size = shape_.hidden_size;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      if (batch.given_rows[token] < 0) return;
      const float* from = given_row(batch, part, token);
      float* to = stream(token);
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

  void run_experts(ThreadTeam::Member& member, const Batch& batch, const LayerWeights& layer,
                   const bf16* inputs) {
    const ExpertStep step{batch.num_tokens, layer.router.num_chosen, inputs,
                          routing_.expert_ids(), routing_.shares()};
    routing_.choose(member, layer.router, inputs, batch.num_tokens, shape_.hidden_size,
                    [&] { experts_.plan(layer.experts, step); });
    experts_.multiply(member, team_.size(), layer.experts, step);
  }

  void add_experts(const LayerWeights& layer, int64_t token) {
    if (!layer.has_experts()) return;
    float* to = sums_before(layer.after_mlp) + token * shape_.hidden_size;
    experts_.add_up(layer.experts, layer.router.num_chosen, token,
                    [&](int64_t at, Floats sum, Mask mask) {
                      store(to + at, add(load(to + at, mask), sum), mask);
                    });
  }

  // Whole blocks: gates and values stay as they are packed.
  static int64_t stride_of(const Linear& gate_up) { return gate_up.num_blocks() * kBlockCols; }

  // With adapters in two steps: they add to gates and values before these are multiplied. The rows
  // of others come out the same.
  void project_gate_up(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id,
                       const bf16* inputs) {
    const LayerWeights& layer = layers_[layer_id];
    const int64_t num_tokens = batch.num_tokens;
    if (!loras_.has_any()) {
      project(member, layer.gate_up, inputs, num_tokens,
              StoreInner{activated_.data(), layer.inner});
      return;
    }
    Linear gate_up = layer.gate_up;
    gate_up.out_features = stride_of(gate_up);
    project(member, gate_up, inputs, num_tokens, StoreFloats{gate_up_.data()});
    add_loras(member, layer_id, kGateUp, inputs, shape_.hidden_size, gate_up_.data(),
              gate_up.out_features);
    member.for_each(num_tokens, [&](int64_t token) { activate(layer, token); });
  }

  // Of a row of sums, as StoreInner does it.
  void activate(const LayerWeights& layer, int64_t token) {
    const int64_t size = layer.down.in_features;
    const StoreInner finish{activated_.data(), layer.inner};
    const float* gate_up = gate_up_.data() + token * stride_of(layer.gate_up);
    for (int64_t at = 0; at < layer.gate_up.out_features; at += kBlockCols) {
      finish(layer.gate_up.out_features, at, token,
             {load(gate_up + at), load(gate_up + at + kLanes)});
    }
  }

  void embed(ThreadTeam::Member& member, const Batch& batch) {
    const int64_t hidden_size = shape_.hidden_size;
    member.for_each(batch.num_tokens, [&](int64_t token) {
      float* to = stream(token);
      if (has_sums_) std::fill_n(sums_.data() + token * hidden_size, hidden_size, 0.0f);
      if (batch.given_rows != nullptr && batch.given_rows[token] >= 0) {
        const float* given = given_row(batch, 0, token);
        std::copy(given, given + hidden_size, to);
        return;
      }
      const RowReader row(shape_.embeddings, batch.input_ids[token]);
      row.read(shape_.embedding_scale, to);
      if (shape_.positions != nullptr) {
        const float* position = shape_.positions + batch.positions[token] * hidden_size;
        for (int64_t at = 0; at < hidden_size; ++at) to[at] += position[at];
      }
      if (shape_.norms_embeddings) normalise(shape_.norm, shape_.final_norm, to, hidden_size, to);
    });
  }

  void run_attention(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    member.for_each(batch.num_tokens,
                    [&](int64_t token) { rotate_and_write(layer, batch, token); });
    const std::vector<AttentionTask>& tasks = plans_[plan_ids_[layer_id]].tasks;
    with_pool(layer, [&](const auto& pool) {
      member.for_each(tasks.size(), [&](int64_t idx) { attend(layer, pool, batch, tasks[idx]); });
    });
    if (!layer.has_gates) return;
    member.for_each(batch.num_tokens, [&](int64_t token) { gate_attended(layer, token); });
  }

  void gate_attended(const LayerWeights& layer, int64_t token) {
    const int64_t size = layer.heads.queries_size();
    const bf16* gates = qkv_.data() + (token + 1) * layer.qkv.out_features - size;
    bf16* attended = attended_.data() + token * size;
    for (int64_t at = 0; at < size; at += kLanes) {
      store_bf16(attended + at, multiply(load_bf16(attended + at), sigmoid(load_bf16(gates + at))));
    }
  }

  void project_down(ThreadTeam::Member& member, const Batch& batch, int64_t layer_id) {
    const LayerWeights& layer = layers_[layer_id];
    const int64_t num_tokens = batch.num_tokens, hidden_size = shape_.hidden_size;
    const bf16* inputs = activated_.data();
    float* sums = sums_before(layer.after_mlp);
    const auto add_own_loras = [&](float* to) {
      add_loras(member, layer_id, kDown, inputs, layer.down.in_features, to, hidden_size);
    };
    if (!layer.router.has_shared_gate) {
      project(member, layer.down, inputs, num_tokens, AddTo{sums});
      add_own_loras(sums);
      return;
    }
    const AddShareTo finish{sums, routing_.shared_gates(layer.router),
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
      end_layer(last_layer, token);
      float* hidden = batch.hidden + token * hidden_size;
      normalise(shape_.norm, shape_.final_norm, stream(token), hidden_size, hidden);
      hand_out(batch, last_layer + 1, token, hidden);
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
    const HeadShape& heads = layer.heads;
    const int64_t head_dim = heads.head_dim, keys_size = heads.keys_size();
    bf16* queries = qkv_.data() + token * layer.qkv.out_features;
    bf16* keys = queries + heads.queries_size();
    bf16* values = keys + keys_size;
    if (shape_.qkv_bound > 0.0f) bound(queries, heads.queries_size() + layer.kept * keys_size);
    if (layer.kept == kKeysAlone) {
      values = values_.data() + token * keys_size;
      std::copy_n(keys, keys_size, values);
    }
    const float* cosines = nullptr;
    const float* sines = nullptr;
    if (layer.rope >= 0) {
      const Angles& angles = batch.angles[layer.rope];
      cosines = angles.cosines + angles.rows[token] * head_dim / 2;
      sines = angles.sines + angles.rows[token] * head_dim / 2;
    }
    const float growth = layer.grows_queries ? batch.query_factors[token] : 1.0f;
    turn_heads(queries, heads.num_heads, head_dim, layer.query_norm, cosines, sines, growth);
    if (layer.kept == kOthersKeys) return;
    turn_heads(keys, heads.num_kv_heads, head_dim, layer.key_norm, cosines, sines, 1.0f);
    turn_heads(values, heads.num_kv_heads, head_dim, layer.value_norm, nullptr, nullptr, 1.0f);
    const int64_t slot = batch.places_of(layer).out_loc[token];
    with_pool(layer, [&](const auto& pool) {
      for (int64_t head = 0; head < heads.num_kv_heads; ++head) {
        pool.write(slot, head, keys + head * head_dim, values + head * head_dim);
      }
    });
  }

  void bound(bf16* values, int64_t size) const {
    const Floats most = all(shape_.qkv_bound), least = all(-shape_.qkv_bound);
    for (int64_t at = 0; at < size; at += kLanes) {
      // In this order, not-a-number stays what it is.
      store_bf16(values + at, larger(least, smaller(most, load_bf16(values + at))));
    }
  }

  // Rotary position embedding in place, with the norm before or after it; any of them may be null.
  void turn_heads(bf16* heads, int64_t num_heads, int64_t head_dim, const Norm& norm,
                  const float* cosines, const float* sines, float growth) const {
    if (!norm.exists() && cosines == nullptr && growth == 1.0f) return;
    const bool at_once = norm.exists() && shape_.head_norm == kAllHeads;
    Measure whole{};
    if (at_once) whole = measure(shape_.norm, heads, num_heads * head_dim);
    for (int64_t head = 0; head < num_heads; ++head) {
      const Norm own = norm.exists() ? norm.from(head * head_dim) : norm;
      bf16* at = heads + head * head_dim;
      alignas(64) float x[kMaxHeadDim];
      for (int64_t dim = 0; dim < head_dim; dim += kLanes) store(x + dim, load_bf16(at + dim));
      if (at_once) {
        apply(whole, own, x, head_dim, x);
      } else if (own.exists() && shape_.head_norm == kEachHead) {
        normalise(shape_.norm, own, x, head_dim, x);
      }
      if (cosines != nullptr) rotate(x, head_dim, cosines, sines);
      if (own.exists() && shape_.head_norm == kRotatedHead) {
        normalise(shape_.norm, own, x, head_dim, x);
      }
      for (int64_t dim = 0; dim < head_dim; dim += kLanes) {
        store_bf16(at + dim, multiply(load(x + dim), all(growth)));
      }
    }
  }

  // Pairs half a head apart.
  static void rotate(float* x, int64_t head_dim, const float* cosines, const float* sines) {
    const int64_t half = head_dim / 2;
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
    const int64_t head_dim = layer.heads.head_dim, num_shared = layer.heads.heads_per_kv_head();
    const bool sees_ahead = batch.reach != nullptr && !layer.is_causal;
    const int32_t* pages = batch.places_of(layer).page_table + task.row * batch.max_pages;
    const AttentionShape<Pool> shape{pool, pages, task.kv_head,
                                     layer.attention_scale * kLog2E, layer.soft_cap,
                                     layer.window, layer.chunk};
    const auto fill = [&](int64_t start, int64_t end, auto& rows) {
      for (int64_t row = start; row < end; ++row) {
        const int64_t token = task.first_token + row / num_shared;
        const int64_t head = task.kv_head * num_shared + row % num_shared;
        rows.queries[row - start] =
            qkv_.data() + token * layer.qkv.out_features + head * head_dim;
        rows.outputs[row - start] =
            attended_.data() + (token * layer.heads.num_heads + head) * head_dim;
        rows.positions[row - start] = batch.positions[token];
        rows.last_seen[row - start] = sees_ahead ? batch.reach[token] : batch.positions[token];
        if (layer.sinks != nullptr) rows.sinks[row - start] = layer.sinks[head];
      }
    };
    const int64_t num_rows = task.end_row - task.first_row;
    if (is_by_tiles(layer.qkv)) {
      typename TileAttention<KernelTiles, Pool>::Rows rows;
      fill(task.first_row, task.end_row, rows);
      TileAttention<KernelTiles, Pool>(shape, rows, static_cast<int>(num_rows)).attend();
      return;
    }
    const int64_t num_tiles = (num_rows + kMaxQueryRows - 1) / kMaxQueryRows;
    for (int64_t tile_idx = 0; tile_idx < num_tiles; ++tile_idx) {
      const int64_t start = task.first_row + num_rows * tile_idx / num_tiles;
      const int64_t end = task.first_row + num_rows * (tile_idx + 1) / num_tiles;
      QueryTile tile;
      fill(start, end, tile);
      attend_tile(static_cast<int>(end - start), shape, tile);
    }
  }

  template <class Call>
  void with_pool(const LayerWeights& layer, const Call& call) const {
    const PoolShape shape{layer.heads.num_kv_heads, layer.heads.head_dim, shape_.page_size};
    if (shape_.kv_format == kKVInt8) {
      call(Int8Pool{static_cast<int8_t*>(layer.keys), static_cast<int8_t*>(layer.values), shape});
    } else {
      call(Bf16Pool{static_cast<bf16*>(layer.keys), static_cast<bf16*>(layer.values), shape});
    }
  }

  const DecoderShape shape_;
  const std::vector<LayerWeights> layers_;
  ThreadTeam team_;
  std::vector<AttentionPlan> plans_;
  std::vector<int64_t> plan_ids_;  // by layer
  Buffer<float> residual_;   // [num_tokens, hidden_size]
  Buffer<float> sums_;       // the same, see join
  Buffer<bf16> normed_;      // the same
  Buffer<bf16> mlp_inputs_;  // the same, see has_two_inputs
  Buffer<bf16> qkv_;         // [num_tokens, qkv_size_]
  Buffer<bf16> values_;      // [num_tokens, values_size_]: keys before they are rotated
  Buffer<bf16> attended_;    // [num_tokens, attended_size_]
  Buffer<bf16> activated_;  // [num_tokens, inner_size_]
  InputBuffers inputs_;     // of the linear that is multiplied
  Routing routing_;
  ExpertRows experts_;
  StepLoras loras_;
  Buffer<float> gate_up_;   // of steps with adapters: [num_tokens, gate_up_size_]
  bool has_sums_ = false;
  bool has_two_inputs_ = false;  // some layer has
  int64_t qkv_size_ = 0;  // as the next ones: of any layer, at most
  int64_t values_size_ = 0;
  int64_t attended_size_ = 0;
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
