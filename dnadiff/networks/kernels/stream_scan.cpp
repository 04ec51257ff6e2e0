// The scans of block diffusion: a clean stream from its first position to its last, and a noised one whose blocks continue the clean stream,
// each from the state before it. Without a clean stream every block starts from zero, in either direction.
//
// Both streams go through a chunk of T positions together. The states before blocks are handed over in the caches, so time and memory hardly
// depend on the length of blocks, which begin anywhere in a chunk. For the backward pass the states before each chunk are stored.
// Tasks, chunks and layouts are those of selective_scan.cpp.
#include "scan_tiles.h"

namespace dnadiff {

// One stream; B and C are columns of one array. May be null: y, then it is not written, and dy, which is then zero.
struct Stream {
  const float *u, *delta, *B, *C;
  float* y;
  const float* dy;
  float *du, *ddelta, *dB, *dC;
};

struct Streams {
  const Stream* both[2];  // the clean stream, null if there is none, and the noised one
  const float *A, *D, *bias;
  float *kept, *dA, *dD, *dbias;  // kept: the states before all chunks, (batch, streams, chunks, N, E), or null
  ptrdiff_t row;  // between positions of B and C, in floats
  Shape s;
  ptrdiff_t block, missing;
  bool reverse;

  int first() const { return both[0] ? 0 : 1; }
};

static Shape whole(ptrdiff_t L, ptrdiff_t E, ptrdiff_t N) { return {L, (int)E, (int)N, L, false}; }

// One sequence of both streams and the vectors k0 <= k < k1 of their channels.
struct StreamWalk {
  const Streams& p;
  const Shape& s;
  ptrdiff_t b;
  int k0, k1, group;

  StreamWalk(const Streams& p, ptrdiff_t task, int groups) : p(p), s(p.s), b(task / groups), group((int)(task % groups)) {
    k0 = (int)((ptrdiff_t)s.vectors * group / groups), k1 = (int)((ptrdiff_t)s.vectors * (group + 1) / groups);
  }

  // Scratch memory: of vectors of channels, carried from chunk to chunk, and of one chunk. The second half is the noised stream's.
  struct Memory {
    size_t vectors, N;
    Scratch rates, states, handed, da, dD, dbias, start, sums, past;
    Memory(size_t vectors, size_t N, bool backward)
        : vectors(vectors), N(N), rates(vectors * N), states(2 * vectors * N), handed(T * M), da(vectors * N), dD(vectors), dbias(vectors),
          start(2 * N), sums(backward ? 4 * T * N : 0), past(backward ? 4 * T * M : 0) {}
    vec* state(int stream, int k) const { return states.at + (stream * vectors + k) * N; }
  };

  template <class Float>
  Rows<Float> rows(Float* x, ptrdiff_t row) const {
    return {x, b, s.L, row, p.reverse};
  }

  float* kept(int stream, int c, int k) const {
    return p.kept + ((b * (2 - p.first()) + stream - p.first()) * s.chunks + c) * s.N * s.E + k * W;
  }

  // Marks the positions of a chunk where a block starts.
  void mark(bool* starts, int c) const {
    for (int i = 0; i < s.length(c); i++) starts[i] = s.start(c) + i == 0 || (s.start(c) + i + p.missing) % p.block == 0;
  }

  void forward(const Memory& memory) const {
    ForwardAt at[2][T];
    Inputs in[2];
    bool starts[T];
    const Handover blocks{starts, p.both[0] ? memory.handed.at : nullptr};
    pack_rates(p.A, memory.rates.at, s, k0, k1);
    clear(memory.states.at, 2 * memory.vectors * memory.N);
    for (int c = 0; c < s.chunks; c++) {
      const ptrdiff_t i0 = s.start(c);
      const int count = s.length(c);
      mark(starts, c);
      for (int t = p.first(); t < 2; t++) in[t].read(rows(p.both[t]->B, p.row), rows(p.both[t]->C, p.row), i0, count);
      for (int k = k0; k < k1; k++) {
        const Channels channels(p.D, p.bias, k, s.lanes(k));
        const vec* rates = memory.rates.at + (k - k0) * s.N;
        for (int t = p.first(); t < 2; t++) {
          const auto us = rows(p.both[t]->u, s.E), deltas = rows(p.both[t]->delta, s.E);
          for (int i = 0; i < count; i++) at[t][i].read(channels, us[i0 + i], deltas[i0 + i]);
          if (p.kept && (t == 0 || !starts[0])) store_states(kept(t, c, k), memory.state(t, k - k0), s, channels.lanes);
        }
        over_tiles<M>(s.N, [&](auto tile, int n) {
          constexpr int m = tile.size;
          if (p.both[0]) advance<m, LEADS>(at[0], count, in[0], n, rates, memory.state(0, k - k0), blocks);
          advance<m, FOLLOWS>(at[1], count, in[1], n, rates, memory.state(1, k - k0), blocks);
        });
        for (int t = p.first(); t < 2; t++) {
          if (!p.both[t]->y) continue;
          const auto ys = rows(p.both[t]->y, s.E);
          for (int i = 0; i < count; i++) store(ys[i0 + i] + channels.e, at[t][i].y, channels.lanes);
        }
      }
    }
  }

