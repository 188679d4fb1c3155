// FDPA and SumTree, sections 10 and 11 of bitmma.reference: sums with every choice open, one output at
// a time, in integers wide enough to be exact.
#pragma once
#include <algorithm>
#include <vector>

#include "plain_tree.hpp"

namespace bitmma::BITMMA_ISA::exact {

// n * 2^unit, or what no rounding to 66 bits or fewer can tell from it: see Sum::total.
struct Wide {
  i128 n = 0;
  i32 unit = 0;
};

inline u128 magnitude_of(i128 n) { return n < 0 ? -u128(n) : u128(n); }
inline Wide signed_wide(u128 m, bool negative, int q) { return {negative ? -i128(m) : i128(m), q}; }
// What sums to nothing but zeros of that sign; IEEE's rule for the sign of a zero asks.
struct Zeros {
  bool minus = true, plus = true;
  void add(bool is_zero, bool sign) {
    minus &= is_zero && sign;
    plus &= is_zero && !sign;
  }
};

// Rounded to a multiple of 2^(e - F); what is one already stays, as everything does where F < 0.
inline Wide cut(Wide x, int e, int F, Mode mode) {
  if (F < 0 || !x.n || x.unit >= e - F) return x;
  u128 m = magnitude_of(x.n);
  Rest rest = shift_out(m, e - F - x.unit);
  m += rounds_up(mode, m & 1, rest, x.n < 0);
  return signed_wide(m, x.n < 0, e - F);
}

// Numbers that are to be summed exactly.
class Sum {
 public:
  void clear() { terms_.clear(); }
  void add(Wide x) { if (x.n) terms_.push_back(x); }
  // The terms from `first` on become their sum, cut; nothing happens where F < 0.
  void close(size_t first, int e, int F, Mode mode) {
    if (F < 0) return;
    Wide sum = cut(total(first), e, F, mode);
    terms_.resize(first);
    add(sum);
  }
  void replace(Wide x) { clear(), add(x); }
  size_t size() const { return terms_.size(); }

  // Exact where it fits; else its top 126 bits, the lowest of them set if there is anything below.
  Wide total(size_t first = 0) {
    size_t n = terms_.size() - first;
    const Wide* x = terms_.data() + first;
    if (n == 0) return {};
    if (n == 1) return x[0];
    int low = x[0].unit, high = low;
    for (size_t i = 0; i < n; ++i) {
      low = std::min(low, x[i].unit);
      high = std::max(high, x[i].unit + bit_length(magnitude_of(x[i].n)));
    }
    if (high - low + bit_length(n) <= 126) {
      i128 sum = 0;
      for (size_t i = 0; i < n; ++i) sum += i128(u128(x[i].n) << (x[i].unit - low));
      return {sum, low};
    }
    wide_.restart(low, high + 16);
    for (size_t i = 0; i < n; ++i) wide_.add(magnitude_of(x[i].n), x[i].unit, x[i].n < 0);
    int q; bool negative;
    u128 m = wide_.read_top(q, negative);
    return signed_wide(m, negative, q);
  }

 private:
  std::vector<Wide> terms_;
  Accumulator wide_{0, 0};
};

class General {
 public:
  explicit General(const Spec& s) : s_(s), o_(s.open) {
    if (s.family == Family::fdpa) {
      products_.resize(size_t(s.L)), e_max_.resize(size_t(o_.groups));
    } else if (s.family == Family::sum_tree) {
      nodes_.resize(size_t(s.group) + 1 + o_.tree.size());
    }
    if (o_.flush_in != Flush::no) flushed_.resize(size_t(2 * s.group));
  }

  // As Evaluator::chain; scales are one a product.
  Number chain(const Number* a, const Number* b, i64 groups, Number c, u64& code, const Number* sa,
               const Number* sb, i64 first, i64 groups_per_step) {
    for (i64 g = 0; g < groups; ++g) {
      const Number *pa = a + g * s_.group, *pb = b + g * s_.group;
      const Number *ga = sa ? sa + g * s_.group : nullptr, *gb = sb ? sb + g * s_.group : nullptr;
      if (o_.flush_in != Flush::no) {
        Number* x = flushed_.data();
        for (int i = 0; i < s_.group; ++i) {
          x[i] = flush(pa[i], s_.a, o_.flush_in);
          x[s_.group + i] = flush(pb[i], s_.b, o_.flush_in);
        }
        pa = x, pb = x + s_.group;
      }
      const bool last = (first + g + 1) % groups_per_step == 0;
      if (o_.pairwise) {
        push(decode(s_.d, fused(pa, pb, ga, gb, nullptr)), (first + g) % groups_per_step);
        if (!last) continue;
      }
      // c has its own format until the first result takes its place.
      const bool own = first + g < (o_.pairwise ? groups_per_step : 1);
      const Number addend = flush(c, own ? s_.c : s_.d, o_.flush_c);
      if (o_.pairwise) code = added(folded(), addend);
      else code = s_.family == Family::fdpa ? fused(pa, pb, ga, gb, &addend) : tree(pa, pb, addend);
      c = decode(s_.d, code);
    }
    return c;
  }

