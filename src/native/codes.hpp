// Columns of B as codes, position after position: where they lie, if they lie so, else brought together
// in a buffer that stays in the cache.
//
// A product with few rows uses each element of B a few times only, and what it costs is to read and to
// decode B. Kernels take numbers straight from such lines: nothing is written but the results. For the
// fused sums `Codes` finds what is to be known of them, and `FromCodes` reads exponents and values.
// `Operand` (pack.hpp) unpacks its panels from the same lines where there are more rows.
#pragma once
#include <algorithm>
#include <vector>

#include "decode.hpp"

namespace bitmma::BITMMA_ISA {

// Where codes of some positions lie: those of position p at line[p] + at. And what is to be fetched while
// they are read. Tiles go across B, but memory is fast along its rows, and CPUs fetch ahead by themselves only
// where few rows are read side by side: so a block of `wide` lines of memory of every position is fetched row
// after row, while the tiles of the one before it are computed.
struct Found {
  static constexpr int log2_wide = 3, wide = 1 << log2_wide;
  const u8* const* line;
  i64 at;
  i64 next, done;  // the block's first byte, and how many of its lines of memory were fetched with other tiles

  BITMMA_INLINE const u8* operator[](i64 p) const { return line[p] + at; }
  // The part that goes with `some` positions from p on, a multiple of `some`, of whose codes `bytes` each are read
  // here (if a part of a line, one with each). To the second cache: lines a power of two apart push each other out
  // of the first.
  template <i64 bytes, int some = 1> BITMMA_INLINE void fetch(i64 p) const {
    constexpr int lines = std::max<int>(1, some * bytes / 64), of_row = std::min(lines, wide);
    unroll<lines / of_row>([&](auto row) __attribute__((always_inline)) {
      const u64 i = u64(done) + u64(p) * bytes / 64 + row * of_row;
      const u8* const from = line[i >> log2_wide] + next + 64 * (i & (wide - 1));
      unroll<of_row>([&](auto l) __attribute__((always_inline)) { __builtin_prefetch(from + 64 * l, 0, 2); });
    });
  }
};

// Codes of T, `width` columns at each of some positions. Those beyond the matrix are +0.
template <class T, i64 width> class CodeLines {
 public:
  explicit CodeLines(i64 all) : across_(all * i64(sizeof(T))) {}  // columns of the matrix
  // `count` columns from j0 on (the lines of m) at n positions.
  void find(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    in_place_ = m.row == sizeof(T) && count == width;
    if (in_place_) return find_in_place(m, j0, pos, n);
    auto [first, last] = range(pos, n);
    const bool along_k = m.col == sizeof(T) && last - first <= n;
    buffered_ = along_k ? last - first : n;
    buffer_.resize(size_t(n * width));
    if (along_k) turn(m, j0, count, first, last - first);
    else gather(m, j0, count, pos, n);
    copied_.resize(size_t(n));
    const u8** const line = copied_.data();
    const u8* const start = reinterpret_cast<const u8*>(buffer_.data());
    for (i64 p = 0; p < n; ++p) line[p] = pos[p] < 0 ? zeros() : start + (along_k ? pos[p] - first : p) * bytes;
  }
  // Codes that lie elsewhere too, each vector as `change` makes it.
  template <class Change> void change(Change change) {
    if (!in_place_) {
      for (i64 i = 0; i < buffered_; ++i) copy(row(i), row(i), change);
      return;
    }
    const Found from = lines();
    const i64 n = i64(line_.size());
    in_place_ = false, buffered_ = n, buffer_.resize(size_t(n * width)), copied_.resize(size_t(n));
    for (i64 p = 0; p < n; ++p) {
      from.template fetch<bytes>(p);
      copy(from[p], row(p), change), copied_[size_t(p)] = row(p);
    }
  }
  Found lines() const {
    if (!in_place_) return {copied_.data(), 0, 0, 0};
    constexpr i64 tiles = 64 * Found::wide / bytes;
    const i64 n = i64(line_.size()), tile = at_ / bytes % tiles, next = at_ + (tiles - tile) * bytes;
    // Behind the last block comes the first of the positions that follow.
    return {line_.data(), at_, next < across_ ? next : at_ % bytes + n * stride_, tile * n * bytes / 64};
  }
  // Each vector of codes, in any order.
  template <class Look> void look(Look look) const {
    const size_t n = in_place_ ? line_.size() : size_t(buffered_);
    for (size_t i = 0; i < n; ++i) {
      const u8* from = in_place_ ? line_[i] + at_ : reinterpret_cast<const u8*>(&buffer_[i * size_t(width)]);
      for (i64 b = 0; b < bytes; b += i64(sizeof(vb))) look(from + b);
    }
  }

 private:
  static constexpr i64 bytes = width * i64(sizeof(T));

  // Tile after tile at the same positions: lines are found once, and only where on them changes.
  void find_in_place(const Mat& m, i64 j0, const i64* pos, i64 n) {
    at_ = j0 * i64(sizeof(T));
    if (m.data == data_ && m.col == stride_ && std::equal(pos, pos + n, found_.begin(), found_.end())) return;
    line_.resize(size_t(n));
    data_ = m.data, stride_ = m.col, found_.assign(pos, pos + n);
    if (std::all_of(pos, pos + n, [](i64 k) { return k >= 0; })) {
      for (i64 p = 0; p < n; ++p) line_[size_t(p)] = m.at(0, pos[p]);
      return;
    }
    for (i64 p = 0; p < n; ++p) line_[size_t(p)] = pos[p] < 0 ? zeros() : m.at(j0, pos[p]);
    at_ = 0, data_ = nullptr;  // zeros are the same for every tile: not to be used again
  }
  u8* row(i64 i) { return reinterpret_cast<u8*>(&buffer_[size_t(i * width)]); }
  template <class Change> static void copy(const u8* from, u8* to, Change change) {
    for (i64 b = 0; b < bytes; b += i64(sizeof(vb))) store(to + b, change(load<vb>(from + b)));
  }
  static std::pair<i64, i64> range(const i64* pos, i64 n) {
    i64 first = i64(1) << 62, last = 0;
    for (i64 p = 0; p < n; ++p)
      if (pos[p] >= 0) first = std::min(first, pos[p]), last = std::max(last, pos[p] + 1);
    return {std::min(first, last), last};
  }
  void gather(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    for (i64 p = 0; p < n; ++p) {
      T* to = &buffer_[size_t(p * width)];
      if (pos[p] >= 0 && m.row == sizeof(T)) std::memcpy(to, m.at(j0, pos[p]), size_t(count) * sizeof(T));
      else for (i64 j = 0; pos[p] >= 0 && j < count; ++j) std::memcpy(to + j, m.at(j0 + j, pos[p]), sizeof(T));
      std::fill(to + (pos[p] < 0 ? 0 : count), to + width, T(0));
    }
  }

  // Columns that lie along k, in words of four bytes (eight, where a code has as many). Squares of words
  // are transposed, each of every `per_word`-th column, so that in the end codes of neighbours join.
  using Word = std::conditional_t<sizeof(T) == 8, vl, vu>;
  static constexpr int lanes = int(sizeof(Word) / std::max<size_t>(4, sizeof(T)));
  static constexpr i64 per_word = std::max<i64>(1, 4 / i64(sizeof(T))), across = lanes * per_word;
  void turn(const Mat& m, i64 j0, i64 count, i64 k0, i64 n) {
    for (i64 j = 0; j < width; j += across) {
      i64 k = 0;
      if (j >= count) {
        for (; k < n; ++k) std::memset(row(k) + j * i64(sizeof(T)), 0, size_t(across) * sizeof(T));
        continue;
      }
      for (; k + lanes * per_word <= n; k += lanes * per_word) turn_words<lanes>(m, j0, j, count, k0, k);
      if constexpr (lanes == 16)
        for (; k + 8 * per_word <= n; k += 8 * per_word) turn_words<8>(m, j0, j, count, k0, k);
      for (; k < n; ++k)
        for (i64 i = j; i < j + across; ++i) {
          T code(0);
          if (i < count) std::memcpy(&code, m.at(j0 + i, k0 + k), sizeof(T));
          buffer_[size_t(k * width + i)] = code;
        }
    }
  }
  template <int N> void turn_words(const Mat& m, i64 j0, i64 j, i64 count, i64 k0, i64 k) {
    const u8* base = m.at(j0 + j, k0 + k);
    Word word[N][per_word];
    unroll<int(per_word)>([&](auto set) __attribute__((always_inline)) {
      Word x[N];
      unroll<N>([&](auto i) __attribute__((always_inline)) {
        x[i] = load_runs<N, Word>([&](int run) __attribute__((always_inline)) {
          const i64 line = per_word * (run * N + i) + set;
          const u8* from = j + line < count ? base + line * m.row : zeros();
          __builtin_prefetch(from + 128);
          return from;
        });
      });
      transpose<N>(x);
      unroll<N>([&](auto i) __attribute__((always_inline)) { word[i][set] = x[i]; });
    });
    unroll<N>([&](auto i) __attribute__((always_inline)) {
      exchange(word[i]);
      unroll<int(per_word)>([&](auto t) __attribute__((always_inline)) {
        store(row(k + i * per_word + t) + j * i64(sizeof(T)), word[i][t]);
      });
    });
  }
  // Lane by lane, the codes of `per_word` words transposed.
  BITMMA_INLINE static void exchange(Word x[per_word]) {
    if constexpr (per_word == 2) cross<16, 0xFFFFu>(x[0], x[1]);
    if constexpr (per_word == 4) {
      cross<16, 0xFFFFu>(x[0], x[2]), cross<16, 0xFFFFu>(x[1], x[3]);
      cross<8, 0xFF00FFu>(x[0], x[1]), cross<8, 0xFF00FFu>(x[2], x[3]);
    }
  }
  template <int shift, u32 low> BITMMA_INLINE static void cross(vu& x, vu& y) {
    const vu a = (x & low) | (y & low) << shift, b = (x >> shift & low) | (y & ~low);
    x = a, y = b;
  }

  i64 across_;
  std::vector<const u8*> line_, copied_;
  i64 at_ = 0;
  const u8* data_ = nullptr;  // what `line_` was found for
  i64 stride_ = 0;
  std::vector<i64> found_;
  Array<T> buffer_;
  bool in_place_ = false;
  i64 buffered_ = 0;  // lines of the buffer in use, unless in place
};

// The least and the largest of some bytes, column by column.
struct ByteExtent {
  vb least = ~vb{}, most{};
  BITMMA_INLINE void take(vb x) { least = minu(least, x), most = maxu(most, x); }
  std::pair<int, int> over(i64 cols) const {
    alignas(64) u8 low[columns], high[columns];
    store(low, least), store(high, most);
    u8 first = 255, last = 0;  // std's searches go byte by byte
    for (i64 j = 0; j < cols; ++j) first = std::min(first, low[j]), last = std::max(last, high[j]);
    return {first, last};
  }
};

// How wide the first tile is to be for all that follow it to begin at a line of memory, where codes of
// every position do so together: a vector across two lines costs twice. What a narrow tile costs more is
// little where it is one of many.
inline i64 columns_to_line(const Mat& m, i64 bytes, i64 count) {
  constexpr i64 line = 64;
  const i64 lead = i64(-reinterpret_cast<std::uintptr_t>(m.data) % line);
  if (m.row != bytes || m.col % line || count < 16 * columns) return columns;
  const i64 first = lead / bytes % columns;
  return first ? first : columns;
}

// With few rows B is read once: by so few lines side by side that a CPU's own fetching follows (64 of codes of
// two bytes were too many); along k, by as many positions as a buffer in the cache holds.
inline i64 few_rows_chunk(const Mat& b, i64 bytes) { return b.row < b.col ? 1024 : bytes == 1 ? 64 : 32; }

// Two numbers of a row as `FromCodes::add_short_sums` wants them, 16 bits each.
struct RowPair {
  u32 even, odd;  // the significand's 7 bits, in the lower byte or in the upper one
  u32 distance;   // from the top, in both bytes; of a 0 anything
  u32 sign;       // 1 or -1
};

#if defined(BITMMA_HALF_CONVERSION)

// How exponents and values are read from codes. Without the sign, a code's upper byte holds the exponent
// field and as many bits `below` it; Inf and NaN, and no other, are `special` or more by `suspect`.
struct WholeFields {  // of 16 bits, all of them sign, exponent and significand
  using Code = u16;
  static constexpr u32 magnitude = 0x7FFF;
  BITMMA_INLINE vb suspect(vb upper, vb) const { return upper; }
};
struct HalfFields : WholeFields {  // f16
  static constexpr int below = 3, special = 0xF8, mantissa = 10;
  BITMMA_INLINE auto numbers(const u8* p) const {
    return [p](int v) __attribute__((always_inline)) { return from_half(p + v * 2 * W); };
  }
};
struct UpperFields : WholeFields {  // bf16
  static constexpr int below = 0, special = 0xFF, mantissa = 7;
  BITMMA_INLINE auto numbers(const u8* p) const {
    return [p](int v) __attribute__((always_inline)) { return bits<vf>(widen_codes<u16>(p + v * 2 * W) << 16); };
  }
};
struct WordFields {  // tf32: a float of which low bits do not count
  using Code = u32;
  static constexpr int below = 0, special = 0xFF, mantissa = 23;
  u32 magnitude;
  BITMMA_INLINE vb suspect(vb upper, vb) const { return upper; }
  BITMMA_INLINE auto numbers(const u8* p) const {
    const u32 mask = magnitude | 0x80000000u;
    return [p, mask](int v) __attribute__((always_inline)) { return bits<vf>(load<vu>(p + v * 4 * W) & mask); };
  }
};
// Eight bits, or fewer shifted up to eight. As a half with the same fields the number is 2^(bias - 15)
// times as large, subnormal or not.
struct ByteFields {
  using Code = u8;
  int below, special, mantissa;
  u32 magnitude;
  vb kept, flipped;  // of codes, for `suspect`
  u16 up;            // times this, the lowest bit of the exponent is in its place
  vw half;           // what is then kept, of the sign's copies only the highest

