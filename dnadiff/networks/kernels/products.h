// Products of many short rows with a small weight, and the gradients of such weights.
//
// Libraries reach a third to four fifths of a processor's rate on these shapes. Here the weight is packed once into panels of a few
// vectors, which stay in the first or second level cache, and the sums of a tile of rows and one panel are in registers. The order of
// the sums does not depend on the number of rows: a row has the same result in any batch.
#pragma once
#include "simd.h"

namespace dnadiff {

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int PANEL = 4, TALL = 6;  // 24 sums, 4 vectors of the weight and one of x in 32 registers
#else
constexpr int PANEL = 2, TALL = 6;
#endif

// A matrix (R, E) of any strides in panels (R, q, W) of q vectors of columns: PANEL of them, in the last panel those that are left.
struct Panels {
  ptrdiff_t R, E;
  Scratch packed;

  Panels(const float* w, ptrdiff_t R, ptrdiff_t E, ptrdiff_t row, ptrdiff_t column) : R(R), E(E), packed((size_t)((E + W - 1) / W * R)) {
    float* to = (float*)packed.at;
    for (ptrdiff_t e = 0; e < E; e += PANEL * W) {
      const ptrdiff_t left = E - e, width = left < PANEL * W ? (left + W - 1) / W * W : PANEL * W;
      for (ptrdiff_t r = 0; r < R; r++, to += width)
        for (ptrdiff_t j = 0; j < width; j++) to[j] = j < left ? w[r * row + (e + j) * column] : 0.f;
    }
  }

  // out (count, E) = x (count, R) times the matrix; with `add`, added to what is there.
  void multiply(const float* x, ptrdiff_t x_row, float* out, ptrdiff_t out_row, ptrdiff_t count, bool add) const;
};

// A matrix (E, R) of few columns: products with it are sums over lanes, where panels would leave most lanes empty.
struct Narrow {
  ptrdiff_t E, R, blocks;
  Scratch packed;

  Narrow(const float* w, ptrdiff_t E, ptrdiff_t R);

  // out (count, R) = x (count, E) times the matrix.
  void multiply(const float* x, ptrdiff_t x_row, float* out, ptrdiff_t out_row, ptrdiff_t count) const;
};

static inline void add_to(float* p, vec x, int lanes) { store(p, load(p, lanes) + x, lanes); }

// sums (P, Q) += a^T b of a (count, P) and b (count, Q): the gradient of a weight, from one chunk of rows.
void outer_add(const float* a, ptrdiff_t a_row, ptrdiff_t P, const float* b, ptrdiff_t b_row, ptrdiff_t Q, ptrdiff_t count, float* sums);

}  // namespace dnadiff
