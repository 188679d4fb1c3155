// FMA and FTZ-MulAdd: chains of ordinary float operations, one output a lane, k in order.
#pragma once
#include <limits>

#include "environment.hpp"
#include "pack.hpp"
#include "rows.hpp"

namespace bitmma::BITMMA_ISA {

// Reads and writes c for kernels whose c and d are the same float type.
template <class T> struct Tile {
  using V = std::conditional_t<sizeof(T) == 8, vd, vf>;
  static constexpr int lanes = int(sizeof(V) / sizeof(T)), width = NV * lanes;

  // Some vectors of a row, from j0 on, of which `cols` lanes are the matrix's: the others are 0.
  template <int some> BITMMA_INLINE static void load_c(const Job& job, i64 i, i64 j0, i64 cols, bool start, V c[some]) {
    const Mat& m = start ? job.c : job.d;
    if (m.data && m.col == sizeof(T) && cols >= some * lanes) {
      unroll<some>([&](auto v) __attribute__((always_inline)) { c[v] = load<V>(m.at(i, j0) + v * i64(sizeof(V))); });
      return;
    }
    alignas(64) T buffer[some * lanes] = {};
    if (m.data) copy_codes(m.at(i, j0), m.col, reinterpret_cast<u8*>(buffer), sizeof(T), std::min<i64>(cols, some * lanes));
    unroll<some>([&](auto v) __attribute__((always_inline)) { c[v] = load<V>(buffer + v * lanes); });
  }
  template <int some> BITMMA_INLINE static void store_c(const Job& job, i64 i, i64 j0, i64 cols, const V c[some]) {
    const Mat& m = job.d;
    const V nan = splat(std::numeric_limits<T>::quiet_NaN());
    alignas(64) T buffer[some * lanes];
    const bool whole = m.col == sizeof(T) && cols >= some * lanes;
    u8* const to = whole ? m.at(i, j0) : reinterpret_cast<u8*>(buffer);
    unroll<some>([&](auto v) __attribute__((always_inline)) { store(to + v * i64(sizeof(V)), c[v] != c[v] ? nan : c[v]); });
    if (!whole) copy_codes(to, sizeof(T), m.at(i, j0), m.col, std::min<i64>(cols, some * lanes));
  }

 private:
  static void copy_codes(const u8* from, i64 step_from, u8* to, i64 step_to, i64 n) {
    if (n <= 0) return;
    if (step_from == step_to) std::memcpy(to, from, sizeof(T) * size_t(n));
    else for (i64 j = 0; j < n; ++j) std::memcpy(to + j * step_to, from + j * step_from, sizeof(T));
  }
};

// A finite or special code as a float or double, exactly.
template <class T> T to_number(const Format& f, u64 code) {
  if (f.width == 64) return T(bits<double>(code));
  if (f.width == 32 && !f.dropped_bits) return T(bits<float>(u32(code)));
  exact::Number x = exact::decode(f, code);
  T y = x.kind == exact::nan ? T(NAN) : x.kind == exact::inf ? T(INFINITY) : std::ldexp(T(x.significand), x.q);
  return x.sign ? -y : y;
}
// The same from a table for formats of up to 16 bits.
template <class T> class Reader {
 public:
  explicit Reader(const Format& f) : f_(f) {
    if (f.width <= 8)
      for (u32 c = 0; c < 1u << f.width; ++c) table_[c] = to_number<T>(f, c);
  }
  T operator()(const u8* p) const {
    if (f_.width <= 8) return table_[*p];
    if (f_.width == 16 && f_.mantissa_bits == 10) return T(half_to_float(u32(load_code(p, 2))));
    if (f_.width == 16 && f_.mantissa_bits == 7) return T(bits<float>(u32(load_code(p, 2)) << 16));
    return to_number<T>(f_, load_code(p, f_.bytes()));
  }

 private:
  Format f_;
  T table_[256];
};

// One operand as plain numbers, a line after another or `Tile::width` lines side by side.
template <class T> class Numbers;

template <> class Numbers<double> {
 public:
  Numbers(const Mat& m, const Format& f, i64 lines) : m_(m), read_(f), direct_(f.width == 64), lines_(lines) {}
  void read(const Mat& m) { m_ = m; }
  void set_chunk(i64 p0, i64 p1, const i64* pos, bool) { n_ = p1 - p0, pos_ = pos; }
  i64 stride() const { return n_; }
  template <class Each> void rows(i64 i0, i64 count, Array<double>& out, Each) {
    out.resize(size_t(count * n_));
    for (i64 i = 0; i < count; ++i)
      for (i64 p = 0; p < n_; ++p) out[size_t(i * n_ + p)] = at(i0 + i, p);
  }
  template <class Each> void panel(i64 j0, i64 count, Array<double>& out, Each) {
    constexpr int width = Tile<double>::width;
    out.assign(size_t(n_ * width), 0.0);
    if (direct_ && m_.row == 8) {
      for (i64 p = 0; p < n_; ++p)
        if (pos_[p] >= 0) std::memcpy(&out[size_t(p * width)], m_.at(j0, pos_[p]), size_t(8 * count));
    } else {
      for (i64 j = 0; j < count; ++j)
        for (i64 p = 0; p < n_; ++p) out[size_t(p * width + j)] = at(j0 + j, p);
    }
  }
  template <class Each, class Use> bool lines(i64 j0, i64 count, Each, Use use) {
    if (!direct_) return false;
    lines_.find(m_, j0, count, pos_, n_);
    use(FromLines{lines_.lines()});
    return true;
  }

 private:
  struct FromLines {
    Found line;
    BITMMA_INLINE vd at(i64 p, int v) const { return load<vd>(line[p] + v * i64(sizeof(vd))); }
    BITMMA_INLINE void fetch(i64 p) const { line.fetch<NV * i64(sizeof(vd))>(p); }
  };
  double at(i64 line, i64 p) const {
    if (pos_[p] < 0) return 0.0;
    const u8* x = m_.at(line, pos_[p]);
    double y;
    if (!direct_) return read_(x);
    std::memcpy(&y, x, 8);
    return y;
  }
  Mat m_;
  Reader<double> read_;
  bool direct_;
  i64 n_ = 0;
  const i64* pos_ = nullptr;
  CodeLines<u64, Tile<double>::width> lines_;
};

template <> class Numbers<float> {
 public:
  Numbers(const Mat& m, const Format& f, i64 lines) : operand_(m, f, lines) {}
  void read(const Mat& m) { operand_.read(m); }
  void set_chunk(i64 p0, i64 p1, const i64* pos, bool contiguous) { operand_.set_chunk(p0, p1, pos, contiguous); }
  i64 stride() const { return operand_.stride(); }
  template <class Each> void rows(i64 i0, i64 count, Array<float>& out, Each each) { operand_.float_rows(i0, count, out, each); }
  template <class Each> void panel(i64 j0, i64 count, Array<float>& out, Each each) { operand_.float_panel(j0, count, out, each); }
  template <class Each, class Use> bool lines(i64 j0, i64 count, Each each, Use use) { return operand_.float_lines(j0, count, each, use), true; }

 private:
  Operand operand_;
};

// T is float or double, V its vector. `Ops` says what becomes of an operand and what one step does.
template <class T, class V, class Ops> class FloatWalk {
 public:
  explicit FloatWalk(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), ops_(s_), rows_(job.a, s_.a, job.M),
        cols_(job.b.transposed(), s_.b, job.N) {
    i64 unit = layout_.padded_step > 4096 ? s_.group : layout_.padded_step;
    // B's rows side by side: memory is read fastest by 16, but c is read and written once for each chunk.
    const i64 few = job.b.row < job.b.col ? few_rows_chunk(job.b, s_.b.bytes()) : 24;
    chunk_ = std::max<i64>(1, (job.M > few_rows ? 256 : few) / unit) * unit;
  }
  void run() {
    rows_.read(job_.a), cols_.read(job_.b.transposed());
    const i64 to_line = columns_to_line(job_.b.transposed(), s_.b.bytes(), job_.N);
    const i64 first = job_.M <= few_rows && to_line < width ? to_line : width;
    for (i64 p0 = 0; p0 < layout_.total; p0 += chunk_) {
      i64 p1 = std::min(layout_.total, p0 + chunk_);
      p0_ = p0, n_ = p1 - p0;
      bool contiguous = layout_.positions(p0, p1, pos_);
      rows_.set_chunk(p0, p1, pos_.data(), contiguous), cols_.set_chunk(p0, p1, pos_.data(), contiguous);
      for (i64 i0 = 0; i0 < job_.M; i0 += row_block) {
        i64 rows = std::min(row_block, job_.M - i0);
        rows_.rows(i0, rows, a_, [&](vf x) { return ops_.operand_a(x); });
        for (i64 j0 = 0, cols = first; j0 < job_.N; j0 += cols, cols = width) {
          cols = std::min(cols, job_.N - j0);
          block(i0, rows, j0, cols);
          if (!advance(job_, {i0, rows, j0, cols}, n_, p1 == layout_.total)) return;
        }
      }
    }
  }

 private:
  static constexpr int width = Tile<T>::width, lanes = Tile<T>::lanes;
  static constexpr i64 few_rows = Ops::few_rows;            // for which a panel is not worth its filling
  static constexpr i64 row_block = 252;                     // a multiple of at_once
  static constexpr int at_once = sizeof(vf) == 64 ? 6 : 2;  // rows whose c stays in registers

  void block(i64 i0, i64 rows, i64 j0, i64 cols) {
    i64 r = 0;
    auto operand = [&](vf x) __attribute__((always_inline)) { return ops_.operand_b(x); };
    auto by = [&]<int R>(const auto& from, std::integral_constant<int, R>) {
      for (; r + R <= rows; r += R) strip<R>(from, i0, r, j0, cols);
    };
    using std::integral_constant;
    if (rows <= few_rows && cols_.lines(j0, cols, operand, [&](const auto& from) {  // eight rows read B once
          by(from, integral_constant<int, 8>{}), by(from, integral_constant<int, 4>{});
          by(from, integral_constant<int, 2>{}), by(from, integral_constant<int, 1>{});
        })) return;
    cols_.panel(j0, cols, b_, operand);
    const FromPanel from{b_.data()};
    by(from, integral_constant<int, at_once>{}), by(from, integral_constant<int, 2>{}), by(from, integral_constant<int, 1>{});
  }
  // Where columns' numbers come from: as `Panel` and `FromCodes` are for the fused sums.
  struct FromPanel {
    const T* b;
    BITMMA_INLINE V at(i64 p, int v) const { return load<V>(b + p * width + v * lanes); }
    BITMMA_INLINE void fetch(i64) const {}
  };
  // R rows against a tile, or against as much of it at a time as leaves c in registers.
  template <int R, class From> void strip(const From& from, i64 i0, i64 r, i64 j0, i64 cols) {
    constexpr int registers = sizeof(vf) == 64 ? 16 : 8, some = R <= at_once ? NV : registers / R;
    const T* a[R];
    for (int i = 0; i < R; ++i) a[i] = &a_[size_t((r + i) * rows_.stride())];
    for (int v0 = 0; v0 < NV; v0 += some) {
      const i64 j = j0 + v0 * lanes, left = cols - v0 * lanes;
      V c[R][some];
      unroll<R>([&](auto i) __attribute__((always_inline)) { Tile<T>::template load_c<some>(job_, i0 + r + i, j, left, p0_ == 0, c[i]); });
      if (r == 0 && v0 == 0) chain<R, some, true>(from, a, v0, c);
      else chain<R, some, false>(from, a, v0, c);
      unroll<R>([&](auto i) __attribute__((always_inline)) { Tile<T>::template store_c<some>(job_, i0 + r + i, j, left, c[i]); });
    }
  }
  template <int R, int some, bool fetch, class From>
  BITMMA_INLINE void chain(const From& from, const T* const a[R], int v0, V c[R][some]) {
    // Whole instructions lie in a chunk unless one is longer than a chunk.
    const i64 step = layout_.padded_step;
    i64 in_step = p0_ % step;
    for (i64 p = 0; p < n_; p += s_.group) {
      if (fetch) for (i64 q = p; q < p + s_.group; ++q) from.fetch(q);
      ops_.template step<R, some>(a, from, p, v0, in_step == 0, c);
      in_step += s_.group;
      if (in_step == step) in_step = 0;
    }
  }

  const Job& job_;
  const Spec& s_;
  Layout layout_;
  Ops ops_;
  Numbers<T> rows_, cols_;
  i64 chunk_, p0_ = 0, n_ = 0;
  std::vector<i64> pos_;
  Array<T> a_, b_;
};

// Section 1. Operands are exact in T.
template <class T, class V> class FmaOps {
 public:
  static constexpr i64 few_rows = 32;
  explicit FmaOps(const Spec&) {}
  static vf operand_a(vf x) { return x; }
  static vf operand_b(vf x) { return x; }
  template <int R, int some, class From>
  BITMMA_INLINE void step(const T* const a_[R], const From& from, i64 p, int v0, bool, V c[R][some]) const {
    V y[R];
    unroll<R>([&](auto i) __attribute__((always_inline)) { y[i] = splat(a_[i][p]); });
    unroll<some>([&](auto v) __attribute__((always_inline)) {
      V x = from.at(p, v0 + v);
      unroll<R>([&](auto i) __attribute__((always_inline)) { c[i][v] = fused_multiply_add(y[i], x, c[i][v]); });
    });
  }
};

inline bool fma_holds(const Spec& s) {
  auto fits = [&](const Format& f) {  // every number of f is one of d
    if (s.d.width == 64) return f.width <= 64;
    return f.width <= 32;
  };
  bool same = s.c.width == s.d.width && s.c.mantissa_bits == s.d.mantissa_bits && !s.c.dropped_bits;
  return fits(s.a) && fits(s.b) && same;
}
inline void run_fma(const Job& job, Again again) {
  if (job.spec->d.width == 64) each<FloatWalk<double, vd, FmaOps<double, vd>>>(again, job);
  else each<FloatWalk<float, vf, FmaOps<float, vf>>>(again, job);
}

// Section 2, in the flush-to-zero environment. x86 decides tininess after rounding with any exponent,
// Arm before: both would also flush what rounds up to 2^-126, which the model keeps; but a product of
// at most 23 significant bits cannot lie within 2^-150 below 2^-126, and a sum that small is exact. Arm
// flushes operands too: of which none is subnormal here.
template <int P> class FtzOps {
 public:
  static constexpr i64 few_rows = 8;  // numbers are converted for each eight
  explicit FtzOps(const Spec& s)
      : lowest_a_(std::ldexp(1.0f, s.a.min_exponent())), lowest_b_(std::ldexp(1.0f, s.b.min_exponent())) {}
  vf operand_a(vf x) const { return flushed(x, lowest_a_); }
  vf operand_b(vf x) const { return flushed(x, lowest_b_); }
  static vf flushed(vf x, float lowest) {  // +0 for subnormals and zeros of either sign; NaN passes
    vf size = bits<vf>(bits<vi>(x) & 0x7FFFFFFF);
    return size < lowest ? vf{} : x;
  }
  float lowest_a_, lowest_b_;
  template <int R, int some, class From>
  BITMMA_INLINE void step(const float* const a_[R], const From& from, i64 p, int v0, bool first, vf c[R][some]) const {
    unroll<some>([&](auto v) __attribute__((always_inline)) {
      vf x[4];
      for (int q = 0; q < P; ++q) x[q] = from.at(p + q, v0 + v);
      unroll<R>([&](auto i) __attribute__((always_inline)) {
        vf s = x[0] * splat(a_[i][p]) + x[1] * splat(a_[i][p + 1]);
        if (P == 4) s = s + (x[2] * splat(a_[i][p + 2]) + x[3] * splat(a_[i][p + 3]));
        if (first) c[i][v] = flush_c(c[i][v]);
        c[i][v] = c[i][v] + s;
      });
    });
  }
  // c as an instruction takes it: subnormals and -0 become +0.
  static vf flush_c(vf c) {
    vi small = (vi)((bits<vu>(c) & 0x7F800000u) == 0);
    return bits<vf>(~small & bits<vi>(c));
  }
};

inline bool ftz_holds(const Spec& s) {
  return s.a.width <= 16 && s.b.width <= 16 && s.a.mantissa_bits + s.b.mantissa_bits + 2 <= 23 &&
         s.c.width == 32 && s.c.mantissa_bits == 23;
}
inline void run_ftz(const Job& job, Again again) {
  if (job.spec->P == 4) each<FloatWalk<float, vf, FtzOps<4>>>(again, job);
  else each<FloatWalk<float, vf, FtzOps<2>>>(again, job);
}

}  // namespace bitmma::BITMMA_ISA