 private:
  struct Product {
    u128 m;
    i32 q, e;
    bool negative;
  };
  // A term of a node: a number or an exact product.
  struct Term {
    u128 m = 0;
    i32 q = 0;
    Kind kind = zero;
    u8 sign = 0;
  };
  static constexpr int none = -(1 << 30);  // an exponent below all others

  static Number flush(const Number& x, const Format& f, Flush how) {
    if (how == Flush::no || x.kind > finite || x.significand >> f.mantissa_bits) return x;
    Number flushed;
    flushed.e = f.min_exponent(), flushed.q = flushed.e - f.mantissa_bits;
    flushed.sign = how == Flush::sign && f.specials != Specials::fnuz ? x.sign : 0;
    return flushed;
  }

  u64 rounded(const Wide& x, const Rho& rho, const Zeros& zeros) const { return rounded(x, rho, zeros, o_.flush_out); }
  u64 rounded(const Wide& x, const Rho& rho, const Zeros& zeros, Flush flush_out) const {
    const Format& f = rho.format;
    const u64 minus_zero = u64(1) << (f.width - 1);
    u64 code = 0;
    if (x.n) code = encode(magnitude_of(x.n), x.unit, x.n < 0, f, rho.mode, rho.kept, rho.overflow);
    else if (o_.zero >= ZeroRule::ieee && (zeros.minus || (rho.mode == Mode::rd && !zeros.plus)))
      code = minus_zero;
    if (o_.zero == ZeroRule::plus && code == minus_zero) code = 0;
    if (flush_out == Flush::no) return code;
    const bool subnormal = !((code & ~minus_zero) >> f.mantissa_bits);
    if (subnormal || tiny(x, rho)) code = flush_out == Flush::sign ? code & minus_zero : 0;
    return code;
  }
  // What is below the normal numbers though it may have been rounded to the smallest of them.
  bool tiny(const Wide& x, const Rho& rho) const {
    if (o_.tiny == Tiny::stored || !x.n) return false;
    u128 m = magnitude_of(x.n);
    const int e = bit_length(m) - 1 + x.unit, lowest = rho.format.min_exponent();
    if (e >= lowest) return false;
    const int shift = e - rho.kept - x.unit;  // of a rounding with exponents without end
    if (o_.tiny == Tiny::before || e < lowest - 1 || shift <= 0) return true;
    Rest rest = shift_out(m, shift);
    return !((m + rounds_up(rho.mode, m & 1, rest, x.n < 0)) >> (rho.kept + 1));
  }

  // ---- FDPA --------------------------------------------------------------------------------------

  // One step; without c (pairwise order) only the exponent of a zero c is left of it.
  u64 fused(const Number* a, const Number* b, const Number* sa, const Number* sb, const Number* c) {
    SpecialSum special = read_products(a, b, sa, sb);
    // A rounded sum of products meets c as what it has come to, which can be an Inf.
    const bool alone = o_.products.present && !special.any();
    if (c && !alone) special.add(c->kind, c->sign);
    if (special.any()) return special.code(s_, o_.rho.format);
    Zeros zeros;
    if (o_.zero >= ZeroRule::ieee)
      for (int i = 0; i < s_.L; ++i) zeros.add(!products_[size_t(i)].m, a[i].sign ^ b[i].sign);

    const int e_c = c && c->significand ? c->e : o_.has_e_zero ? s_.e_zero : none;
    int e = o_.late ? none : e_c;
    for (int x : e_max_) e = std::max(e, x);
    sum_products(e);

    if (o_.late) {
      if (o_.products.present) {
        Number t = decode(o_.products.format, rounded(sum_.total(), o_.products, zeros));
        special.add(t.kind, t.sign);
        if (c) special.add(c->kind, c->sign);
        if (special.any()) return special.code(s_, o_.rho.format);
        sum_.replace(signed_wide(t.significand, t.sign, t.q));
        e = t.significand ? t.e : none;
        zeros = {}, zeros.add(!t.significand, t.sign);
      }
      e = std::max(e, e_c);
      sum_.close(0, e, o_.F2, o_.cut2);
    }
    if (c) {
      zeros.add(!c->significand, c->sign);
      Wide x = signed_wide(c->significand, c->sign, c->q);
      if (o_.drop_c < 0 || e_c >= e - o_.drop_c) sum_.add(cut(x, e, o_.F_c, o_.cut_c));
    }
    Wide total = sum_.total();
    if (o_.F_sum >= 0 && total.n) {
      int own = bit_length(magnitude_of(total.n)) - 1 + total.unit;
      total = cut(total, o_.has_e_sum ? std::max(own, o_.e_sum) : own, o_.F_sum, o_.cut_sum);
    }
    return rounded(total, o_.rho, zeros);
  }

