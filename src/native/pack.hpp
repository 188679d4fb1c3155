// Operands decoded once a chunk and laid out for the vector kernels.
//
// A *line* is a row of A or a column of B. Each element becomes a value and an exponent:
//
//   value     the number times 2^-top, a float: below 2 in magnitude, 0 for zeros and specials
//   distance  top - e in a byte, 255 for zeros; e is the exponent of the *unnormalised* number
//
// so that a product's exponent below top_a + top_b is one saturating byte addition, and its value one
// float multiplication, exact because both significands together have at most 24 bits. `top` is the
// format's largest exponent where the format spans at most 50 binades; for bf16 and tf32 it is the
// line's own. A line that spans more is `wide`, and goes to the float64 kernel with everything that
// meets it. Specials are packed as zeros and handled apart.
#pragma once
#include <algorithm>
#include <vector>

#include "codes.hpp"
#include "exact.hpp"

namespace bitmma::BITMMA_ISA {

constexpr i64 chunk_target = 128, wide_chunk_target = 2048 / columns;  // whose float64 panels stay in L1

inline bool narrow_range(const Format& f) { return f.max_exponent() - f.min_exponent() <= widest; }

// Codes of `n` elements of a line, at positions pos[] (k, or -1 for a filled-up +0), to u32, every
// `spread` places of `out`.
template <class T>
inline void gather_as(const u8* base, i64 stride, const i64* pos, i64 n, bool contiguous, u32* out, i64 spread) {
  if (contiguous && spread == 1 && stride == sizeof(T)) {
    const u8* p = base + pos[0] * stride;
    for (i64 i = 0; i < n; ++i) out[i] = code_at<T>(p + i * i64(sizeof(T)));
  } else if (contiguous) {
    const u8* p = base + pos[0] * stride;
    for (i64 i = 0; i < n; ++i) out[i * spread] = code_at<T>(p + i * stride);
  } else {
    for (i64 i = 0; i < n; ++i) out[i * spread] = pos[i] < 0 ? 0 : code_at<T>(base + pos[i] * stride);
  }
}
inline void gather(const u8* base, i64 stride, int bytes, const i64* pos, i64 n, bool contiguous, u32* out, i64 spread = 1) {
  if (n == 0) return;  // pos may end here
  if (bytes == 1) gather_as<u8>(base, stride, pos, n, contiguous, out, spread);
  else if (bytes == 2) gather_as<u16>(base, stride, pos, n, contiguous, out, spread);
  else gather_as<u32>(base, stride, pos, n, contiguous, out, spread);
}

// One operand's chunk: `lines` lines of `n` elements, in one of two orders.
struct Packed {
  Array<float> value;
  Array<u32> distance4;  // rows: the byte four times, to be broadcast
  Array<u8> distance;    // panel
  Array<i32> top, low;  // exponents: where distances start, and none below it but zeros'
  Array<u8> wide, special;
  Array<double> wide_value, by_sign;
  Array<short> wide_exponent;
  Array<float> special_value;
  Array<u8> wide_ready, special_ready;
};

constexpr short no_exponent = -12000;  // of a zero, twice it fits int16

class Operand {
 public:
  // `m` has lines as rows. Panels have `columns` lines side by side, rows one line after another.
  Operand(const Mat& m, const Format& f, i64 lines)
      : m_(m), f_(f), dec_(f), codes_(f, lines), narrow_(narrow_range(f)), bytes_(lines), halves_(lines), words_(lines) {}

  void read(const Mat& m) { m_ = m; }
  bool looks_at_codes() const { return codes_.serve(); }  // as a panel with values is packed
  vb seen() const { return codes_.seen(); }
  void set_chunk(i64 p0, i64 p1, const i64* pos, bool contiguous) {
    n_ = p1 - p0, pos_ = pos, contiguous_ = contiguous;
    stride_ = (n_ + W - 1) / W * W;
  }
  i64 stride() const { return stride_; }

