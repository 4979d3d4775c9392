// Whether this processor's tiles give the bits that Intel's manual says, before they are used.

#pragma once

#include <cstring>

#include "tile_products.h"

namespace jetflock {

// A product of two tiles of rows, the second with few, and inputs that fill no whole tile.
template <class Value, class Sum>
struct TileTrial {
  static constexpr int kRows = kTileRows + 3;
  static constexpr int64_t kPerWord = kWordBytes / sizeof(Value);
  static constexpr int64_t kInputCount = (3 * kTileWords + 3) * kPerWord;

  struct Sums {
    Sum values[kPassRows][kBlockCols];
  };

  alignas(64) Value rows[kRows * kInputCount];
  alignas(64) Value weights[kInputCount * kBlockCols];

  TileTrial() {
    uint32_t state = 1;
    for (Value& value : rows) value = draw(state);
    for (Value& value : weights) value = draw(state);
  }

  template <class Tiles>
  void multiply(Sums& sums) const {
    Tiles tiles;
    for_each_pass(tiles, rows, kInputCount, kRows, [&](auto pass, int64_t row, int) {
      pass.zero();
      pass.add(0, kInputCount, weights);
      pass.store(sums.values[row]);
    });
  }

 private:
  // Any integers. Of bfloat16 of either sign, from 2^-12 to 2^12: sums round at every step, and of 16
  // one is a denormal number.
  static Value draw(uint32_t& state) {
    state = state * 1664525u + 1013904223u;
    const uint32_t bits = state >> 8;
    if constexpr (sizeof(Value) == 1) return static_cast<Value>(bits);
    const uint32_t exponent = bits % 16 == 0 ? 0 : 115 + (bits >> 4) % 25;
    return static_cast<Value>((bits >> 9 & 0x8000) | exponent << 7 | (bits >> 17 & 0x7f));
  }
};

// Whether instructions and emulation give the same bits.
template <class Value, class Sum>
inline bool passes_trial() {
  const TileTrial<Value, Sum> trial;
  typename TileTrial<Value, Sum>::Sums by_instruction, emulated;
  trial.template multiply<InstructionTiles>(by_instruction);
  trial.template multiply<EmulatedTiles>(emulated);
  return std::memcmp(by_instruction.values, emulated.values,
                     trial.kRows * sizeof(emulated.values[0])) == 0;
}

// Null, or what is wrong with the instructions' sums.
inline const char* check_tiles() {
  if (!passes_trial<bf16, float>()) {
    return "this processor's AMX adds in another order than Intel's manual says";
  }
  if (!passes_trial<int8_t, int32_t>()) {
    return "this processor's AMX multiplies integers as Intel's manual does not say";
  }
  return nullptr;
}

// Null, or why the tiles cannot be used.
inline const char* prepare_tiles() {
  const char* reason = permit_tiles();
  return reason == nullptr ? check_tiles() : reason;
}

}  // namespace jetflock
