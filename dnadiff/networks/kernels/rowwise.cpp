// Operations of a mixer on single positions, each in one pass over memory, forward and backward:
//
//   gated sum      out = (y + y_rev) silu(z)
//   RMS norm       out = x / sqrt(mean(x^2) + eps) weight
//
// An array has `count` rows of E channels with a stride of `..._row` floats. A task is one chunk of rows. Parameter gradients are
// summed in registers within a chunk, then into one sum per thread; the caller adds those.
#include "simd.h"

namespace dnadiff {

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

static inline int lanes_of(int k, int E) { return E - k * W < W ? E - k * W : W; }

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

// out = norm of total = x + added, or of x if `added` and `total` are null. `scale` (count,) receives 1 / sqrt(mean(total^2) + eps) for the
// backward pass.
void dnadiff_norm_forward(const float* x, const float* added, const float* weight, float* total, float* out, float* scale, int64_t count,
                          int64_t E, int64_t x_row, double eps, int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int) {
    for (ptrdiff_t i = i0; i < i1; i++) {
      vec squares = {};
      const float* from = total ? total + i * E : x + i * x_row;
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        vec at = load(x + i * x_row + e, lanes);
        if (total) at += load(added + i * E + e, lanes), store(total + i * E + e, at, lanes);
        squares += at * at;
      }
      const float by = 1.f / __builtin_sqrtf(sum(&squares) / (float)E + (float)eps);
      scale[i] = by;
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        store(out + i * E + e, load(from + e, lanes) * by * load(weight + e, lanes), lanes);
      }
    }
  });
}

// With n = x scale: dx = scale (dout weight - n mean(dout weight n)), plus dtotal if that is not null. `sums` (threads, E), dweight, must
// be zeros on entry.
void dnadiff_norm_backward(const float* dout, const float* dtotal, const float* x, const float* weight, const float* scale, float* dx,
                           float* sums, int64_t count, int64_t E, int64_t dout_row, int64_t x_row, int threads) {
  over_chunks(count, threads, [&](ptrdiff_t i0, ptrdiff_t i1, int thread) {
    float* dweight = sums + (ptrdiff_t)thread * E;
    for (ptrdiff_t i = i0; i < i1; i++) {
      vec products = {};
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        products += load(dout + i * dout_row + e, lanes) * load(weight + e, lanes) * load(x + i * x_row + e, lanes);
      }
      const float along = sum(&products) / (float)E * scale[i] * scale[i];  // the gradient along x, which the norm removes
      for (int e = 0; e < E; e += W) {
        const int lanes = lanes_of(e / W, (int)E);
        const vec d = load(dout + i * dout_row + e, lanes), at = load(x + i * x_row + e, lanes);
        store(dweight + e, load(dweight + e, lanes) + d * at * scale[i], lanes);
        vec gradient = (d * load(weight + e, lanes) - at * along) * scale[i];
        if (dtotal) gradient += load(dtotal + i * E + e, lanes);
        store(dx + i * E + e, gradient, lanes);
      }
    }
  });
}
}
