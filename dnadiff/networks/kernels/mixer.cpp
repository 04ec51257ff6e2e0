// The parts of a mixer between its scans, each in one pass over the positions: products and convolutions follow each other on a chunk of
// rows that the caches hold, so that most intermediate results are never written to memory.
//
//   input     x, z = the two halves of hidden W_in^T
//   steps     u = conv(x) in each direction, p = u W_x^T (the low-rank step sizes, B and C), delta = p[:, :R] W_dt^T
//   output    out = ((y + y_rev) silu(z)) W_out^T
//
// The scans are in selective_scan.cpp and stream_scan.cpp. `valid` (count), if not null, is 0 at padding: there x and u are 0, and delta is
// so negative that the step is 0. Gradients of weights are added into `sums`, one per thread.
//
// In block diffusion the convolutions of the noised stream are confined to blocks, and the inputs before a block are those of the clean one.
#include "products.h"
#include "short_conv.h"

namespace dnadiff {

constexpr int CHUNK = 48;
constexpr float NO_STEP = -1e4f;

// f(b, i0, i1, thread) over the chunks of all sequences.
template <class F>
static void over_chunks(ptrdiff_t batch, ptrdiff_t L, int threads, F f) {
  const ptrdiff_t chunks = (L + CHUNK - 1) / CHUNK;
  parallel(batch * chunks, threads, [&](ptrdiff_t begin, ptrdiff_t end, int thread) {
    for (ptrdiff_t task = begin; task < end; task++) {
      const ptrdiff_t i0 = task % chunks * CHUNK;
      f(task / chunks, i0, i0 + CHUNK < L ? i0 + CHUNK : L, thread);
    }
  });
}

static void fill_padding(const uint8_t* valid, ptrdiff_t first, ptrdiff_t count, float* rows, ptrdiff_t E, float value) {
  for (ptrdiff_t i = 0; valid && i < count; i++)
    if (!valid[first + i])
      for (ptrdiff_t e = 0; e < E; e++) rows[i * E + e] = value;
}

static inline int lanes_at(ptrdiff_t e, ptrdiff_t E) { return E - e < W ? (int)(E - e) : W; }

// Adds to dx, of the positions i0 <= i < i1, the gradients of the inputs before the blocks of one sequence.
static void add_near(const float* dnear, float* dx, ptrdiff_t L, ptrdiff_t block, ptrdiff_t K, ptrdiff_t E, ptrdiff_t i0, ptrdiff_t i1) {
  for (ptrdiff_t index = i0 / block + 1; index * block < L && index * block - (K - 1) < i1; index++)
    for (ptrdiff_t k = 0; k < K - 1; k++) {
      const ptrdiff_t i = index * block - (K - 1) + k;
      if (i < i0 || i >= i1) continue;
      const float* from = dnear + (index * (K - 1) + k) * E;
      for (ptrdiff_t e = 0; e < E; e += W) add_to(dx + (i - i0) * E + e, load(from + e, lanes_at(e, E)), lanes_at(e, E));
    }
}

// One direction: its weights and the arrays that it writes, p (count, R + 2 N).
struct Way {
  const float *conv, *bias, *x_proj, *dt;  // (E, K), (E,), (R + 2 N, E), (E, R)
  float *u, *p, *delta;
};

// One array of a thread, of `size` floats.
struct Floats : Scratch {
  explicit Floats(ptrdiff_t size) : Scratch((size_t)(size + W - 1) / W) {}
  operator float*() const { return (float*)at; }
};

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

// w (2 E, D). z may be null: not computed.
void dnadiff_mixer_input(const float* hidden, const float* w, const uint8_t* valid, float* x, float* z, int64_t batch, int64_t L, int64_t D,
                         int64_t E, int threads) {
  const Panels first(w, D, E, 1, D), second(w + E * D, D, E, 1, D);
  over_chunks(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int) {
    const ptrdiff_t row = b * L + i0, count = i1 - i0;
    first.multiply(hidden + row * D, D, x + row * E, E, count, false);
    if (z) second.multiply(hidden + row * D, D, z + row * E, E, count, false);
    fill_padding(valid, row, count, x + row * E, E, 0.f);
  });
}