  // Fills products_ and e_max_; the specials among them.
  SpecialSum read_products(const Number* a, const Number* b, const Number* sa, const Number* sb) {
    std::fill(e_max_.begin(), e_max_.end(), none);
    int kinds = 0, top = none;
    for (int i = 0; i < s_.L; ++i) {
      Product& p = products_[size_t(i)];  // field by field: a copy of the whole would wait for each
      p.m = u128(a[i].significand) * b[i].significand;
      p.q = a[i].q + b[i].q, p.e = a[i].e + b[i].e;
      p.negative = a[i].sign ^ b[i].sign;
      kinds |= a[i].kind | b[i].kind;
      if (sa) {
        p.m *= sa[i].significand * sb[i].significand;
        p.q += sa[i].q + sb[i].q, p.e += sa[i].e + sb[i].e;
        kinds |= sa[i].kind | sb[i].kind;
      }
      if (o_.renormalise && p.m) p.e = bit_length(p.m) - 1 + p.q;
      if (o_.groups == 1) top = p.m && p.e > top ? p.e : top;
      else if (p.m) e_max_[size_t(i % o_.groups)] = std::max(e_max_[size_t(i % o_.groups)], p.e);
    }
    if (o_.groups == 1) e_max_[0] = top;
    SpecialSum special;
    static_assert(inf == 2 && nan == 3);
    if (kinds & 2)
      for (int i = 0; i < s_.L; ++i) {
        special.product(a[i], b[i]);
        if (!sa) continue;
        special.add(sa[i].kind, 0), special.add(sb[i].kind, 0);
        const bool zero_scale = sa[i].kind == zero || sb[i].kind == zero;
        if (zero_scale && (a[i].kind == inf || b[i].kind == inf)) special.nan = true;
      }
    if (o_.has_product_overflow)
      for (const Product& p : products_)
        if (p.m && bit_length(p.m) - 1 + p.q >= o_.product_overflow) special.add(inf, p.negative);
    return special;
  }

  // Fills sum_: one term a group, or all products where nothing cuts them. e: the joint exponent.
  void sum_products(int e) {
    sum_.clear();
    for (int g = 0; g < o_.groups && g < s_.L; ++g) {
      const size_t first = sum_.size();
      if (o_.F < 0) {
        for (int i = g; i < s_.L; i += o_.groups) {
          const Product& p = products_[size_t(i)];
          sum_.add(signed_wide(p.m, p.negative, p.q));
        }
      } else if (e_max_[size_t(g)] > none) {
        const int unit = (o_.groups == 1 ? e : e_max_[size_t(g)]) - o_.F;
        sum_.add({o_.cut == Mode::rz ? cut_products<true>(g, unit) : cut_products<false>(g, unit), unit});
      }
      if (o_.groups > 1) sum_.close(first, e, o_.F_groups, o_.cut_groups);
    }
  }
  template <bool toward_zero> i128 cut_products(int g, int unit) const {
    i128 sum = 0;
    for (int i = g; i < s_.L; i += o_.groups) {
      const Product& p = products_[size_t(i)];
      const int shift = unit - p.q;
      u128 m = p.m;
      if (!m) continue;  // whose exponent may lie anywhere
      if (shift <= 0) {
        m <<= -shift;
      } else if constexpr (toward_zero) {
        m = shift > 127 ? 0 : m >> shift;
      } else {
        Rest rest = shift_out(m, shift);
        m += rounds_up(o_.cut, m & 1, rest, p.negative);
      }
      sum += p.negative ? -i128(m) : i128(m);
    }
    return sum;
  }

