// AMX's tiles in two forms with the same bits: by the instructions, and emulated on any processor.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "denormals.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kNumTiles = 8;
constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;
constexpr int kWordBytes = 4;  // neighbouring inputs: two of bfloat16, or four integers
constexpr int kTileWords = kTileRowBytes / kWordBytes;  // of a row of inputs; rows of weights

// As LDTILECFG reads it.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t num_rows[16] = {};

  void set(int tile, int rows, int bytes = kTileRowBytes) {
    num_rows[tile] = static_cast<uint8_t>(rows);
    row_bytes[tile] = static_cast<uint16_t>(rows == 0 ? 0 : bytes);
  }
};

// A thread's tiles. The instructions are spelled out: compilers' own words for them take no constant
// of a template.
class InstructionTiles {
 public:
  void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  void release() { asm volatile("tilerelease"); }

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }

  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }

  template <int kTile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }

  // sums += rows x columns; of bfloat16, or of integers with signs.
  template <class Value, int kSums, int kRows, int kColumns>
  void multiply() {
    if constexpr (sizeof(Value) == sizeof(bf16)) {
      asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows),
                   "i"(kColumns));
    } else {
      asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows),
                   "i"(kColumns));
    }
  }
};

struct Tile {
  alignas(64) uint8_t bytes[kTileRows][kTileRowBytes];
};

// In the order of Intel's manual: the even and the odd inputs of a row each in a chain of FMAs of
// their own that begins with zero, then both together, then what the sums were. Never inlined:
// no sum may leave the time in which denormals are zeros.
[[gnu::noinline]] inline void multiply_emulated(Tile& sums, const Tile& rows, const Tile& columns,
                                                int num_rows, int num_pairs) {
  constexpr int kCols = kTileRowBytes / sizeof(float);
  for (int row = 0; row < num_rows; ++row) {
    float even[kCols] = {}, odd[kCols] = {}, total[kCols];
    for (int pair = 0; pair < num_pairs; ++pair) {
      bf16 inputs[2], weights[2 * kCols];
      std::memcpy(inputs, rows.bytes[row] + pair * sizeof(inputs), sizeof(inputs));
      std::memcpy(weights, columns.bytes[pair], sizeof(weights));
      for (int col = 0; col < kCols; ++col) {
        even[col] = __builtin_fmaf(to_float(inputs[0]), to_float(weights[2 * col]), even[col]);
        odd[col] = __builtin_fmaf(to_float(inputs[1]), to_float(weights[2 * col + 1]), odd[col]);
      }
    }
    std::memcpy(total, sums.bytes[row], sizeof(total));
    for (int col = 0; col < kCols; ++col) total[col] = total[col] + (even[col] + odd[col]);
    std::memcpy(sums.bytes[row], total, sizeof(total));
  }
}

// Exact, so in any order; what leaves 32 bits wraps.
inline void multiply_integers_emulated(Tile& sums, const Tile& rows, const Tile& columns,
                                       int num_rows, int num_quads) {
  constexpr int kCols = kTileRowBytes / sizeof(int32_t);
  for (int row = 0; row < num_rows; ++row) {
    uint32_t total[kCols];
    std::memcpy(total, sums.bytes[row], sizeof(total));
    for (int at = 0; at < num_quads * kWordBytes; ++at) {
      const int input = static_cast<int8_t>(rows.bytes[row][at]);
      const uint8_t* weights = columns.bytes[at / kWordBytes] + at % kWordBytes;
      for (int col = 0; col < kCols; ++col) {
        total[col] += input * static_cast<int8_t>(weights[kWordBytes * col]);
      }
    }
    std::memcpy(sums.bytes[row], total, sizeof(total));
  }
}

class EmulatedTiles {
 public:
  void configure(const TileConfig& config) {
    config_ = config;
    std::memset(tiles_, 0, sizeof(tiles_));
  }

  void release() {}

  template <int kTile>
  void zero() {
    std::memset(&tiles_[kTile], 0, sizeof(Tile));
  }

  template <int kTile>
  void load(const void* from, int64_t stride) {
    zero<kTile>();
    for (int row = 0; row < config_.num_rows[kTile]; ++row) {
      std::memcpy(tiles_[kTile].bytes[row], static_cast<const uint8_t*>(from) + row * stride,
                  config_.row_bytes[kTile]);
    }
  }

  template <int kTile>
  void store(void* to, int64_t stride) {
    for (int row = 0; row < config_.num_rows[kTile]; ++row) {
      std::memcpy(static_cast<uint8_t*>(to) + row * stride, tiles_[kTile].bytes[row],
                  config_.row_bytes[kTile]);
    }
  }

  template <class Value, int kSums, int kRows, int kColumns>
  void multiply() {
    const DenormalsAreZeros denormals;
    const auto by =
        sizeof(Value) == sizeof(bf16) ? &multiply_emulated : &multiply_integers_emulated;
    by(tiles_[kSums], tiles_[kRows], tiles_[kColumns], config_.num_rows[kSums],
       config_.num_rows[kColumns]);
  }

 private:
  TileConfig config_;
  Tile tiles_[kNumTiles];
};

// Asks Linux, once for all threads, that tiles may be used. Null, or why they may not.
inline const char* permit_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  constexpr unsigned kTileState = 3u << 17;  // of XCR0: tiles and their configuration
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return "this system does not keep AMX's tiles";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return "Linux does not permit AMX's tiles to this process (ARCH_REQ_XCOMP_PERM)";
  }
  return nullptr;
}

}  // namespace jetflock