  BITMMA_INLINE vb suspect(vb, vb code) const { return (code & kept) ^ flipped; }
  BITMMA_INLINE vw halves(const u8* p) const { return (extend_to_16(p) * up) & half; }  // 2W of them
  struct Numbers {
    alignas(64) u16 half[columns];
    BITMMA_INLINE vf operator()(int v) const { return from_half(reinterpret_cast<const u8*>(half + v * W)); }
  };
  BITMMA_INLINE Numbers numbers(const u8* p) const {
    Numbers x;
    unroll<2>([&](auto h) __attribute__((always_inline)) { store(x.half + h * 2 * W, halves(p + h * 2 * W)); });
    return x;
  }
};

// The same whose products are summed as integers, by `FromCodes::add_short_sums`.
struct ShortFields : ByteFields {};

// A vector of codes, copied to where their numbers are read from: bytes as halves.
template <class Fields> BITMMA_INLINE void set_aside(const Fields&, const u8* from, u8* to) { store(to, load<vb>(from)); }
BITMMA_INLINE void set_aside(const ByteFields& f, const u8* from, u8* to) {
  unroll<2>([&](auto h) __attribute__((always_inline)) { store(to + h * 4 * W, f.halves(from + h * 2 * W)); });
}
template <class Fields> BITMMA_INLINE auto numbers_aside(const Fields& f, const u8* p) { return f.numbers(p); }
BITMMA_INLINE auto numbers_aside(const ByteFields&, const u8* p) { return HalfFields{}.numbers(p); }

// A line's distances from the top as a panel has them; and what of it is suspect.
template <class Fields> BITMMA_INLINE vb codes_distances(const Fields& f, const u8* line, u8* out, u32 top_field) {
  using Code = typename Fields::Code;
  if constexpr (sizeof(Code) == 1) {
    const vb code = load<vb>(line), size = code & u8(f.magnitude);
    const vb field = bits<vb>(bits<vw>(size) >> u16(f.mantissa) & splat16((0xFFu >> f.mantissa) * 0x101u));
    store(out, size == 0 ? ~vb{} : vb{} + u8(top_field) - maxu(field, vb{} + u8(1)));
    return f.suspect(size, code);
  } else {
    using Lane = std::conditional_t<sizeof(Code) == 2, vw, vu>;
    Lane most{};
    unroll<int(sizeof(Code))>([&](auto h) __attribute__((always_inline)) {
      const Lane size = load<Lane>(line + h * 4 * W) & Code(f.magnitude), field = size >> f.mantissa, one = Lane{} + Code(1);
      const Lane far = size == 0 ? Lane{} + Code(255) : Lane{} + Code(top_field) - max(field, one);
      most = max(most, size);
      store_bytes(out + h * 4 * W / int(sizeof(Code)), bits<std::conditional_t<sizeof(Code) == 2, vw, vi>>(far));
    });
    return bits<vb>(most >> (8 * sizeof(Code) - 9));  // upper bytes, among others that are less
  }
}

// Of the codes of sizeof(Code) positions from p on, the upper bytes without signs, from `byte` on: those of one
// column in one lane. And the codes themselves, if they are bytes.
template <class Code> BITMMA_INLINE vb upper_bytes(const Found& line, i64 p, i64 byte, vb& code) {
  if constexpr (sizeof(Code) == 1) {
    code = load<vb>(line[p] + byte);
    return code + code;
  } else if constexpr (sizeof(Code) == 2) {
    vw even = load<vw>(line[p] + byte), odd = load<vw>(line[p + 1] + byte);
    even += even, odd += odd;
    return bits<vb>(even >> 8 | (odd & 0xFF00));
  } else {
    const vu x0 = load<vu>(line[p] + byte), x1 = load<vu>(line[p + 1] + byte);
    const vu x2 = load<vu>(line[p + 2] + byte), x3 = load<vu>(line[p + 3] + byte);
    return bits<vb>((x0 >> 23 & 0xFF) | (x1 >> 15 & 0xFF00) | (x2 >> 7 & 0xFF0000) | (x3 << 1 & 0xFF000000u));
  }
}

class Codes {
 public:
  // `short_sums`: whether products of bytes are to be summed so.
  Codes(const Format& f, i64 all, bool short_sums = false)
      : f_(f), kind_(kind(f)), short_sums_(short_sums), bytes_(all), halves_(all), words_(all) {
    if (kind_ == bytes) {
      const int E = f.exponent_bits, M = f.mantissa_bits;
      const bool fnuz = f.specials == Specials::fnuz;
      const int infinity = ((1 << E) - 1) << (7 - E), last = ((1 << (E + M)) - 1) << (7 - E - M);
      byte_.below = 8 - E, byte_.mantissa = 7 - E, byte_.magnitude = 0x7F;
      byte_.special = f.specials == Specials::none ? 256 : fnuz ? 255 : f.specials == Specials::fn ? last : infinity;
      const u8 kept = fnuz ? 0xFF : 0x7F, flipped = fnuz ? 0x7F : 0;
      byte_.kept = vb{} + kept, byte_.flipped = vb{} + flipped;
      byte_.up = u16(1u << (3 + E)), byte_.half = splat16(0x8000 | ((1u << (10 + E)) - 1));
    }
    word_.magnitude = 0x7FFFFFFFu & (~0u << f.dropped_bits);
  }
  bool serve() const { return kind_ != others; }

