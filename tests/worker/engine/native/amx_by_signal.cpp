// AMX's instructions on a processor without them: each is an illegal one there, and the handler of
// that signal does what Intel's manual says. So the very code that an AMX worker runs is tried.

#include <signal.h>
#include <ucontext.h>

#include <cmath>

#include "tile_check.h"

namespace {

struct Machine {
  jetflock::TileConfig config;
  uint8_t tiles[8][16][64];
};

Machine machine;

float at(const uint8_t* from) {
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

float from_bf16(const uint8_t* from) {
  uint32_t bits = (from[0] << 16) | (static_cast<uint32_t>(from[1]) << 24);
  if ((bits & 0x7f800000) == 0) bits &= 0x80000000;
  return at(reinterpret_cast<const uint8_t*>(&bits));
}

float flush(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f * value : value; }

void multiply(int to, int rows, int columns) {
  Machine& m = machine;
  for (int row = 0; row < m.config.num_rows[rows]; ++row) {
    for (int col = 0; col < m.config.row_bytes[columns] / 4; ++col) {
      float sums[2] = {0.0f, 0.0f};
      for (int k = 0; k < m.config.row_bytes[rows] / 4; ++k) {
        for (int half = 0; half < 2; ++half) {
          const float input = from_bf16(&m.tiles[rows][row][4 * k + 2 * half]);
          const float weight = from_bf16(&m.tiles[columns][k][4 * col + 2 * half]);
          sums[half] = flush(std::fma(input, weight, sums[half]));
        }
      }
      uint8_t* place = &m.tiles[to][row][4 * col];
      const float sum = flush(at(place) + flush(sums[0] + sums[1]));
      std::memcpy(place, &sum, sizeof(sum));
    }
  }
}

void multiply_integers(int to, int rows, int columns) {
  Machine& m = machine;
  for (int row = 0; row < m.config.num_rows[rows]; ++row) {
    for (int col = 0; col < m.config.row_bytes[columns] / 4; ++col) {
      uint8_t* place = &m.tiles[to][row][4 * col];
      uint32_t sum;
      std::memcpy(&sum, place, sizeof(sum));
      for (int at = 0; at < m.config.row_bytes[rows]; ++at) {
        const int input = static_cast<int8_t>(m.tiles[rows][row][at]);
        sum += input * static_cast<int8_t>(m.tiles[columns][at / 4][4 * col + at % 4]);
      }
      std::memcpy(place, &sum, sizeof(sum));
    }
  }
}

// Registers by their numbers in instructions.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};

// The memory operand behind the opcode at `code`; `row`: of its index register.
struct Operand {
  uint8_t* base;
  int64_t row;
  int size;  // bytes of the operand's encoding

  Operand(const uint8_t* code, const greg_t* registers) {
    const int no_x = ~code[1] >> 6 & 1, no_b = ~code[1] >> 5 & 1;
    const int mode = code[4] >> 6, field = code[4] & 7;
    size = 1;
    int base_register = field;
    row = 0;
    if (field == 4) {
      const int index = (code[5] >> 3 & 7) | no_x << 3;
      base_register = code[5] & 7;
      if (index != 4) row = registers[kRegisters[index]] << (code[5] >> 6);
      size = 2;
    }
    base = reinterpret_cast<uint8_t*>(registers[kRegisters[base_register | no_b << 3]]);
    if (mode == 1) base += static_cast<int8_t>(code[4 + size]);
    if (mode == 2) {
      int32_t distance;
      std::memcpy(&distance, code + 4 + size, sizeof(distance));
      base += distance;
    }
    size += mode == 1 ? 1 : mode == 2 ? 4 : 0;
  }
};

void on_illegal(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uint8_t* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  Machine& m = machine;
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) abort();
  const int prefix = code[2] & 3, last = ~code[2] >> 3 & 15, opcode = code[3];
  const bool has_memory = code[4] >> 6 != 3;
  const int tile = code[4] >> 3 & 7;
  const Operand operand(code, registers);
  int size = 4 + (has_memory ? operand.size : 1);
  if (opcode == 0x5e && prefix == 3) {
    multiply_integers(tile, code[4] & 7, last);
  } else if (opcode == 0x5c && prefix == 2) {
    multiply(tile, code[4] & 7, last);
  } else if (opcode == 0x49 && prefix == 0 && has_memory) {
    std::memcpy(&m.config, operand.base, sizeof(m.config));
    std::memset(m.tiles, 0, sizeof(m.tiles));
  } else if (opcode == 0x49 && prefix == 0) {
    m = Machine{};
  } else if (opcode == 0x49 && prefix == 3) {
    std::memset(m.tiles[tile], 0, sizeof(m.tiles[tile]));
  } else if (opcode == 0x4b && has_memory && (prefix == 3 || prefix == 2)) {
    if (prefix == 3) std::memset(m.tiles[tile], 0, sizeof(m.tiles[tile]));
    for (int row = 0; row < m.config.num_rows[tile]; ++row) {
      uint8_t* memory = operand.base + row * operand.row;
      if (prefix == 3) std::memcpy(m.tiles[tile][row], memory, m.config.row_bytes[tile]);
      if (prefix == 2) std::memcpy(memory, m.tiles[tile][row], m.config.row_bytes[tile]);
    }
  } else {
    abort();
  }
  registers[REG_RIP] += size;
}

}  // namespace

extern "C" {

void catch_illegal_instructions() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

// Null, or what is wrong with them.
const char* check_tiles() { return jetflock::check_tiles(); }

}
