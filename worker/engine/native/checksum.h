// A checksum at the speed of memory, for what the processor is to read anyway.

#pragma once

#include <nmmintrin.h>

#include <cstdint>
#include <cstring>

namespace jetflock {

constexpr int kChecksumParts = 4;

// The CRC-32C of each quarter, the rest in the last: four at once, for each step of one waits for
// the step before.
inline void checksum(const uint8_t* bytes, int64_t num_bytes, uint32_t* sums) {
  constexpr int64_t kWord = sizeof(uint64_t);
  const int64_t part_bytes = num_bytes / kChecksumParts / kWord * kWord;
  uint64_t parts[kChecksumParts];
  for (auto& part : parts) part = UINT32_MAX;
  for (int64_t at = 0; at < part_bytes; at += kWord) {
    for (int idx = 0; idx < kChecksumParts; ++idx) {
      uint64_t word;
      std::memcpy(&word, bytes + idx * part_bytes + at, kWord);
      parts[idx] = _mm_crc32_u64(parts[idx], word);
    }
  }
  uint32_t rest = static_cast<uint32_t>(parts[kChecksumParts - 1]);
  for (int64_t at = kChecksumParts * part_bytes; at < num_bytes; ++at) {
    rest = _mm_crc32_u8(rest, bytes[at]);
  }
  parts[kChecksumParts - 1] = rest;
  for (int idx = 0; idx < kChecksumParts; ++idx) sums[idx] = static_cast<uint32_t>(parts[idx]);
}

}  // namespace jetflock