  // `count` columns from j0 on (the lines of m) at n positions. False if exponents of bf16 or tf32 lie
  // too far apart, or from 0, for one `top`, or if there are specials among them: then nothing else is to
  // be asked. Specials of other formats are left to those who read the codes.
  bool take(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    top_ = f_.max_exponent(), low_ = f_.min_exponent();
    switch (kind_) {
      case bytes:
        bytes_.find(m, j0, count, pos, n);
        if (f_.width < 8) bytes_.change([&](vb x) { return seen_ |= x, shifted_up(x); });
        return true;
      case half: return halves_.find(m, j0, count, pos, n), true;
      case upper: return halves_.find(m, j0, count, pos, n), find_top() && usable_top() && learn();
      case words: return words_.find(m, j0, count, pos, n), find_top() && usable_top() && learn();
      default: return false;
    }
  }
  // The same without looking at them: exponents of bf16 or tf32 are supposed to lie where those of the tiles
  // before did, or little beside. `FromCodes` sees whether they do. If not, `take` is to be asked after all.
  bool suppose(const Mat& m, i64 j0, i64 count, const i64* pos, i64 n) {
    supposed_ = supposes_ && count == columns;
    if (!supposed_) return false;
    if (kind_ == words) words_.find(m, j0, count, pos, n);
    else halves_.find(m, j0, count, pos, n);
    top_ = likely_top_, low_ = likely_low_;
    return true;
  }
  vb seen() const { return seen_; }  // all bits of codes narrower than a byte, since `take` was first asked
  // `top` and `low` of these codes, if they have 16 bits or more. False if there are specials.
  bool find_top() {
    if (kind_ == words) return find_top<vu>(words_, word_);
    return kind_ == half ? find_top<vw>(halves_, HalfFields{}) : find_top<vw>(halves_, UpperFields{});
  }
  bool are_16_bits() const { return kind_ == half || kind_ == upper; }
  // The way to read them.
  template <class Each> auto with_fields(Each each) const {
    switch (kind_) {
      case bytes:
#if defined(BITMMA_SHORT_SUMS)
        if (short_sums_) return each(ShortFields{byte_});
#endif
        return each(byte_);
      case half: return each(HalfFields{});
      case upper: return each(UpperFields{});
      default: return each(word_);
    }
  }
  // Position p's codes, of `columns` columns.
  Found lines() const { return kind_ == bytes ? bytes_.lines() : kind_ == words ? words_.lines() : halves_.lines(); }
  i32 top() const { return top_; }  // no exponent is above
  i32 low() const { return low_; }  // nor below, but zeros'
  u32 top_field() const { return u32(top_ + f_.bias); }
  // Where exponents are supposed, no field is to be below: nor 0, which zeros and subnormal numbers share.
  u32 least_field() const { return supposed_ ? u32(std::max(1, low_ + f_.bias)) : 0; }
  // What makes of the float that the fields stand for the number times 2^-top.
  float factor() const { return bits<float>(u32(127 + (kind_ == bytes ? 15 - f_.bias : 0) - top_) << 23); }

