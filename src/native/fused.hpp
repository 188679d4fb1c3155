// What the truncated fused sums (T, ST, Lowered; TR and GTR) have in common: the exponent pass, the
// value pass, and the walk over blocks of an output matrix.
#pragma once
#include "environment.hpp"
#include "floors.hpp"
#include "pack.hpp"
#include "rows.hpp"

namespace bitmma::BITMMA_ISA {

// One row against `columns` columns over a chunk. Element p of the row meets element (p, j). Where both
// come from is another matter: a `Panel` as pack.hpp lays it out, or `FromCodes` (codes.hpp).
struct Strip {
  const double* a_wide;    // for the float64 kernel
  const short* ae_wide;
  const double* b_wide;
  const short* be_wide;
  const double* b_by_sign;  // as Operand::panel_by_sign has it
  i64 groups;              // fused groups in the chunk
  i32 row_top;             // distances count from row_top + column_top
  const i32* column_top;   // [columns]
  i32 low, least, most;    // exponents, scales included: no product but 0 is below `low`, and tops'
  const i32* row_scale;    // [groups] exponents of the row's scales, or null
  const i32* col_scale;    // [groups][columns]
  bool c_is_new;           // the first group's c has the format of C
  const float* special;    // for the float64 kernel: [groups][columns], see `decide`; null if all are numbers
};

BITMMA_INLINE vi top_of(const Strip& x, int v) { return load<vi>(x.column_top + v * W) + x.row_top; }

struct Panel {
  const float* a;   // row values
  const u32* a4;    // row distances, four times each
  const float* b;   // panel values, [p][columns]
  const u8* b1;     // panel distances

