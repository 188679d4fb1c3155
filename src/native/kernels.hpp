// What each build of kernels.cpp offers. A build is one instruction set: plain, avx2, avx512, avx512vbmi.
#pragma once
#include "spec.hpp"

namespace bitmma {

// D = A B + C on the codes of every matrix of a batch. Sets the floating-point environment it needs
// and restores the caller's. Never throws but std::bad_alloc.
using Run = void(Batch&);

// False where only the exact evaluator can serve these operands and this model.
using HasKernel = bool(const Spec&);

#define BITMMA_DECLARE(isa)   \
  namespace isa {             \
  Run run, run_exact;         \
  HasKernel has_kernel;       \
  extern const int lanes;     \
  }
BITMMA_DECLARE(plain)
BITMMA_DECLARE(avx2)
BITMMA_DECLARE(avx512)
BITMMA_DECLARE(avx512vbmi)
#undef BITMMA_DECLARE

}  // namespace bitmma
