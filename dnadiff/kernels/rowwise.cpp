// Operations of a mixer on single positions, each in one pass over memory, forward and backward:
//
//   gated sum      out = (y + y_rev) silu(z)
//   RMS norm       out = x / sqrt(mean(x^2) + eps) weight
//   narrow linear  out = x weight^T, with so few columns of x that a general matrix product is slow
//   outer sum      a^T b, the gradient of a weight: many rows, and a result that fits into a cache
//
// An array has `count` rows of E channels with a stride of `..._row` floats. A task is one chunk of rows. Parameter gradients are
// summed in registers within a chunk, then into one sum per thread; the caller adds those.
#include "simd.h"

namespace dnadiff {

constexpr int CHUNK = 64;  // rows: with 128 channels they fit the L1 cache

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

static inline int lanes_of(int k, int E) { return E - k * W < W ? E - k * W : W; }

static inline void add_to(float* p, vec x, int lanes) { store(p, load(p, lanes) + x, lanes); }

// The weight (E, R) of a narrow linear map as (blocks, R, W): blocks of W outputs.
static void pack(const float* weight, vec* packed, int E, int R) {
  float* out = (float*)packed;
  for (int k = 0; k * W < E; k++)
    for (int r = 0; r < R; r++)
      for (int j = 0; j < W; j++) *out++ = k * W + j < E ? weight[(ptrdiff_t)(k * W + j) * R + r] : 0.f;
}

// sums (m, Q) += a^T b over rows i0 <= i < i1, for m columns of a and q vectors of b, all in registers.
template <int m, int q>
static inline void outer_tile(const float* a, const float* b, float* sums, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t a_row, ptrdiff_t b_row,
                              ptrdiff_t Q, int lanes) {
  vec total[m][q] = {};
  for (ptrdiff_t i = i0; i < i1; i++) {
    vec at[q];
    UNROLL for (int t = 0; t < q; t++) at[t] = load(b + i * b_row + t * W, q > 1 ? W : lanes);
    UNROLL for (int j = 0; j < m; j++) UNROLL for (int t = 0; t < q; t++) total[j][t] += at[t] * a[i * a_row + j];
  }
  UNROLL for (int j = 0; j < m; j++) UNROLL for (int t = 0; t < q; t++) add_to(sums + j * Q + t * W, total[j][t], q > 1 ? W : lanes);
}

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

// y_rev may be null.
void dnadiff_gate_forward(const float* y, const float* y_rev, const float* z, float* out, int64_t count, int64_t E, int64_t y_row,
                          int64_t y_rev_row, int64_t z_row, int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int) {
    for (ptrdiff_t i = i0; i < i1; i++)
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        vec sum = load(y + i * y_row + e, lanes);
        if (y_rev) sum += load(y_rev + i * y_rev_row + e, lanes);
        const vec gate = load(z + i * z_row + e, lanes);
        store(out + i * E + e, sum * (gate * logistic(gate)), lanes);
      }
  });
}

// dy is the gradient of both y and y_rev.
void dnadiff_gate_backward(const float* dout, const float* y, const float* y_rev, const float* z, float* dy, float* dz, int64_t count,
                           int64_t E, int64_t dout_row, int64_t y_row, int64_t y_rev_row, int64_t z_row, int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int) {
    for (ptrdiff_t i = i0; i < i1; i++)
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        vec sum = load(y + i * y_row + e, lanes);
        if (y_rev) sum += load(y_rev + i * y_rev_row + e, lanes);
        const vec gate = load(z + i * z_row + e, lanes), slope = logistic(gate), d = load(dout + i * dout_row + e, lanes) * slope;
        store(dy + i * E + e, d * gate, lanes);
        store(dz + i * E + e, d * sum * (1.f + gate * (1.f - slope)), lanes);
      }
  });
}

// `scale` (count,) receives 1 / sqrt(mean(x^2) + eps) for the backward pass.
void dnadiff_norm_forward(const float* x, const float* weight, float* out, float* scale, int64_t count, int64_t E, int64_t x_row,
                          double eps, int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int) {
    for (ptrdiff_t i = i0; i < i1; i++) {
      vec squares = {};
      for (int e = 0; e < E; e += W) {
        const vec at = load(x + i * x_row + e, lanes_of(e / W, (int)E));
        squares += at * at;
      }
      const float by = 1.f / __builtin_sqrtf(sum(&squares) / (float)E + (float)eps);
      scale[i] = by;
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        store(out + i * E + e, load(x + i * x_row + e, lanes) * by * load(weight + e, lanes), lanes);
      }
    }
  });
}

