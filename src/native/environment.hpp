// The floating-point environment of a kernel: set in every worker, restored for the caller, whose
// flush-to-zero or rounding mode must not change a bit.
#pragma once
#include "spec.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitmma::BITMMA_ISA {

enum class Rounding { nearest, down, up, toward_zero };

class Environment {
 public:
  explicit Environment(Rounding rounding, bool flush_to_zero = false) : saved_(read()) {
    write(value(rounding, flush_to_zero));
  }
  ~Environment() { write(saved_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

#if defined(__x86_64__) || defined(_M_X64)
  using Word = unsigned;
  static Word read() { return _mm_getcsr(); }
  static void write(Word w) {
    _mm_setcsr(w);
    asm volatile("" ::: "memory");
  }
  // All exceptions masked; RC in bits 13-14; FTZ is bit 15. Denormal operands are never zeroed here:
  // kernels that flush theirs do so when packing.
  static Word value(Rounding r, bool flush) {
    return 0x1F80u | Word(r) << 13 | (flush ? 0x8000u : 0u);
  }
#elif defined(__aarch64__)
  using Word = u64;
  static Word read() {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void write(Word w) { asm volatile("msr fpcr, %0" ::"r"(w) : "memory"); }
  // RMode in bits 22-23: 1 is up, 2 is down; FZ is bit 24 and zeroes subnormal operands too, which x86's
  // FTZ leaves alone: only for kernels that have none. No traps, default NaNs nor alternative halves.
  static Word value(Rounding r, bool flush) {
    constexpr Word mode[4] = {0, 2, 1, 3};
    return mode[int(r)] << 22 | (flush ? Word(1) << 24 : 0);
  }
#else
#error "bitmma needs to set the rounding mode: add this architecture to environment.hpp"
#endif

 private:
  Word saved_;
};

}  // namespace bitmma::BITMMA_ISA
