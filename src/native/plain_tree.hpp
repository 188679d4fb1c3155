// SumTrees in the machine's own arithmetic: additions and fused multiply-adds of float or double, to
// nearest, which is what BLAS kernels, NumPy and PyTorch do, also where subnormal sums are flushed.
// One output at a time.
//
// The rules for what is tiny differ where something inexact is rounded to the smallest normal number:
// not in a sum of two numbers of T, which is exact below it. A fused multiply-add that comes to that
// number is made again 2^64 times as large, where nothing is subnormal: if that comes to less, so it
// would have with exponents without end, and is tiny "after" rounding. Nothing overflows: a product
// has 2 * digits bits, so that a sum of it and c that is neither 0 nor more than the smallest normal
// number has none of them above 2^(2 * digits) of those, and the smaller factor is below their root.
#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "exact.hpp"

namespace bitmma::BITMMA_ISA::exact {

template <class T> class PlainTree {
 public:
  explicit PlainTree(const Spec& s) : s_(s) {
    if (s.family != Family::sum_tree || !plan()) steps_.clear();
  }
  // Whether T's operations give the tree's bits.
  bool holds() const { return !steps_.empty(); }

  // The code of the root, before a second rounding.
  u64 operator()(const Number* a, const Number* b, const Number& c) {
    T* v = values_.data();
    const int K = s_.group;
    if (products_fit_)
      for (int i = 0; i < K; ++i) v[i] = product(number(a[i]), number(b[i]));
    if (s_.open.products.present && settles_)
      for (int i = 0; i < K; ++i) v[i] = settled(v[i]);
    v[K] = uses_c_ ? number(c) : 0;
    T* node = v + K;
    for (const Step& step : steps_) {
      switch (step.op) {
        case Op::value: *++node = v[step.x] + start_; break;
        case Op::product: *++node = multiply_add(number(a[step.y]), number(b[step.y]), start_); break;
        case Op::add: *++node = v[step.x] + v[step.y]; break;
        case Op::multiply_add: *++node = multiply_add(number(a[step.y]), number(b[step.y]), v[step.x]); break;
      }
      if (settles_) *node = settled(*node);
    }
    if (*node != *node) return nan_code(s_, s_.open.rho.format);
    if constexpr (sizeof(T) == 4) return __builtin_bit_cast(u32, *node);
    else return __builtin_bit_cast(u64, *node);
  }

 private:
  using Limits = std::numeric_limits<T>;
  enum class Op : u8 { value, product, add, multiply_add };
  struct Step {
    Op op;
    int x, y;  // x is a value; y a value or, for products, an index
  };

  // Every node has one or two children, of which at most one is a product that T cannot hold.
  bool plan() {
    const Open& o = s_.open;
    auto native = [](const Rho& rho) {
      return rho.format.width == 8 * int(sizeof(T)) && rho.mode == Mode::rne &&
             rho.kept == Limits::digits - 1 && rho.overflow != Overflow::saturate;
    };
    if (!native(o.rho) || o.rho2.present || (o.products.present && !native(o.products)) || !fits(s_.a) || !fits(s_.b))
      return false;
    const bool exact_products = fits(product_bits(), lowest_product(), highest_product());
    products_fit_ = o.products.present || exact_products;
    // Which zeros are underflows, whose sign this rule keeps, is seen where nothing underflows.
    if (o.zero == ZeroRule::signed_ && !exact_products) return false;
    const bool flushes = o.flush_out != Flush::no;
    settles_ = flushes || o.zero < ZeroRule::ieee;
    after_ = flushes && o.tiny == Tiny::after;
    if (flushes && o.tiny == Tiny::before && !exact_products) return false;
    const int K = s_.group;
    auto open = [&](int i) { return i < K && !products_fit_; };
    for (size_t at = 0; at < o.tree.size(); at += size_t(o.tree[at]) + 1) {
      const int count = o.tree[at];
      int x = o.tree[at + 1], y = count > 1 ? o.tree[at + 2] : x;
      if (count == 2 && open(x)) std::swap(x, y);
      if (count > 2 || (count == 2 && open(x))) return false;
      uses_c_ |= x == K || y == K;
      if (count == 1) steps_.push_back({open(y) ? Op::product : Op::value, x, y});
      else steps_.push_back({open(y) ? Op::multiply_add : Op::add, x, y});
    }
    values_.resize(size_t(K) + 1 + steps_.size());
    return !uses_c_ || (fits(s_.c) && fits(s_.d));
  }
  // Rounded, and then flushed; a zero by the rules under which a sum has none but +0.
  T settled(T x) const {
    if (!(std::fabs(x) < Limits::min())) return x;
    if ((x == 0 && s_.open.zero < ZeroRule::ieee) || s_.open.flush_out == Flush::zero) return 0;
    return s_.open.flush_out == Flush::sign ? std::copysign(T(0), x) : x;
  }
  // Whether T holds all numbers of so many significant bits, multiples of 2^lowest, below 2^highest.
  static bool fits(int significant_bits, int lowest, int highest) {
    return significant_bits <= Limits::digits && lowest >= Limits::min_exponent - Limits::digits &&
           highest <= Limits::max_exponent;
  }
  static bool fits(const Format& f) {
    return fits(f.mantissa_bits + 1, f.min_exponent() - f.mantissa_bits, f.max_exponent() + 1);
  }
  int product_bits() const { return s_.a.mantissa_bits + s_.b.mantissa_bits + 2; }
  int lowest_product() const {
    return s_.a.min_exponent() - s_.a.mantissa_bits + s_.b.min_exponent() - s_.b.mantissa_bits;
  }
  int highest_product() const { return s_.a.max_exponent() + s_.b.max_exponent() + 2; }

  static T number(const Number& x) {
    if (x.kind >= inf) return x.kind == nan ? T(NAN) : x.sign ? -T(INFINITY) : T(INFINITY);
    auto power = [&](int e) { return __builtin_bit_cast(double, u64(x.sign) << 63 | u64(e + 1023) << 52); };
    const double y = double(i64(x.significand));  // below 2^53
    if (sizeof(T) == 8 && x.q < -1022) return T(y * power(x.q + 500) * 0x1p-500);
    return T(y * power(x.q));
  }
  T product(T a, T b) const { return after_ ? multiply_add(a, b, -T(0)) : a * b; }
  // What is tiny "after" rounding comes out subnormal.
  T multiply_add(T a, T b, T c) const {
    const T x = fma(a, b, c), scale = T(0x1p64);
    if (!after_ || std::fabs(x) != Limits::min()) return x;
    if (std::fabs(a) > std::fabs(b)) std::swap(a, b);
    return std::fabs(fma(a * scale, b, c * scale)) < Limits::min() * scale ? x / 2 : x;
  }
  static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

  const Spec& s_;
  std::vector<Step> steps_;
  std::vector<T> values_;
  bool products_fit_ = false, uses_c_ = false, settles_ = false, after_ = false;
  // Added to an only child: -0 leaves it as it is, +0 makes +0 of its -0.
  const T start_ = s_.open.zero == ZeroRule::start ? T(0) : -T(0);
};

}  // namespace bitmma::BITMMA_ISA::exact
