// Copies stretches of bytes from places far apart, such as windows of a genome.
//
// A stretch of a kilobyte is over before the processor's own prefetching has begun, so that a plain copy waits for memory at each.
// Here the cache lines of the stretches to come are asked for while those before them are copied.
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t DISTANCE = 8192, LINE = 64;  // bytes

void prefetch(const uint8_t* from, int64_t length) {
  for (int64_t k = 0; k < length; k += LINE) __builtin_prefetch(from + k);
  __builtin_prefetch(from + length - 1);
}

}  // namespace

extern "C" {
// to (count, length) = the stretches from[place : place + length]. Returns -1, or the number of the first that leaves `from` (total);
// nothing is copied then.
int64_t dnadiff_gather(const uint8_t* from, const int64_t* place, uint8_t* to, int64_t total, int64_t count, int64_t length) {
  for (int64_t i = 0; i < count; i++)
    if (place[i] < 0 || place[i] > total - length) return i;
  const int64_t ahead = (DISTANCE + length - 1) / length;
  for (int64_t i = 0; i < ahead && i < count; i++) prefetch(from + place[i], length);
  for (int64_t i = 0; i < count; i++) {
    if (i + ahead < count) prefetch(from + place[i + ahead], length);
    memcpy(to + i * length, from + place[i], length);
  }
  return -1;
}
}