  // ---- rows: line after line, lanes along k -------------------------------------------------------
  void pack_rows(i64 i0, i64 count, Packed& out, bool values) {
    first_ = i0;
    out.top.assign(size_t(count), f_.max_exponent()), out.low.assign(size_t(count), f_.min_exponent());
    out.wide.assign(size_t(count), 0), out.special.assign(size_t(count), 0);
    out.wide_ready.assign(size_t(count), 0), out.special_ready.assign(size_t(count), 0);
    if (values) out.value.resize(size_t(count * stride_)), out.distance4.resize(size_t(count * stride_));
    with_decoder(dec_, [&](const auto& dec) {
      for (i64 i = 0; i < count; ++i) {
        const u32* code = row_codes(i, count);
        vi special{}, low = splat(1 << 20), high = splat(-(1 << 20));
        for (i64 p = 0; p < stride_; p += W) {
          vu c = load<vu>(code + p);
          special |= dec.special(c);
          if (values && !narrow_) extremes(dec, c, low, high);
        }
        out.special[size_t(i)] = any(special);
        if (!values) continue;
        i32 top = f_.max_exponent();
        if (!narrow_) {
          i32 lowest = 1 << 20;
          top = -(1 << 20);
          for (int l = 0; l < W; ++l) lowest = std::min(lowest, low[l]), top = std::max(top, high[l]);
          out.wide[size_t(i)] = is_wide(lowest, top), out.low[size_t(i)] = lowest;
          top = usable_top(top);
        }
        out.top[size_t(i)] = top;
        vf scale = power(splat(-top));
        float* value = &out.value[size_t(i * stride_)];
        u32* distance4 = &out.distance4[size_t(i * stride_)];
        for (i64 p = 0, n = stride_; p < n; p += W) {
          vf v;
          vi dist;
          element(dec, load<vu>(code + p), splat(top), scale, v, dist);
          store(value + p, v);
          store(distance4 + p, (vu)dist * 0x01010101u);
        }
      }
    });
  }
  const double* wide_row(i64 i, Packed& out) {
    if (!out.wide_ready[size_t(i)]) {
      out.wide_ready[size_t(i)] = 1;
      size_t need = out.top.size() * size_t(stride_);
      if (out.wide_value.size() < need) out.wide_value.resize(need), out.wide_exponent.resize(need);
      alignas(64) u32 code[chunk_max];
      gather_line(first_ + i, code);
      with_decoder(dec_, [&](const auto& dec) {
        for (i64 p = 0; p < stride_; p += W)
          wide_elements(dec, load<vu>(code + p), &out.wide_value[size_t(i * stride_ + p)],
                        &out.wide_exponent[size_t(i * stride_ + p)]);
      });
    }
    return &out.wide_value[size_t(i * stride_)];
  }
  const float* special_row(i64 i, Packed& out) {
    if (!out.special_ready[size_t(i)]) {
      out.special_ready[size_t(i)] = 1;
      size_t need = out.top.size() * size_t(stride_);
      if (out.special_value.size() < need) out.special_value.resize(need);
      alignas(64) u32 code[chunk_max];
      gather_line(first_ + i, code);
      for (i64 p = 0; p < stride_; p += W)
        store(&out.special_value[size_t(i * stride_ + p)], special_elements(load<vu>(code + p)));
    }
    return &out.special_value[size_t(i * stride_)];
  }