  void move(i64 elements) { a += elements, a4 += elements; }  // to another row
  BITMMA_INLINE void pass(i64, i64) const {}                  // over products of which no distance is asked
  BITMMA_INLINE auto numbers(i64 p) const {
    return [from = b + p * columns](int v) __attribute__((always_inline)) { return load<vf>(from + v * W); };
  }
  // The lowest distance of the n products from p on from the top: 255 where all are zero.
  BITMMA_INLINE vb nearest(i64 p, i64 n) const {
    const u32* a = a4 + p;
    const u8* from = b1 + p * columns;
    vb x = ~vb{};
#pragma GCC unroll 8
    for (i64 i = 0; i < n; ++i) x = minu(x, add_saturating(bits<vb>(vu{} + a[i]), load<vb>(from + i * columns)));
    return x;
  }
};

// Significands of operands, the largest ones', multiplied.
BITMMA_INLINE double largest_product(const Spec& s) {
  return (2 - std::ldexp(1.0, -s.a.mantissa_bits)) * (2 - std::ldexp(1.0, -s.b.mantissa_bits));
}

// Sums of the n products from p0 on, each times `scale` and cut toward zero: (a*b)*scale is exact twice
// over, since the significands have at most 24 bits together and scale is a power of two.
template <int nv, class From>
BITMMA_INLINE void cut_sum(const From& from, i64 p0, i64 n, const vf scale[nv], vi sum[nv]) {
  vi s[nv];  // a copy of its own stays in registers
  copy<nv>(sum, s);
#pragma GCC unroll 4
  for (i64 p = p0; p < p0 + n; ++p) {
    vf x = splat(from.a[p]);
    const auto y = from.numbers(p);
    unroll<nv>([&](auto v) __attribute__((always_inline)) {
      // Unsigned: lanes beyond the matrix hold anything, and may wrap.
      s[v] = (vi)((vu)s[v] + (vu)truncate(x * y(v) * scale[v]));
    });
  }
  copy<nv>(s, sum);
}

// The same in float64, for any exponents and for F beyond int32: products of two 24-bit significands
// are exact, and so are sums below 2^53. Exponents come as int16. Eight (or four) lanes at a time.
constexpr int halves = columns / D;  // float64 vectors of a tile row

inline void wide_exponent(const short* ae, const short* be, i64 n, short out[columns]) {
  constexpr int S = 2 * W;  // int16 lanes
  vs best[columns / S];
  for (vs& x : best) x = vs{} + short(2 * no_exponent);
  for (i64 p = 0; p < n; ++p) {
    vs a = vs{} + ae[p];
    for (int v = 0; v < columns / S; ++v) best[v] = max(best[v], vs(a + load<vs>(be + p * columns + v * S)));
  }
  for (int v = 0; v < columns / S; ++v) store(out + v * S, best[v]);
}

inline void wide_sum(const double* a, const double* b, i64 n, const vd scale[halves], vd sum[halves]) {
  for (i64 p = 0; p < n; ++p) {
    vd x = splat(a[p]);
    for (int h = 0; h < halves; ++h) sum[h] += truncate(x * load<vd>(b + p * columns + h * D) * scale[h]);
  }
}

// The same in an environment toward zero, by its additions: positive terms are added to 2^52 units and
// negative ones to -2^52. The last place of such a number is a unit, so that a term grows it by what
// truncation leaves, in one fused multiply-add (a product is exact), while sums stay below 2^52 units.
// Vector by vector, `begin` says what both begin with, and `end` is given what came out.
template <class Begin, class End>
BITMMA_INLINE void wide_sum_by_sign(const double* a, const double* b, i64 n, Begin begin, End end) {
  constexpr int some = W == 16 ? halves : halves / 2;  // as registers allow
  for (int h0 = 0; h0 < halves; h0 += some) {
    vd above[some], below[some];
    unroll<some>([&](auto h) __attribute__((always_inline)) { begin(h0 + h, above[h], below[h]); });
    for (i64 p = 0; p < n; ++p) {
      const i64 other = (bits<i64>(a[p]) >> 63) & columns;  // which of b's numbers make positive products
      const double *with = b + (2 * p * columns + h0 * D) + other, *against = with + columns - 2 * other;
      const vd x = splat(a[p]);
      unroll<some>([&](auto h) __attribute__((always_inline)) {
        above[h] = multiply_add(x, load<vd>(with + h * D), above[h]);
        below[h] = multiply_add(x, load<vd>(against + h * D), below[h]);
      });
    }
    unroll<some>([&](auto h) __attribute__((always_inline)) { end(h0 + h, above[h], below[h]); });
  }
}

// c's exponent and significand. Of a zero c, the exponent is e_zero.
struct CTerm {
  vi exponent;     // as the unit reads it: a subnormal's is its format's lowest
  vi binade;       // of the float that holds it
  vi significand;  // 24 bits, unsigned
};
BITMMA_INLINE CTerm c_term(vf c, i32 lowest, i32 e_zero) {
  vi w = bits<vi>(c), field = (vi)((bits<vu>(c) << 1) >> 24);
  vi hidden = min(field, splat(1)) << 23;
  CTerm t;
  t.significand = (w & 0x7FFFFF) | hidden;
  t.binade = max(field, splat(1)) - 127;
  vi zero = (vi)((bits<vu>(c) << 1) == 0);
  t.exponent = (zero & e_zero) | (~zero & max(t.binade, splat(lowest)));
  return t;
}

// Whether each c is 0 or normal, from 2^lowest to below 2^highest.
template <int nv> BITMMA_INLINE bool zero_or_within(const vf c[nv], i32 lowest, i32 highest) {
  const vu below = vu{} + (u32(lowest + 127) << 23) - 1;
  vu least = ~vu{};
  vi most{};
  for (int v = 0; v < nv; ++v) {
    const vi size = bits<vi>(c[v]) & 0x7FFFFFFF;
    least = min(least, (vu)size - 1), most = max(most, size);  // of a 0, the largest
  }
  return !any((vi)(min(least, below) != below) | (vi)(most >= ((highest + 127) << 23)));
}

// Part of a row of C, or of what D has come to, as floats: both are f32 or f16 (see half_or_single).
inline void load_c(const Job& job, i64 i, i64 j0, i64 cols, bool start, vf out[NV]) {
  const Format& f = start ? job.spec->c : job.spec->d;
  const Mat& m = start ? job.c : job.d;
  if (!m.data) {
    for (int v = 0; v < NV; ++v) out[v] = vf{};
    return;
  }
  const u8* p = m.at(i, j0);
  if (f.width == 32 && m.col == 4 && cols == columns) {
    unroll<NV>([&](auto v) __attribute__((always_inline)) { out[v] = load<vf>(p + v * 4 * W); });
    return;
  }
#if defined(BITMMA_HALF_CONVERSION)
  if (f.width == 16 && m.col == 2 && cols == columns) {
    for (int v = 0; v < NV; ++v) out[v] = from_half(p + v * 2 * W);
    return;
  }
#endif
  alignas(64) float c[columns] = {};
  if (f.width == 32)
    for (i64 j = 0; j < cols; ++j) std::memcpy(c + j, p + j * m.col, 4);
  else
    for (i64 j = 0; j < cols; ++j) c[j] = half_to_float(u32(load_code(p + j * m.col, 2)));
  std::memcpy(out, c, sizeof c);
}
// Rows of D are far apart: the cache is told what comes.
constexpr i64 ahead = 4;
inline void fetch_c(const Job& job, i64 i, i64 j0, bool start) {
  const Mat& m = start && job.c.data ? job.c : job.d;
  if (m.col > 8) return;
  for (i64 j = 0; j < columns * m.col; j += 64) __builtin_prefetch(m.at(i, j0) + j, 1);
}
inline void store_c(const Job& job, i64 i, i64 j0, i64 cols, const vf in[NV]) {
  const Spec& s = *job.spec;
  u8* p = job.d.at(i, j0);
  const bool half = s.d.width == 16, vectors = job.d.col == s.d.bytes() && cols == columns;
  vf x[NV], nan = bits<vf>(splat(i32(s.nan_ones ? 0x7FFFFFFF : 0x7FC00000)));
  for (int v = 0; v < NV; ++v) x[v] = in[v] != in[v] ? nan : in[v];
  if (vectors && !half) {
    for (int v = 0; v < NV; ++v) store(p + v * 4 * W, x[v]);
    return;
  }
#if defined(BITMMA_HALF_CONVERSION)
  if (vectors) {
    for (int v = 0; v < NV; ++v) store_half(p + v * 2 * W, x[v]);
    return;
  }
#endif
  alignas(64) float c[columns];
  std::memcpy(c, x, sizeof c);
  const u32 half_nan = s.nan_ones ? 0x7FFFu : 0x7E00u;
  for (i64 j = 0; j < cols; ++j, p += job.d.col) {
    if (half) store_code(p, 2, c[j] != c[j] ? half_nan : float_to_half(c[j]));
    else std::memcpy(p, c + j, 4);
  }
}

// Floats of a block of C or D whose columns lie along memory, from there to a tile of `columns` a row, or
// back. An instruction with few columns is computed as its transpose: its C and D are such blocks.
template <bool back> void turn_block(const Mat& m, i64 rows, i64 cols, float* tile) {
  constexpr int N = W < 8 ? W : 8;
  const i64 whole_rows = rows / N * N, whole_cols = cols / W * W;
  for (i64 j = 0; j < whole_cols; j += W)
    for (i64 r = 0; r < whole_rows; r += N) {
      vu x[N];
      float* to = tile + r * columns + j;
      u8* base = m.at(r, j);
      auto line = [&](int i) { return [&, i](int run) { return base + (run * N + i) * m.col; }; };
      unroll<N>([&](auto i) __attribute__((always_inline)) { x[i] = back ? load<vu>(to + i * columns) : load_runs<N>(line(i)); });
      transpose<N>(x);
      unroll<N>([&](auto i) __attribute__((always_inline)) { back ? store_runs<N>(line(i), x[i]) : store(to + i * columns, x[i]); });
    }
  for (i64 j = whole_rows < rows ? 0 : whole_cols; j < cols; ++j)
    for (i64 r = j < whole_cols ? whole_rows : 0; r < rows; ++r)
      back ? std::memcpy(m.at(r, j), tile + r * columns + j, 4) : std::memcpy(tile + r * columns + j, m.at(r, j), 4);
}

// Sums over the stand-ins of Operand::special_elements: NaN or Inf where special values decide.
inline void special_sum(const float* a, const float* b, i64 n, vf sum[NV]) {
  for (int v = 0; v < NV; ++v) sum[v] = vf{};
  for (i64 p = 0; p < n; ++p) {
    vf x = splat(a[p]);
    for (int v = 0; v < NV; ++v) sum[v] = multiply_add(x, load<vf>(b + p * columns + v * W), sum[v]);
  }
}

// The same group by group, [groups][columns].
inline void special_sums(const float* a, const float* b, i64 groups, i64 L, Array<float>& out) {
  out.resize(size_t(groups * columns));
  for (i64 g = 0; g < groups; ++g) {
    vf sum[NV];
    special_sum(a + g * L, b + g * L * columns, L, sum);
    unroll<NV>([&](auto v) __attribute__((always_inline)) { store(&out[size_t(g * columns + v * W)], sum[v]); });
  }
}

// What a group comes to where Infs and NaNs decide: those of the sum over its stand-ins, and c's before it.
template <class V> BITMMA_INLINE V decide(V special, V before, V c) {
  return special - special != 0 ? before + special : before - before != 0 ? before : c;
}

// ---- the walk over an output matrix ---------------------------------------------------------------

// A kernel of a family says how one strip changes c, and which lanes it could not hold.
template <class Kernel> class Walk {
  static constexpr int few = std::max(1, 16 / W);  // vectors that hold 16 columns

 public:
  explicit Walk(const Job& job)
      : job_(job), s_(*job.spec), layout_(s_, job.K), kernel_(s_),
        rows_(job.a, s_.a, job.M), cols_(job.b.transposed(), s_.b, job.N), codes_(s_.b, job.N, short_sums()),
        always_wide_(kernel_.always_wide()), straight_(job.M <= few_rows && codes_.serve() && s_.L % (s_.family == Family::gtr ? 8 : 4) == 0 && !always_wide_),
        scale_lines_(job.N) {
    unit_ = layout_.padded_step;
    if (unit_ > Operand::chunk_max - 64 || unit_ > 512) unit_ = s_.group;
    chunk_ = whole_steps(job.M > 16 ? always_wide_ ? wide_chunk_target : chunk_target
                                    : few_rows_chunk(job.b, s_.b.bytes()));
  }

  // Every block takes its codes, straight or for a panel.
  bool looks_at_columns() const { return codes_.serve() && !always_wide_; }

  void run() {
    walk();
    tell_beyond(job_, s_.b, codes_.seen() | cols_.seen());
  }

 private:
  void walk() {
    rows_.read(job_.a), cols_.read(job_.b.transposed());
    const i64 first = straight_ ? columns_to_line(job_.b.transposed(), s_.b.bytes(), job_.N) : columns;
    for (i64 p0 = 0, next = chunk_; p0 < layout_.total; p0 = p1_) {
      const i64 p1 = std::min(layout_.total, p0 + next);
      done_wide_ = 0;
      if (p0 != p0_ || p1 != p1_) p0_ = p0, p1_ = p1, contiguous_ = layout_.positions(p0, p1, pos_);
      rows_.set_chunk(p0, p1, pos_.data(), contiguous_), cols_.set_chunk(p0, p1, pos_.data(), contiguous_);
      if (job_.scale_a.data) find_blocks(p0, p1);
      for (i64 i0 = 0; i0 < job_.M; i0 += row_block) {
        i64 rows = std::min(row_block, job_.M - i0);
        rows_.pack_rows(i0, rows, a_, !always_wide_);
        if (by_floor() && rows >= LowBits::worth_while) low_bits_.take_rows(a_.value);
        if (straight_) join_rows(rows);
        if (job_.scale_a.data) scale_rows(i0, rows);
        for (i64 j0 = 0, cols = first; j0 < job_.N; j0 += cols, cols = columns) {
          cols = std::min(cols, job_.N - j0);
          block(i0, rows, j0, cols, p0, p1);
          if (!advance(job_, {i0, rows, j0, cols}, p1 - p0, p1 == layout_.total)) return;
        }
      }
      // The next ones are likely to be as wide as these.
      const i64 strips = job_.M * ((job_.N + columns - 1) / columns);
      next = job_.M > 16 && 2 * done_wide_ > strips ? whole_steps(wide_chunk_target) : chunk_;
    }
  }
  i64 whole_steps(i64 positions) const { return std::max<i64>(1, positions / unit_) * unit_; }

  static constexpr i64 row_block = 256;
  static constexpr i64 few_rows = 3;  // for which a panel of B is not worth its unpacking

  // Of lines: no number but 0 has an exponent below `low`; where distances start, least and most.
  struct Extremes {
    i32 low = 1 << 20, least = 1 << 20, most = -(1 << 20);
    void take(i32 top, i32 lowest) { low = std::min(low, lowest), least = std::min(least, top), most = std::max(most, top); }
    void shift(i32 lowest, i32 highest) { low += lowest, least += lowest, most += highest; }
  };

  void block(i64 i0, i64 rows, i64 j0, i64 cols, i64 p0, i64 p1) {
    const i64 done = straight_ ? straight(i0, rows, j0, cols, p0, p1) : 0;
    if (done == rows) return;
    cols_.pack_panel(j0, cols, b_, !always_wide_);
    bool panel_wide = always_wide_;
    Extremes panel;
    for (i64 j = 0; j < (narrow_range(s_.b) ? 1 : cols); ++j) {  // of such a format all are alike
      panel_wide |= b_.wide[size_t(j)] != 0;
      panel.take(b_.top[size_t(j)], b_.low[size_t(j)]);
    }
    const i32 highest_b = panel.most;
    const bool many = few == NV || cols > few * W, by_floor = this->by_floor() && many && rows >= LowBits::worth_while;
    const bool by_rows = by_floor || (many && may_be_whole());
    if (by_floor) low_bits_.take_panel(b_.value);
    bool ready = false;
    vf together[LowBits::rows][NV];
    Strip x = strip(p0, p1, b_.top.data());
    const bool any_nan = job_.scale_b.data && scale_columns(x, j0, cols, panel);
    Panel from{nullptr, nullptr, b_.value.data(), b_.distance.data()};
    const bool turned = s_.d.width == 32 && job_.d.row == 4 && job_.d.col != 4;
    const bool turned_c = turned && (p0 || !job_.c.data || (s_.c.width == 32 && job_.c.row == 4));
    const Job& at = turned ? stage(i0 + done, rows - done, j0, cols, p0 == 0, turned_c) : job_;
    // Rows of the tile are read and written as a whole.
    const i64 cols_c = turned_c ? columns : cols, cols_d = turned ? columns : cols;
    i64 start = done;
    if constexpr (requires { &Kernel::template narrow_tile<NV, Panel>; })
      if (turned_c && !by_rows && !panel_wide) start += tile_rows(x, from, panel, done, rows, cols);
    vf next[NV];
    if (start < rows) load_c(at, i0 + start, j0, cols_c, p0 == 0, next);
    for (i64 r = start; r < rows && !stopped(job_); ++r) {
      i64 i = i0 + r;
      vf c[NV], before[NV];
      copy<NV>(next, c), copy<NV>(next, before);
      // Before this row is stored: where rows of D are pages apart, the load would wait for the store.
      if (r + 1 < rows) load_c(at, i + 1, j0, cols_c, p0 == 0, next);
      if (!turned && r + ahead < rows) fetch_c(at, i + ahead, j0, p0 == 0);
      const bool wide = panel_wide || a_.wide[size_t(r)] || (Kernel::products_may_overflow && products_are_large(r, highest_b));
      meet(x, r, panel);
      from.a = &a_.value[size_t(r * rows_.stride())], from.a4 = &a_.distance4[size_t(r * rows_.stride())];
      const i64 place = r % LowBits::rows;
      if (by_rows && place == 0) ready = r + LowBits::rows <= rows && rows_together(x, panel, from, at, i, r, j0, cols_c, together);
      auto narrow = [&] {
        if (ready) copy<NV>(together[place], c);
        return ready || (!wide && (cols <= few * W ? kernel_.template narrow<few>(x, from, c) : kernel_.template narrow<NV>(x, from, c)));
      };
      bool row_nan = job_.scale_a.data && row_nan_[size_t(r)];
      const bool special = a_.special[size_t(r)] || b_.special[0];
      // Any exponents and any specials, group by group.
      auto wide_groups = [&] {
        cols_.wide_panel(b_);
        x.b_wide = b_.wide_value.data(), x.be_wide = b_.wide_exponent.data();
        x.a_wide = rows_.wide_row(r, a_), x.ae_wide = &a_.wide_exponent[size_t(r * rows_.stride())];
        if (kernel_.by_sign()) cols_.panel_by_sign(b_), x.b_by_sign = b_.by_sign.data();
        x.special = special_groups(r, x.groups, before);
        ++done_wide_;
        copy<NV>(before, c);
        kernel_.wide(x, c);
      };
      bool specials = special;  // are still to be met
      if (!narrow()) {
        // An Inf or NaN in c: kernels get a 0 there, or nothing at all to do.
        vi infinite{}, number{};
        for (int v = 0; v < NV; ++v) {
          vi is = (vi)(c[v] - c[v] != 0.0f);
          infinite |= is, number |= (vi)(c[v] == c[v]);
          if (s_.family != Family::lowered) c[v] = bits<vf>(bits<vi>(c[v]) & ~is);
        }
        if (!any(number)) {
          if (p0 == 0) store_c(at, i, j0, cols_d, before);
          continue;
        }
        specials |= any(infinite);
        if (!any(infinite) || !narrow()) wide_groups(), specials = false;
      }
      if (specials && !apply_specials(r, before, c)) wide_groups();
      if (row_nan || any_nan) apply_scales(row_nan, c);
      store_c(at, i, j0, cols_d, c);
    }
    if (turned) turn_block<true>({job_.d.at(i0 + done, j0), job_.d.row, job_.d.col}, rows - done, cols, tile_.data());
  }
  // The job with this block's C and D in a tile, where rows are as kernels want them.
  const Job& stage(i64 i0, i64 rows, i64 j0, i64 cols, bool start, bool turn_c) {
    const Mat& from = start ? job_.c : job_.d;
    tile_.resize(size_t(rows * columns));
    if (cols < columns || !from.data) std::fill(tile_.begin(), tile_.end(), 0.0f);
    staged_.spec = job_.spec, staged_.c = job_.c;  // which is all, with D, that is asked of it
    const i64 row = 4 * columns, before = i0 * row + j0 * 4;
    staged_.d = {reinterpret_cast<u8*>(reinterpret_cast<std::uintptr_t>(tile_.data()) - std::uintptr_t(before)), row, 4};
    if (!turn_c) return staged_;
    if (from.data) turn_block<false>({from.at(i0, j0), from.row, from.col}, rows, cols, tile_.data());
    staged_.c = staged_.d;
    return staged_;
  }

  // Rows of the tile that need not be looked at one by one: from the first on as long as nothing but
  // numbers near each other meet; how many.
  i64 tile_rows(Strip& x, Panel from, const Extremes& panel, i64 first, i64 rows, i64 cols) {
    // Lowered adds to any c: NaNs are to be made alike as they are stored.
    if (!narrow_range(s_.a) || job_.scale_a.data || b_.special[0] || s_.family == Family::lowered) return 0;
    const u8* special = a_.special.data();
    const i64 some = std::find_if(special + first, special + rows, [](u8 is) { return is != 0; }) - (special + first);
    meet(x, first, panel);
    from.a = a_.value.data(), from.a4 = a_.distance4.data(), from.move(first * rows_.stride());
    return cols <= few * W ? kernel_.template narrow_tile<few>(x, from, rows_.stride(), tile_.data(), some)
                           : kernel_.template narrow_tile<NV>(x, from, rows_.stride(), tile_.data(), some);
  }

  Strip strip(i64 p0, i64 p1, const i32* column_top) const {
    Strip x{};
    x.groups = (p1 - p0) / s_.L, x.c_is_new = p0 == 0, x.column_top = column_top;
    return x;
  }
  // What row r adds to that.
  void meet(Strip& x, i64 r, const Extremes& panel) const {
    Extremes row;
    row.take(a_.top[size_t(r)], a_.low[size_t(r)]);
    if (job_.scale_a.data) x.row_scale = &row_scale_[size_t(r * x.groups)], row.shift(row_scale_least_[size_t(r)], row_scale_most_[size_t(r)]);
    x.row_top = a_.top[size_t(r)];
    x.low = panel.low + row.low, x.least = panel.least + row.least, x.most = panel.most + row.most;
  }
  bool products_are_large(i64 r, i32 highest_b) const {
    return !(narrow_range(s_.a) && narrow_range(s_.b)) && a_.top[size_t(r)] + highest_b >= 126;
  }
  // Which block of scales a group has: -1 for those of K filled up, whose exponent is 0.
  void find_blocks(i64 p0, i64 p1) {
    const i64 blocks = (job_.K + s_.block - 1) / s_.block;
    block_.resize(size_t((p1 - p0) / s_.L));
    for (size_t g = 0; g < block_.size(); ++g) {
      const i64 block = layout_.scale_block(p0 + i64(g) * s_.L, s_.block);
      block_[g] = block < blocks ? block : -1;
    }
  }
  // Exponents of the scales of rows, [row][group], of ue8m0; whether one of a row's is NaN.
  void scale_rows(i64 i0, i64 rows) {
    const i64 groups = i64(block_.size());
    row_scale_.resize(size_t(rows * groups)), row_nan_.assign(size_t(rows), 0);
    row_scale_least_.resize(size_t(rows)), row_scale_most_.resize(size_t(rows));
    for (i64 r = 0; r < rows; ++r) {
      i32* e = &row_scale_[size_t(r * groups)];
      for (i64 g = 0; g < groups; ++g) {
        const u8 code = block_[size_t(g)] < 0 ? u8(s_.scale.bias) : *job_.scale_a.at(i0 + r, block_[size_t(g)]);
        e[g] = (code == 255 ? 0 : code) - s_.scale.bias, row_nan_[size_t(r)] |= code == 255;
      }
      auto [low, high] = std::minmax_element(e, e + groups);
      row_scale_least_[size_t(r)] = *low, row_scale_most_[size_t(r)] = *high;
    }
  }
  // Those of columns, [group][column]; whether one is NaN.
  bool scale_columns(Strip& x, i64 j0, i64 cols, Extremes& panel) {
    scale_lines_.find(job_.scale_b.transposed(), j0, cols, block_.data(), x.groups);
    col_scale_.resize(size_t(x.groups * columns)), col_nan_.resize(columns);
    ByteExtent extent;
    vb nan{};
    for (i64 g = 0; g < x.groups; ++g) {
      alignas(64) u8 number[columns];
      const vb code = block_[size_t(g)] < 0 ? vb{} + u8(s_.scale.bias) : load<vb>(scale_lines_.lines()[g]);
      const vb is_nan = (vb)(code == 255), e = code & ~is_nan;
      nan |= is_nan, extent.take(e), store(number, e);
      for (int v = 0; v < NV; ++v) store(&col_scale_[size_t(g * columns + v * W)], widen(number + v * W) - s_.scale.bias);
    }
    store(col_nan_.data(), nan);
    x.col_scale = col_scale_.data();
    auto [low, high] = extent.over(cols);
    panel.shift(low - s_.scale.bias, high - s_.scale.bias);
    return any(bits<vi>(nan) != 0);  // beyond the matrix there is none
  }

#if defined(BITMMA_HALF_CONVERSION)
  // Rows straight from B's codes, from the first on as long as nothing asks for more than numbers near
  // each other; how many were done.
  i64 straight(i64 i0, i64 rows, i64 j0, i64 cols, i64 p0, i64 p1) {
    const Mat b = job_.b.transposed();
    if (codes_.suppose(b, j0, cols, pos_.data(), p1 - p0))
      if (const i64 done = straight_rows(i0, rows, j0, cols, p0, p1)) return done;
    return codes_.take(b, j0, cols, pos_.data(), p1 - p0) ? straight_rows(i0, rows, j0, cols, p0, p1) : 0;
  }
  i64 straight_rows(i64 i0, i64 rows, i64 j0, i64 cols, i64 p0, i64 p1) {
    alignas(64) i32 tops[columns];
    std::fill(tops, tops + columns, codes_.top());
    Extremes panel;
    panel.take(codes_.top(), codes_.low());
    Strip x = strip(p0, p1, tops);
    if (job_.scale_b.data && scale_columns(x, j0, cols, panel)) return 0;
    aside_.resize(size_t((p1 - p0) * columns * std::max(2, s_.b.bytes())));
    bring_near(rows, codes_.factor());
    for (i64 r = 0; r < rows; ++r) {
      const bool row_nan = job_.scale_a.data && row_nan_[size_t(r)];
      if (a_.wide[size_t(r)] || a_.special[size_t(r)] || row_nan) return r;
      if (Kernel::products_may_overflow && products_are_large(r, codes_.top())) return r;
      meet(x, r, panel);
      const size_t at = size_t(r * rows_.stride());
      vf c[NV];
      load_c(job_, i0 + r, j0, cols, p0 == 0, c);
      auto holds = [&](const auto& fields) {
        using Fields = std::decay_t<decltype(fields)>;
        const FromCodes<Fields> from{&scaled_[at], &a_.distance4[at], &joined_[at / sizeof(typename Fields::Code)], codes_.lines(),
                                     codes_.top_field(), nearest_[size_t(r)], codes_.least_field(), fields,
                                     short_sums() ? &pairs_[at / 2] : nullptr, aside_.data()};
        return kernel_.template narrow<NV>(x, from, c) && from.clean();
      };
      if (!codes_.with_fields(holds)) return r;
      store_c(job_, i0 + r, j0, cols, c);
    }
    return rows;
  }
  // Values of the rows, with a factor that the columns have in common.
  void bring_near(i64 rows, float factor) {
    if (factor == factor_) return;
    factor_ = factor;
    scaled_.resize(size_t(rows * rows_.stride()));
    for (size_t p = 0; p < scaled_.size(); p += W) store(&scaled_[p], load<vf>(&a_.value[p]) * factor);
  }
  // Distances of the rows as FromCodes wants them: from each row's own largest exponent, those of
  // positions side by side in one word, as often as they fit.
  void join_rows(i64 rows) {
    const i64 n = rows_.stride();
    nearest_.resize(size_t(rows));
    codes_.with_fields([&](const auto& f) {
      constexpr i64 together = sizeof(typename std::decay_t<decltype(f)>::Code);
      joined_.resize(size_t(rows * n / together));
      for (i64 r = 0; r < rows; ++r) {
        const u32* far = &a_.distance4[size_t(r * n)];
        const u32 near = nearest_[size_t(r)] = *std::min_element(far, far + n) & 255;
        for (i64 p = 0; p < n; p += together) {
          u32 word = 0;
          for (i64 byte = 0; byte < 4; ++byte) {
            const u32 distance = far[p + byte % together] & 255;
            word |= (distance == 255 ? 255 : std::min<u32>(255, (distance - near) << f.below)) << 8 * byte;
          }
          joined_[size_t((r * n + p) / together)] = word;
        }
      }
    });
    factor_ = 0;  // the rows are new
    if (short_sums()) pair_rows(rows);
  }
  // And significands and signs, where products are summed as integers.
  void pair_rows(i64 rows) {
    const size_t n = size_t(rows * rows_.stride());
    pairs_.resize(n / 2);
    for (size_t i = 0; i < n; i += 2) {
      RowPair& pair = pairs_[i / 2] = {};
      for (int k = 0; k < 2; ++k) {
        const float value = a_.value[i + k];
        const u32 distance = a_.distance4[i + k] & 255;
        const u32 significand = value == 0 ? 0 : u32(std::abs(value) * bits<float>((127 + distance + 6) << 23));
        pair.even |= significand << 16 * k, pair.odd |= significand << (16 * k + 8);
        pair.distance |= distance * 0x101 << 16 * k, pair.sign |= (value < 0 ? 0xFFFFu : 1u) << 16 * k;
      }
    }
  }
#else
  i64 straight(i64, i64, i64, i64, i64, i64) { return 0; }
  void join_rows(i64) {}
#endif

  bool short_sums() const {
    if constexpr (requires { kernel_.short_sums(); }) return kernel_.short_sums();
    return false;
  }
  bool by_floor() const {
    if constexpr (requires { kernel_.by_floor(); }) return kernel_.by_floor();
    return false;
  }
  bool may_be_whole() const {
    if constexpr (requires { kernel_.may_be_whole(); }) return kernel_.may_be_whole();
    return false;
  }
  // Row r and those that go with it; false if they are to be computed one by one.
  bool rows_together(const Strip& first, const Extremes& extremes, const Panel& panel, const Job& at, i64 i, i64 r, i64 j0, i64 cols,
                     vf c[LowBits::rows][NV]) const {
    if constexpr (requires { kernel_.by_floor(); }) {
      Strip x[LowBits::rows];
      Panel from[LowBits::rows];
      const u32* low[LowBits::rows] = {};
      for (int k = 0; k < LowBits::rows; ++k) {
        load_c(at, i + k, j0, cols, first.c_is_new, c[k]);
        x[k] = first, meet(x[k], r + k, extremes);
        from[k] = panel, from[k].a += k * rows_.stride(), from[k].a4 += k * rows_.stride();
        if (by_floor()) low[k] = low_bits_.row((r + k) * rows_.stride());
      }
      return kernel_.narrow_rows(x, from, low, low_bits_.panel(), c);
    }
    return false;
  }

  // Specials were packed as zeros. Their sum, over stand-ins for the other numbers, is a NaN or Inf
  // exactly where special values decide; then it is the result. An Inf or NaN of c stays unless it meets
  // another (of Lowered, where it has stayed so far). False, and nothing done, if the finite part has
  // overflowed to the other Inf meanwhile: only the order tells which came first.
  bool apply_specials(i64 r, const vf before[NV], vf c[NV]) {
    vf sum[NV] = {};
    if (a_.special[size_t(r)] || b_.special[0]) {
      cols_.special_panel(b_);
      special_sum(rows_.special_row(r, a_), b_.special_value.data(), i64(b_.special_value.size()) / columns, sum);
    }
    const bool lowered = s_.family == Family::lowered;
    vf result[NV];
    vi both{};
    for (int v = 0; v < NV; ++v) {
      const vf s = sum[v], old = before[v], now = c[v];
      const vi decides = (vi)(s - s != 0.0f), special = (vi)(old - old != 0.0f);
      const vi had = lowered ? special & ((vi)(old != old) | (vi)(now == old)) : special;
      both |= (vi)(now - now != 0.0f) & (vi)(s == s) & (vi)(now != s) & decides & ~had;
      result[v] = had ? (decides ? old + s : old) : decides ? s : now;
    }
    if (any(both)) return false;
    copy<NV>(result, c);
    return true;
  }
  // The same group by group, where that order counts; null if there are none.
  const float* special_groups(i64 r, i64 groups, const vf before[NV]) {
    vi infinite{};
    for (int v = 0; v < NV; ++v) infinite |= (vi)(before[v] - before[v] != 0.0f);
    const bool operands = a_.special[size_t(r)] || b_.special[0];
    if (!operands && !any(infinite)) return nullptr;
    if (operands) cols_.special_panel(b_), special_sums(rows_.special_row(r, a_), b_.special_value.data(), groups, s_.L, special_groups_);
    else special_groups_.assign(size_t(groups * columns), 0.0f);
    return special_groups_.data();
  }
  // A NaN among the scales of a row or column is one of its results.
  void apply_scales(bool row_nan, vf c[NV]) const {
    for (int v = 0; v < NV; ++v)
      for (int l = 0; l < W; ++l)
        if (row_nan || (job_.scale_b.data && col_nan_[size_t(v * W + l)])) c[v][l] = NAN;
  }
  const Job& job_;
  const Spec& s_;
  Layout layout_;
  Kernel kernel_;
  Operand rows_, cols_;
  Packed a_, b_;
  Codes codes_;
  LowBits low_bits_;
  bool always_wide_, straight_, contiguous_ = false;
  i64 unit_, chunk_, done_wide_ = 0, p0_ = -1, p1_ = -1;  // the last two: whose positions these are; a batch of one chunk keeps them
  std::vector<i64> pos_;
  Job staged_;
  float factor_ = 0;
  Array<float> scaled_, tile_, special_groups_;
  Array<u8> aside_;
  Array<u32> joined_, nearest_;
  Array<RowPair> pairs_;
  Array<i32> row_scale_, row_scale_least_, row_scale_most_, col_scale_;
  CodeLines<u8, columns> scale_lines_;
  std::vector<i64> block_;
  Array<u8> row_nan_, col_nan_;
};

// Whether a family's vector kernel can serve at all: c and d are f32 or f16, rho is one the kernels
// know, operands are not f64, sums stay below 2^53, and 2^(F + scales - e_max) is a double.
inline bool half_or_single(const Format& f) {
  return f.specials == Specials::ieee && !f.dropped_bits &&
         ((f.width == 32 && f.mantissa_bits == 23) || (f.width == 16 && f.mantissa_bits == 10));
}
inline int log2_ceil(int n) { return n <= 1 ? 0 : 32 - __builtin_clz(unsigned(n - 1)); }
inline bool fits_float64(const Spec& s) {
  return half_or_single(s.c) && half_or_single(s.d) && s.a.width <= 32 && s.b.width <= 32 &&
         s.F + 3 + log2_ceil(s.L + 1) <= 52 && s.e_zero <= 700;
}
// Whether its products and their sums fit float32 and int32.
inline bool fits_int32(const Spec& s) {
  return s.a.mantissa_bits + s.b.mantissa_bits + 2 <= 24 && s.F <= 27;
}

}  // namespace bitmma::BITMMA_ISA