  // Pairs of neighbours as a binary counter: what lies on the stack sums 2^i steps each, and an odd one
  // at the end is added last, as if it had gone on from level to level.
  void push(Number x, i64 index) {
    if (index == 0) stack_.clear();
    stack_.push_back(x);
    for (i64 n = index + 1; n % 2 == 0; n /= 2) add_top();
  }
  Number folded() {
    while (stack_.size() > 1) add_top();
    return stack_.back();
  }
  void add_top() {
    Number y = stack_.back();
    stack_.pop_back();
    stack_.back() = decode(s_.d, added(stack_.back(), y));
  }
  u64 added(const Number& x, const Number& y) {
    const Term terms[2] = {term(x), term(y)};
    const int both[2] = {0, 1};
    return combined(terms, both, 2, o_.rho);
  }

  // ---- SumTree -----------------------------------------------------------------------------------

  // Leaves, c, then the nodes in the order of evaluation; o_.tree has each node's children, counted.
  u64 tree(const Number* a, const Number* b, const Number& c) {
    const int only[1] = {0};
    u64 code = in_float_.holds()    ? in_float_(a, b, c)
               : in_double_.holds() ? in_double_(a, b, c)
                                    : tree_of_integers(a, b, c);
    if (!o_.out.present) return code;
    Term root = term(decode((o_.second.back() ? o_.rho2 : o_.rho).format, code));
    return combined(&root, only, 1, o_.out, o_.flush_last);
  }
  u64 tree_of_integers(const Number* a, const Number* b, const Number& c) {
    const int K = s_.group, only[1] = {0};
    for (int i = 0; i < K; ++i) {
      Term& p = nodes_[size_t(i)];
      p = product(a[i], b[i]);
      if (o_.products.present) p = term(decode(o_.products.format, combined(&p, only, 1, o_.products)));
    }
    nodes_[size_t(K)] = term(c);
    size_t next = size_t(K) + 1, j = 0;
    u64 code = 0;
    for (size_t at = 0; at < o_.tree.size(); at += size_t(o_.tree[at]) + 1) {
      const Rho& rho = o_.second[j++] ? o_.rho2 : o_.rho;
      Term& first = nodes_[size_t(o_.tree[at + 1])];
      if (o_.zero == ZeroRule::start && o_.tree[at] == 1 && first.kind == zero) first.sign = 0;
      code = combined(nodes_.data(), &o_.tree[at + 1], o_.tree[at], rho);
      nodes_[next++] = term(decode(rho.format, code));
    }
    return code;
  }

  static Term term(const Number& x) { return {x.significand, x.q, x.kind, x.sign}; }
  static Term product(const Number& a, const Number& b) {
    Term p{u128(a.significand) * b.significand, a.q + b.q, finite, u8(a.sign ^ b.sign)};
    SpecialSum special;
    special.product(a, b);
    if (special.any()) p.kind = special.nan ? nan : inf;
    else if (!p.m) p.kind = zero;
    return p;
  }
  // The exact sum of the terms of those indices, rounded.
  u64 combined(const Term* terms, const int* index, int count, const Rho& rho) {
    return combined(terms, index, count, rho, o_.flush_out);
  }
  u64 combined(const Term* terms, const int* index, int count, const Rho& rho, Flush flush_out) {
    SpecialSum special;
    Zeros zeros;
    sum_.clear();
    for (int i = 0; i < count; ++i) {
      const Term& x = terms[index[i]];
      special.add(x.kind, x.sign);
      zeros.add(x.kind == zero, x.sign);
      if (x.kind == finite) sum_.add(signed_wide(x.m, x.sign, x.q));
    }
    if (special.any()) return special.code(s_, rho.format);
    return rounded(sum_.total(), rho, zeros, flush_out);
  }

  const Spec& s_;
  const Open& o_;
  Sum sum_;
  std::vector<Product> products_;
  std::vector<int> e_max_;  // of each group of lanes
  std::vector<Number> flushed_, stack_;
  std::vector<Term> nodes_;
  PlainTree<float> in_float_{s_};
  PlainTree<double> in_double_{s_};
};

}  // namespace bitmma::BITMMA_ISA::exact