  // ---- panel: `columns` lines side by side, position after position ----------------------------------
  void pack_panel(i64 j0, i64 count, Packed& out, bool values) {
    first_ = j0, count_ = count;
    out.top.assign(columns, f_.max_exponent()), out.low.assign(columns, f_.min_exponent());
    out.wide.assign(columns, 0), out.special.assign(1, 0);
    out.wide_ready.assign(1, 0), out.special_ready.assign(1, 0);
    if (values) out.value.resize(size_t(n_ * columns)), out.distance.resize(size_t(n_ * columns));
    codes_ready_ = false;
    if (values && pack_directly(j0, count, out)) return;
    gather_panel();
    with_decoder(dec_, [&](const auto& dec) {
      vi special{};
      for (i64 p = 0; p < n_; ++p)
        for (int v = 0; v < used_; ++v) special |= dec.special(panel_code(p, v));
      out.special[0] = any(special);
      if (!values) return;
      bool any_wide = false;
      for (int v = 0; !narrow_ && v < used_; ++v) {
        vi low = splat(1 << 20), high = splat(-(1 << 20));
        for (i64 p = 0; p < n_; ++p) extremes(dec, panel_code(p, v), low, high);
        for (int l = 0; l < W; ++l) any_wide |= out.wide[size_t(v * W + l)] = is_wide(low[l], high[l]);
        store(&out.low[size_t(v * W)], low), store(&out.top[size_t(v * W)], usable_top(high));
      }
      if (any_wide) return;  // the whole panel goes to the float64 kernel, and subnormal floats cost CPUs much
      for (int v = 0; v < used_; ++v) {
        const vi top = load<vi>(&out.top[size_t(v * W)]);
        vf scale = power(-top);
        for (i64 p = 0; p < n_; ++p) {
          vf x;
          vi dist;
          element(dec, panel_code(p, v), top, scale, x, dist);
          store(&out.value[size_t(p * columns + v * W)], x);
          store_bytes(&out.distance[size_t(p * columns + v * W)], dist);
        }
      }
    });
  }
  void wide_panel(Packed& out) {
    if (out.wide_ready[0]) return;
    out.wide_ready[0] = 1;
    gather_panel();
    out.wide_value.resize(size_t(n_ * columns)), out.wide_exponent.resize(size_t(n_ * columns));
    with_decoder(dec_, [&](const auto& dec) {
      for (i64 p = 0; p < n_ * columns; p += W)
        wide_elements(dec, load<vu>(&code_[size_t(p)]), &out.wide_value[size_t(p)], &out.wide_exponent[size_t(p)]);
    });
  }
  // The same numbers, position after position: the positive ones, 0 for others; then the negative ones.
  void panel_by_sign(Packed& out) {
    wide_panel(out);
    if (out.wide_ready[0] == 2) return;
    out.wide_ready[0] = 2;
    out.by_sign.resize(2 * out.wide_value.size());
    for (i64 p = 0; p < n_; ++p)
      for (i64 j = 0; j < columns; j += D) {
        const vd x = load<vd>(&out.wide_value[size_t(p * columns + j)]), none{};
        double* to = &out.by_sign[size_t(2 * p * columns + j)];
        store(to, max(x, none)), store(to + columns, min(x, none));
      }
  }
  void special_panel(Packed& out) {
    if (out.special_ready[0]) return;
    out.special_ready[0] = 1;
    gather_panel();
    out.special_value.resize(size_t(n_ * columns));
    for (i64 p = 0; p < n_ * columns; p += W)
      store(&out.special_value[size_t(p)], special_elements(load<vu>(&code_[size_t(p)])));
  }
  // Raw floats of the codes as they are (Inf and NaN too), for kernels in plain float arithmetic.
  template <class Each> void float_rows(i64 i0, i64 count, Array<float>& out, Each each) {
    out.resize(size_t(count * stride_));
    alignas(64) u32 code[chunk_max];
    with_floats([&](auto floats) {
      for (i64 i = 0; i < count; ++i) {
        gather_line(i0 + i, code);
        for (i64 p = 0; p < stride_; p += W) store(&out[size_t(i * stride_ + p)], each(floats(load<vu>(code + p))));
      }
    });
  }
  template <class Each> void float_panel(i64 j0, i64 count, Array<float>& out, Each each) {
    first_ = j0, count_ = count, codes_ready_ = false;
    out.resize(size_t(n_ * columns));
    const bool direct = m_.row == dec_.bytes && count == columns;  // whole vectors of lines side by side
    if (!direct) gather_panel();
    with_floats([&](auto floats) {
      if (!direct) {
        for (i64 p = 0; p < n_ * columns; p += W) store(&out[size_t(p)], each(floats(load<vu>(&code_[size_t(p)]))));
        return;
      }
      for (i64 p = 0; p < n_; ++p) {
        float* to = &out[size_t(p * columns)];
        if (pos_[p] < 0) {
          std::memset(to, 0, sizeof(float) * columns);
          continue;
        }
        const u8* from = m_.at(first_, pos_[p]);
        for (i64 line = 0; line < columns * dec_.bytes; line += 64)
          __builtin_prefetch(from + columns * dec_.bytes + line);
        for (int v = 0; v < NV; ++v) store(to + v * W, each(floats.at(from + v * W * dec_.bytes)));
      }
    });
  }

