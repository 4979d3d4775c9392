// Products of rows with dense weights by AMX's tiles: what becomes of one pass's sums is computed
// while the tiles are busy with the next one's.

#pragma once

#include "tile_products.h"

namespace jetflock {

constexpr int64_t kSlabBytes = 1 << 20;  // of inputs: half of the second-level cache
constexpr int64_t kMostSlabRows = 1024;

// So that few weights are read for many rows; all slabs but the last are alike, of whole passes.
inline int64_t dense_slab_rows(int64_t in_features, int64_t num_rows) {
  const int64_t fitting = kSlabBytes / (in_features * static_cast<int64_t>(sizeof(bf16)));
  const int64_t most = std::clamp<int64_t>(fitting, kPassRows, kMostSlabRows);
  const int64_t num_slabs = std::max<int64_t>(1, (num_rows + most - 1) / most);
  const int64_t rows = (num_rows + num_slabs - 1) / num_slabs;
  return (rows + kPassRows - 1) / kPassRows * kPassRows;
}

// One thread's passes, over any rows and blocks. `finish(block, row, sums)` is given each row's, and
// has had all of them when the object ends.
template <class Tiles, class Finish>
class DensePasses {
 public:
  DensePasses(const Linear& linear, const bf16* rows, const Finish& finish)
      : linear_(linear), rows_(rows), finish_(finish) {}

  ~DensePasses() {
    tiles_.release();
    finish_rows(kPassRows);
  }

  DensePasses(const DensePasses&) = delete;
  DensePasses& operator=(const DensePasses&) = delete;

  void multiply(long block, int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; row += kPassRows) {
      const int count = static_cast<int>(std::min<int64_t>(kPassRows, num_rows - row));
      const PassRows<bf16> rows{rows_ + row * linear_.in_features, linear_.in_features, count};
      if (count != configured_rows_) tiles_.configure(rows.config());
      configured_rows_ = count;
      if (rows.lower() > 0) {
        run(TilePass<Tiles, 2, bf16>(tiles_, rows), block, row, count);
      } else {
        run(TilePass<Tiles, 1, bf16>(tiles_, rows), block, row, count);
      }
    }
  }

 private:
  template <class Pass>
  void run(Pass pass, long block, int64_t row, int num_rows) {
    const bf16* weights =
        static_cast<const bf16*>(linear_.weights) + block * kBlockCols * linear_.in_features;
    const int64_t num_steps = (linear_.in_features + Pass::kTileInputs - 1) / Pass::kTileInputs;
    const int per_step = static_cast<int>((num_left_ + num_steps - 1) / num_steps);
    pass.zero();
    const auto beside = [&] { finish_rows(per_step); };
    if (row == 0) {
      pass.template add<true>(0, linear_.in_features, weights, beside);
    } else {
      pass.template add<false>(0, linear_.in_features, weights, beside);
    }
    finish_rows(kPassRows);
    pass.store(sums_);
    block_ = block;
    next_row_ = row;
    next_ = 0;
    num_left_ = num_rows;
  }

  void finish_rows(int most) {
    for (; most > 0 && num_left_ > 0; --most, --num_left_) {
      const float* from = sums_ + next_++ * kBlockCols;
      finish_(block_, next_row_++, {load(from), load(from + kLanes)});
    }
  }

  const Linear& linear_;
  const bf16* rows_;
  const Finish& finish_;
  Tiles tiles_;
  int configured_rows_ = 0;
  // Of the last pass, those that are not finished:
  alignas(64) float sums_[kPassRows * kBlockCols];
  long block_ = 0;
  int64_t next_row_ = 0;
  int next_ = 0;  // of `sums_`
  int num_left_ = 0;
};

}  // namespace jetflock