 private:
  BITMMA_INLINE vb shifted_up(vb x) const {
    const int by = 8 - f_.width;
    return bits<vb>(bits<vw>(x) << u16(by) & splat16((0xFFu << by & 0xFF) * 0x101u));
  }
  enum Kind { others, bytes, half, upper, words };
  static Kind kind(const Format& f) {
    const bool ieee = f.specials == Specials::ieee, single = f.exponent_bits == 8 && f.bias == 127 && ieee;
    if (!f.has_sign) return others;
    if (f.width == 32 && single) return words;
    if (f.dropped_bits) return others;
    if (f.width == 16 && single) return upper;
    if (f.width == 16 && f.exponent_bits == 5 && f.bias == 15 && ieee) return half;
    // A half's highest exponent field is not a number's.
    return f.width <= 8 && (f.exponent_bits < 5 || (f.exponent_bits == 5 && ieee)) ? bytes : others;
  }
  bool usable_top() const { return usable(top_, low_); }
  static bool usable(i32 top, i32 low) { return top - low <= widest && std::abs(top) <= farthest; }
  // What `take` found, for `suppose`: as a rule tiles are alike, so that all but the first are looked at once. No
  // more of it where something was supposed rightly, but `take` had to be asked: for there are zeros, say.
  bool learn() {
    if (supposed_ && top_ <= likely_top_ && low_ >= likely_low_) hopeful_ = false;
    likely_top_ = std::max(likely_top_, top_ + 1), likely_low_ = std::min(likely_low_, low_ - 2);
    supposed_ = false, supposes_ = hopeful_ && usable(likely_top_, likely_low_);
    return true;
  }
  // By the largest magnitude, and the least but 0.
  template <class V, class Lines, class Fields> bool find_top(const Lines& lines, const Fields& f) {
    using Code = typename Fields::Code;
    V most{}, least = ~V{};
    lines.look([&](const u8* from) __attribute__((always_inline)) {
      const V m = load<V>(from) & Code(f.magnitude);
      most = max(most, m), least = min(least, m - 1);  // zeros wrap
    });
    u32 high = 0, low = ~0u;
    for (int l = 0; l < int(sizeof(V) / sizeof(Code)); ++l)
      high = std::max<u32>(high, most[l]), low = std::min<u32>(low, Code(least[l]));
    if (!high) return top_ = low_ = 0, true;
    top_ = i32(high >> f.mantissa) - f_.bias, low_ = std::max(1, i32((low + 1) >> f.mantissa)) - f_.bias;
    return top_ <= f_.max_exponent();
  }
  static constexpr i32 farthest = 60;  // rows times 2^-top stay normal floats