  void backward(const Memory& memory, ptrdiff_t batch) const {
    const ptrdiff_t part = group * batch * s.L * s.N;  // every group of channels has its own sums
    Inputs in[2];
    bool starts[T];
    const Handover blocks{starts, p.both[0] ? memory.handed.at : nullptr};
    pack_rates(p.A, memory.rates.at, s, k0, k1);
    clear(memory.states.at, 2 * memory.vectors * memory.N), clear(memory.da.at, memory.vectors * memory.N);
    clear(memory.dD.at, memory.vectors), clear(memory.dbias.at, memory.vectors);
    for (int c = s.chunks - 1; c >= 0; c--) {
      const ptrdiff_t i0 = s.start(c);
      const int count = s.length(c);
      mark(starts, c);
      for (int t = p.first(); t < 2; t++) in[t].read(rows(p.both[t]->B, p.row), rows(p.both[t]->C, p.row), i0, count);
      clear(memory.sums.at, 4 * T * s.N);
      for (int k = k0; k < k1; k++) chunk(memory, in, blocks, c, k);
      for (int t = p.first(); t < 2; t++)
        store_sums(memory.sums.at + 2 * t * T * s.N, count, s.N, rows(p.both[t]->dB + part, s.N), rows(p.both[t]->dC + part, s.N), i0);
    }
    store_totals(memory.da.at, memory.dD.at, memory.dbias.at, p.dA, p.dD, p.dbias, s, b, k0, k1);
  }

  void chunk(const Memory& memory, const Inputs* in, const Handover& blocks, int c, int k) const {
    const ptrdiff_t i0 = s.start(c);
    const int count = s.length(c), at_k = (k - k0) * s.N;
    const Channels channels(p.D, p.bias, k, s.lanes(k));
    BackwardAt at[2][T];
    for (int t = p.first(); t < 2; t++) {
      const Stream& x = *p.both[t];
      const auto us = rows(x.u, s.E), deltas = rows(x.delta, s.E), dys = rows(x.dy ? x.dy : x.u, s.E);
      for (int i = 0; i < count; i++) at[t][i].read(channels, us[i0 + i], deltas[i0 + i], x.dy ? dys[i0 + i] : nullptr);
      load_states(t == 1 && blocks.starts[0] ? nullptr : kept(t, c, k), memory.start.at + t * s.N, s, channels.lanes, -1);
    }
    over_tiles<BACK>(s.N, [&](auto tile, int n) {
      constexpr int m = tile.size;
      const vec *rates = memory.rates.at + at_k, *start = memory.start.at;
      vec *sums = memory.sums.at, *more = sums + 2 * T * s.N, *da = memory.da.at + at_k;
      Past<m>*past = (Past<m>*)memory.past.at, *noised = past + T;
      if (p.both[0]) replay<m, LEADS>(at[0], count, in[0], s.N, n, rates, start, sums, past, blocks);
      replay<m, FOLLOWS>(at[1], count, in[1], s.N, n, rates, start + s.N, more, noised, blocks);
      retreat<m, FOLLOWS>(at[1], count, in[1], s.N, n, rates, memory.state(1, k - k0), da, more, noised, blocks);
      if (p.both[0]) retreat<m, LEADS>(at[0], count, in[0], s.N, n, rates, memory.state(0, k - k0), da, sums, past, blocks);
    });
    for (int t = p.first(); t < 2; t++) {
      const auto dus = rows(p.both[t]->du, s.E), ddeltas = rows(p.both[t]->ddelta, s.E);
      for (int i = 0; i < count; i++)
        at[t][i].write(channels, dus[i0 + i], ddeltas[i0 + i], memory.dD.at[k - k0], memory.dbias.at[k - k0]);
    }
  }
};

}  // namespace dnadiff

using namespace dnadiff;

extern "C" {

// `clean` is null or one stream; then reverse must be 0. `kept` is null if nothing is saved for a backward pass.
void dnadiff_stream_scan_forward(const Stream* clean, const Stream* noised, const float* A, const float* D, const float* bias, float* kept,
                                 int64_t batch, int64_t L, int64_t E, int64_t N, int64_t block, int64_t row, int reverse, int groups,
                                 int threads) {
  const ptrdiff_t missing = reverse ? (block - L % block) % block : 0;
  const Streams p = {{clean, noised}, A, D, bias, kept, nullptr, nullptr, nullptr, row, whole(L, E, N), block, missing, (bool)reverse};
  parallel(batch * groups, threads, [&](ptrdiff_t begin, ptrdiff_t end, int) {
    const StreamWalk::Memory memory((p.s.vectors + groups - 1) / groups, N, false);
    for (ptrdiff_t task = begin; task < end; task++) StreamWalk(p, task, groups).forward(memory);
  });
}

// dA (batch, N, E), dD and dbias (batch, E) of both streams together, and dB, dC (groups, batch, L, N) of each, are partial sums: the caller
// adds over their first axis.
void dnadiff_stream_scan_backward(const Stream* clean, const Stream* noised, const float* A, const float* D, const float* bias, float* kept,
                                  float* dA, float* dD, float* dbias, int64_t batch, int64_t L, int64_t E, int64_t N, int64_t block,
                                  int64_t row, int reverse, int groups, int threads) {
  const ptrdiff_t missing = reverse ? (block - L % block) % block : 0;
  const Streams p = {{clean, noised}, A, D, bias, kept, dA, dD, dbias, row, whole(L, E, N), block, missing, (bool)reverse};
  parallel(batch * groups, threads, [&](ptrdiff_t begin, ptrdiff_t end, int) {
    const StreamWalk::Memory memory((p.s.vectors + groups - 1) / groups, N, true);
    for (ptrdiff_t task = begin; task < end; task++) StreamWalk(p, task, groups).backward(memory, batch);
  });
}
}
