// Whether this processor's tiles give the bits that Intel's manual says, before they are used.

#pragma once

#include <cstring>

#include "tile_products.h"

namespace jetflock {

// A product of two tiles of rows, the second with few, and inputs that fill no whole tile.
struct TileTrial {
  static constexpr int kRows = kTileRows + 3;
  static constexpr int64_t kInputCount = 3 * kTileInputs + 6;

  alignas(64) bf16 rows[kRows * kInputCount];
  alignas(64) bf16 weights[kInputCount * kBlockCols];

  TileTrial() {
    uint32_t state = 1;
    for (bf16& value : rows) value = draw(state);
    for (bf16& value : weights) value = draw(state);
  }

  template <class Tiles>
  void multiply(BlockSums& sums) const {
    Tiles tiles;
    for_each_pass(tiles, rows, kInputCount, kRows, [&](auto pass, int64_t row, int) {
      pass.zero();
      pass.add(0, kInputCount, weights);
      pass.store(sums.values[row]);
    });
  }

 private:
  // Of either sign, from 2^-12 to 2^12: sums round at every step. Of 16 one is a denormal number.
  static bf16 draw(uint32_t& state) {
    state = state * 1664525u + 1013904223u;
    const uint32_t bits = state >> 8;
    const uint32_t exponent = bits % 16 == 0 ? 0 : 115 + (bits >> 4) % 25;
    return static_cast<bf16>((bits >> 9 & 0x8000) | exponent << 7 | (bits >> 17 & 0x7f));
  }
};

// Null, or what is wrong with the instructions' sums.
inline const char* check_tiles() {
  const TileTrial trial;
  BlockSums by_instruction, emulated;
  trial.multiply<InstructionTiles>(by_instruction);
  trial.multiply<EmulatedTiles>(emulated);
  if (std::memcmp(by_instruction.values, emulated.values,
                  TileTrial::kRows * sizeof(by_instruction.values[0])) != 0) {
    return "this processor's AMX adds in another order than Intel's manual says";
  }
  return nullptr;
}

// Null, or why the tiles cannot be used.
inline const char* prepare_tiles() {
  const char* reason = permit_tiles();
  return reason == nullptr ? check_tiles() : reason;
}

}  // namespace jetflock
