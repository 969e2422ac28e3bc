// A stand-in for NCCL: refuses calls that NCCL would refuse, and appends each call to the file FAKE_NCCL_CALLS: rank, call and number
// of values. It computes results only with FAKE_NCCL_COMPUTES, for ranks that are threads of one process.
//   FAKE_NCCL_WRONG=1     the last value that rank 1 receives is not written
//   FAKE_NCCL_REFUSES=1   no rank may join
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 4 };
enum { FLOAT32 = 7, SUM = 0, MOST_RANKS = 8 };

typedef struct {
  char bytes[128];
} Id;

typedef struct {
  int rank, ranks;
} Comm;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void tell(int rank, const char* call, size_t count) {
  const char* path = getenv("FAKE_NCCL_CALLS");
  if (!path) return;
  pthread_mutex_lock(&lock);
  FILE* file = fopen(path, "a");
  fprintf(file, "%d %s %zu\n", rank, call, count);
  fclose(file);
  pthread_mutex_unlock(&lock);
}

static int told(const char* path, int rank, const char* call) {
  FILE* file = fopen(path, "r");
  char line[64], wanted[64];
  int count = 0, length = snprintf(wanted, sizeof wanted, "%d %s ", rank, call);
  while (file && fgets(line, sizeof line, file)) count += !strncmp(line, wanted, length);
  if (file) fclose(file);
  return count;
}

// Waits until all ranks have made the call as many times, for a few seconds at most, because a rank may have ended.
static void wait_for_all(const Comm* comm, const char* call) {
  const char* path = getenv("FAKE_NCCL_CALLS");
  if (!path || getenv("FAKE_NCCL_COMPUTES")) return;
  int mine = told(path, comm->rank, call);
  for (int rank = 0; rank < comm->ranks; rank++) {
    for (int tries = 0; tries < 5000 && told(path, rank, call) < mine; tries++) usleep(1000);
  }
}

// ---- Each call waits for those of the other ranks; the last one computes for all.
static const float* given[MOST_RANKS][MOST_RANKS];
static float* wanted[MOST_RANKS][MOST_RANKS];
static int arrived, turn;
static pthread_mutex_t meeting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t met = PTHREAD_COND_INITIALIZER;

// Row `peer` of a rank's output is row `rank` of that peer's input; with `sums` they are added.
static void compute(int ranks, size_t count, int sums) {
  const char* wrong = getenv("FAKE_NCCL_WRONG");
  for (int rank = 0; rank < ranks; rank++) {
    for (int peer = 0; peer < ranks; peer++) {
      const float* from = given[peer][rank];
      float* to = wanted[rank][peer];
      // Allocations without memory.
      if ((uint64_t)from >> 60 || (uint64_t)to >> 60) continue;
      size_t last = wrong && atoi(wrong) == rank && peer == ranks - 1 ? count - 1 : count;
      for (size_t i = 0; i < last; i++) to[i] = sums && peer ? to[i] + from[i] : from[i];
      if (last < count && sums) to[last] = __builtin_nanf("");
    }
  }
}

static int meet(const Comm* comm, size_t count, int sums) {
  if (!getenv("FAKE_NCCL_COMPUTES") || comm->ranks > MOST_RANKS) return OK;
  pthread_mutex_lock(&meeting);
  int mine = turn;
  if (++arrived == comm->ranks) {
    compute(comm->ranks, count, sums);
    arrived = 0;
    turn++;
    pthread_cond_broadcast(&met);
  }
  while (mine == turn) pthread_cond_wait(&met, &meeting);
  pthread_mutex_unlock(&meeting);
  return OK;
}

// Input and output of a rank: rows with strides of `give` and `get` values.
static void rows(const Comm* comm, const void* from, size_t give, void* to, size_t get) {
  for (int peer = 0; peer < comm->ranks && peer < MOST_RANKS; peer++) {
    given[comm->rank][peer] = (const float*)from + peer * give;
    wanted[comm->rank][peer] = (float*)to + peer * get;
  }
}

int ncclGetVersion(int* version) {
  const char* code = getenv("FAKE_NCCL_VERSION");
  *version = code ? atoi(code) : 22809;
  return *version > 0 ? OK : INVALID;
}

const char* ncclGetErrorString(int code) { return code == OK ? "no error" : "invalid argument"; }

int ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof *id);
  strcpy(id->bytes, "the id of the stand-in");
  id->bytes[127] = -1;
  return OK;
}

int ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) {
  Id wanted;
  ncclGetUniqueId(&wanted);
  if (memcmp(&id, &wanted, sizeof id) || rank < 0 || rank >= ranks || getenv("FAKE_NCCL_REFUSES")) return INVALID;
  // The variable has to be set before the library is loaded.
  const char* setting = getenv("NCCL_NVLS_ENABLE");
  if (getenv("FAKE_NCCL_SETTING") && (!setting || strcmp(setting, "0"))) return INVALID;
  *comm = malloc(sizeof **comm);
  **comm = (Comm){rank, ranks};
  tell(rank, "init", ranks);
  return OK;
}

int ncclCommDestroy(Comm* comm) {
  tell(comm->rank, "destroy", comm->ranks);
  free(comm);
  return OK;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Comm* comm, void* stream) {
  if (!from || !to || !count || type != FLOAT32 || op != SUM || !comm || !stream) return INVALID;
  tell(comm->rank, "all-reduce", count);
  rows(comm, from, 0, to, 0);
  return meet(comm, count, 1);
}

int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
  if (!from || !to || from == to || !count || type != FLOAT32 || !comm || !stream) return INVALID;
  tell(comm->rank, "all-gather", count);
  wait_for_all(comm, "all-gather");
  rows(comm, from, 0, to, count);
  return meet(comm, count, 0);
}

int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, Comm* comm, void* stream) {
  if (!from || !to || from == to || !count || type != FLOAT32 || op != SUM || !comm || !stream) return INVALID;
  tell(comm->rank, "reduce-scatter", count);
  rows(comm, from, count, to, 0);
  return meet(comm, count, 1);
}

// ---- Sends and receives within a group.
static __thread const Comm* grouped;
static __thread size_t sent;
static __thread int depth;

int ncclGroupStart(void) { return depth++ ? INVALID : OK; }

int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (!from || !count || type != FLOAT32 || !comm || !stream || !depth || peer < 0 || peer >= comm->ranks) return INVALID;
  grouped = comm;
  sent = count;
  if (peer < MOST_RANKS) given[comm->rank][peer] = from;
  return OK;
}

int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (!to || !count || type != FLOAT32 || !comm || !stream || !depth || peer < 0 || peer >= comm->ranks) return INVALID;
  if (peer < MOST_RANKS) wanted[comm->rank][peer] = to;
  return OK;
}

int ncclGroupEnd(void) {
  const Comm* comm = grouped;
  grouped = NULL;
  if (!depth--) return INVALID;
  if (!comm) return OK;
  tell(comm->rank, "all-to-all", sent);
  return meet(comm, sent, 0);
}