  // A panel's numbers without the panel: `use` is given what reads them.
  template <class Each, class Use> void float_lines(i64 j0, i64 count, Each each, Use use) {
    auto of = [&]<class T>(CodeLines<T, columns>& lines) {
      lines.find(m_, j0, count, pos_, n_);
      with_floats([&](auto floats) { use(FromLines<T, decltype(floats), Each>{lines.lines(), floats, each}); });
    };
    if (dec_.bytes == 1) of(bytes_);
    else if (dec_.bytes == 2) of(halves_);
    else of(words_);
  }

  static constexpr i64 chunk_max = 4096 + 64;

 private:
  BITMMA_INLINE vu panel_code(i64 p, int v) const { return load<vu>(&code_[size_t(p * columns + v * W)]); }
  // Codes, in a vector or in memory, as floats: `each` is given the way that suits the format.
  template <class T> struct UpperBits {  // of a float: f32, tf32 and bf16
    u32 mask;
    BITMMA_INLINE vf operator()(vu c) const { return bits<vf>(c << (32 - 8 * int(sizeof(T))) & mask); }
    BITMMA_INLINE vf at(const u8* p) const { return (*this)(widen_codes<T>(p)); }
  };
#if defined(BITMMA_HALF_CONVERSION)
  struct Halves {
    BITMMA_INLINE vf operator()(vu c) const {
      u16 half[W];
      for (int i = 0; i < W; ++i) half[i] = u16(c[i]);
      return at(reinterpret_cast<const u8*>(half));
    }
    BITMMA_INLINE vf at(const u8* p) const { return from_half(p); }
  };
#endif
  struct AnyCodes {
    const Operand& operand;
    BITMMA_INLINE vf operator()(vu c) const { return operand.ieee(c); }
    BITMMA_INLINE vf at(const u8* p) const {
      return (*this)(operand.dec_.bytes == 1 ? widen_codes<u8>(p) : operand.dec_.bytes == 2 ? widen_codes<u16>(p) : widen_codes<u32>(p));
    }
  };
  template <class T, class Floats, class Each> struct FromLines {
    Found line;
    Floats floats;
    Each each;
    BITMMA_INLINE vf at(i64 p, int v) const {
      constexpr i64 bytes = sizeof(T);
      return each(floats.at(line[p] + v * W * bytes));
    }
    BITMMA_INLINE void fetch(i64 p) const { line.template fetch<columns * i64(sizeof(T))>(p); }
  };
  template <class Each> void with_floats(Each each) const {
    const bool upper = dec_.specials == Specials::ieee && dec_.exponent == 8 && dec_.has_sign;
    if (upper && dec_.bytes == 4 && f_.width == 32) return each(UpperBits<u32>{~0u << dec_.dropped});
    if (upper && dec_.bytes == 2 && f_.width == 16) return each(UpperBits<u16>{~0u << (16 + dec_.dropped)});
#if defined(BITMMA_HALF_CONVERSION)
    if (dec_.specials == Specials::ieee && dec_.exponent == 5 && dec_.mantissa == 10 && !dec_.dropped) return each(Halves{});
#endif
    each(AnyCodes{*this});
  }

  template <class Dec> BITMMA_INLINE static void extremes(const Dec& dec, vu c, vi& low, vi& high) {
    vi skip = dec.is_zero(c) | dec.special(c), e = dec.exponents(c);
    low = min(low, (skip & (1 << 20)) | (~skip & e));
    high = max(high, (skip & -(1 << 20)) | (~skip & e));
  }
  static bool is_wide(i32 lowest, i32 top) {
    return top > -(1 << 20) && (top - lowest > widest || top > 100 || top < -100);
  }
  // Of a line of zeros: any would do.
  static i32 usable_top(i32 top) { return top == -(1 << 20) ? 0 : std::clamp(top, -100, 100); }
  BITMMA_INLINE static vi usable_top(vi top) {
    return top == -(1 << 20) ? vi{} : min(max(top, splat(-100)), splat(100));
  }

