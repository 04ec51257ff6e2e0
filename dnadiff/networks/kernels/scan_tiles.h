// The recurrences of the selective scan over one chunk of positions and one vector of channels, and how a sequence is cut into chunks.
#pragma once
#include "simd.h"

namespace dnadiff {

constexpr int T = 32;
constexpr int BACK = W == 8 ? M / 2 : M;  // states that the backward pass keeps in registers: it has twice as many values for each

struct Shape {
  ptrdiff_t L, block, missing;  // missing: positions by which the first block is shorter than the others
  int E, N, vectors, blocks, per_block, chunks;
  Shape(ptrdiff_t L, int E, int N, ptrdiff_t block, bool reverse)
      : L(L), block(block), E(E), N(N), vectors((E + W - 1) / W), blocks((int)((L + block - 1) / block)), per_block((int)((block + T - 1) / T)) {
    missing = reverse ? blocks * block - L : 0, chunks = blocks * per_block;
  }
  int lanes(int k) const { return E - k * W < W ? E - k * W : W; }
  ptrdiff_t start(int c) const { return c < per_block ? (ptrdiff_t)c * T : c / per_block * block - missing + c % per_block * T; }
  int length(int c) const {
    const ptrdiff_t begin = start(c), next = (c / per_block + 1) * block - missing, end = next < L ? next : L;
    return end - begin < T ? end < begin ? 0 : (int)(end - begin) : T;
  }
};

// A (E, N) -> (vectors, N, W) for vectors k0 <= k < k1, in units of log 2: the decay is 2^(step a).
static void pack_rates(const float* A, vec* a, const Shape& s, int k0, int k1) {
  float* out = (float*)a;
  for (int k = k0; k < k1; k++)
    for (int n = 0; n < s.N; n++)
      for (int j = 0; j < W; j++) *out++ = k * W + j < s.E ? A[(ptrdiff_t)(k * W + j) * s.N + n] * LOG2E : 0.f;
}

static void clear(vec* x, size_t count) { std::memset(static_cast<void*>(x), 0, count * sizeof(vec)); }

// The states (N, W) of one vector of channels, from and to an array (N, E) that may be null: zero. Those of the next chunk, a whole array
// further, are prefetched: `next` is 1 or -1, or 0 for none.
static inline void load_states(const float* from, vec* h, const Shape& s, int lanes, int next) {
  const ptrdiff_t further = (ptrdiff_t)next * s.N * s.E;
  for (int n = 0; n < s.N; n++) {
    h[n] = from ? load(from + (ptrdiff_t)n * s.E, lanes) : vec{};
    if (from && next) __builtin_prefetch(from + further + (ptrdiff_t)n * s.E);
  }
}

static inline void store_states(float* to, const vec* h, const Shape& s, int lanes) {
  for (int n = 0; n < s.N; n++) store(to + (ptrdiff_t)n * s.E, h[n], lanes);
}

// The sums over the positions of sequence b, for vectors k0 <= k < k1: dA (batch, N, E), dD and dbias (batch, E).
static inline void store_totals(const vec* da, const vec* dd, const vec* db, float* dA, float* dD, float* dbias, const Shape& s, ptrdiff_t b,
                                int k0, int k1) {
  for (int k = k0; k < k1; k++) {
    const int lanes = s.lanes(k);
    store_states(dA + b * s.N * s.E + k * W, da + (ptrdiff_t)(k - k0) * s.N, s, lanes);
    store(dD + b * s.E + k * W, dd[k - k0], lanes), store(dbias + b * s.E + k * W, db[k - k0], lanes);
  }
}

// B and C at the positions of one chunk.
struct Inputs {
  const float *B[T], *C[T];

  void read(Rows<const float> Bs, Rows<const float> Cs, ptrdiff_t i0, int count) {
    for (int i = 0; i < count; i++) B[i] = Bs[i0 + i], C[i] = Cs[i0 + i];
  }
};

// One vector of channels, from channel e, and its weights.
struct Channels {
  int e, lanes;
  vec skip, bias;
  Channels(const float* D, const float* dbias, int k, int lanes)
      : e(k * W), lanes(lanes), skip(load(D + e, lanes)), bias(dbias ? load(dbias + e, lanes) : vec{}) {}
};

// What a scan does where a block starts: nothing, hand its state over to another scan, or continue from the state that was handed over.
enum Role { ALONE, LEADS, FOLLOWS };

// The positions of a chunk where a block starts, and m states of one vector of channels before them, (T, m); null: zero. The backward pass
// hands the gradients of the states over, from the scan that follows to the one that leads.
struct Handover {
  const bool* starts;
  vec* states;

  template <int m, Role role>
  void forward(int i, vec* s) const {
    if (role == ALONE || !starts[i]) return;
    if (role == LEADS) UNROLL for (int j = 0; j < m; j++) states[i * m + j] = s[j];
    else UNROLL for (int j = 0; j < m; j++) s[j] = states ? states[i * m + j] : vec{};
  }

  template <int m, Role role>
  void backward(int i, vec* s) const {
    if (role == ALONE || !starts[i]) return;
    if (role == LEADS) UNROLL for (int j = 0; j < m; j++) s[j] += states[i * m + j];
    else UNROLL for (int j = 0; j < m; j++) {
      if (states) states[i * m + j] = s[j];
      s[j] = vec{};
    }
  }
};

// One position of one vector of channels; dx = step * u.
struct ForwardAt {
  vec step, dx, y;