// With n = x scale: dx = scale (dout weight - n mean(dout weight n)). `sums` (threads, E), dweight, must be zeros on entry.
void dnadiff_norm_backward(const float* dout, const float* x, const float* weight, const float* scale, float* dx, float* sums,
                           int64_t count, int64_t E, int64_t dout_row, int64_t x_row, int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int thread) {
    float along[CHUNK];  // the component of the gradient along x, which the norm removes
    for (ptrdiff_t i = i0; i < i1; i++) {
      vec products = {};
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        products += load(dout + i * dout_row + e, lanes) * load(weight + e, lanes) * load(x + i * x_row + e, lanes);
      }
      along[i - i0] = sum(&products) / (float)E * scale[i] * scale[i];
    }
    for (int e = 0; e < E; e += W) {
      const int lanes = lanes_of(e / W, (int)E);
      const vec w = load(weight + e, lanes);
      vec dw = {};
      for (ptrdiff_t i = i0; i < i1; i++) {
        const vec d = load(dout + i * dout_row + e, lanes), at = load(x + i * x_row + e, lanes);
        dw += d * at * scale[i];
        store(dx + i * E + e, (d * w - at * along[i - i0]) * scale[i], lanes);
      }
      add_to(sums + (ptrdiff_t)thread * E + e, dw, lanes);
    }
  });
}

void dnadiff_narrow_forward(const float* x, const float* weight, float* out, int64_t count, int64_t E, int64_t R, int64_t x_row,
                            int threads) {
  const int blocks = (int)((E + W - 1) / W);
  const Scratch packed((size_t)blocks * R);
  pack(weight, packed.at, (int)E, (int)R);
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int) {
    for (int k = 0; k < blocks; k++) {
      const int lanes = lanes_of(k, (int)E);
      const vec* all = packed.at + (ptrdiff_t)k * R;
      float* to = out + k * W;
      over_tiles<M>((int)R, [&](auto tile, int r) {
        constexpr int m = tile.size;
        vec w[m];
        UNROLL for (int j = 0; j < m; j++) w[j] = all[r + j];
        for (ptrdiff_t i = i0; i < i1; i++) {
          vec sum = r ? load(to + i * E, lanes) : vec{};
          UNROLL for (int j = 0; j < m; j++) sum += w[j] * x[i * x_row + r + j];
          store(to + i * E, sum, lanes);
        }
      });
    }
  });
}

// `sums` (threads, R, E), dweight, must be zeros on entry.
void dnadiff_narrow_backward(const float* dout, const float* x, const float* weight, float* dx, float* sums, int64_t count, int64_t E,
                             int64_t R, int64_t dout_row, int64_t x_row, int threads) {
  const int blocks = (int)((E + W - 1) / W);
  const Scratch packed((size_t)blocks * R);
  pack(weight, packed.at, (int)E, (int)R);
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int thread) {
    over_tiles<M>((int)R, [&](auto tile, int r) {
      constexpr int m = tile.size;
      for (ptrdiff_t i = i0; i < i1; i++) {
        vec d[m] = {};
        for (int k = 0; k < blocks; k++) {
          const vec at = load(dout + i * dout_row + k * W, lanes_of(k, (int)E));
          UNROLL for (int j = 0; j < m; j++) d[j] += at * packed.at[(ptrdiff_t)k * R + r + j];
        }
        UNROLL for (int j = 0; j < m; j++) dx[i * R + r + j] = sum(d + j);
      }
      for (int k = 0; k < blocks; k++) {
        const int lanes = lanes_of(k, (int)E);
        vec dw[m] = {};
        for (ptrdiff_t i = i0; i < i1; i++) {
          const vec at = load(dout + i * dout_row + k * W, lanes);
          UNROLL for (int j = 0; j < m; j++) dw[j] += at * x[i * x_row + r + j];
        }
        UNROLL for (int j = 0; j < m; j++) add_to(sums + ((ptrdiff_t)thread * R + r + j) * E + k * W, dw[j], lanes);
      }
    });
  });
}
// a^T b of a (count, P) and b (count, Q): the gradient of a weight (P, Q). `sums` (threads, P, Q) must be zeros on entry.
void dnadiff_outer_sum(const float* a, const float* b, float* sums, int64_t count, int64_t P, int64_t Q, int64_t a_row, int64_t b_row,
                       int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int thread) {
    over_tiles<M>((int)P, [&](auto tile, int p) {
      constexpr int m = tile.size;
      float* to = sums + ((ptrdiff_t)thread * P + p) * Q;
      int64_t e = 0;
      for (; e + 2 * W <= Q; e += 2 * W) outer_tile<m, 2>(a + p, b + e, to + e, i0, i1, a_row, b_row, Q, W);
      for (; e < Q; e += W) outer_tile<m, 1>(a + p, b + e, to + e, i0, i1, a_row, b_row, Q, lanes_of((int)(e / W), (int)Q));
    });
  });
}
}
