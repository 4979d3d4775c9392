// Weights of 8 and 4 bits: codes, a code book that says what each code stands for, and a scale for
// each group of inputs of a column. A code is decoded to the bfloat16 that it stands for, exactly;
// scales are applied to the sum of a group in float32. So nothing is rounded but the sums.

#pragma once

#include "coded_layout.h"
#if defined(JETFLOCK_AVX2)
#include "codes_avx2.h"
#else
#include "codes_avx512.h"
#endif

namespace jetflock {

class DecodedWeights {
 public:
  static constexpr int kPairBytes = 2 * kBlockCols * sizeof(bf16);

  explicit DecodedWeights(const bf16* pairs) : pairs_(pairs) {}

  void enter_group(const int8_t*) {}

  DecodedPairs operator[](int64_t pair) const {
    const bf16* at = pairs_ + pair * 2 * kBlockCols;
    return {load_pairs(at), load_pairs(at + kBlockCols)};
  }

 private:
  const bf16* pairs_;
};

}  // namespace jetflock