  void read(const Channels& at, const float* us, const float* deltas) {
    vec slope, u = load(us + at.e, at.lanes);
    step = softplus(load(deltas + at.e, at.lanes) + at.bias, slope);
    dx = step * u;
    y = at.skip * u;
  }
};

template <int m, Role role = ALONE>
static inline void advance(ForwardAt* __restrict at, int count, const Inputs& in, int n0, const vec* a, vec* h, Handover blocks = {}) {
  vec s[m], r[m];
  UNROLL for (int j = 0; j < m; j++) s[j] = h[n0 + j], r[j] = a[n0 + j];
  for (int i = 0; i < count; i++) {
    blocks.forward<m, role>(i, s);
    const float *b = in.B[i] + n0, *c = in.C[i] + n0;
    const vec step = at[i].step, dx = at[i].dx;
    vec y = at[i].y;
    UNROLL for (int j = 0; j < m; j++) {
      s[j] = exp2(step * r[j]) * s[j] + dx * b[j];
      y += s[j] * c[j];
    }
    at[i].y = y;
  }
  UNROLL for (int j = 0; j < m; j++) h[n0 + j] = s[j];
}

struct BackwardAt {
  vec u, dy, step, slope, dx, ddx, dstep;

  // dys may be null: zero.
  void read(const Channels& at, const float* us, const float* deltas, const float* dys) {
    u = load(us + at.e, at.lanes);
    dy = dys ? load(dys + at.e, at.lanes) : vec{};
    step = softplus(load(deltas + at.e, at.lanes) + at.bias, slope);
    dx = step * u;
    ddx = dstep = vec{};
  }

  void write(const Channels& at, float* du, float* ddeltas, vec& dD, vec& dbias) const {
    const vec ddelta = (ddx * u + dstep * LN2) * slope;
    dD += dy * u;
    dbias += ddelta;
    store(du + at.e, ddx * step + dy * at.skip, at.lanes);
    store(ddeltas + at.e, ddelta, at.lanes);
  }
};

template <int m>
struct Past {
  vec h[m], decay[m];  // the states before a position, and their decays
};

// The states of one chunk again, with the sums of dC that need them: dC_l += dy_l h_l. `sums` (T, N, 2) holds dB and dC lane by lane.
template <int m, Role role = ALONE>
static inline void replay(const BackwardAt* at, int count, const Inputs& in, int N, int n0, const vec* a, const vec* h, vec* __restrict sums,
                          Past<m>* __restrict past, Handover blocks = {}) {
  vec s[m], r[m];
  UNROLL for (int j = 0; j < m; j++) s[j] = h[n0 + j], r[j] = a[n0 + j];
  for (int i = 0; i < count; i++) {
    blocks.forward<m, role>(i, s);
    const float* b = in.B[i] + n0;
    vec* sum = sums + 2 * (i * N + n0);
    const vec step = at[i].step, dx = at[i].dx, dy = at[i].dy;
    UNROLL for (int j = 0; j < m; j++) {
      const vec decay = exp2(step * r[j]);
      past[i].h[j] = s[j];
      past[i].decay[j] = decay;
      s[j] = decay * s[j] + dx * b[j];
      sum[2 * j + 1] += dy * s[j];
    }
  }
}

// With g_l = dy_l C_l + exp(step_{l+1} A) g_{l+1}, the gradient with respect to h_l, from the last position to the first:
//   dB_l += g_l step_l u_l;   d(step_l u_l) = sum_n g_l B_l;   d(step_l A) = g_l exp(step_l A) h_{l-1}
template <int m, Role role = ALONE>
static inline void retreat(BackwardAt* __restrict at, int count, const Inputs& in, int N, int n0, const vec* a, vec* g, vec* da,
                           vec* __restrict sums, const Past<m>* __restrict past, Handover blocks = {}) {
  vec s[m], r[m], rate[m] = {};
  UNROLL for (int j = 0; j < m; j++) s[j] = g[n0 + j], r[j] = a[n0 + j];
  for (int i = count - 1; i >= 0; i--) {
    const float *b = in.B[i] + n0, *c = in.C[i] + n0;
    vec* sum = sums + 2 * (i * N + n0);
    const Past<m>* now = past + i;
    const vec step = at[i].step, dx = at[i].dx, dy = at[i].dy;
    vec ddx = at[i].ddx, dstep = at[i].dstep;
    UNROLL for (int j = 0; j < m; j++) {
      const vec grad = s[j] + dy * c[j];
      sum[2 * j] += dx * grad;
      ddx += grad * b[j];
      s[j] = grad * now->decay[j];
      const vec to_exponent = s[j] * now->h[j];
      dstep += to_exponent * r[j];
      rate[j] += to_exponent * step;
    }
    at[i].ddx = ddx, at[i].dstep = dstep;
    blocks.backward<m, role>(i, s);
  }
  UNROLL for (int j = 0; j < m; j++) g[n0 + j] = s[j], da[n0 + j] += rate[j];
}

// dB and dC of one chunk from `sums`.
static inline void store_sums(const vec* sums, int count, int N, Rows<float> dB, Rows<float> dC, ptrdiff_t i0) {
  for (int i = 0; i < count; i++)
    for (int n = 0; n < N; n++, sums += 2) dB[i0 + i][n] = sum(sums), dC[i0 + i][n] = sum(sums + 1);
}

}  // namespace dnadiff
