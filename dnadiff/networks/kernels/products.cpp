// The tiles behind products.h, and products as operators of their own.
#include "products.h"

namespace dnadiff {

// Rows 0..m-1 of x times q vectors of columns, the last of which has `lanes` of them.
template <int m, int q>
static inline void product_tile(const float* x, ptrdiff_t x_row, const vec* w, ptrdiff_t R, float* out, ptrdiff_t out_row, int lanes, bool add) {
  vec sum[m][q] = {};
  for (ptrdiff_t r = 0; r < R; r++) {
    vec at[q];
    UNROLL for (int t = 0; t < q; t++) at[t] = w[r * q + t];
    UNROLL for (int i = 0; i < m; i++) {
      const vec by = splat(x[i * x_row + r]);
      UNROLL for (int t = 0; t < q; t++) sum[i][t] += by * at[t];
    }
  }
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int t = 0; t < q; t++) {
    float* to = out + i * out_row + t * W;
    const int n = t == q - 1 ? lanes : W;
    store(to, add ? load(to, n) + sum[i][t] : sum[i][t], n);
  }
}

template <int q>
static void product_panel(const float* x, ptrdiff_t x_row, const vec* w, ptrdiff_t R, float* out, ptrdiff_t out_row, ptrdiff_t count, int lanes,
                          bool add) {
  ptrdiff_t i = 0;
  for (; i + TALL <= count; i += TALL) product_tile<TALL, q>(x + i * x_row, x_row, w, R, out + i * out_row, out_row, lanes, add);
  for (; i + 2 <= count; i += 2) product_tile<2, q>(x + i * x_row, x_row, w, R, out + i * out_row, out_row, lanes, add);
  if (i < count) product_tile<1, q>(x + i * x_row, x_row, w, R, out + i * out_row, out_row, lanes, add);
}

void Panels::multiply(const float* x, ptrdiff_t x_row, float* out, ptrdiff_t out_row, ptrdiff_t count, bool add) const {
  for (ptrdiff_t e = 0; e < E; e += PANEL * W) {
    const ptrdiff_t left = E - e < PANEL * W ? E - e : PANEL * W, q = (left + W - 1) / W;
    const int lanes = (int)(left - (q - 1) * W);
    const vec* w = packed.at + e / W * R;
    if (q == 1) product_panel<1>(x, x_row, w, R, out + e, out_row, count, lanes, add);
    else if (q == 2) product_panel<2>(x, x_row, w, R, out + e, out_row, count, lanes, add);
    else if constexpr (PANEL > 2) {
      if (q == 3) product_panel<3>(x, x_row, w, R, out + e, out_row, count, lanes, add);
      else product_panel<4>(x, x_row, w, R, out + e, out_row, count, lanes, add);
    }
  }
}

Narrow::Narrow(const float* w, ptrdiff_t E, ptrdiff_t R) : E(E), R(R), blocks((E + W - 1) / W), packed((size_t)(blocks * R)) {
  for (ptrdiff_t r = 0; r < R; r++)
    for (ptrdiff_t e = 0; e < blocks * W; e++) ((float*)packed.at)[r * blocks * W + e] = e < E ? w[e * R + r] : 0.f;
}

void Narrow::multiply(const float* x, ptrdiff_t x_row, float* out, ptrdiff_t out_row, ptrdiff_t count) const {
  over_tiles<4>((int)R, [&](auto tile, int r) {
    constexpr int m = tile.size;
    for (ptrdiff_t i = 0; i < count; i++) {
      vec total[m] = {};
      for (ptrdiff_t k = 0; k < blocks; k++) {
        const vec at = load(x + i * x_row + k * W, (int)(E - k * W < W ? E - k * W : W));
        UNROLL for (int j = 0; j < m; j++) total[j] += at * packed.at[(r + j) * blocks + k];
      }
      UNROLL for (int j = 0; j < m; j++) out[i * out_row + r + j] = sum(total + j);
    }
  });
}

// sums (m, Q) += a^T b over `count` rows, for m columns of a and q vectors of b, all in registers.
template <int m, int q>
static inline void outer_tile(const float* a, ptrdiff_t a_row, const float* b, ptrdiff_t b_row, ptrdiff_t count, float* sums, ptrdiff_t Q,
                              int lanes) {
  vec total[m][q] = {};
  for (ptrdiff_t i = 0; i < count; i++) {
    vec at[q];
    UNROLL for (int t = 0; t < q; t++) at[t] = load(b + i * b_row + t * W, q > 1 ? W : lanes);
    UNROLL for (int j = 0; j < m; j++) UNROLL for (int t = 0; t < q; t++) total[j][t] += at[t] * a[i * a_row + j];
  }
  UNROLL for (int j = 0; j < m; j++) UNROLL for (int t = 0; t < q; t++) add_to(sums + j * Q + t * W, total[j][t], q > 1 ? W : lanes);
}

void outer_add(const float* a, ptrdiff_t a_row, ptrdiff_t P, const float* b, ptrdiff_t b_row, ptrdiff_t Q, ptrdiff_t count, float* sums) {
  over_tiles<M>((int)P, [&](auto tile, int p) {
    constexpr int m = tile.size;
    float* to = sums + p * Q;
    ptrdiff_t e = 0;
    for (; e + 2 * W <= Q; e += 2 * W) outer_tile<m, 2>(a + p, a_row, b + e, b_row, count, to + e, Q, W);
    for (; e < Q; e += W) outer_tile<m, 1>(a + p, a_row, b + e, b_row, count, to + e, Q, (int)(Q - e < W ? Q - e : W));
  });
}

constexpr int CHUNK = 48;  // rows: with 128 channels they fit the L1 cache

// f(i0, i1, thread) over chunks of rows.
template <class F>
static void over_chunks(ptrdiff_t count, int threads, F f) {
  parallel((count + CHUNK - 1) / CHUNK, threads, [&](ptrdiff_t begin, ptrdiff_t end, int thread) {
    for (ptrdiff_t task = begin; task < end; task++) {
      const ptrdiff_t i0 = task * CHUNK, i1 = i0 + CHUNK < count ? i0 + CHUNK : count;
      f(i0, i1, thread);
    }
  });
}

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

// out (count, E) = x (count, R) times w, a matrix (R, E) of any strides; with `add`, added to what is there.
void dnadiff_product(const float* x, const float* w, float* out, int64_t count, int64_t R, int64_t E, int64_t x_row, int64_t w_row,
                     int64_t w_column, int64_t out_row, int add, int threads) {
  const Panels panels(w, R, E, w_row, w_column);
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int) {
    panels.multiply(x + i0 * x_row, x_row, out + i0 * out_row, out_row, i1 - i0, add);
  });
}

// a^T b of a (count, P) and b (count, Q): the gradient of a weight (P, Q). `sums` (threads, P, Q) must be zeros on entry.
void dnadiff_outer_sum(const float* a, const float* b, float* sums, int64_t count, int64_t P, int64_t Q, int64_t a_row, int64_t b_row,
                       int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int thread) {
    outer_add(a + i0 * a_row, a_row, P, b + i0 * b_row, b_row, Q, i1 - i0, sums + thread * P * Q);
  });
}
}
