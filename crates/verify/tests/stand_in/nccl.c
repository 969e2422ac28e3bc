// A stand-in for NCCL: sums nothing, refuses what NCCL would refuse, and writes each call to the file FAKE_NCCL_CALLS:
// rank, call and number of values.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 4 };
enum { FLOAT32 = 7, SUM = 0 };

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
  if (memcmp(&id, &wanted, sizeof id) || rank < 0 || rank >= ranks) return INVALID;
  // The setting has to be there before the library is loaded.
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
  if (!from || from != to || !count || type != FLOAT32 || op != SUM || !comm || !stream) return INVALID;
  tell(comm->rank, "all-reduce", count);
  return OK;
}

int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
  if (!from || !to || from == to || !count || type != FLOAT32 || !comm || !stream) return INVALID;
  tell(comm->rank, "all-gather", count);
  return OK;
}
