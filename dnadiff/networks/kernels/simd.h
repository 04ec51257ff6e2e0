// One vector of W floats (W channels of one position), its elementary functions, and loops over threads.
//
// Written with the vector extensions of GCC and Clang, so that one source serves AVX-512, AVX2, SSE2 and NEON. The compiler flags
// choose the width, on the machine that runs the code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
// <immintrin.h> takes 0.3 s to compile for every source, and only two functions are used: these are the compilers' builtins for them.
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_ia32_rndscaleps_mask) && __has_builtin(__builtin_ia32_scalefps512_mask)
#define ROUND(x) __builtin_ia32_rndscaleps_mask(x, 0, x, (unsigned short)-1, 4)
#define SCALE(x, exponent) __builtin_ia32_scalefps512_mask(x, exponent, x, (unsigned short)-1, 4)
#elif defined(__AVX512F__)
#include <immintrin.h>
#define ROUND(x) _mm512_roundscale_ps((__m512)(x), 0)
#define SCALE(x, exponent) _mm512_scalef_ps((__m512)(x), (__m512)(exponent))
#endif
#if defined(__AVX512F__) && __has_builtin(__builtin_ia32_loadups512_mask) && __has_builtin(__builtin_ia32_storeups512_mask)
#define MASKED_LOAD(p, lanes) __builtin_ia32_loadups512_mask(p, vec{}, (unsigned short)((1 << (lanes)) - 1))
#define MASKED_STORE(p, x, lanes) __builtin_ia32_storeups512_mask(p, x, (unsigned short)((1 << (lanes)) - 1))
#endif
#if defined(__AVX512F__) && __has_builtin(__builtin_ia32_rcp14ps512_mask)
#define APPROXIMATE_RECIPROCAL(x) __builtin_ia32_rcp14ps512_mask(x, x, (unsigned short)-1)
#elif defined(__AVX512F__)
#define APPROXIMATE_RECIPROCAL(x) _mm512_rcp14_ps((__m512)(x))
#elif defined(__AVX2__) && __has_builtin(__builtin_ia32_rcpps256)
#define APPROXIMATE_RECIPROCAL(x) __builtin_ia32_rcpps256(x)
#endif
#ifndef _OPENMP
#include <thread>
#include <vector>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