  Format f_;
  Kind kind_;
  bool short_sums_;
  i32 top_ = 0, low_ = 0, likely_top_ = -(1 << 20), likely_low_ = 1 << 20;
  bool supposed_ = false, supposes_ = false, hopeful_ = true;  // of this tile; of the next; of any
  vb seen_{};
  ByteFields byte_{};
  WordFields word_{};
  CodeLines<u8, columns> bytes_;
  CodeLines<u16, columns> halves_;
  CodeLines<u32, columns> words_;
};

// A row against such columns: `Panel`'s counterpart in fused.hpp.
template <class Fields> struct FromCodes {
  const float* a;         // row values, times Codes::factor
  const u32* a4;          // row distances, four times each; 255 for zeros
  const u32* by;          // what distances have above `least`, times 2^below: see Walk::join_rows
  Found line;
  u32 top_field, least, least_field;  // the last: see Codes
  const Fields& f;
  const RowPair* pairs;  // of short sums only
  u8* aside;             // numbers of the positions that `nearest` saw last, line after line
  mutable vb most{}, fewest = ~vb{};  // of the bytes that were seen; the latter of bf16 and tf32 only

  // Whether no special value was among them, nor a number that was not supposed to be.
  BITMMA_INLINE bool clean() const {
    const u32 limit = with_top ? top_field : u32(f.special - 1);
    const vb beyond = subtract_saturating(most, vb{} + u8(limit)), below = subtract_saturating(vb{} + u8(least_field), fewest);
    return !any(bits<vi>(beyond | below) != 0);
  }

  // Also fetches what is wanted next: all at once, products would wait; one by one, instructions are many.
  BITMMA_INLINE auto numbers(i64 p) const {
    if (p % 4 == 0) line.template fetch<columns * together, 4>(p);
    return numbers_aside(f, aside + p * aside_line);
  }

  // n products (a multiple of `together`, as is p) of which no distance is asked: numbers are set aside, specials seen.
  BITMMA_INLINE void pass(i64 p, i64 n) const {
    look(p, n, [](i64, auto, vb) __attribute__((always_inline)) {});
  }

#if defined(BITMMA_SHORT_SUMS)
  // Adds n products from p on (both even), each cut toward zero, to sums in units of 2^(e_max - F); e has the
  // floats 2^e_max. With at most 13 bits, and operands of a byte, no float is made of a code: significands of 8
  // and of 7 bits, below 2, have as product an integer below 2^15, in units of 2^(its exponent - 13), and a right
  // shift by e_max + 13 - F less that exponent cuts it. Two positions' codes lie side by side, so that their
  // products, of one column, are a pair of 16 bits, which one operation adds to the column's sum.
  //
  // Of a code twice, which drops its sign, `base` is the exponent field less its least (1, of subnormal numbers
  // too), in place, as saturation leaves it; what is left of the code is twice the significand, hidden bit and all.
  // Shifts are bytes: 127 + 50 at most, and right modulo 256 wherever a product is not 0. From 15 on none is left.
  BITMMA_INLINE void add_short_sums(i64 p, i64 n, const vi e[NV], int F, vi sum[NV]) const
    requires std::is_same_v<Fields, ShortFields>
  {
    const i32 least = 1, top = i32(top_field);
    vi beyond[NV], s[NV] = {}, in_order[NV];
    unroll<NV>([&](auto v) __attribute__((always_inline)) { beyond[v] = (e[v] >> 23) - 127 + 13 - F + top - least; });
    const vb far = to_signed_bytes(beyond), far_of[2] = {interleave_words<0>(far, far), interleave_words<1>(far, far)};
    const u8 upper = u8(0xFF << f.below), last = u8(1 << f.below);
    const vb field = vb{} + upper, one = vb{} + last;
    const vw below = vw{} + u16(f.below), up = vw{} + u16(7 - f.below), signs[2] = {vw{} + u16(0x80), vw{} + u16(0x8000)};
    // Copies, see `look`.
    const Found line = this->line;
    const RowPair* const pairs = this->pairs;
    const u8* const aside = this->aside;
    for (i64 i = p; i < p + n; i += 2) {
      if (i % 4 == 0) line.template fetch<columns, 4>(i);
      const RowPair& a = pairs[i / 2];
      const vb x = load<vb>(aside + i * aside_line), y = load<vb>(aside + (i + 1) * aside_line);
      const vb by[2] = {bits<vb>(vu{} + a.even), bits<vb>(vu{} + a.odd)}, distance = bits<vb>(vu{} + a.distance);
      const vw sign = bits<vw>(vu{} + a.sign);
      unroll<2>([&](auto h) __attribute__((always_inline)) {
        const vb code = interleave_words<h>(x, y), twice = code + code, base = subtract_saturating(twice & field, one);
        const vb significand = bits<vb>(shift_left(bits<vw>(twice - base), up));
        const vw shift = bits<vw>(far_of[h] + distance - bits<vb>(shift_right(bits<vw>(base), below)));
        const vw shifts[2] = {shift & 0xFF, shift >> 8};
        unroll<2>([&](auto odd) __attribute__((always_inline)) {
          const vw term = shift_right(multiply_pairs(significand, by[odd]), shifts[odd]);
          s[2 * h + odd] = add_products(s[2 * h + odd], negate_where(term, code, signs[odd]), sign);
        });
      });
    }
    restore_order(s, in_order);
    unroll<NV>([&](auto v) __attribute__((always_inline)) { sum[v] += in_order[v]; });
  }
#endif

  // The lowest distance of n products (a multiple of `together`, as is p) from the top: 255 where all
  // are zero. In a byte for each code, those of some positions side by side, the largest of field minus
  // distance, with some of the significand below. It saturates at 0, where zeros and subnormal numbers
  // are, too: what comes out a whole field above is right.
  BITMMA_INLINE vb nearest(i64 p, i64 n) const {
    const u32* const by = this->by;  // a copy, see `look`
    vb best[together] = {};
    look(p, n, [&](i64 i, auto h, vb upper) __attribute__((always_inline)) {
      best[h] = maxu(best[h], subtract_saturating(upper, bits<vb>(vu{} + by[i / together])));
    });
    alignas(64) u8 near[columns];
    const u32 origin = top_field + least;
    vb unsure{};
    unroll<together>([&](auto h) __attribute__((always_inline)) {
      if constexpr (together == 1) {
        const vb field = bits<vb>(bits<vw>(best[h]) >> u16(f.below) & splat16((0xFFu >> f.below) * 0x101u));
        unsure |= (vb)(field == 0);
        store(near, vb{} + u8(origin) - field);
      } else {
        using Lane = std::conditional_t<together == 2, vw, vi>;
        vb x = best[h];
        if constexpr (together == 4) x = maxu(x, bits<vb>(bits<vu>(x) >> 16));
        const Lane field = (bits<Lane>(maxu(x, bits<vb>(bits<std::conditional_t<together == 2, vw, vu>>(x) >> 8))) & 0xFF) >> f.below;
        unsure |= bits<vb>((Lane)(field == 0));
        store_bytes(near + h * 4 * W / together, Lane(Lane{} + std::conditional_t<together == 2, u16, i32>(origin) - field));
      }
    });
    if (any(bits<vi>(unsure) != 0)) [[unlikely]] look_closely(p, n, near);
    return load<vb>(near);
  }

 private:
  using Code = typename Fields::Code;
  static constexpr bool with_top = !std::is_base_of_v<ByteFields, Fields> && !std::is_same_v<Fields, HalfFields>;
  static constexpr int together = sizeof(Code), aside_line = columns * (std::is_same_v<Fields, ByteFields> ? 2 : together);

  // Each vector of upper bytes, `together` of them for as many positions; numbers are set aside, specials seen.
  template <class Each> BITMMA_INLINE void look(i64 p, i64 n, Each each) const {
    // Copies: what is set aside could be anything else, as far as a compiler knows.
    const Fields fields = f;
    const Found line = this->line;
    u8* const aside = this->aside;
    vb seen = most, low = fewest;
#pragma GCC unroll 4
    for (i64 i = p; i < p + n; i += together)
      unroll<together>([&](auto h) __attribute__((always_inline)) {
        vb code, upper = upper_bytes<Code>(line, i, h * 4 * W, code);
        if constexpr (with_top) low = minu(low, upper);
        seen = maxu(seen, fields.suspect(upper, code));
        each(i, h, upper);
        for (i64 t = i; t < i + together; ++t) set_aside(fields, line[t] + h * 4 * W, aside + t * aside_line + h * 4 * W);
      });
    most = seen, fewest = low;
  }
  __attribute__((noinline)) void look_closely(i64 p, i64 n, u8* near) const {
    const vi none = splat(-1024);
    for (int v = 0; v < NV; ++v) {
      vi best = none;
      for (i64 i = p; i < p + n; ++i) {
        const i32 far = a4[i] & 255;
        if (far == 255) continue;
        const vi size = (vi)(widen_codes<Code>(line[i] + v * W * together) & f.magnitude);
        best = max(best, size == 0 ? none : max(size >> f.mantissa, splat(1)) - far);
      }
      store_bytes(near + v * W, best == none ? splat(255) : i32(top_field) - best);
    }
  }
};

#else

struct Codes {
  Codes(const Format&, i64, bool = false) {}
  bool serve() const { return false; }
  vb seen() const { return vb{}; }
};

#endif

}  // namespace bitmma::BITMMA_ISA