// The second of `ways`, if there are two, runs in reverse. `block` is 0 for whole sequences; otherwise `clean` (batch, L, E) has the inputs
// before each block.
void dnadiff_mixer_steps(const float* x, const float* clean, const uint8_t* valid, const Way* ways, int64_t num_ways, int64_t batch, int64_t L,
                         int64_t E, int64_t K, int64_t R, int64_t N, int64_t block, int threads) {
  const bool both = num_ways == 2;
  const ptrdiff_t P = R + 2 * N;
  const Conv conv{L, (int)E, (int)K, ways[0].conv, ways[0].bias, both ? ways[1].conv : nullptr, both ? ways[1].bias : nullptr, block, 0};
  const Panels first(ways[0].x_proj, E, P, 1, E), second(ways[num_ways - 1].x_proj, E, P, 1, E);
  const Panels first_dt(ways[0].dt, R, E, 1, R), second_dt(ways[num_ways - 1].dt, R, E, 1, R);
  over_chunks(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int) {
    const Rows<const float> xs(x, b, L, E, false);
    const Rows<float> us(ways[0].u, b, L, E, false), us_rev(ways[num_ways - 1].u, b, L, E, false);
    const Near near{nullptr, nullptr, clean ? clean + b * L * E : nullptr};
    (both ? conv_forward<4, true> : conv_forward<4, false>)(conv, xs, near, us, us_rev, i0, i1);
    const ptrdiff_t row = b * L + i0, count = i1 - i0;
    for (int way = 0; way < num_ways; way++) {
      const Way& to = ways[way];
      fill_padding(valid, row, count, to.u + row * E, E, 0.f);
      (way ? second : first).multiply(to.u + row * E, E, to.p + row * P, P, count, false);
      (way ? second_dt : first_dt).multiply(to.p + row * P, P, to.delta + row * E, E, count, false);
      fill_padding(valid, row, count, to.delta + row * E, E, NO_STEP);
    }
  });
}

// y_rev may be null. w (D, E).
void dnadiff_mixer_output(const float* y, const float* y_rev, const float* z, const float* w, float* out, int64_t batch, int64_t L, int64_t D,
                          int64_t E, int threads) {
  const Panels panels(w, E, D, 1, E);
  over_chunks(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int) {
    const Floats gated(CHUNK * E);
    const ptrdiff_t row = b * L + i0, count = i1 - i0;
    for (ptrdiff_t i = 0; i < count; i++)
      for (ptrdiff_t e = 0; e < E; e += W) {
        const int lanes = lanes_at(e, E);
        const ptrdiff_t at = (row + i) * E + e;
        vec sum = load(y + at, lanes);
        if (y_rev) sum += load(y_rev + at, lanes);
        const vec gate = load(z + at, lanes);
        store(gated + i * E + e, sum * (gate * logistic(gate)), lanes);
      }
    panels.multiply(gated, E, out + row * D, D, count, false);
  });
}

// From dout: dy (of y and y_rev), dhidden through z alone, and sums (threads, D E + E D) of dw_out and of the second half of dw_in.
// w_z (E, D) is the second half of w_in.
void dnadiff_mixer_output_backward(const float* dout, const float* y, const float* y_rev, const float* z, const float* hidden, const float* w_out,
                                   const float* w_z, float* dy, float* dhidden, float* sums, int64_t batch, int64_t L, int64_t D, int64_t E,
                                   int64_t sums_row, int threads) {
  const Panels back(w_out, D, E, E, 1), back_z(w_z, E, D, D, 1);
  over_chunks(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int thread) {
    const Floats gated(CHUNK * E), dz(CHUNK * E);
    const ptrdiff_t row = b * L + i0, count = i1 - i0;
    back.multiply(dout + row * D, D, dz, E, count, false);
    for (ptrdiff_t i = 0; i < count; i++)
      for (ptrdiff_t e = 0; e < E; e += W) {
        const int lanes = lanes_at(e, E);
        const ptrdiff_t at = (row + i) * E + e;
        vec sum = load(y + at, lanes);
        if (y_rev) sum += load(y_rev + at, lanes);
        const vec gate = load(z + at, lanes), slope = logistic(gate), d = load(dz + i * E + e, lanes) * slope;
        store(gated + i * E + e, sum * (gate * slope), lanes);
        store(dy + at, d * gate, lanes);
        store(dz + i * E + e, d * sum * (1.f + gate * (1.f - slope)), lanes);
      }
    float* to = sums + thread * sums_row;
    outer_add(dout + row * D, D, D, gated, E, E, count, to);
    back_z.multiply(dz, E, dhidden + row * D, D, count, false);
    outer_add(dz, E, E, hidden + row * D, D, D, count, to + D * E);
  });
}