  template <class Dec>
  BITMMA_INLINE static void element(const Dec& dec, vu c, vi top, vf scale, vf& v, vi& dist) {
    vi none = dec.special(c) | dec.is_zero(c);
    v = none ? vf{} : dec.value(c) * scale;
    dist = none ? splat(255) : min(top - dec.exponents(c), splat(254));
  }
  template <class Dec>
  BITMMA_INLINE static void wide_elements(const Dec& dec, vu c, double* value, short* exponent) {
    vi none = dec.special(c) | dec.is_zero(c);
    vf v = none ? vf{} : dec.value(c);
    vi e = none ? splat(no_exponent) : dec.exponents(c);
    store(value, to_double(half(v, 0))), store(value + D, to_double(half(v, 1)));
    store_shorts(exponent, e);
  }
  // Inf and NaN as they are, other numbers +-1, zeros 0: their products and sums are special exactly
  // where those of the numbers are by themselves.
  BITMMA_INLINE vf special_elements(vu c) const {
    vi zero = dec_.is_zero(c) & ~dec_.special(c), spec = dec_.special(c);
    vf x = dec_.value(c);
    vi sign = bits<vi>(x) & i32(0x80000000);
    vi unit = sign | 0x3F800000;
    vi y = (spec & bits<vi>(ieee(c))) | (~spec & ~zero & unit);
    return bits<vf>(y);
  }
  BITMMA_INLINE vf ieee(vu c) const {
    vi spec = dec_.special(c);
    vi y = bits<vi>(dec_.value(c));
    vu m = dec_.magnitude(c);
    vi nan = spec;
    if (dec_.specials == Specials::ieee)
      nan = (vi)(m > ((1u << dec_.exponent) - 1) << dec_.mantissa);
    vi s = (y & i32(0x80000000)) | 0x7F800000 | (nan & 0x400000);
    return bits<vf>((spec & s) | (~spec & y));
  }
  // Codes of row i of `count`, gathered row by row or, where they lie side by side, some rows at a time.
  static constexpr int some_rows = W < 8 ? W : 8;
  const u32* row_codes(i64 i, i64 count) {
    const i64 first = i / some_rows * some_rows;
    code_.resize(size_t(some_rows * stride_));
    u32* codes = code_.data();
    if (!contiguous_ || m_.row != dec_.bytes || first + some_rows > count) return gather_line(first_ + i, codes), codes;
    if (i == first) {
      if (dec_.bytes == 1) turn_rows<u8>(first_ + first, codes);
      else if (dec_.bytes == 2) turn_rows<u16>(first_ + first, codes);
      else turn_rows<u32>(first_ + first, codes);
    }
    return codes + (i - first) * stride_;
  }
  template <class T> void turn_rows(i64 line, u32* codes) const {
    constexpr int N = some_rows;
    for (i64 p = 0; p < stride_; p += W) {
      vu x[N];
      for (i64 l = 0; l < N; ++l)
        x[l] = widen_runs<N, T>([&](int run) {
          const i64 at = p + run * N + l;
          return at < n_ ? static_cast<const u8*>(m_.at(line, pos_[at])) : zeros();
        });
      transpose<N>(x);
      for (i64 l = 0; l < N; ++l) store(codes + l * stride_ + p, x[l]);
    }
  }
  void gather_line(i64 line, u32* code) const {
    gather(m_.data + line * m_.row, m_.col, dec_.bytes, pos_, n_, contiguous_, code);
    for (i64 p = n_; p < stride_; ++p) code[p] = 0;
  }
#if defined(BITMMA_HALF_CONVERSION)
  // A panel from codes that are clean: one pass, where memory lets it.
  template <class Fields> bool unpack(const Fields& f, Packed& out) {
    std::fill(out.top.begin(), out.top.end(), codes_.top()), std::fill(out.low.begin(), out.low.end(), codes_.low());
    const vf scale = splat(codes_.factor());
    vb most{};
    const Found line = codes_.lines();
    for (i64 p = 0; p < n_; ++p) {
      const u8* from = line[p];
      float* value = &out.value[size_t(p * columns)];
      const auto numbers = f.numbers(from);
      unroll<NV>([&](auto v) __attribute__((always_inline)) { store(value + v * W, numbers(v) * scale); });
      most = maxu(most, codes_distances(f, from, &out.distance[size_t(p * columns)], codes_.top_field()));
      line.template fetch<columns * i64(sizeof(typename Fields::Code))>(p);
    }
    return !any(bits<vi>(subtract_saturating(most, vb{} + u8(f.special - 1))) != 0);
  }
  bool pack_directly(i64 j0, i64 count, Packed& out) {
    if (!codes_.serve() || !codes_.take(m_, j0, count, pos_, n_)) return false;
    return codes_.with_fields([&](const auto& f) { return unpack(f, out); });
  }
#else
  bool pack_directly(i64, i64, Packed&) { return false; }
#endif
  // Columns that are each contiguous along k, by blocks of W x W.
  template <class T> void transpose_panel() {
    const i64 whole = n_ / W * W;
    for (i64 j = 0; j < count_; j += W) {
      const i64 some = std::min<i64>(W, count_ - j);
      for (i64 p = 0; p < whole; p += W) {
        vu x[W];
        for (i64 i = 0; i < W; ++i)
          x[i] = i < some ? widen_codes<T>(m_.at(first_ + j + i, pos_[p])) : vu{};
        transpose<W>(x);
        for (i64 i = 0; i < W; ++i) store(&code_[size_t((p + i) * columns + j)], x[i]);
      }
      for (i64 i = 0; i < some; ++i)
        gather(m_.data + (first_ + j + i) * m_.row, m_.col, dec_.bytes, pos_ + whole, n_ - whole, contiguous_,
               &code_[size_t(whole * columns + j + i)], columns);
    }
  }
  void gather_panel() {
    if (codes_ready_) return;
    codes_ready_ = true;
    used_ = int((count_ + W - 1) / W);
    code_.resize(size_t(n_ * columns));
    if (count_ < columns) std::fill(code_.begin(), code_.end(), 0);
    const i64 across = m_.row;  // from one line to the next
    if (across == dec_.bytes) {
      static const i64 start = 0;  // lines of a row lie side by side
      for (i64 p = 0; p < n_; ++p) {
        u32* to = &code_[size_t(p * columns)];
        if (pos_[p] < 0) std::memset(to, 0, sizeof(u32) * columns);
        else if (count_ == columns) gather(m_.at(first_, pos_[p]), across, dec_.bytes, &start, columns, true, to);
        else gather(m_.at(first_, pos_[p]), across, dec_.bytes, &start, count_, true, to);
      }
      return;
    }
    if (contiguous_ && m_.col == dec_.bytes) {
      if (dec_.bytes == 1) transpose_panel<u8>();
      else if (dec_.bytes == 2) transpose_panel<u16>();
      else transpose_panel<u32>();
      return;
    }
    for (i64 j = 0; j < count_; ++j)
      gather(m_.data + (first_ + j) * m_.row, m_.col, dec_.bytes, pos_, n_, contiguous_, &code_[size_t(j)], columns);
  }

  Mat m_;
  Format f_;
  Decoder dec_;
  Codes codes_;
  bool narrow_, contiguous_ = false, codes_ready_ = false;
  i64 n_ = 0, stride_ = 0, first_ = 0, count_ = 0;
  int used_ = NV;  // vectors of a panel row that hold columns of the matrix
  const i64* pos_ = nullptr;
  CodeLines<u8, columns> bytes_;
  CodeLines<u16, columns> halves_;
  CodeLines<u32, columns> words_;
  Array<u32> code_;
};

}  // namespace bitmma::BITMMA_ISA