namespace dnadiff {

#if defined(__AVX512F__)
constexpr int W = 16, M = 8;  // channels in a vector; vectors that a loop keeps in registers
constexpr const char* NAME = "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int W = 8, M = 4;  // 16 registers hold 4 states, their decay rates and the exponential's temporaries
constexpr const char* NAME = "AVX2";
#elif defined(__ARM_NEON)
constexpr int W = 4, M = 8;
constexpr const char* NAME = "NEON";
#else
constexpr int W = 4, M = 4;
constexpr const char* NAME = "128-bit vectors";
#endif

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef float anywhere __attribute__((vector_size(4 * W), aligned(4), may_alias));  // unaligned

constexpr float LOG2E = 1.44269504088896f, LN2 = 0.693147180559945f;

static inline vec splat(float x) { return vec{} + x; }
static inline vec lower(vec x, vec y) { return x > y ? y : x; }  // a NaN in x stays
static inline vec higher(vec x, vec y) { return x < y ? y : x; }

// The first `lanes` floats at p; the rest are 0.
static inline vec load(const float* p, int lanes) {
  if (lanes == W) return *(const anywhere*)p;
#if defined(MASKED_LOAD)
  return (vec)MASKED_LOAD(p, lanes);
#endif
  vec x = {};
  std::memcpy(&x, p, sizeof(float) * lanes);
  return x;
}

static inline void store(float* p, vec x, int lanes) {
  if (lanes == W) *(anywhere*)p = x;
#if defined(MASKED_LOAD)
  else MASKED_STORE(p, x, lanes);
#else
  else std::memcpy(p, &x, sizeof(float) * lanes);
#endif
}

// 1 / x to 1 ulp for positive x; 0 above 1e38. A division takes as long as ten multiplications. AVX2 estimates 12 bits, AVX-512 14: with one
// refinement less, 1 / 1 would be below 1 there, and the slope of z logistic(z) would be wrong by 6e-8 z for large z.
static inline vec reciprocal(vec x) {
#if defined(APPROXIMATE_RECIPROCAL)
  x = lower(x, splat(1e38f));  // infinity times 0 would be NaN
  vec r = (vec)APPROXIMATE_RECIPROCAL(x);
#if !defined(__AVX512F__)
  r = r + r * (1.f - x * r);
#endif
  return r + r * (1.f - x * r);
#else
  return 1.f / x;
#endif
}

// 2^t to 1.2e-7 relative: round t to r, a minimax polynomial for 2^(t-r), and r into the exponent.
static inline vec exp2(vec t) {
#if defined(__AVX512F__)
  vec r = (vec)ROUND(t);
#else
  t = lower(higher(t, splat(-126.f)), splat(127.f));
  vec shifted = t + 12582912.f;  // 1.5 * 2^23: the sum's last bit counts ones, so adding rounds t
  vec r = shifted - 12582912.f;
#endif
  vec f = t - r;
  vec p = f * 1.3264727197e-3f + 9.6715126397e-3f;
  p = p * f + 5.5507337433e-2f;
  p = p * f + 2.4022242085e-1f;
  p = p * f + 6.9314697760e-1f;
  p = p * f + 1.f;
#if defined(__AVX512F__)
  return (vec)SCALE(p, r);
#else
  return (vec)((ivec)p + ((ivec)shifted << 23));
#endif
}

// softplus(x) = log(1 + e^x) and its slope, the logistic function. Both are exactly 0 below about -87.
static inline vec softplus(vec x, vec& slope) {
  vec zero = {};
  vec size = x < zero ? -x : x;
  vec z = exp2(size * -LOG2E);
  z = size > splat(87.f) ? zero : z;
  vec s = z * reciprocal(z + 2.f), q = s * s;  // log(1 + z) = 2 atanh(z / (2 + z)), a short series since s <= 1/3
  vec p = q * 1.4012229312e-1f + 1.3999570569e-1f;
  p = p * q + 2.0010849527e-1f;
  p = p * q + 3.3333206566e-1f;
  vec log1p = 2.f * (s + s * q * p);
  slope = (x < zero ? z : splat(1.f)) * reciprocal(z + 1.f);
  return (x < zero ? zero : x) + log1p;
}

static inline vec logistic(vec x) { return reciprocal(1.f + exp2(x * -LOG2E)); }

static inline float sum(const vec* x) {
  typedef float four __attribute__((vector_size(16), may_alias));
  const four* part = (const four*)x;
  four s = part[0];
  for (int j = 1; j < W / 4; j++) s += part[j];
  return (s[0] + s[1]) + (s[2] + s[3]);
}

template <int m>
struct Tile {
  static constexpr int size = m;
};

// Calls f(tile, n) for tiles that cover 0..N-1, `most` (a power of two) at a time.
template <int most, class F>
static inline void over_tiles(int N, const F& f, int n = 0) {
  for (; n + most <= N; n += most) f(Tile<most>(), n);
  if constexpr (most > 1)
    if (n < N) over_tiles<most / 2>(N, f, n);
}

// Scratch memory of one thread, aligned to a vector.
struct Scratch {
  vec* at;
  explicit Scratch(size_t count) : at(static_cast<vec*>(::operator new(count * sizeof(vec), std::align_val_t(64)))) {}
  ~Scratch() { ::operator delete(at, std::align_val_t(64)); }
  Scratch(const Scratch&) = delete;
};

// Within its scope denormals (below 1e-38) are 0: strong decays produce them, and x86 computes with them a hundred times slower.
struct FlushDenormals {
#if defined(__SSE2__)
  unsigned saved = __builtin_ia32_stmxcsr();
  FlushDenormals() { __builtin_ia32_ldmxcsr(saved | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved); }
#else
  FlushDenormals() {}
#endif
};

// The rows (positions) of one sequence of a (B, L, E) array, in the order in which the recurrence visits them.
template <class Float>
struct Rows {
  Float* first;
  ptrdiff_t stride;
  Rows(Float* array, ptrdiff_t b, ptrdiff_t L, ptrdiff_t row, bool reverse)
      : first(array + b * L * row + (reverse ? (L - 1) * row : 0)), stride(reverse ? -row : row) {}
  Float* operator[](ptrdiff_t i) const { return first + i * stride; }
};

// f(begin, end, thread) over `threads` equal parts of 0..count-1; the assignment does not depend on timing.
template <class F>
void parallel(ptrdiff_t count, int threads, F f) {
  if (threads > count) threads = count < 1 ? 1 : (int)count;
  auto part = [&](int t) {
    FlushDenormals guard;
    f(count * t / threads, count * (t + 1) / threads, t);
  };
  if (threads == 1) return part(0);
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; t++) part(t);
#else
  std::vector<std::thread> others;
  for (int t = 1; t < threads; t++) others.emplace_back(part, t);
  part(0);
  for (auto& other : others) other.join();
#endif
}

}  // namespace dnadiff