// Of one direction, from ddelta, dB and dC: adds to du the gradient through x_proj, and to sums (threads, (R + 2 N) E + R E) those of
// x_proj and, transposed, of dt. Positions that are padding pass nothing on.
void dnadiff_mixer_steps_backward(const float* ddelta, const float* dB, const float* dC, const float* u, const float* p, const float* x_proj,
                                  const float* dt, const uint8_t* valid, float* du, float* sums, int64_t batch, int64_t L, int64_t E, int64_t R,
                                  int64_t N, int64_t sums_row, int threads) {
  const ptrdiff_t P = R + 2 * N;
  const Panels back(x_proj, P, E, E, 1);
  const Narrow back_dt(dt, E, R);
  over_chunks(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int thread) {
    const Floats dp(CHUNK * P);
    const ptrdiff_t row = b * L + i0, count = i1 - i0;
    back_dt.multiply(ddelta + row * E, E, dp, P, count);
    for (ptrdiff_t i = 0; i < count; i++)
      for (ptrdiff_t n = 0; n < N; n++) dp[i * P + R + n] = dB[(row + i) * N + n], dp[i * P + R + N + n] = dC[(row + i) * N + n];
    float* to = sums + thread * sums_row;
    back.multiply(dp, P, du + row * E, E, count, true);
    fill_padding(valid, row, count, du + row * E, E, 0.f);
    outer_add(dp, P, P, u + row * E, E, E, count, to);
    outer_add(p + row * P, P, R, ddelta + row * E, E, E, count, to + P * E);
  });
}

// From du of both directions (du_rev null for one): adds to dhidden the gradient through x, and to sums (threads, E D + (K + 1) E for
// each direction) those of the first half w_x (E, D) of w_in, and of filters and biases. `dnear` (batch, blocks, K - 1, E) is the gradient of
// the inputs before blocks: with `clean` (see above) it is written, otherwise, if not null, it is added to that of x.
void dnadiff_mixer_input_backward(const float* du, const float* du_rev, const float* x, const float* clean, const float* hidden,
                                  const float* w_x, const float* conv, const float* bias, const float* conv_rev, const float* bias_rev,
                                  const uint8_t* valid, float* dnear, float* dhidden, float* sums, int64_t batch, int64_t L, int64_t D,
                                  int64_t E, int64_t K, int64_t block, int64_t sums_row, int threads) {
  const Conv c{L, (int)E, (int)K, conv, bias, conv_rev, bias_rev, clean ? block : 0, 0};
  const Panels back(w_x, E, D, D, 1);
  over_chunks(batch, L, threads, [&](ptrdiff_t b, ptrdiff_t i0, ptrdiff_t i1, int thread) {
    const Floats dx(CHUNK * E);
    const Rows<const float> xs(x, b, L, E, false), dus(du, b, L, E, false), dus_rev(du_rev ? du_rev : du, b, L, E, false);
    float* dnear_b = dnear ? dnear + b * ((L + block - 1) / block) * (K - 1) * E : nullptr;
    const Near near = clean ? Near{nullptr, dnear_b, clean + b * L * E} : Near{};
    const ptrdiff_t row = b * L + i0, count = i1 - i0;
    float* to = sums + thread * sums_row;
    (du_rev ? conv_backward<4, true> : conv_backward<4, false>)(c, xs, near, dus, dus_rev, dx, E, to + E * D, i0, i1);
    if (dnear && !clean) add_near(dnear_b, dx, L, block, K, E, i0, i1);
    fill_padding(valid, row, count, dx, E, 0.f);
    back.multiply(dx, E, dhidden + row * D, D, count, true);
    outer_add(dx, E, E, hidden + row * D, D, D, count, to);
  });
}
}
